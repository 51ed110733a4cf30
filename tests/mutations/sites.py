"""Where the cuda code orders work: barriers and asynchronous copies of kernels; events, waits and synchronisations of
host code. Found by pattern in the text without comments, so a new one is there without a list to keep.
"""
import dataclasses
import glob
import os
import re

KERNEL_FILES = ("kernels/*.cu", "kernels/*.cuh")
HOST_ROOMS = ("device/cuda", "comm/nccl", "comm/local", "optim", "shard", "model", "train", "store", "infer")
HOST_FILES = tuple(f"src/{room}/*.{end}" for room in HOST_ROOMS for end in ("cpp", "hpp"))

KERNEL_ORDER = re.compile(r"__syncthreads\(\)|__syncwarp\(\w*\)|__threadfence\w*\(\)|warp::cp_async_\w+(?:<\w+>)?\(\)")
HOST_CALL = re.compile(r"(?:\.|->)(?P<member>wait|wait_for_\w+|synchronize|record)\(|"
                       r"\b(?P<cuda>cuda(?:EventRecord|EventSynchronize|EventQuery|StreamWaitEvent|StreamSynchronize"
                       r"|DeviceSynchronize))\(")
COMMENT = re.compile(r"//[^\n]*")
STATEMENT_STARTS_AFTER = (";", "{", "}", ")")
OPENING = {")": "(", "]": "["}


@dataclasses.dataclass(frozen=True)
class Site:
    """One place; without it `begin` to `end` of the file's text is `replacement`."""
    file: str
    begin: int
    end: int
    replacement: str
    text: str    # what is taken away, on one line
    number: int  # among those of the same text in the file, from 1
    line: int
    id: int = 0  # among all, from 1

    @property
    def name(self):
        """Stays when lines move."""
        return f"{self.file} | {self.text} | {self.number}"

    @property
    def place(self):
        return f"{self.file}:{self.line}"


def without_comments(text):
    """The same length, so that places in it are places in the text."""
    return COMMENT.sub(lambda found: " " * len(found[0]), text)


def closing(text, at):
    """Behind the parenthesis that closes the one before `at`."""
    depth = 1
    while depth > 0:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at


def receiver(text, at):
    """Where the expression that ends at `at` begins: names, members, calls, subscripts."""
    while at > 0:
        if text[at - 1] in OPENING:
            close, depth = text[at - 1], 0
            while True:
                at -= 1
                depth += 1 if text[at] == close else -1 if text[at] == OPENING[close] else 0
                if depth == 0:
                    break
        elif re.match(r"[\w.:]", text[at - 1]):
            at -= 1
        elif text[at - 2:at] == "->":
            at -= 2
        else:
            break
    return at


def kernel_sites(text):
    for found in KERNEL_ORDER.finditer(text):
        yield found.start(), found.end(), "static_cast<void>(0)"


def host_sites(text):
    waits_end = 0  # a record inside of a wait goes with the wait
    for found in HOST_CALL.finditer(text):
        end = closing(text, found.end())
        if found["cuda"]:
            yield found.start(), end, "cudaSuccess"
            continue
        begin = receiver(text, found.start())
        if found["member"] == "record":
            if found.start() >= waits_end:
                yield begin, end, "::cartan::device::Event()"
        elif text[:begin].rstrip()[-1:] in STATEMENT_STARTS_AFTER:
            argument = text[found.end():end - 1].strip()  # may start work
            yield begin, end, f"static_cast<void>({argument or '0'})"
            waits_end = end


def sites_of(root, file):
    with open(os.path.join(root, file), encoding="utf-8") as opened:
        text = opened.read()
    counts = {}
    plain = without_comments(text)
    for begin, end, replacement in (kernel_sites if file.startswith("kernels/") else host_sites)(plain):
        removed = " ".join(text[begin:end].split())
        counts[removed] = counts.get(removed, 0) + 1
        yield Site(file, begin, end, replacement, removed, counts[removed], text.count("\n", 0, begin) + 1)


def all_sites(root):
    found = []
    for pattern in KERNEL_FILES + HOST_FILES:
        for path in sorted(glob.glob(os.path.join(root, pattern))):
            found += sites_of(root, os.path.relpath(path, root))
    return [dataclasses.replace(site, id=number) for number, site in enumerate(found, 1)]


def with_switches(text, sites):
    """The file's text in which mutation_is_away(id) says whether a place is there."""
    for site in sorted(sites, key=lambda site: -site.begin):
        switch = f"(mutation_is_away({site.id}) ? {site.replacement} : {text[site.begin:site.end]})"
        text = text[:site.begin] + switch + text[site.end:]
    return 'extern "C" bool mutation_is_away(int);\n#line 1\n' + text
