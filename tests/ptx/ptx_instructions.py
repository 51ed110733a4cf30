"""What PTX instructions do. make() turns one into a function without arguments, bound to the registers of a machine;
an instruction that is not here is a fault."""
import re

import numpy as np

import ptx_numbers as numbers
from ptx_parser import WIDTHS, Fault
from ptx_warp import WARP_WIDE

TYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "pred": np.bool_}

# What a word of memory may hold after a store.
WHOLE, SINGLE, DOUBLE, PACK, HALF = range(5)


def stored(op):
    """A vector of u32 is a pack of anything (load16 and store16 of kernels/warp)."""
    kind = op[-1]
    if kind in ("u32", "b32"):
        return PACK if "v4" in op else WHOLE
    return {"f32": SINGLE, "f64": DOUBLE, "u16": HALF, "b16": HALF}.get(kind, WHOLE)




def dtype_of(kind):
    if kind in TYPES:
        return np.dtype(TYPES[kind])
    return np.dtype(("i" if kind[0] == "s" else "u") + str(WIDTHS[kind]))


def is_control(instruction):
    op = instruction.op
    return op[0] in ("bra", "ret", "exit") or (op[0] in ("bar", "barrier") and op[1] == "sync")


def is_warp_wide(instruction):
    op = instruction.op
    return op[0] in ("shfl", "vote", "ldmatrix", "mma") or op[:2] == ["bar", "warp"]


def read(machine, operand, kind):
    """An operand as an array of this type: a view of a register, or one number for all threads."""
    dtype = dtype_of(kind)
    if operand.startswith("%"):
        register = machine.register(operand)
        if register.dtype.itemsize == dtype.itemsize:
            return register.view(dtype)
        if register.dtype.itemsize > dtype.itemsize:  # the lower bytes
            return register.view(dtype)[::register.dtype.itemsize // dtype.itemsize]
        raise Fault(f"{operand} is too narrow")
    if operand[:2] in ("0f", "0d"):
        bits = int(operand[2:], 16)
    elif operand in machine.symbols:
        bits = machine.symbols[operand]
    else:
        bits = int(operand, 0)
    if kind == "pred":
        return np.array([bool(bits)])
    return np.array([bits & ((1 << 8 * dtype.itemsize) - 1)], f"u{dtype.itemsize}").view(dtype)


def written(machine, operand, kind):
    register = machine.register(operand)
    dtype = dtype_of(kind)
    if register.dtype.itemsize == dtype.itemsize:
        return register.view(dtype)
    if register.dtype.itemsize > dtype.itemsize:  # a load that widens, by the sign of its type
        return register.view(f"{'i' if dtype.kind == 'i' else 'u'}{register.dtype.itemsize}")
    raise Fault(f"{operand} is too narrow")


def parts(operand):
    return [part.strip() for part in operand.strip("{}").split(",")]


def address(machine, operand):
    """The function that gives the addresses of the threads that run."""
    base, offset = re.fullmatch(r"\[([^+\]]+)(?:\+(-?\d+))?\]", operand).groups()
    offset = np.uint64(int(offset or 0) & 0xFFFFFFFFFFFFFFFF)
    if base.startswith("%"):
        register = machine.register(base)
        return lambda: register[machine.lanes].astype(np.uint64) + offset
    where = np.full(machine.threads, machine.symbols[base], np.uint64) + offset
    return lambda: where[machine.lanes]


def locate(machine, op, operand, width):
    """The array of a memory space and the function that gives indices of bytes in it."""
    where = address(machine, operand)
    if "global" in op:
        return machine.memory.bytes, lambda: machine.memory.find(where(), width)
    if "shared" in op:
        return machine.shared, lambda: machine.find_shared(where(), width, machine.lanes)
    if "param" in op:
        return machine.parameters, lambda: where().astype(np.int64)
    raise Fault("an unknown memory space")


def load(machine, op, operands):
    kind, names = op[-1], parts(operands[0])
    dtype = dtype_of(kind)
    width = dtype.itemsize
    memory, find = locate(machine, op, operands[1], width * len(names))
    memory = memory[:len(memory) // width * width].view(dtype)
    targets = [written(machine, name, kind) for name in names]

    def run():
        index = find() // width
        for i, target in enumerate(targets):
            target[machine.lanes] = memory[index + i]

    return run


def store(machine, op, operands):
    kind, names = op[-1], parts(operands[1])
    dtype = dtype_of(kind)
    width = dtype.itemsize
    memory, find = locate(machine, op, operands[0], width * len(names))
    typed = memory.view(dtype)
    values = [read(machine, name, kind) for name in names]
    noted = stored(op)

    def run():
        index = find() // width
        for i, value in enumerate(values):
            if "global" in op:
                machine.memory.note((index + i) * width, noted)
            typed[index + i] = value[machine.lanes] if len(value) > 1 else value[0]

    return run


def atomic(machine, op, operands):
    kind, what = op[-1], op[-2]
    dtype = dtype_of(kind)
    memory, find = locate(machine, op, operands[1], dtype.itemsize)
    typed, target, value = memory.view(dtype), written(machine, operands[0], kind), read(machine, operands[2], kind)
    combine = {"add": np.add, "or": np.bitwise_or, "and": np.bitwise_and, "max": np.maximum, "min": np.minimum}[what]

    def run():
        index = find()
        if "global" in op:
            machine.memory.note(index, stored(op))
        index, threads = index // dtype.itemsize, np.arange(machine.threads)[machine.lanes]
        each = np.broadcast_to(value, machine.threads)
        for thread, i in zip(threads, index):
            target[thread] = typed[i]
            typed[i] = combine(typed[i], each[thread])

    return run


def copy_async(machine, op, operands):
    """A copy's target is NaN until the thread that asked for it has waited."""
    if "commit_group" in op:
        def run():
            machine.commits[machine.lanes] += 1
    elif "wait_group" in op:
        left = int(operands[0])

        def run():
            waits = np.zeros(machine.threads, bool)
            waits[machine.lanes] = True
            kept = []
            for thread, group, target, source in machine.pending:
                done = waits[thread] & (group < machine.commits[thread] - left)
                machine.shared[target[done]] = machine.memory.bytes[source[done]]
                if not done.all():
                    kept.append((thread[~done], group[~done], target[~done], source[~done]))
            machine.pending = kept
    else:
        if op != ["cp", "async", "cg", "shared", "global"] or operands[2] != "16":
            raise Fault("an unknown instruction")
        to, source_of = address(machine, operands[0]), address(machine, operands[1])

        def run():
            thread = np.arange(machine.threads)[machine.lanes]
            target = machine.find_shared(to(), 16, machine.lanes)[:, None] + np.arange(16)
            source = machine.memory.find(source_of(), 16)[:, None] + np.arange(16)
            machine.shared[target] = 0xFF
            machine.pending.append((thread, machine.commits[thread], target, source))

    return run


def move(machine, op, operands):
    kind = op[1]
    if operands[0].startswith("{") or operands[1].startswith("{"):
        packs = operands[1].startswith("{")
        pieces = parts(operands[1 if packs else 0])
        half = f"b{8 * WIDTHS[kind] // len(pieces)}"
        whole = machine.register(operands[0 if packs else 1])
        whole = whole.view(dtype_of(half)).reshape(machine.threads, -1)
        if packs:
            values = [read(machine, piece, half) for piece in pieces]

            def run():
                for i, value in enumerate(values):
                    np.copyto(whole[:, i], value, where=machine.mask)
        else:
            # Nobody reads `_`, or the `tmp` of { .reg .b32 tmp; mov.b64 {tmp, %r1}, %rd1; }.
            targets = [machine.register(piece) if piece.startswith("%") else None for piece in pieces]

            def run():
                for i, target in enumerate(targets):
                    if target is not None:
                        np.copyto(target, whole[:, i], where=machine.mask)
        return run
    target, value = written(machine, operands[0], kind), read(machine, operands[1], kind)
    return lambda: np.copyto(target, value, where=machine.mask)


COMPARISONS = {"eq": np.equal, "ne": lambda a, b: (a < b) | (a > b) if a.dtype.kind == "f" else a != b,
               "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
               "equ": lambda a, b: ~((a < b) | (a > b)), "neu": np.not_equal, "ltu": lambda a, b: ~(a >= b),
               "leu": lambda a, b: ~(a > b), "gtu": lambda a, b: ~(a <= b), "geu": lambda a, b: ~(a < b),
               "nan": lambda a, b: np.isnan(a) | np.isnan(b), "num": lambda a, b: ~(np.isnan(a) | np.isnan(b))}
LOGIC = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def compare(machine, op, operands):
    test = COMPARISONS[op[1]]
    target = machine.register(operands[0])
    a, b = (read(machine, operand, op[-1]) for operand in operands[1:3])
    if len(op) == 3:
        return lambda: np.copyto(target, test(a, b), where=machine.mask)
    join, other = LOGIC[op[2]], read(machine, operands[3], "pred")
    return lambda: np.copyto(target, join(test(a, b), other), where=machine.mask)


def select(machine, op, operands):
    target = written(machine, operands[0], op[-1])
    a, b = (read(machine, operand, op[-1]) for operand in operands[1:3])
    which = machine.register(operands[3])
    return lambda: np.copyto(target, np.where(which, a, b), where=machine.mask)


def convert(machine, op, operands):
    to, source = op[-2], op[-1]
    modes = op[1:-2]
    target = machine.register(operands[0])
    if to in ("bf16x2", "f16x2"):
        high, low = (read(machine, operand, "f32") for operand in operands[1:3])
        halves = target.view(np.uint16).reshape(-1, 2)

        def run():
            for i, value in enumerate((low, high)):
                np.copyto(halves[:, i], numbers.to_16_bits(value, to[:-2]), where=machine.mask)
        return run
    if to in ("e4m3x2", "e5m2x2") and source == "f32" and modes == ["rn", "satfinite"]:
        high, low = (read(machine, operand, "f32") for operand in operands[1:3])
        codes = target.view(np.uint8).reshape(-1, 2)

        def run():
            for i, value in enumerate((low, high)):
                np.copyto(codes[:, i], numbers.to_8_bits(value, to[:-2]), where=machine.mask)
        return run
    value = read(machine, operands[1], "b16" if source == "bf16" else source)
    change = numbers.conversion(to, source, modes, dtype_of("b16" if to == "bf16" else to))
    if change is None:
        raise Fault("an unknown conversion")
    view = target.view(f"{'i' if to[0] == 's' else 'u'}{target.dtype.itemsize}")

    def run():
        result = change(value)
        if result.dtype.kind == "f":
            result = result.view(f"u{result.dtype.itemsize}")
        np.copyto(view, result, where=machine.mask, casting="unsafe")

    return run


def compute(machine, op, operands):
    """target = f(operands), all of one type but where the opcode says otherwise."""
    kind = op[-1]
    function, kinds, result = numbers.function(op)
    if function is None:
        raise Fault("an unknown instruction")
    target = written(machine, operands[0], result)
    values = [read(machine, operand, k or kind) for operand, k in zip(operands[1:], kinds)]
    dtype = target.dtype

    def run():
        np.copyto(target, function(*values).astype(dtype, copy=False), where=machine.mask)

    return run


def to_global(machine, op, operands):
    if op[1:3] != ["to", "global"]:
        raise Fault("an unknown conversion of addresses")
    return move(machine, ["mov", "u64"], operands)


MAKERS = {"ld": load, "st": store, "atom": atomic, "cp": copy_async, "mov": move, "setp": compare, "selp": select,
          "cvt": convert, "cvta": to_global, **WARP_WIDE}


def make(machine, instruction):
    op = [word for word in instruction.op if word not in ("volatile", "weak", "relaxed", "gpu", "nc")]
    run = MAKERS.get(op[0], compute)(machine, op, instruction.operands)
    if not instruction.predicate:
        return run
    predicate = machine.register(instruction.predicate)

    def run_where():
        mask = machine.mask
        chosen = (predicate != instruction.negated) & mask
        if chosen.any():
            machine.run_only(chosen)
            run()
            machine.run_only(mask)

    return run_where
