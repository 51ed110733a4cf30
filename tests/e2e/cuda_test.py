"""run.device = cuda, as a user meets it: the program runs on emulated GPUs (tests/emu), whose access checker ends it with 99 where it finds something."""

import functools
import json
import os
import signal
import subprocess

import harness
from harness import ENVIRONMENT, STOPPED

PEER = 80
SOON = 20  # seconds on a busy machine
# A GPU with one multiprocessor: cartan measures its speed with a small product.
SMALL_GPU = {"EMU_MULTIPROCESSORS": "1"}
CHECKED = {"EMU_CHECK": "1", **SMALL_GPU}

SMALL = {"data.seq": 16, "batch.global": 4, "batch.micro": 1, "run.steps": 3}
ON_CUDA = {**SMALL, "run.device": "cuda"}


class Case(harness.Case):
    def train_on(self, device, run, options=None, ranks=0, **more):
        env = {**CHECKED, **more.pop("env", {})} if device == "cuda" else more.pop("env", None)
        return self.train(run, {**SMALL, "run.device": device, **(options or {})}, ranks=ranks, env=env, **more)

    def assert_close_runs(self, run, other, tolerance):
        for one, two in zip(self.metrics(run), self.metrics(other), strict=True):
            for key in ("loss", "grad_norm"):
                self.assertLess(abs(float(one[key]) / float(two[key]) - 1), tolerance, (key, one, two))


class Train(Case):
    def test_ranks_have_the_same_bits_and_the_cpu_nearly(self):
        self.train_on("cuda", "one")
        self.train_on("cuda", "dp", {"zero.stage": 1}, ranks=2)
        self.assert_same_run("one", "dp")
        self.train_on("cuda", "tp", {"mesh.tp": 2}, ranks=2)
        self.train_on("cpu", "cpu")
        # Sums of some hundred fp32 products in another order, and three updates with them.
        self.assert_close_runs("tp", "one", 1e-5)
        self.assert_close_runs("cpu", "one", 1e-6)

    def test_bf16(self):
        bf16 = {"precision.compute": "bf16"}
        self.train_on("cuda", "one", bf16)
        self.train_on("cuda", "dp", {"zero.stage": 3, **bf16}, ranks=2)
        self.assert_same_run("one", "dp")
        self.train_on("cpu", "cpu", bf16)
        self.assert_close_runs("cpu", "one", 2e-3)  # half of the distance of two bf16 numbers


class Resume(Case):
    def test_checkpoints_go_between_meshes_and_devices(self):
        meshes = (("cuda", 2, {"zero.stage": 2}), ("cpu", 2, {"mesh.tp": 2}), ("cuda", 2, {"mesh.pp": 2}), ("cpu", 0, {}))
        for turn, (device, ranks, mesh) in enumerate(meshes):
            result = self.train_on(device, "parts", {**mesh, "run.steps": turn + 1}, ranks=ranks)
        self.assertIn("resumed at step 3 from parts/checkpoints/step-3.h5", result.err)
        self.train_on("cpu", "cpu", {"run.steps": len(meshes)})
        self.assert_close_runs("parts", "cpu", 1e-5)

    def test_a_stopped_run_goes_on_with_the_same_bits(self):
        self.train_on("cuda", "whole")
        (self.dir / "parts").mkdir()
        (self.dir / "parts/STOP").touch()
        self.train_on("cuda", "parts", {"mesh.pp": 2}, ranks=2, expect=STOPPED)
        self.assertEqual(self.checkpoints("parts"), [1])
        self.train_on("cuda", "parts", ranks=2)
        self.assert_same_run("whole", "parts")


@functools.cache
def trained():
    """A run directory of the cpu device: 20 steps, after which the likeliest bytes are clear."""
    run = harness.scratch() / "trained"
    options = {"run.dir": run, "data.train": harness.corpus(), **harness.TINY, **SMALL, "run.steps": 20}
    words = [harness.program(), "train", *harness.option_words(options)]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL, env=harness.environment())
    return run


class Use(Case):
    def both(self, *words, ranks=0):
        return [self.cartan(*words, "--run.device", device, ranks=ranks, env=CHECKED).out for device in ("cpu", "cuda")]

    def test_greedy_text_is_the_same(self):
        cpu, cuda = self.both("generate", "--from", trained(), "--prompt", "alpha be", "--max-new-tokens", 24, "--json")
        self.assertEqual(cuda, cpu)
        self.assertEqual(len(json.loads(cuda)["ids"]), 24)

    def test_perplexity_is_nearly_the_same(self):
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                words = ["eval", "--from", trained(), "--data.valid", harness.corpus(7), "--seq", 32, "--samples", 6, "--json"]
                cpu, cuda = (json.loads(text) for text in self.both(*words, ranks=ranks))
                self.assertEqual((cuda["targets"], cuda["step"]), (cpu["targets"], 20))
                self.assertLess(abs(cuda["perplexity"] / cpu["perplexity"] - 1), 1e-5)

    def test_logits_of_lists_are_nearly_the_same(self):
        (self.dir / "ids.json").write_text("[[10, 200, 256, 7], [0, 1, 2, 3]]")
        for device in ("cpu", "cuda"):
            self.cartan("eval", "--from", trained(), "--ids", "ids.json", "--logits", device, "--run.device", device, env=CHECKED)
        (_, cpu), (_, cuda) = (harness.read_safetensors(self.dir / device)["logits"] for device in ("cpu", "cuda"))
        self.assertLess(max(abs(a - b) for a, b in zip(cpu, cuda, strict=True)), 1e-4)


class WithoutGpu(Case):
    """What needs no GPU works without one; what does says so."""

    def test_version_and_config(self):
        env = {"EMU_NO_DRIVER": "1"}
        self.assertRegex(self.cartan("--version", env=env).out, r"\nCUDA +\d+\.\d+, NCCL \d+\.\d+\.\d+\n")
        self.assertIn("device = cuda", self.cartan("config", "--run.device", "cuda", env=env).out)
        self.cartan("plan", "--bubble", "--pp", 4, "--batch.global", 8, "--batch.micro", 1, env=env)

    def test_no_driver_and_no_gpu(self):
        train = ["train", *harness.option_words({"run.dir": "new", "data.train": harness.corpus()})]
        driver = ({"EMU_NO_DRIVER": "1"}, "this machine has no NVIDIA driver")
        gpu = ({"EMU_GPUS": "0", "CUDA_VISIBLE_DEVICES": ""}, 'no GPU is visible (CUDA_VISIBLE_DEVICES is "")')
        cases = (
            (0, train, driver),
            (2, train, gpu),
            (0, ["generate", "--from", trained(), "--prompt", "a"], gpu),
            (2, ["eval", "--from", trained(), "--data.valid", harness.corpus(), "--seq", 32], driver),
        )
        for ranks, words, (env, reason) in cases:
            with self.subTest(words[0], ranks=ranks):
                self.assertIn("\n  71 ", self.cartan(words[0], "--help").out)
                result = self.cartan(*words, "--run.device", "cuda", expect=ENVIRONMENT, ranks=ranks, env=env)
                self.assert_refused(result, "run.device = cuda", reason)
                self.assertLess(result.seconds, SOON)
        self.assertFalse((self.dir / "new").exists())


class Doctor(Case):
    def test_gpus_that_nccl_connects(self):
        result = self.cartan("doctor", "--json", "--run.device", "cuda", "--nccl.ib-disable", 1, ranks=2)
        about = {finding["subject"]: finding for finding in json.loads(result.out)["findings"]}
        self.assertIn("cuda: ", about["device"]["text"])
        self.assertIn("which connects the GPUs", about["NCCL"]["text"])
        self.assertIn("NCCL_IB_DISABLE=1 (nccl.ib-disable)", about["NCCL"]["text"])

    def test_a_gpu_that_does_not_connect(self):
        result = self.cartan("doctor", "--run.device", "cuda", ranks=2, expect=ENVIRONMENT, env={"EMU_FAIL": "ncclCommInitRankConfig:1@1"})
        self.assert_refused(result, "not fit for this run: NCCL", "rank 1")
        self.assertRegex(result.out, r"(?m)^run.dir +(good|notable) ")


class FailingJob(Case):
    """One sentence, one exit code, and no hang."""

    def fails(self, code, *parts, options=None, ranks=2, env=None):
        result = self.train("run", {**ON_CUDA, **(options or {})}, expect=code, ranks=ranks, env={**SMALL_GPU, **(env or {})})
        self.assert_refused(result, *parts)
        self.assertLess(result.seconds, SOON)

    def test_more_ranks_than_gpus(self):
        self.fails(ENVIRONMENT, "3 ranks on this node, but 2 GPUs are visible", ranks=3, env={"EMU_GPUS": "2"}, options={"batch.global": 12})

    def test_ranks_that_share_a_gpu(self):
        self.fails(ENVIRONMENT, "ranks 0 and 1 of the 2 on this node use the same GPU, 0000:01:00", env={"EMU_PCI_BUS": "1"})

    def test_a_kernel_that_fails_on_one_rank(self):
        self.fails(ENVIRONMENT, "rank 1: ", "cuda", env={"EMU_FAIL": "kernel:90@1"})

    def test_memory_that_one_rank_lacks(self):
        self.fails(ENVIRONMENT, "rank 1: ", "cannot allocate", "GiB of GPU memory", env={"EMU_FAIL": "cudaMallocAsync:3@1"})

    def test_a_call_that_fails_in_a_command_that_does_not_train(self):
        """Alone it has no rank to name."""
        for ranks, words in ((0, ["generate", "--prompt", "a"]), (2, ["eval", "--data.valid", harness.corpus(), "--seq", 32])):
            env = {"EMU_FAIL": "kernel:20@1" if ranks else "kernel:20"}
            result = self.cartan(words[0], "--from", trained(), *words[1:], "--run.device", "cuda", expect=ENVIRONMENT, ranks=ranks, env=env)
            self.assert_refused(result, "rank 1: cuda: " if ranks else "cartan: cuda: ", "illegal memory access")
            self.assertLess(result.seconds, SOON)

    def test_a_connection_that_breaks(self):
        self.fails(PEER, "rank 1", "NCCL says", env={"EMU_FAIL": "ncclAsync:1@1"})

    def test_a_gpu_that_does_not_connect(self):
        """The others learn of it at once: they would wait for two minutes."""
        self.fails(ENVIRONMENT, "rank 1: connecting the GPUs of dp.cp[pp=0,tp=0]", "NCCL says", env={"EMU_FAIL": "ncclCommInitRankConfig:1@1"})

    def running(self, options=None):
        job = self.start_train("run", {**ON_CUDA, "run.steps": 100000, **(options or {})}, ranks=2, env=SMALL_GPU)
        harness.until(lambda: self.steps_done("run") >= 2, "two steps")
        return job

    def test_a_rank_that_is_killed(self):
        """The launcher says which; the other one does not wait for it, nor say anything."""
        job = self.running()
        os.kill(job.rank_pid(1), signal.SIGKILL)
        result = job.finish(SOON)
        self.assertEqual(result.code, 128 + signal.SIGKILL, result)
        self.assertRegex(result.err, r"rank 1 .*signal 9")
        self.assertEqual(result.messages(), [], result)

    def test_a_rank_that_hangs(self):
        job = self.running({"watch.timeout": 2})
        pid = job.rank_pid(1)
        os.kill(pid, signal.SIGSTOP)
        self.addCleanup(lambda: harness.is_running(pid) and os.kill(pid, signal.SIGKILL))
        result = job.finish(SOON)
        self.assertEqual(result.code, PEER, result)
        self.assert_refused(result, "rank 0", "2 s")
        harness.until(lambda: not harness.is_running(pid), "the stopped rank is gone", 10)


if __name__ == "__main__":
    harness.main()
