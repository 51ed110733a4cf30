"""Signals and kills: whatever ends a run, the next start goes on with the numbers of a run that nobody disturbed."""

import os
import random
import signal
import time

import harness
from harness import STOPPED

ENDLESS = {"run.steps": 1000000}


class Interrupt(harness.Case):
    def assert_goes_on(self, run, step, ranks, options=None):
        """From checkpoint `step` to two steps later, compared with a run on one rank without an interruption."""
        target = {**(options or {}), "run.steps": step + 2}
        result = self.train(run, target, ranks=ranks)
        self.assertIn(f"resumed at step {step} ", result.err)
        self.train("whole", {"run.steps": step + 2, "checkpoint.every": 0})
        self.assert_same_run(run, "whole")

    def started(self, run, ranks, options=None, steps=2, **more):
        job = self.start_train(run, {**ENDLESS, "checkpoint.every": 0, **(options or {})}, ranks, **more)
        harness.until(lambda: self.steps_done(run) >= steps or job.process.poll() is not None, "some steps")
        return job

    def assert_stopped(self, job, run):
        """Exit code 75 and one checkpoint, of the last step that was done."""
        result = job.finish(30)
        self.assertEqual(result.code, STOPPED, result)
        self.assertEqual(result.messages(), [])
        step = self.steps_done(run)
        self.assertEqual(self.checkpoints(run), [step])
        self.assertIn(f"stopped at step {step} of {ENDLESS['run.steps']}", result.err)
        return step

    def test_usr1_to_the_launcher_stops_in_good_order(self):
        job = self.started("run", 3)
        job.process.send_signal(signal.SIGUSR1)
        self.assert_goes_on("run", self.assert_stopped(job, "run"), 2)

    def test_term_to_one_rank_stops_all(self):
        job = self.started("run", 2)
        os.kill(job.rank_pid(1), signal.SIGTERM)
        self.assert_goes_on("run", self.assert_stopped(job, "run"), 3)

    def test_usr1_to_one_rank_stops_all_with_an_asynchronous_save_in_flight(self):
        job = self.started("run", 2, {"checkpoint.async": "true", "checkpoint.every": 1, "checkpoint.keep": 1})
        os.kill(job.rank_pid(1), signal.SIGUSR1)
        self.assert_goes_on("run", self.assert_stopped(job, "run"), 0, {"checkpoint.keep": 1})

    def test_signals_stop_a_process_without_a_launcher(self):
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            with self.subTest(number.name):
                job = self.started(number.name, 0)
                job.process.send_signal(number)
                self.assert_stopped(job, number.name)

    def test_a_second_signal_ends_at_once(self):
        """In the middle of a step of some seconds."""
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name):
                run = f"run{number}"
                job = self.start_train(run, {"batch.global": 32768, "batch.micro": 8})
                harness.until((self.dir / run / "metrics.jsonl").exists, "the first step")
                time.sleep(0.05)
                job.process.send_signal(number)
                time.sleep(0.05)
                begin = time.monotonic()
                job.process.send_signal(number)
                result = job.finish(30)
                self.assertEqual(result.code, 128 + number, result)
                self.assertLess(time.monotonic() - begin, 5)
                self.assertEqual(self.steps_done(run), 0)

    def test_stop_ends_a_run_that_is_under_way(self):
        job = self.started("run", 2)
        (self.dir / "run/STOP").touch()
        self.assert_goes_on("run", self.assert_stopped(job, "run"), 4)

    def test_term_to_the_launcher_loses_nothing_that_was_saved(self):
        """Open MPI's mpirun then ends the ranks after a second, with an exit code of its own."""
        job = self.started("run", 2, {"checkpoint.every": 1, "checkpoint.keep": 2})
        job.process.send_signal(signal.SIGTERM)
        self.assertNotEqual(job.finish(30).code, 0)
        self.assert_goes_on("run", self.checkpoints("run")[-1], 0)

    def kill_again_and_again(self, ranks, options):
        """Each start is killed some moment after its first save, most likely in the middle of another one."""
        pick = random.Random(7)
        options = {"checkpoint.every": 1, **ENDLESS, **options}
        for _ in range(3):
            before = self.checkpoints("run")[-1:]
            job = self.start_train("run", options, ranks)
            harness.until(lambda before=before: self.checkpoints("run")[-1:] > before, "a save")
            time.sleep(pick.uniform(0, 0.15))
            self.assertIsNone(job.process.poll(), job.text())
            job.kill()
        self.assert_goes_on("run", self.checkpoints("run")[-1], ranks)
        self.cartan("inspect", *self.dir.glob("run/checkpoints/*.h5"), "--verify")

    def test_a_job_killed_in_the_middle_of_a_save_goes_on(self):
        self.kill_again_and_again(2, {})

    def test_a_job_killed_in_the_middle_of_an_asynchronous_save_goes_on(self):
        self.kill_again_and_again(3, {"checkpoint.async": "true", "checkpoint.keep": 2})

    def test_a_process_killed_in_the_middle_of_a_save_goes_on(self):
        self.kill_again_and_again(0, {"checkpoint.keep": 1})

    def test_a_rank_that_is_killed_takes_the_others_with_it(self):
        job = self.started("run", 4, {"checkpoint.every": 2})
        harness.until(lambda: self.checkpoints("run"), "a save")
        pids = [job.rank_pid(rank) for rank in range(4)]
        os.kill(pids[2], signal.SIGKILL)
        result = job.finish(15)
        self.assertNotEqual(result.code, 0, result)
        harness.until(lambda: not any(harness.is_running(pid) for pid in pids), "all ranks are gone", 10)
        self.assert_goes_on("run", self.checkpoints("run")[-1], 2)


if __name__ == "__main__":
    harness.main()
