"""PTX instructions of a whole warp: shuffles, votes, and the tensor cores with their fragment layouts (g = lane / 4,
t = lane % 4, as in the PTX manual)."""
import numpy as np

import ptx_numbers as numbers
from ptx_parser import Fault


def names(operand):
    return [part.strip() for part in operand.strip("{}").split(",")]


def operand_of(machine, operand):
    """A 32-bit register, or one number."""
    if operand.startswith("%"):
        return machine.register(operand)
    return np.array([int(operand, 0) & 0xFFFFFFFF], np.uint32)


def running(machine):
    mask = np.zeros(machine.threads, bool)
    mask[machine.lanes] = True
    return mask


def check_members(machine, members):
    """Every thread that runs names the lanes that take part: all of them must be here."""
    here = running(machine).reshape(-1, 32)
    present = (here.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=1).astype(np.uint32)
    asked = np.broadcast_to(members, machine.threads).reshape(-1, 32)
    if (here & ((asked & ~present[:, None]) != 0)).any():
        raise Fault("lanes of the mask are missing")


def shuffle(machine, op, operands):
    mode = op[2]
    target, _, inside_name = operands[0].partition("|")
    target = machine.register(target)
    inside_target = machine.register(inside_name) if inside_name else None
    value, distance, control, members = (operand_of(machine, operand) for operand in operands[1:5])
    lane = machine.lane

    def run():
        check_members(machine, members)
        segment, clamp = (control.astype(np.int64) >> 8) & 31, control.astype(np.int64) & 31
        first = lane & segment
        last = first | (clamp & ~segment)
        step = distance.astype(np.int64) & 31
        source = {"up": lane - step, "down": lane + step, "bfly": lane ^ step,
                  "idx": first | (step & ~segment)}[mode]
        inside = source >= last if mode == "up" else source <= last
        source = machine.warp_start + np.where(inside, source, lane)
        here = running(machine)
        if not here[source[here]].all():
            raise Fault("a shuffle reads a lane that does not run")
        np.copyto(target, np.broadcast_to(value, machine.threads)[source], where=machine.mask)
        if inside_target is not None:
            np.copyto(inside_target, inside, where=machine.mask)

    return run


def vote(machine, op, operands):
    if op[2] != "ballot":
        raise Fault("an unknown vote")
    target, asked = machine.register(operands[0]), machine.register(operands[1])
    members = operand_of(machine, operands[2])

    def run():
        check_members(machine, members)
        yes = (asked & running(machine)).reshape(-1, 32).astype(np.uint64)
        ballot = (yes << np.arange(32, dtype=np.uint64)).sum(axis=1).astype(np.uint32)
        np.copyto(target, np.repeat(ballot, 32), where=machine.mask)

    return run


def warp_barrier(machine, op, operands):
    if op[1:] != ["warp", "sync"]:
        raise Fault("an unknown barrier")
    members = operand_of(machine, operands[0])
    return lambda: check_members(machine, members)


def load_matrices(machine, op, operands):
    if op[3:5] != ["m8n8", "x4"] or op[-2:] != ["shared", "b16"]:
        raise Fault("an unknown ldmatrix")
    targets = [machine.register(name) for name in names(operands[0])]
    base, _, offset = operands[1].strip("[]").partition("+")
    base, offset = machine.register(base), np.uint32(int(offset or 0) & 0xFFFFFFFF)

    def run():
        threads = machine.warps()
        flat = threads.ravel()
        index = machine.find_shared(base[flat] + offset, 16, flat) // 2
        rows = machine.shared.view(np.uint16)[index[:, None] + np.arange(8)].reshape(-1, 4, 8, 8)
        if "trans" in op:
            rows = rows.transpose(0, 1, 3, 2)
        pairs = np.ascontiguousarray(rows).view(np.uint32).reshape(-1, 4, 32)
        for i, target in enumerate(targets):
            target[threads] = pairs[:, i]

    return run


def multiply(machine, op, operands):
    shape = ".".join(op[3:])
    kinds = {"m16n8k16.row.col.f32.bf16.bf16.f32": "bf16", "m16n8k16.row.col.f32.f16.f16.f32": "f16"}
    if shape not in kinds:
        raise Fault("an unknown mma")
    kind = kinds[shape]
    d, a, b, c = ([machine.register(name) for name in names(operand)] for operand in operands)

    def halves(register, threads):
        """[W, g, 2 t]"""
        bits = register[threads].view(np.uint16).reshape(-1, 8, 8)
        values = numbers.from_bfloat16(bits) if kind == "bf16" else bits.view(np.float16)
        return values.astype(np.float64)

    def run():
        threads = machine.warps()
        count = len(threads)
        left, right, sums = np.empty((count, 16, 16)), np.empty((count, 16, 8)), np.empty((count, 16, 8))
        for r in range(4):
            rows, columns = slice(r % 2 * 8, r % 2 * 8 + 8), slice(r // 2 * 8, r // 2 * 8 + 8)
            left[:, rows, columns] = halves(a[r], threads)
        for r in range(2):
            right[:, r * 8:r * 8 + 8] = halves(b[r], threads).transpose(0, 2, 1)
        for r in range(4):
            sums[:, r // 2 * 8:r // 2 * 8 + 8, r % 2::2] = c[r].view(np.float32)[threads].reshape(-1, 8, 4)
        result = (left @ right + sums).astype(np.float32)
        for r in range(4):
            part = result[:, r // 2 * 8:r // 2 * 8 + 8, r % 2::2]
            d[r].view(np.float32)[threads] = part.reshape(-1, 32)

    return run


WARP_WIDE = {"shfl": shuffle, "vote": vote, "bar": warp_barrier, "ldmatrix": load_matrices, "mma": multiply}
