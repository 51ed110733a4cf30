"""A disk that is full, or read-only: training stops with the last checkpoint intact, and goes on once there is space.

Needs the right to mount a small tmpfs; skipped without it.
"""

import os
import subprocess
import unittest

import harness
from harness import IO


def mount(*words):
    return subprocess.run(["mount", *map(str, words)], capture_output=True, check=False).returncode == 0


class FullDisk(harness.Case):
    def setUp(self):
        super().setUp()
        self.disk = self.dir / "disk"
        self.disk.mkdir()
        # Room for three checkpoints of 490 KiB and a bit.
        if not mount("-t", "tmpfs", "-o", "size=1700k", "tmpfs", self.disk):
            raise unittest.SkipTest("a tmpfs cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", self.disk], check=True)

    def fill(self, leave):
        """A file that leaves so many bytes free."""
        status = os.statvfs(self.disk)
        (self.disk / "ballast").write_bytes(bytes(status.f_bavail * status.f_bsize - leave))

    def fills_up(self, ranks, **options):
        """Checkpoints of each step are kept until no more fits."""
        options = {"checkpoint.every": 1, "checkpoint.keep": 0, "run.steps": 6, **options}
        result = self.train("disk/run", options, expect=IO, ranks=ranks)
        self.assert_refused(result, "disk/run/", "No space left on device")
        self.assertEqual(self.checkpoints("disk/run"), [1, 2, 3])
        self.assertEqual(list(self.dir.glob("disk/run/checkpoints/*.tmp.*")), [])
        self.cartan("inspect", *self.dir.glob("disk/run/checkpoints/*"), "--verify")
        # There is space again.
        self.checkpoint("disk/run", 1).unlink()
        result = self.train("disk/run", {**options, "checkpoint.every": 0, "run.steps": 5}, ranks=ranks)
        self.assertIn("resumed at step 3 ", result.err)
        self.train("whole", {"run.steps": 5})
        self.assert_same_run("disk/run", "whole")

    def test_a_disk_that_one_process_fills(self):
        self.fills_up(0)

    def test_a_disk_that_ranks_fill_together(self):
        self.fills_up(4)

    def test_a_disk_that_an_asynchronous_save_fills(self):
        self.fills_up(2, **{"checkpoint.async": "true"})

    def test_a_disk_without_room_for_metrics(self):
        """Their lines are small: a full disk is first felt there if checkpoints are rare."""
        self.train("disk/run", {"run.steps": 2}, ranks=2)
        self.fill(leave=0)
        result = self.train("disk/run", {"run.steps": 400}, expect=IO, ranks=2)
        self.assert_refused(result, "disk/run/", "No space left on device")
        (self.disk / "ballast").unlink()
        self.train("disk/run", {"run.steps": 4}, ranks=2)
        self.train("whole", {"run.steps": 4})
        self.assert_same_run("disk/run", "whole")

    def test_a_disk_that_is_full_from_the_start(self):
        self.fill(leave=0)
        for ranks in (0, 3):
            result = self.train("disk/run", expect=IO, ranks=ranks)
            self.assert_refused(result, "disk/run", "No space left on device")

    def test_a_read_only_disk(self):
        self.train("disk/run", {"run.steps": 2})
        before = self.numbers("disk/run")
        if not mount("-o", "remount,ro", self.disk):
            raise unittest.SkipTest("a tmpfs cannot be made read-only here")
        for run in ("disk/run", "disk/new"):
            for ranks in (0, 3):
                with self.subTest(run=run, ranks=ranks):
                    result = self.train(run, {"run.steps": 3}, expect=IO, ranks=ranks)
                    self.assert_refused(result, run, "Read-only file system")
        # What only reads needs no more.
        self.assertEqual(self.inspect("disk/run", "--verify")["state"]["step"], 2)
        self.cartan("generate", "--from", "disk/run", "--prompt", "the", "--max-new-tokens", 2)
        self.assertEqual(self.numbers("disk/run"), before)

    def test_tokenize_leaves_nothing_half_written(self):
        (self.dir / "long.txt").write_text(harness.some_text(5, 200000))
        result = self.cartan("tokenize", "--input", "long.txt", "--output", "disk/data", expect=IO)
        self.assert_refused(result, "disk/data", "No space left on device")
        self.assertEqual(list(self.disk.iterdir()), [])


if __name__ == "__main__":
    harness.main()
