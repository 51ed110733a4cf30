"""Runs recorded launches once more on the PTX that nvcc made, and compares the memory after each.

  ptx_test.py PROGRAM FOLDER ARCHITECTURE     PROGRAM records its launches (EMU_RECORD); FOLDER has NAME.compute_NN.ptx

The emulated device computed the record with the same IEEE operations, so that what a launch leaves must have the same
bits; but for approximate instructions, functions of the mathematics library, which differ in their last bits, and sums
of tensor cores.
"""
import collections
import glob
import os
import re
import struct
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
except ImportError:
    print("skipped: python3-numpy is not installed")
    sys.exit(77)

import ptx_instructions
import ptx_machine
from ptx_parser import Fault, Module

PIECE = 64  # kRecordedPiece of tests/emu/record.hpp
# Code that rounds otherwise on the host: its kernels may differ by some units in the last place.
INEXACT = re.compile(r"ex2\.approx|lg2\.approx|rsqrt\.approx|mma\.sync")
# Two units in the last place, and what may be lost of the largest number around.
RELATIVE = {"f4": 1e-5, "f8": 1e-12, "f2": 2.0**-9, "bf16": 2.0**-6}
LOST = {"f4": 1e-6, "f8": 1e-14, "f2": 1e-6, "bf16": 1e-6}
# Tensor cores take probabilities in 16 bits: where these round otherwise, sums change by a unit of that type.
LOST_BY_PRODUCTS = {"f2": 2.0**-11, "bf16": 2.0**-8}

Launch = collections.namedtuple("Launch", "kernel grid block shared parameters allocations before after")


def read_launches(path):
    with open(path, "rb") as file:
        def numbers(count):
            return struct.unpack(f"<{count}Q", file.read(8 * count))

        def pieces():
            record = np.dtype([("at", "<u8"), ("bytes", "u1", PIECE)])
            (count,) = numbers(1)
            return np.frombuffer(file.read(record.itemsize * count), record)

        while head := file.read(8):
            (kernel,) = struct.unpack("<Q", head)
            grid, block = numbers(3), numbers(3)
            shared, parameter_bytes = numbers(2)
            parameters = file.read(parameter_bytes)
            (count,) = numbers(1)
            allocations = [numbers(2) for _ in range(count)]
            yield Launch(kernel, grid, block, shared, parameters, allocations, pieces(), pieces())


def normalised(name):
    """A mangled name without what compilers call an unnamed namespace."""
    result, rest = "", name
    while found := re.search(r"(\d+)_GLOBAL__N_", rest):
        # The digits before may belong to a number in front: take the length that fits.
        start = found.start(1)
        while not found[1].startswith("0") and start < found.end(1):
            length = int(rest[start:found.end(1)])
            end = found.end(1) + length
            if end <= len(rest) and (rest[end] in "EN" or rest[end].isdigit()):
                break
            start += 1
        result, rest = result + rest[:start] + "{unnamed}", rest[end:]
    return result + rest


def kernel_names(program):
    """The mangled names of a program's functions, by distance from its beginning."""
    names, start = {}, 0
    for line in subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout.splitlines():
        fields = line.split()
        if len(fields) == 3:
            if fields[2] == "__ehdr_start":
                start = int(fields[0], 16)
            elif "kernel" in fields[2] and fields[1] in "tTwW":
                names[int(fields[0], 16)] = fields[2]
    return {address - start: name for address, name in names.items()}


def apply(memory, pieces):
    """Returns the words that change."""
    changed = [np.zeros(0, np.int64)]
    for address, data in zip(pieces["at"], pieces["bytes"]):
        which = int(np.searchsorted(memory.starts, address, "right")) - 1
        offset = int(address - memory.starts[which])
        count = min(PIECE, int(memory.sizes[which]) - offset)
        place = int(memory.places[which]) + offset
        words = slice(place // 8, (place + count + 7) // 8)
        held = memory.words[words].copy()
        memory.bytes[place:place + count] = data[:count]
        changed.append(np.flatnonzero(memory.words[words] != held) + words.start)
    return np.concatenate(changed)


def as_numbers(data, kind):
    if kind == "bf16":
        return (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return data.view(kind).astype(np.float64)


def close(found, expected, kind, lost):
    """Element by element. An allowance of `lost` grows with the largest number."""
    a, b = as_numbers(found, kind), as_numbers(expected, kind)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    scale = np.abs(b[np.isfinite(b)]).max(initial=0)
    with np.errstate(invalid="ignore"):  # infinities: near only if they are the same
        near = np.abs(a - b) <= RELATIVE[kind] * np.abs(b) + lost * scale
    # Integers look like numbers close to zero: those must be the same.
    return same | (near & (np.maximum(np.abs(a), np.abs(b)) > 1e-30))


def differs(found, expected, kinds, kernel):
    """For each word whether it is off by more than rounding."""
    halves = [kind for kind, mark in (("bf16", "13__nv_bfloat16"), ("f2", "6__half")) if mark in kernel.name]
    products = any(instruction.op[0] == "mma" for instruction in kernel.body)
    good = found == expected
    for stored, types in ((ptx_instructions.SINGLE, ["f4"]), (ptx_instructions.DOUBLE, ["f8"]),
                          (ptx_instructions.PACK, ["f4"] + halves), (ptx_instructions.HALF, halves)):
        chosen = kinds == stored
        if chosen.any():
            for kind in types:
                lost = max(LOST_BY_PRODUCTS[half] for half in halves) if products else LOST[kind]
                elements = close(found[chosen].view(np.uint8), expected[chosen].view(np.uint8), kind, lost)
                good[chosen] |= elements.reshape(int(chosen.sum()), -1).all(axis=1)
    return ~good


class Replay:
    def __init__(self, kernels, names):
        self.kernels, self.names = kernels, names
        self.read = {}
        self.memory = ptx_machine.Memory()
        self.failures, self.exact, self.close, self.free = [], 0, 0, 0
        self.seconds = collections.Counter()

    def kernel(self, name):
        """None if the PTX lacks it."""
        if name not in self.read and name in self.kernels:
            self.read[name] = self.kernels[name]()
        return self.read.get(name)

    def run(self, launch):
        name = self.names[launch.kernel]
        kernel, memory = self.kernel(normalised(name)), self.memory
        memory.set_allocations(launch.allocations)
        apply(memory, launch.before)
        begin = time.process_time()
        try:
            if kernel is None:
                raise Fault("not in the PTX")
            ptx_machine.launch(kernel, memory, launch.grid, launch.block, launch.shared, launch.parameters)
        except Fault as fault:
            self.failures.append(f"{name}: {fault}")
            memory.undo()
            apply(memory, launch.after)
            return
        self.seconds[name] += time.process_time() - begin
        words, found, kinds = memory.undo()
        missing = np.setdiff1d(apply(memory, launch.after), words)
        expected = memory.words[words]
        off = found != expected
        inexact = any(INEXACT.match(instruction.text) for instruction in kernel.body)
        bad = differs(found, expected, kinds, kernel) if inexact else off
        if len(missing) > 0:
            self.failures.append(f"{name}, grid {launch.grid}: {len(missing)} words are not written")
        elif bad.any() and any(instruction.text.startswith("atom.global") for instruction in kernel.body):
            # Lists whose order is free, in scratch memory: the launches that read them go on from these.
            memory.words[words] = found
            self.free += 1
        elif bad.any():
            self.failures.append(
                f"{name}, grid {launch.grid}: {bad.sum()} of {len(words)} words, first "
                f"{found[bad][:1].view(np.float32)} instead of {expected[bad][:1].view(np.float32)}")
        elif off.any():
            self.close += 1
        else:
            self.exact += 1


def read_folder(folder, architecture):
    """Kernels by normalised name: what gives each."""
    kernels = {}
    for path in sorted(glob.glob(os.path.join(folder, f"*.compute_{architecture}.ptx"))):
        with open(path, encoding="ascii") as file:
            module = Module(file.read())
        for name in module.entries:
            kernels[normalised(name)] = lambda module=module, name=name: module.kernel(name)
    return kernels


def unknown_instructions(kernel, known):
    """Opcodes of a kernel that the machine lacks, but for those in `known`, which all are added to."""
    nothing = bytes(kernel.parameter_bytes)
    machine = ptx_machine.Machine(kernel, ptx_machine.Memory(), (1, 1, 1), (32, 1, 1), 0, nothing, 0, 1)
    for instruction in kernel.body:
        op = ".".join(instruction.op)
        if op in known or ptx_instructions.is_control(instruction):
            continue
        known.add(op)
        try:
            ptx_instructions.make(machine, instruction)
        except Fault as fault:
            yield f"{kernel.name}: {fault} in `{instruction.text}`"


def main():
    program, folder, architecture = sys.argv[1:]
    kernels = read_folder(folder, architecture)
    if not kernels:
        sys.exit(f"{folder} has no PTX for compute_{architecture}: build the target cartan_kernels")
    with tempfile.TemporaryDirectory() as place:
        record = os.path.join(place, "launches")
        subprocess.run([program], check=True, env={**os.environ, "EMU_RECORD": record, "CARTAN_TEST_DEVICE": "cuda"})
        replay = Replay(kernels, kernel_names(program))
        ran = collections.Counter()
        for launch in read_launches(record):
            ran[normalised(replay.names[launch.kernel])] += 1
            replay.run(launch)
    known = set()
    for name in kernels:
        replay.failures += unknown_instructions(replay.kernel(name), known)
    for name, seconds in replay.seconds.most_common(5):
        print(f"{seconds:6.2f} s  {name}")
    replay.failures += [f"{name}: no launch reaches it" for name in sorted(set(kernels) - set(ran))]
    for failure in replay.failures:
        print(f"FAILED {failure}")
    print(f"compute_{architecture}: {sum(ran.values())} launches of {len(ran)} of {len(kernels)} kernels; the same bits "
          f"after {replay.exact}, within rounding after {replay.close}, in another order after {replay.free}, "
          f"{len(replay.failures)} failed")
    sys.exit(1 if replay.failures else 0)


if __name__ == "__main__":
    main()
