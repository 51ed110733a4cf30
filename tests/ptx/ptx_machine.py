"""Runs a kernel's PTX on numpy: a register is an array with one element for each thread of many blocks.

The threads at the lowest address run first, up to the end of their basic block. A barrier waits for all threads of the
block, a warp-wide instruction for all lanes of the warp: our kernels use no smaller masks.
"""
import re

import numpy as np

import ptx_instructions
from ptx_parser import Fault, aligned

MOST_THREADS = 8192  # that run side by side


class Memory:
    """Allocations of the device at their addresses. Their bytes lie in one array, and every store is noted."""

    ROOM = 1 << 34  # costs nothing until it is used

    def __init__(self):
        self.bytes = np.zeros(self.ROOM, np.uint8)
        self.words = self.bytes.view(np.uint64)
        self.known, self.end = {}, 256  # by address: (bytes, place)
        self.log = []  # of stores: words, what they held, what kind of number they got

    def set_allocations(self, allocations):
        """All that there are now: (address, bytes)."""
        for start, size in allocations:
            if self.known.get(start, (None,))[0] != size:
                self.known[start] = size, self.end
                self.end += aligned(size, 256) + 256
        allocations = sorted(allocations)
        self.starts = np.array([start for start, _ in allocations], np.uint64)
        self.sizes = np.array([size for _, size in allocations], np.int64)
        self.places = np.array([self.known[start][1] for start, _ in allocations], np.int64)

    def note(self, index, kind):
        """Bytes from these indices on, within a word each, are about to be written."""
        words = index >> 3
        self.log.append((words, self.words[words], kind))

    def undo(self):
        """Takes the noted stores back: (words, in ascending order; what they got; the kinds of numbers)."""
        if not self.log:
            return np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.int8)
        words = np.unique(np.concatenate([noted for noted, _, _ in self.log]))
        found, kinds = self.words[words], np.zeros(len(words), np.int8)
        for noted, held, kind in reversed(self.log):
            self.words[noted] = held
            where = np.searchsorted(words, noted)
            kinds[where] = np.maximum(kinds[where], kind)
        self.log = []
        return words, found, kinds

    def find(self, addresses, width):
        """Indices in `bytes` of accesses."""
        which = np.searchsorted(self.starts, addresses, "right") - 1
        offset = (addresses - self.starts[which]).astype(np.int64)
        if (which < 0).any() or (offset + width > self.sizes[which]).any():
            raise Fault("an address outside of the device's allocations")
        if (addresses % np.uint64(width)).any():
            raise Fault("a misaligned address")
        return self.places[which] + offset


class Machine:
    """Some blocks of one launch."""

    def __init__(self, kernel, memory, grid, block, shared_bytes, parameters, first_block, blocks):
        self.kernel, self.memory = kernel, memory
        self.parameters = np.frombuffer(parameters, np.uint8)
        per_block = block[0] * block[1] * block[2]
        self.threads = n = blocks * per_block
        thread = np.arange(n)
        self.block = thread // per_block
        rank, number = thread % per_block, first_block + self.block
        self.lane = rank % 32
        self.warp_start = thread - self.lane
        if per_block % 32 != 0:
            raise Fault("a block that is no whole number of warps")
        special = {"%tid.x": rank % block[0], "%tid.y": rank // block[0] % block[1],
                   "%tid.z": rank // (block[0] * block[1]), "%ctaid.x": number % grid[0],
                   "%ctaid.y": number // grid[0] % grid[1], "%ctaid.z": number // (grid[0] * grid[1]),
                   "%laneid": self.lane}
        for axis, blocks_of, threads_of in zip("xyz", grid, block):
            special["%nctaid." + axis] = np.full(n, blocks_of)
            special["%ntid." + axis] = np.full(n, threads_of)
        self.registers = {name: values.astype(np.uint32) for name, values in special.items()}
        self.place_shared(shared_bytes, blocks)
        self.pc, self.live, self.waiting = np.zeros(n, np.int64), np.ones(n, bool), np.zeros(n, bool)
        self.parked = np.zeros(n, bool)  # before a warp-wide instruction, until the rest of the warp comes
        self.mask, self.lanes = True, slice(None)  # the threads that run now: for where=, and as an index
        self.whole_warps = True
        self.pending, self.commits = [], np.zeros(n, np.int64)
        self.straight = {}  # basic blocks by their start
        self.starts = set(kernel.labels.values())

    def place_shared(self, dynamic, blocks):
        offset, self.symbols = 0, dict(self.kernel.parameters)
        for symbol, (alignment, size) in sorted(self.kernel.shared.items(), key=lambda item: item[1][1] == 0):
            offset = aligned(offset, alignment)
            self.symbols[symbol] = offset
            offset += size
        self.shared_bytes = offset + dynamic
        self.shared_stride = aligned(self.shared_bytes, 256) + 256
        self.shared = np.full(blocks * self.shared_stride, 0xFF, np.uint8)

    def register(self, name):
        if name not in self.registers:
            width = self.kernel.registers.get(re.match(r"%[a-z]+", name)[0])
            if width is None:
                raise Fault(f"an unknown register {name}")
            kind = bool if width == 1 else np.dtype(f"u{width}")
            self.registers[name] = np.zeros(self.threads, kind)
        return self.registers[name]

    def find_shared(self, addresses, width, lanes):
        """Indices in `shared` of accesses by these threads."""
        offset = addresses.astype(np.int64)
        if (offset % width).any():
            raise Fault("a misaligned address of shared memory")
        if (offset + width > self.shared_bytes).any():
            raise Fault("an address outside of the shared memory")
        return self.block[lanes] * self.shared_stride + offset

    def warps(self):
        """Threads that run, warp by warp [W, 32]; whole warps only."""
        if self.mask is True:
            return np.arange(self.threads).reshape(-1, 32)
        threads = self.lanes
        if len(threads) % 32 or (threads.reshape(-1, 32)[:, 0] != self.warp_start[threads].reshape(-1, 32)[:, 31]).any():
            raise Fault("a warp-wide instruction without the whole warp")
        return threads.reshape(-1, 32)

    def run_only(self, mask):
        if mask is True or mask.all():
            self.mask, self.lanes, self.whole_warps = True, slice(None), True
        else:
            by_warp = mask.reshape(-1, 32)
            self.mask, self.lanes = mask, np.flatnonzero(mask)
            self.whole_warps = bool((by_warp.any(axis=1) == by_warp.all(axis=1)).all())

    def basic_block(self, start):
        """The instructions from `start` that run one after another, the index behind them."""
        if start not in self.straight:
            end, code = start, []
            while end < len(self.kernel.body):
                instruction = self.kernel.body[end]
                if (end > start and end in self.starts) or ptx_instructions.is_control(instruction):
                    break
                code.append((ptx_instructions.make(self, instruction), instruction))
                end += 1
            self.straight[start] = code, end
        return self.straight[start]

    def control(self, at, mask):
        """What ends a basic block."""
        if at >= len(self.kernel.body):
            raise Fault("the end of the kernel without ret")
        instruction = self.kernel.body[at]
        if not ptx_instructions.is_control(instruction):
            self.pc[mask] = at
            return
        taken = mask
        if instruction.predicate:
            taken = mask & (self.register(instruction.predicate) != instruction.negated)
        self.pc[mask] = at + 1
        if instruction.op[0] == "bra":
            self.pc[taken] = self.kernel.labels[instruction.operands[0]]
        elif instruction.op[0] in ("ret", "exit"):
            self.live[taken] = False
        else:
            self.waiting[taken] = True

    def release(self):
        """Every thread waits in a barrier: those of a block in the same one."""
        if self.parked.any():
            raise Fault("lanes wait for the rest of their warp, which does not come")
        at = np.where(self.live, self.pc, -1).reshape(self.block[-1] + 1, -1)
        if ((at != at.max(axis=1, keepdims=True)) & (at >= 0)).any():
            raise Fault("threads of a block wait in different barriers")
        self.waiting[:] = False

    def gather_warps(self, at):
        """Which threads may run the warp-wide instruction: those whose warp is complete. The others wait."""
        here = self.live & ~self.waiting & (self.pc == at)
        complete = np.repeat(here.reshape(-1, 32).all(axis=1), 32)
        self.parked[here] = ~complete[here]
        return here & complete

    def run_block(self, at, mask):
        instruction = None
        try:
            code, end = self.basic_block(at)
            for i, (step, instruction) in enumerate(code):
                if not self.whole_warps and ptx_instructions.is_warp_wide(instruction):
                    self.pc[mask] = at + i
                    return
                step()
            self.control(end, mask)
        except Fault as fault:
            raise Fault(f"{fault}; in `{instruction.text if instruction else at}`") from None

    def run(self):
        while self.live.any():
            ready = self.live & ~self.waiting & ~self.parked
            if not ready.any():
                self.release()
                continue
            at = int(self.pc[ready].min())
            if ptx_instructions.is_warp_wide(self.kernel.body[at]):
                mask = self.gather_warps(at)
                if not mask.any():
                    continue
            else:
                mask = ready & (self.pc == at)
            self.run_only(mask)
            self.run_block(at, mask)


def launch(kernel, memory, grid, block, shared_bytes, parameters):
    """Runs all blocks. Throws Fault."""
    if len(parameters) != kernel.parameter_bytes:
        raise Fault(f"{kernel.name} takes {kernel.parameter_bytes} bytes of parameters, not {len(parameters)}")
    count = grid[0] * grid[1] * grid[2]
    at_once = max(1, MOST_THREADS // (block[0] * block[1] * block[2]))
    with np.errstate(all="ignore"):
        for first in range(0, count, at_once):
            Machine(kernel, memory, grid, block, shared_bytes, parameters, first, min(at_once, count - first)).run()
