# SPDX-License-Identifier: Apache-2.0
import os

from spack_repo.builtin.build_systems.cmake import CMakeBuilder, CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *

SOURCE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 5))

CONFIG = """\
[run]
dir = {run}
steps = 3
[model]
hidden = 32
layers = 1
heads = 2
kv-heads = 1
ffn = 64
vocab = 257
[data]
train = {data}
tokenizer = byte
seq = 16
[batch]
global = 4
micro = 1
"""


class Cartan(CMakePackage, CudaPackage):
    """Trains language models of the Llama family on supercomputers: one MPI program,
    parallel HDF5 checkpoints that any number of ranks resumes from, no Python at run time."""

    # The recipe is part of the source: what is built is the clone that holds it.
    git = "file://" + SOURCE
    homepage = git

    maintainers("cartan-authors")
    license("Apache-2.0")

    version("main", branch="main")

    variant("arrow", default=False, description="Read Parquet files")
    variant("tests", default=False, description="Build the tests")
    variant("benchmarks", default=False, description="Build the micro-benchmarks")

    generator("ninja")
    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")

    depends_on("mpi@3.1:")
    depends_on("hdf5@1.10.7:+mpi")
    depends_on("boost@1.74:+program_options")
    depends_on("onednn@2.5: cpu_runtime=omp")
    depends_on("highway@1.0.3:")
    depends_on("nlohmann-json@3.11:")
    depends_on("fmt@9:")
    depends_on("spdlog@1.10:")
    depends_on("xxhash@0.8.1:")
    depends_on("yaml-cpp@0.7:")
    depends_on("pcre2@10.40: +jit")
    depends_on("utf8proc@2.5:")
    depends_on("arrow@15: +parquet +snappy +zlib +zstd +lz4 +brotli", when="+arrow")
    depends_on("googletest@1.12: +gmock", when="+tests")
    depends_on("benchmark@1.7:", when="+benchmarks")
    depends_on("cuda@12.4:", when="+cuda")
    depends_on("nccl@2.19:", when="+cuda")
    depends_on("boost@1.74: +context", when="+cuda +tests")
    depends_on("openblas", when="+cuda +tests")

    conflicts("%gcc@:11", msg="cartan is C++20: gcc 12 or newer")
    conflicts(
        "cuda_arch=none", when="+cuda", msg="cartan: name the GPU: cuda_arch=90 for Hopper, ..."
    )
    conflicts("target=aarch64:", msg="cartan's cpu device is for x86_64")

    def cmake_args(self):
        args = [
            self.define_from_variant("CARTAN_WITH_CUDA", "cuda"),
            self.define_from_variant("CARTAN_WITH_ARROW", "arrow"),
            self.define_from_variant("CARTAN_TESTS", "tests"),
            self.define_from_variant("CARTAN_BENCHMARKS", "benchmarks"),
            self.define("CARTAN_WERROR", False),
            # No GPU is promised on the machine that runs the tests.
            self.define("CARTAN_TEST_ON_GPU", False),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(CMakeBuilder.define_cuda_architectures(self))
        return args

    def test_version(self):
        """cartan --version works without MPI and GPU"""
        cartan = which(self.prefix.bin.cartan, required=True)
        out = cartan("--version", output=str.split, error=str.split)
        check_outputs("cartan", out)

    def test_train(self):
        """two ranks train three steps on the CPU"""
        launcher = os.path.join(self.spec["mpi"].prefix.bin, "mpirun")
        if not os.path.exists(launcher):
            raise SkipTest("this MPI has no mpirun")
        program = self.prefix.bin.cartan
        with open("text.txt", "w", encoding="utf-8") as f:
            f.write("a small text that is long enough for a few sequences\n" * 40)
        cartan = which(program, required=True)
        cartan("tokenize", "--tokenizer", "byte", "--input", "text.txt", "--output", "data")
        with open("run.ini", "w", encoding="utf-8") as f:
            f.write(CONFIG.format(run="run", data="data"))
        mpirun = Executable(launcher)
        mpirun("-n", "2", program, "train", "--config", "run.ini")
        with open(os.path.join("run", "metrics.jsonl"), encoding="utf-8") as f:
            check_outputs('"step": *3', f.read())
