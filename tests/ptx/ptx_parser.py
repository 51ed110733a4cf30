"""Reads the PTX that nvcc writes: its kernels as lists of instructions, with their parameters and shared memory."""
import re
from dataclasses import dataclass, field

WIDTHS = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4, "s32": 4,
          "f32": 4, "f16x2": 4, "bf16x2": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "pred": 1}


class Fault(Exception):
    """What a kernel must not do, or what the machine does not know."""


SHARED = re.compile(r"\.shared\s+\.align\s+(\d+)\s+\.b8\s+([^\s\[]+)\[(\d*)\]")
PARAMETER = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)*?(?:\.align\s+\d+\s+)?)?([^\s,.\[]+)(?:\[(\d+)\])?")
ENTRY = re.compile(r"\.entry\s+([^\s(]+)\s*\((.*?)\)(.*?)\n\{\n(.*?)\n\}\n", re.S)


@dataclass
class Instruction:
    text: str
    op: list  # the words of the opcode
    operands: list  # a vector operand keeps its braces, an address its brackets
    predicate: str = ""
    negated: bool = False


@dataclass
class Kernel:
    name: str
    parameters: dict = field(default_factory=dict)  # symbol: offset in the parameter bytes
    parameter_bytes: int = 0
    shared: dict = field(default_factory=dict)  # symbol: (alignment, bytes); 0 bytes: dynamic
    registers: dict = field(default_factory=dict)  # prefix, as in %rd: bytes of one; 1 for predicates
    body: list = field(default_factory=list)
    labels: dict = field(default_factory=dict)  # label: index in body


def aligned(offset, alignment):
    return (offset + alignment - 1) // alignment * alignment


def read_parameters(kernel, text):
    offset = 0
    for alignment, kind, symbol, count in PARAMETER.findall(text):
        width = WIDTHS[kind]
        offset = aligned(offset, int(alignment or width))
        kernel.parameters[symbol] = offset
        offset += width * int(count or 1)
    kernel.parameter_bytes = offset


def read_operands(text):
    if "{" not in text:
        return text.replace(" ", "").split(",") if text else []
    return [a.strip() for a in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s{\[][^,]*", text)]


def read_statement(kernel, statement):
    while statement.startswith("$"):
        label, _, statement = statement.partition(":")
        kernel.labels[label] = len(kernel.body)
        statement = statement.lstrip()
    if statement.startswith("."):
        if registers := re.match(r"\.reg\s+\.(\w+)\s+(%[a-z]+)<", statement):
            kernel.registers[registers[2]] = WIDTHS[registers[1]]
        elif shared := SHARED.match(statement):
            kernel.shared[shared[2]] = (int(shared[1]), int(shared[3]))
        elif statement.startswith(".local"):
            raise Fault(f"{kernel.name} has local memory: {statement}")
    elif statement:
        predicate, negated, rest = "", False, statement
        if rest.startswith("@"):
            predicate, rest = rest[1:].split(maxsplit=1)
            negated, predicate = predicate.startswith("!"), predicate.lstrip("!")
        op, *rest = rest.split(maxsplit=1)
        kernel.body.append(Instruction(statement, op.split("."), read_operands(rest[0] if rest else ""), predicate,
                                       negated))


class Module:
    """A PTX file: kernels by name, read when they are asked for."""

    def __init__(self, text):
        text = re.sub(r"//[^\n]*", "", text)
        self.shared = {name: (int(alignment), int(size or 0))
                       for alignment, name, size in SHARED.findall(ENTRY.sub("", text))}
        self.entries = {name: (parameters, body) for name, parameters, _, body in ENTRY.findall(text)}

    def kernel(self, name):
        parameters, body = self.entries[name]
        kernel = Kernel(name)
        read_parameters(kernel, parameters)
        # Braces around statements are scopes of inline assembly; those inside belong to operands.
        body = re.sub(r"(^|;)\s*[{}]+", r"\1 ", body, flags=re.M)
        for statement in body.split(";"):
            read_statement(kernel, statement.strip())
        for symbol, layout in self.shared.items():
            if symbol in body:
                kernel.shared[symbol] = layout
        return kernel
