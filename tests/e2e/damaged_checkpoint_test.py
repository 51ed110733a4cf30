"""A damaged checkpoint is named and passed over, and every damage is found."""

import os
import random
import shutil
import socket
import subprocess
import sys

import harness
from harness import BAD_DATA, CONFIGURATION, MISSING

EACH = {"checkpoint.every": 1, "checkpoint.keep": 0}


def tensors_begin(path):
    return path.stat().st_size - len(harness.tensor_bytes(path))


# Each takes the path of a good checkpoint.
DAMAGES = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "one byte short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "one byte long": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "only its start": lambda path: os.truncate(path, 10),
    "empty": lambda path: os.truncate(path, 0),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "text": lambda path: path.write_text("not a checkpoint\n" * 1000),
    "another HDF5 file": lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(5000)),
    "bit in a tensor": lambda path: harness.flip_bit(path, tensors_begin(path) + 5003, 6),
    "last bit": lambda path: harness.flip_bit(path, path.stat().st_size - 1, 7),
    "bit in the head": lambda path: harness.flip_bit(path, 3000, 1),
    "bit in the closing mark": lambda path: harness.flip_bit(path, 90, 1),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


class DamagedCheckpoint(harness.Case):
    def damaged_copies(self):
        """A run for each damage, its newest of three checkpoints hurt."""
        self.train("good", {**EACH, "run.steps": 4})
        self.checkpoint("good", 4).unlink()
        for name, damage in DAMAGES.items():
            run = name.replace(" ", "-")
            shutil.copytree(self.dir / "good", self.dir / run)
            damage(self.checkpoint(run, 3))
            yield name, run

    def test_a_run_goes_on_from_the_newest_good_checkpoint(self):
        copies = dict(self.damaged_copies())
        results = self.train_all({run: (2 if i % 4 == 0 else 0, {}) for i, run in enumerate(copies.values())})
        for name, run in copies.items():
            with self.subTest(name):
                err = results[run].err
                passed_over = [line for line in err.splitlines() if "passed over" in line]
                self.assertEqual(len(passed_over), 1, err)
                self.assertIn(f"{run}/checkpoints/step-3.h5", passed_over[0])
                self.assertIn(f"resumed at step 2 from {run}/checkpoints/step-2.h5", err)
                self.assertEqual(self.numbers(run), self.numbers("good"))

    def test_inspect_finds_each_damage(self):
        for name, run in self.damaged_copies():
            with self.subTest(name):
                # A folder is taken for a run directory; it has no checkpoints in it.
                code = MISSING if name == "a folder" else BAD_DATA
                result = self.cartan("inspect", f"{run}/checkpoints/step-3.h5", "--verify", expect=code)
                self.assert_refused(result, "step-3.h5")
        result = self.cartan("inspect", "bit-in-a-tensor", "--verify", expect=BAD_DATA)
        self.assert_refused(result, "model/model.embed_tokens.weight")

    def test_each_flipped_bit_is_found_wherever_it_is(self):
        self.train("run", {"run.steps": 1})
        path = self.checkpoint("run", 1)
        pick = random.Random(11)
        size, head = path.stat().st_size, tensors_begin(path)
        for i in range(40):
            position, bit = pick.randrange(head if i % 2 else size), pick.randrange(8)
            with self.subTest(position=position, bit=bit):
                harness.flip_bit(path, position, bit)
                result = self.cartan("inspect", path, "--verify", expect=BAD_DATA)
                self.assert_refused(result, "step-1.h5")
                harness.flip_bit(path, position, bit)
        self.cartan("inspect", path, "--verify")

    def test_two_damaged_checkpoints_are_both_passed_over(self):
        self.train("run", {**EACH, "run.steps": 3})
        before = self.numbers("run")
        os.truncate(self.checkpoint("run", 3), 1000)
        harness.flip_bit(self.checkpoint("run", 2), 400000)
        result = self.train("run", {"run.steps": 3}, ranks=3)
        self.assertEqual(result.err.count("passed over"), 2, result)
        self.assertIn("resumed at step 1 ", result.err)
        self.assertEqual(self.numbers("run"), before)

    def test_nothing_starts_from_step_0_where_all_checkpoints_are_damaged(self):
        """Whether that is wanted is for the user to say, who is told how."""
        self.train("run", {**EACH, "run.steps": 2})
        for step in (1, 2):
            os.truncate(self.checkpoint("run", step), 5000)
        before = (self.dir / "run/metrics.jsonl").read_bytes()
        for ranks in (0, 4):
            result = self.train("run", {"run.steps": 3}, expect=BAD_DATA, ranks=ranks)
            self.assert_refused(result, "run/checkpoints", "step-1.h5", "step-2.h5", "move them away")
        self.assertEqual(self.checkpoints("run"), [1, 2])
        self.assertEqual((self.dir / "run/metrics.jsonl").read_bytes(), before)

    def test_eval_and_generate_pass_over_a_damaged_checkpoint_of_a_run_and_refuse_a_given_one(self):
        self.train("run", {**EACH, "run.steps": 2})
        path = self.checkpoint("run", 2)
        harness.flip_bit(path, tensors_begin(path) + 5003, 6)  # in the embedding
        (self.dir / "ids.json").write_text("[[1, 2, 3]]")
        for command in (["eval", "--ids", "ids.json"], ["generate", "--prompt", "the", "--max-new-tokens", "2"]):
            with self.subTest(command[0]):
                older = self.cartan(*command, "--from", "run/checkpoints/step-1.h5", "--json")
                self.assertEqual(self.cartan(*command, "--from", "run", "--json").out, older.out)
                damaged = self.cartan(*command, "--from", "run/checkpoints/step-2.h5", expect=BAD_DATA)
                self.assert_refused(damaged, "step-2.h5")

    def leave_temporary_file(self, pid):
        path = self.dir / f"run/checkpoints/step-9.h5.tmp.{socket.gethostname()}.{pid}"
        path.write_bytes(self.checkpoint("run", 1).read_bytes()[:20000])
        return path

    def test_a_temporary_file_of_a_dead_writer_is_ignored_and_removed(self):
        self.train("run", {"run.steps": 1})
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        path = self.leave_temporary_file(dead.pid)
        self.train("run", {"run.steps": 2}, ranks=2)
        self.assertFalse(path.exists(), path)
        self.assertEqual(self.checkpoints("run"), [1, 2])

    def test_a_temporary_file_of_a_writer_nobody_waited_for_is_removed(self):
        """In a container whose first process reaps no orphans, a killed rank stays a zombie for ever."""
        self.train("run", {"run.steps": 1})
        zombie = subprocess.Popen([sys.executable, "-c", ""])
        self.addCleanup(zombie.wait)
        harness.until(lambda: not harness.is_running(zombie.pid), "the process has ended")
        path = self.leave_temporary_file(zombie.pid)
        self.train("run", {"run.steps": 2})
        self.assertFalse(path.exists(), path)

    def test_a_temporary_file_of_a_living_writer_stays(self):
        self.train("run", {"run.steps": 1})
        path = self.leave_temporary_file(os.getpid())
        self.train("run", {"run.steps": 2})
        self.assertTrue(path.exists(), path)

    def test_another_model_is_refused_by_its_name_and_the_run_stays_as_it_was(self):
        self.train("run", {"run.steps": 2})
        config = (self.dir / "run/config.ini").read_text()
        metrics = (self.dir / "run/metrics.jsonl").read_bytes()
        for key, name, value, held in (
            ("model.hidden", "hidden", 64, 32),
            ("model.layers", "layers", 3, 2),
            ("model.tied", "tied", "true", "false"),
            ("model.rope-theta", "rope_theta", 500000, 10000),
        ):
            with self.subTest(key):
                result = self.train(
                    "run", {key: value, "run.steps": 3}, CONFIGURATION, ranks=3 if key == "model.hidden" else 0
                )
                self.assert_refused(result, "step-2.h5", name, value, held)
        self.assertEqual((self.dir / "run/metrics.jsonl").read_bytes(), metrics)
        self.assertEqual((self.dir / "run/config.ini").read_text(), config, "the file that describes the run")
        self.train("run", {"run.steps": 3})


if __name__ == "__main__":
    harness.main()
