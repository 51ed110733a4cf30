"""What goes wrong in the middle of a run ends all ranks within seconds, is said once, and loses no checkpoint."""

import resource
import shutil
import subprocess

import harness
from harness import DIVERGED, ENVIRONMENT, IO

SOON = 20  # seconds on a busy machine


# A write beyond the limit then fails with an error, as a quota makes it fail, and no signal ends the process.
WITHOUT_SIGNAL = ["sh", "-c", 'trap "" XFSZ; exec "$@"', "sh"]


class FailingJob(harness.Case):
    def test_numbers_that_diverge(self):
        """The step, the first tensor, and what to do; the checkpoint of the step before is good."""
        for ranks in (0, 4):
            with self.subTest(ranks=ranks):
                run = f"run{ranks}"
                options = {"optim.lr": 1e38, "checkpoint.every": 1, "run.steps": 5}
                result = self.train(run, options, expect=DIVERGED, ranks=ranks)
                self.assert_refused(result, "step 2", "first tensor: ", "model.embed_tokens.weight", "optim.lr")
                self.assertEqual(self.checkpoints(run), [1])
                self.assertEqual(len(self.metrics(run)), 1)
                self.cartan("inspect", run, "--verify")

    def test_a_run_goes_on_after_numbers_diverged(self):
        """From the last checkpoint, with a learning rate that works."""
        still = {"checkpoint.every": 1, "optim.lr": 0}
        self.train("run", {**still, "run.steps": 2})
        # From here the weights are huge after one step.
        self.train("run", {**still, "optim.lr": 1e38, "run.steps": 5}, expect=DIVERGED, ranks=2)
        self.assertEqual(self.checkpoints("run"), [1, 2, 3])
        self.checkpoint("run", 3).unlink()
        self.train("run", {"run.steps": 4}, ranks=2)
        self.assertEqual(self.checkpoints("run")[-1], 4)

    def test_a_run_directory_that_cannot_be_made(self):
        (self.dir / "file").write_text("in the way")
        (self.dir / "half").mkdir()
        (self.dir / "half/checkpoints").write_text("in the way")
        for ranks in (0, 4):
            for run in ("file", "file/below", "half", "/proc/run"):
                with self.subTest(run=run, ranks=ranks):
                    self.assert_refused(self.train(run, expect=IO, ranks=ranks), "run.dir", run)
        self.assertEqual((self.dir / "file").read_text(), "in the way")

    def limited(self, ranks, rank):
        """A run in whose middle the files of one rank may no longer grow beyond 100 KB: how a quota is felt."""
        options = {"run.steps": 1000000, "checkpoint.every": 1, "checkpoint.keep": 2}
        job = self.start_train("run", options, ranks, wrapper=WITHOUT_SIGNAL)
        harness.until(lambda: len(self.checkpoints("run")) >= 2, "two saves")
        pid = job.rank_pid(rank) if ranks else job.process.pid
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (100000, 100000))
        return job.finish(SOON)

    def assert_goes_on(self, run, ranks):
        step = self.checkpoints(run)[-1]
        self.assertEqual(list(self.dir.glob(f"{run}/checkpoints/*.tmp.*")), [])
        self.cartan("inspect", *self.dir.glob(f"{run}/checkpoints/*"), "--verify")
        self.train(run, {"run.steps": step + 2}, ranks=ranks)
        self.train("whole", {"run.steps": step + 2})
        self.assert_same_run(run, "whole")

    def test_a_quota_that_one_process_meets(self):
        result = self.limited(0, 0)
        self.assertEqual(result.code, IO, result)
        self.assert_refused(result, "run/", "File too large")
        self.assert_goes_on("run", 2)

    def test_a_quota_that_one_rank_meets_while_others_wait(self):
        """The message names the rank."""
        result = self.limited(3, 2)
        self.assertEqual(result.code, IO, result)
        self.assert_refused(result, "rank 2", "step-", "File too large")
        self.assert_goes_on("run", 3)

    def test_a_rank_that_stops_early_names_itself(self):
        """Only one rank meets the token that is not in the vocabulary; the others wait for its gradients."""
        for ending in (".bin", ".idx"):
            shutil.copy(harness.corpus() + ending, self.dir / ("data" + ending))
        with open(self.dir / "data.bin", "r+b") as file:
            file.seek(2 * (12 * 32 - 5))  # the last sequence of the first batch
            file.write(b"\xff\x7f")
        options = {"data.train": "data", "data.shuffle": "false"}
        result = self.train("run", options, expect=harness.BAD_DATA, ranks=4)
        self.assert_refused(result, "rank 3", "document 0, position 379 ", "32767")
        self.assertLess(result.seconds, SOON)

    def test_a_singleton_that_was_meant_to_be_a_rank(self):
        """`srun` without PMIx starts N programs that each believe to be alone."""
        result = self.train("run", expect=ENVIRONMENT, env={"SLURM_STEP_NUM_TASKS": "4"})
        self.assert_refused(result, "4", "srun", "--mpi=pmix")
        self.assertFalse((self.dir / "run").exists())

    def test_a_full_device(self):
        """Results that cannot be written are no success."""
        self.train("run", {"run.steps": 1})
        with open("/dev/full", "wb") as full:
            for words in (
                ["config"],
                ["inspect", "run"],
                ["generate", "--from", "run", "--prompt", "a"],
                ["--version"],
            ):
                with self.subTest(" ".join(words)):
                    process = subprocess.run(
                        [harness.program(), *words],
                        check=False,
                        cwd=self.dir,
                        env=harness.environment(),
                        stdout=full,
                        stderr=subprocess.PIPE,
                        timeout=harness.LIMIT,
                    )
                    self.assertEqual(process.returncode, IO, process)


if __name__ == "__main__":
    harness.main()
