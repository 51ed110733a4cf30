"""Which programs look for a mutation of a file, in which order: quick ones first. Each runs on the emulated cuda device
with its access checker.
"""
import dataclasses
import os

CUDA = {"CARTAN_TEST_DEVICE": "cuda", "EMU_CHECK": "1", "EMU_PRINT": "1", "EMU_TIMEOUT": "10", "GTEST_COLOR": "no"}
LAZY = {"EMU_CHECK": "0", "EMU_SCHEDULE": "lazy"}  # as CTest does


@dataclasses.dataclass(frozen=True)
class Check:
    program: str  # in the build folder
    ranks: int = 0  # 0: not under mpirun
    only: str = ""  # --gtest_filter
    settings: tuple = ()  # pairs, beside those of CUDA
    expects_findings: bool = False  # of the tests themselves: the exit code decides

    @property
    def name(self):
        words = [os.path.basename(self.program)]
        if self.ranks:
            words.append(f"on {self.ranks} ranks")
        if "EMU_SCHEDULE" in dict(self.settings):
            words.append(dict(self.settings)["EMU_SCHEDULE"])
        return " ".join(words)


def device(name, **settings):
    return Check(f"tests/device/{name}", settings=tuple(settings.items()))


def on_ranks(program, ranks, only="", settings=None, **more):
    return Check(f"tests/{program}", ranks, only, tuple((settings or {}).items()), **more)


EVERY_OPERATION = Check("tests/ptx/record_launches")
ORDER, ORDER_LAZY = device("order_test"), device("order_test", EMU_SCHEDULE="lazy")
ALL_OPERATIONS = ("rows_test", "row_views_test", "sums_test", "decision_test", "parts_test", "compression_test",
                  "sampling_test", "fp8_test", "linear_test", "attention_test", "attention_parts_test")
# The tests that call what a kernel file holds, by how its name begins; a header is in many.
OPERATIONS = {
    "attention_merge": ("attention_parts_test",),
    "attention": ("attention_parts_test", "attention_test"),
    "adamw": ("sums_test",),
    "decision": ("decision_test",),
    "fp8": ("fp8_test",),
    "compression": ("compression_test",),
    "sampling": ("sampling_test",),
    "sums": ("sums_test", "linear_test"),
    "move": ("parts_test", "linear_test"),
    "": ("rows_test",),
}

NCCL = [on_ranks("comm/communicator_test", 2), on_ranks("comm/canonical_reduction_test", 2),
        on_ranks("comm/nccl_communicator_test", 2, expects_findings=True),
        on_ranks("comm/nccl_watch_test", 2, settings={"EMU_CHECK": "0"}, expects_findings=True)]
ZERO = on_ranks("train/equivalence_test", 2, "*BitsDoNotDependOnZeroStageOrShards/untied_fp32")
ZERO_LAZY = dataclasses.replace(ZERO, settings=tuple(LAZY.items()))
PIPELINES = on_ranks("train/equivalence_test", 2, "*BitsDoNotDependOnPipelineStagesOrSchedules/untied_fp32")
MESHES = on_ranks("train/equivalence_test", 2, "*OfTenStepsOnEveryMesh/untied_fp32")
REST = [on_ranks("train/equivalence_test", 2, "-*untied_fp32"), on_ranks("train/equivalence_test", 3),
        on_ranks("train/equivalence_test", 4), on_ranks("train/equivalence_test", 2, settings=LAZY)]
GRADIENT_SUMS = on_ranks("shard/gradient_hook_test", 2)
PARAMETERS = Check("tests/shard/flat_state_test")
LIBRARY_SUMS = on_ranks("train/library_sum_test", 2)
UPDATES = Check("tests/optim/adamw_test")
TRAINING = [ZERO, MESHES, PIPELINES]


def kernel_checks(file):
    stem = os.path.basename(file)
    tests = next(tests for prefix, tests in OPERATIONS.items() if stem.startswith(prefix))
    if file.endswith(".cuh") and not stem.startswith("attention"):
        tests = ALL_OPERATIONS
    return [EVERY_OPERATION] + [device(test) for test in tests]


def checks_of(file):
    if file.startswith("kernels/"):
        return kernel_checks(file)
    room = os.path.dirname(file).removeprefix("src/")
    if room == "device/cuda":
        return [EVERY_OPERATION, ORDER, ORDER_LAZY] + NCCL + [ZERO, ZERO_LAZY]
    if room.startswith("comm"):
        return NCCL + [ZERO, ZERO_LAZY, PIPELINES]
    if os.path.basename(file).startswith("context"):
        return [MESHES, PIPELINES, ZERO] + REST
    if os.path.basename(file) == "channel.hpp":
        return [PIPELINES, MESHES] + REST
    if room == "shard":
        return [PARAMETERS] + TRAINING + [GRADIENT_SUMS, LIBRARY_SUMS] + REST
    if room == "optim":
        return [UPDATES] + TRAINING + REST
    if room == "model":
        return [MESHES, ZERO, PIPELINES] + REST
    return TRAINING + REST
