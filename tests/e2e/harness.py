"""What the end-to-end tests share: they drive the program `cartan` as a user does, and see only what a user sees.

The environment says what is tested: CARTAN is the program, MPIEXEC the launcher (Open MPI's mpirun). Each test has a
folder of its own that all commands run in, and which goes away afterwards; a model of 37,000 parameters keeps a run
below a second. Without CARTAN a file of tests exits with 77, which CTest counts as skipped.
"""

import atexit
import contextlib
import dataclasses
import functools
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SKIPPED = 77
LIMIT = 90  # seconds for one command on a busy machine

# Exit codes that a batch script may rely on.
DONE, USAGE, BAD_DATA, MISSING, ENVIRONMENT, IO, STOPPED, CONFIGURATION, DIVERGED = 0, 64, 65, 66, 71, 74, 75, 78, 79

LAUNCH = [
    os.environ.get("MPIEXEC", "mpirun"),
    "--allow-run-as-root",
    "--oversubscribe",
    "--bind-to",
    "none",
    "--mca",
    "mpi_yield_when_idle",
    "1",
]

# A run's options unless a test says otherwise. The learning rate is constant, so that it does not depend on run.steps.
TINY = {
    "model.hidden": 32,
    "model.layers": 2,
    "model.heads": 2,
    "model.ffn": 64,
    "data.seq": 32,
    "batch.global": 12,
    "run.steps": 4,
    "run.threads": 1,
    "optim.lr": 0.01,
    "schedule.kind": "constant",
}


def program():
    return os.environ["CARTAN"]


@functools.cache
def scratch():
    """A folder of this process for tests, corpus and the launcher's files, which a job that is killed leaves behind.

    In memory where there is room: thousands of fsyncs on a busy disk take minutes.
    """
    memory = Path("/dev/shm")
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 512 << 20
    path = Path(tempfile.mkdtemp(prefix="e2e-", dir=memory if has_room else None))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def environment(changes=None):
    """Ours without what an outer job or launcher left in it."""
    foreign = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "OMP_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    for name in ("TMPDIR", "OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_osc_sm_backing_directory"):
        env[name] = str(scratch())
    env.update(changes or {})
    return env


def option_words(options):
    words = []
    for key, value in options.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        words += [f"--{key}", *(str(v) for v in values)]
    return words


def some_text(seed, words):
    pick = random.Random(seed)
    known = ["alpha", "beta", "gamma", "delta", "mesh", "rank", "the", "of", "sum", "tree"]
    return " ".join(pick.choice(known) for _ in range(words))


@functools.cache
def corpus(documents=40):
    """Prefix of a token file: documents of 100 words, about 480 tokens each."""
    folder = scratch() / f"corpus{documents}"
    folder.mkdir()
    for i in range(documents):
        (folder / f"{i:03}.txt").write_text(some_text(i, 100))
    prefix = scratch() / f"data{documents}"
    subprocess.run(
        [program(), "tokenize", "--input", str(folder), "--output", str(prefix)],
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment(),
    )
    return str(prefix)


@dataclasses.dataclass
class Result:
    command: str
    code: int
    out: str
    err: str
    seconds: float

    def messages(self):
        """The error messages of cartan on stderr; what mpirun adds to them is not ours."""
        return [line for line in self.err.splitlines() if line.startswith("cartan: ")]

    def __str__(self):
        return f"{self.command}\nexit code {self.code}\n--- stdout\n{self.out}--- stderr\n{self.err}"


class Job:
    """A command that is under way."""

    def __init__(self, words, cwd, env=None):
        self.command = " ".join(words)
        self.begin = time.monotonic()
        # Files, not pipes: a rank that outlives its launcher would keep a pipe open.
        self.streams = [tempfile.TemporaryFile(dir=scratch()) for _ in range(2)]
        self.process = subprocess.Popen(
            words,
            cwd=cwd,
            env=environment(env),
            stdin=subprocess.DEVNULL,
            stdout=self.streams[0],
            stderr=self.streams[1],
        )

    def children(self):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
            return [int(pid) for pid in text.split()]
        return []

    def rank_pid(self, rank):
        """The process of a rank, from what the launcher put in its environment."""
        mark = f"OMPI_COMM_WORLD_RANK={rank}".encode()
        for pid in self.children():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    return pid
        raise AssertionError(f"rank {rank} is not running\n{self.text()}")

    def kill(self):
        """SIGKILL to the launcher and all ranks at once: the power plug."""
        pids = [self.process.pid, *self.children()]
        if self.process.poll() is None:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()
        until(lambda: not any(is_running(pid) for pid in pids[1:]), "the killed ranks are gone")
        self.close()

    def close(self):
        for stream in self.streams:
            stream.close()

    def text(self):
        texts = []
        for stream in self.streams:
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
        return texts

    def finish(self, limit=LIMIT):
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            text = self.text()[1]
            self.kill()
            raise AssertionError(f"no end after {limit} s: {self.command}\n{text}") from None
        result = Result(self.command, code, *self.text(), time.monotonic() - self.begin)
        self.close()
        return result


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(holds, what, limit=60):
    end = time.monotonic() + limit
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit} s: {what}")
        time.sleep(0.005)


class Case(unittest.TestCase):
    """A test with a folder of its own."""

    maxDiff = 4000

    def setUp(self):
        self.dir = Path(tempfile.mkdtemp(prefix="case-", dir=scratch()))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    # Commands

    def start(self, *words, ranks=0, env=None, wrapper=()):
        """Starts `cartan WORDS...`; ranks = 0: without a launcher. `wrapper`: a command that each rank is run by."""
        launch = [*LAUNCH, "-n", str(ranks)] if ranks else []
        job = Job([*launch, *wrapper, program(), *(str(w) for w in words)], self.dir, env)
        self.addCleanup(job.kill)
        return job

    def cartan(self, *words, expect=DONE, ranks=0, **more):
        result = self.start(*words, ranks=ranks, **more).finish()
        self.assertEqual(result.code, expect, result)
        return result

    def train_words(self, run, options):
        merged = {"run.dir": run, "data.train": corpus(), **TINY, **(options or {})}
        return ["train", *option_words(merged)]

    def start_train(self, run, options=None, ranks=0, **more):
        return self.start(*self.train_words(run, options), ranks=ranks, **more)

    def train(self, run, options=None, expect=DONE, ranks=0, **more):
        return self.cartan(*self.train_words(run, options), expect=expect, ranks=ranks, **more)

    def train_all(self, runs, at_once=3):
        """Runs by name: (ranks, options, environment). A few at a time, because a short run mostly waits."""
        results, jobs = {}, {}
        for run, (ranks, options, *env) in runs.items():
            if len(jobs) == at_once:
                first = next(iter(jobs))
                results[first] = jobs.pop(first).finish()
            jobs[run] = self.start_train(run, options, ranks, env=env[0] if env else None)
        results.update({run: job.finish() for run, job in jobs.items()})
        for result in results.values():
            self.assertEqual(result.code, DONE, result)
        return results

    # What a run left

    def metrics(self, run):
        """The lines of metrics.jsonl; fractions stay the text that they are in the file."""
        lines = (self.dir / run / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line, parse_float=str) for line in lines]

    def numbers(self, run):
        """What must be the same, to the last digit, on any mesh: a row for each step."""
        keys = ("step", "loss", "grad_norm", "lr", "tokens")
        return [tuple(line[key] for key in keys) for line in self.metrics(run)]

    def steps_done(self, run):
        with contextlib.suppress(OSError):
            return (self.dir / run / "metrics.jsonl").read_bytes().count(b"\n")
        return 0

    def checkpoint(self, run, step):
        return self.dir / run / "checkpoints" / f"step-{step}.h5"

    def checkpoints(self, run):
        """Steps, ascending."""
        names = [path.name for path in (self.dir / run / "checkpoints").glob("step-*.h5")]
        return sorted(int(name[5:-3]) for name in names)

    def tensors(self, run, step):
        """The bytes of all weights and moments in a checkpoint."""
        return tensor_bytes(self.checkpoint(run, step))

    def inspect(self, *words, expect=DONE):
        return json.loads(self.cartan("inspect", *words, "--json", expect=expect).out)

    # Expectations

    def assert_same_run(self, run, other):
        """The same numbers in each step and the same state at the end."""
        self.assertEqual(self.numbers(run), self.numbers(other))
        last = self.checkpoints(run)[-1]
        self.assertEqual(last, self.checkpoints(other)[-1])
        self.assertTrue(self.tensors(run, last) == self.tensors(other, last), "the checkpoints differ")

    def assert_refused(self, result, *parts):
        """One message, with all the parts in it (it may have several lines), and no defect or crash."""
        self.assertEqual(len(result.messages()), 1, result)
        message = result.err[result.err.index("cartan: ") :]
        for part in parts:
            self.assertIn(str(part), message, result)
        for word in ("defect", "crashed", "terminate called"):
            self.assertNotIn(word, message, result)


# Files


def tensor_bytes(path):
    """A checkpoint begins with lines of text; one says where the tensors begin."""
    data = Path(path).read_bytes()
    lines = data[:512].split(b"\n")
    begin = next(int(line.split()[1]) for line in lines if line.startswith(b"tensors_begin "))
    assert begin < len(data), begin
    return data[begin:]


def flip_bit(path, position, bit=0):
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


@dataclasses.dataclass
class TokenFile:
    code: int  # 8: uint16
    lengths: list
    offsets: list
    documents: list
    tokens: list

    def texts(self):
        """Documents as text: the byte tokenizer's 256 ends one."""
        bounds = [offset // 2 for offset in self.offsets] + [len(self.tokens)]
        for begin, end in zip(self.documents, self.documents[1:]):
            ids = self.tokens[bounds[begin] : bounds[end]]
            assert ids[-1] == 256, ids[-1]
            yield bytes(ids[:-1]).decode()


def read_token_file(prefix):
    """Megatron-LM's pair of files, read as its own reader does."""
    index = Path(f"{prefix}.idx").read_bytes()
    magic, version, code, sequences, documents = struct.unpack_from("<9sQBQQ", index)
    assert magic == b"MMIDIDX\0\0" and version == 1, (magic, version)
    at = 9 + 8 + 1 + 8 + 8
    lengths = list(struct.unpack_from(f"<{sequences}i", index, at))
    offsets = list(struct.unpack_from(f"<{sequences}q", index, at + 4 * sequences))
    bounds = list(struct.unpack_from(f"<{documents}q", index, at + 12 * sequences))
    assert len(index) == at + 12 * sequences + 8 * documents, len(index)
    data = Path(f"{prefix}.bin").read_bytes()
    return TokenFile(code, lengths, offsets, bounds, list(struct.unpack(f"<{len(data) // 2}H", data)))


def safetensors_entries(path):
    """Name -> (dtype, shape, bytes)."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    values = data[8 + length :]
    return {
        name: (entry["dtype"], entry["shape"], values[slice(*entry["data_offsets"])]) for name, entry in header.items()
    }


def read_safetensors(path):
    """Name -> (shape, list of floats), for fp32 tensors."""
    tensors = {}
    for name, (dtype, shape, data) in safetensors_entries(path).items():
        assert dtype == "F32", (name, dtype)
        tensors[name] = (shape, list(struct.unpack(f"<{len(data) // 4}f", data)))
    return tensors


def main():
    """Runs the tests of the file; 77 where there is nothing to test, or nothing can be."""
    if not os.access(os.environ.get("CARTAN", ""), os.X_OK):
        print(f"skipped: no cartan program (CARTAN='{os.environ.get('CARTAN', '')}')")
        sys.exit(SKIPPED)
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(SKIPPED if len(result.skipped) == result.testsRun > 0 else 0)
