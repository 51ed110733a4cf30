"""Each launch leaves the same bits whatever the order in which threads and blocks run.

  thread_orders_test.py PROGRAM     PROGRAM records its launches (EMU_RECORD)

What lies in the device's scratch memory is left out: lists in the order of atomics, pointers, and what stays there from
other launches. The launches that read it show whether it matters.
"""
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: python3-numpy is not installed")
    sys.exit(77)

import ptx_test

ORDERS = ("forward", "reverse", "shuffled:1", "shuffled:2")
SCRATCH_BYTES = 64 << 20  # the device's scratch memory is larger, all else smaller


def record(program, order, path):
    environment = {**os.environ, "EMU_RECORD": path, "EMU_ORDER": order, "CARTAN_TEST_DEVICE": "cuda"}
    subprocess.run([program], check=True, env=environment)


def changes(launch):
    """By number of the allocation and place there: memory lies elsewhere in each process."""
    starts = np.array([address for address, _ in launch.allocations], np.uint64)
    found = {}
    for address, data in zip(launch.after["at"], launch.after["bytes"]):
        which = int(np.searchsorted(starts, address, "right")) - 1
        if launch.allocations[which][1] < SCRATCH_BYTES:
            found[which, int(address - starts[which])] = data.tobytes()
    return found


def main():
    program = sys.argv[1]
    names = ptx_test.kernel_names(program)
    differing, launches, compared = {}, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, order) for order in ORDERS]
        for order, path in zip(ORDERS, paths):
            record(program, order, path)
        for expected, *others in zip(*map(ptx_test.read_launches, paths), strict=True):
            launches += 1
            kernel, wanted = names[expected.kernel], changes(expected)
            compared += len(wanted)
            for order, other in zip(ORDERS[1:], others):
                if (other.kernel, other.grid, other.block) != (expected.kernel, expected.grid, expected.block):
                    sys.exit(f"launch {launches} is {kernel} in one order and {names[other.kernel]} in another")
                if changes(other) != wanted:
                    differing.setdefault(kernel, order)
    for name, order in differing.items():
        print(f"FAILED {name}: {order} gives other bits than {ORDERS[0]}")
    print(f"{launches} launches in {len(ORDERS)} orders, {compared} pieces of memory, {len(differing)} kernels differ")
    sys.exit(1 if differing or compared == 0 else 0)


if __name__ == "__main__":
    main()
