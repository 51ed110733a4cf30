"""What ptxas said of each kernel and architecture, as a table; fails where registers spill or lie in local memory, and
where a block does not fit the 65536 registers of a multiprocessor.

  ptxas_test.py FOLDER     with NAME.log and NAME.compute_NN.ptx, as keep_ptx.sh leaves them
"""
import glob
import os
import re
import subprocess
import sys

REGISTERS = 65536
GRANULE = 8  # registers of a thread come in multiples of it

COMPILING = re.compile(r"ptxas info\s+: Compiling entry function '(\S+)' for '(sm_\d+)a?'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"ptxas info\s+: Used (\d+) registers(?:.*?, (\d+) bytes smem)?")
THREADS = re.compile(r"\.entry\s+([^\s(]+)\s*\([^)]*\)\s*\.maxntid\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?")


def read_log(path):
    """(name, architecture, registers, shared bytes, stack bytes, spilled bytes) of each kernel."""
    name = frame = None
    with open(path, encoding="utf-8") as file:
        for line in file:
            if found := COMPILING.search(line):
                if name is not None:
                    raise ValueError(f"{path}: {name[0]} has no line of registers")
                name, frame = found.groups(), None
            elif name and (found := FRAME.search(line)):
                frame = [int(number) for number in found.groups()]
            elif name and (found := USED.search(line)):
                if frame is None:
                    raise ValueError(f"{path}: {name[0]} has no line of spills")
                yield (*name, int(found[1]), int(found[2] or 0), frame[0], frame[1] + frame[2])
                name = None


def most_threads(folder):
    """Threads of a block by kernel: its launch bounds."""
    threads = {}
    for path in glob.glob(os.path.join(folder, "*.ptx")):
        with open(path, encoding="ascii") as file:
            for name, *extents in THREADS.findall(file.read()):
                threads[name] = int(extents[0]) * int(extents[1] or 1) * int(extents[2] or 1)
    return threads


def readable(names):
    try:
        result = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
        lines = result.stdout.splitlines()
    except OSError:
        lines = names
    short = [re.sub(r"\(anonymous namespace\)::|cartan::kernels::|attention::|void ", "", line) for line in lines]
    return {name: re.sub(r"\(.*", "", re.sub(r"_GLOBAL__N__\w+::", "", text)) for name, text in zip(names, short)}


def main():
    folder = sys.argv[1]
    rows = [row for path in sorted(glob.glob(os.path.join(folder, "*.log"))) for row in read_log(path)]
    if not rows:
        sys.exit(f"{folder} has no logs of ptxas: build the target cartan_kernels")
    threads = most_threads(folder)
    names = readable(sorted({row[0] for row in rows}))
    architectures = sorted({row[1] for row in rows}, key=lambda name: int(name[3:]))
    table, problems = {}, []
    for name, architecture, registers, shared, stack, spilled in rows:
        bound = threads.get(name, 1024)
        table.setdefault(name, {})[architecture] = f"{registers:4} {shared:6}"
        if stack or spilled:
            problems.append(f"{names[name]} for {architecture}: {stack} bytes of stack, {spilled} bytes spilled")
        if (registers + GRANULE - 1) // GRANULE * GRANULE * bound > REGISTERS:
            problems.append(f"{names[name]} for {architecture}: {bound} threads with {registers} registers")
    print("threads of a block, then registers of a thread and bytes of static shared memory for each architecture\n")
    print(f"{'':>7}" + "".join(f"{name:>13}" for name in architectures))
    for name in sorted(table, key=names.get):
        cells = "".join(f"{table[name].get(architecture, 'missing'):>13}" for architecture in architectures)
        print(f"{threads.get(name, 1024):7}{cells}  {names[name]}")
    for problem in problems:
        print(f"FAILED {problem}")
    print(f"{len(table)} kernels, {len(rows)} compilations, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
