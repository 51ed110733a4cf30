"""A run that goes on from a checkpoint has the numbers of a run that never stopped, on any number of ranks."""

import harness
from harness import STOPPED


class Resume(harness.Case):
    def test_other_ranks_go_on_with_the_same_bits(self):
        self.train("whole", {"run.steps": 8})
        for ranks, steps in ((2, 2), (3, 3), (0, 5), (4, 8)):
            result = self.train("parts", {"run.steps": steps}, ranks=ranks)
        self.assertIn("resumed at step 5 from parts/checkpoints/step-5.h5", result.err)
        self.assert_same_run("whole", "parts")

    def test_other_zero_stages_go_on_with_the_same_bits(self):
        self.train("whole", {"run.steps": 6})
        for ranks, steps, zero in ((2, 2, {"zero.stage": 3}), (3, 3, {"zero.stage": 1}), (4, 5, {"zero.stage": 2}), (0, 6, {})):
            self.train("parts", {"run.steps": steps, "batch.micro": 1, **zero}, ranks=ranks)
        self.assert_same_run("whole", "parts")

    def test_fp16_goes_on_with_its_loss_scale(self):
        fp16 = {"precision.compute": "fp16", "precision.loss-scale-power": 30, "precision.loss-scale-hysteresis": 1}
        self.train("whole", {"run.steps": 14, **fp16})
        self.train("parts", {"run.steps": 5, **fp16}, ranks=2)
        self.train("parts", {"run.steps": 14, **fp16}, ranks=3)
        self.assert_same_run("whole", "parts")
        skipped = [line["skipped"] for line in self.metrics("whole")]
        self.assertTrue(skipped[0] and not skipped[-1], skipped)
        self.assertEqual([line["loss_scale"] for line in self.metrics("parts")], [line["loss_scale"] for line in self.metrics("whole")])

    def test_other_meshes_go_on(self):
        common = {"batch.micro": 1, "data.seq": 32, "model.layers": 4, "model.heads": 4, "model.kv-heads": 2, "optim.lr": 1e-3}
        meshes = (
            (4, {"mesh.tp": 2, "mesh.pp": 2}),
            (2, {"mesh.cp": 2, "zero.stage": 3}),
            (4, {"mesh.tp": 4, "zero.stage": 1}),
            (4, {"mesh.tp-grid": "2x2"}),
            (6, {"mesh.pp": 3, "pipeline.schedule": "zero-bubble", "zero.stage": 2}),
            (0, {}),
        )
        self.train("whole", {"run.steps": 12, **common})
        for turn, (ranks, mesh) in enumerate(meshes):
            self.train("parts", {"run.steps": 2 * turn + 2, **common, **mesh}, ranks=ranks)
        for one, two in zip(self.metrics("whole"), self.metrics("parts"), strict=True):
            self.assertEqual(one["step"], two["step"])
            self.assertLess(abs(float(one["loss"]) / float(two["loss"]) - 1), 1e-5, (one, two))
            self.assertLess(abs(float(one["grad_norm"]) / float(two["grad_norm"]) - 1), 1e-4, (one, two))

    def test_bf16_goes_on_with_the_same_bits(self):
        bf16 = {"precision.compute": "bf16"}
        self.train("whole", {"run.steps": 5, **bf16})
        self.train("parts", {"run.steps": 2, **bf16}, ranks=2)
        self.train("parts", {"run.steps": 5, **bf16}, ranks=3)
        self.assert_same_run("whole", "parts")

    def test_fp8_goes_on_with_its_scales(self):
        fp8 = {"precision.compute": "bf16", "precision.products": "fp8", "precision.fp8-history": 3}
        self.train("whole", {"run.steps": 6, **fp8})
        self.train("parts", {"run.steps": 2, **fp8}, ranks=2)
        self.train("parts", {"run.steps": 4, "checkpoint.async": "true", **fp8}, ranks=3)
        self.train("parts", {"run.steps": 6, **fp8})
        self.assert_same_run("whole", "parts")
        self.train("bf16", {"run.steps": 6, "precision.compute": "bf16"})
        self.assertNotEqual([line["loss"] for line in self.metrics("whole")], [line["loss"] for line in self.metrics("bf16")])

    def test_asynchronous_checkpoints_are_as_good(self):
        beside = {"checkpoint.async": "true", "checkpoint.every": 1, "checkpoint.keep": 2}
        self.train("whole", {"run.steps": 7})
        self.train("parts", {"run.steps": 3, **beside}, ranks=2)
        self.train("parts", {"run.steps": 5, **beside})
        self.train("parts", {"run.steps": 7, **beside}, ranks=3)
        self.assertEqual(self.checkpoints("parts"), [6, 7])
        self.cartan("inspect", *self.dir.glob("parts/checkpoints/*"), "--verify")
        self.assert_same_run("whole", "parts")

    def test_the_schedule_goes_on_after_a_stop(self):
        """A file named STOP ends a run of a cosine schedule after each step."""
        cosine = {"schedule.kind": "cosine", "schedule.warmup": 1, "run.steps": 4}
        self.train("whole", cosine)
        (self.dir / "parts").mkdir()
        for ranks in (2, 0, 3):
            (self.dir / "parts/STOP").touch()
            self.train("parts", cosine, STOPPED, ranks)
            self.assertFalse((self.dir / "parts/STOP").exists(), "a file STOP that was served")
        self.assertEqual(self.checkpoints("parts"), [1, 2, 3])
        self.train("parts", cosine)
        self.assert_same_run("whole", "parts")
        self.assertGreater(len({line["lr"] for line in self.metrics("parts")}), 2)

    def test_save_writes_a_checkpoint_and_goes_on(self):
        (self.dir / "run").mkdir()
        (self.dir / "run/SAVE").touch()
        self.train("run", {"run.steps": 3}, ranks=2)
        self.assertEqual(self.checkpoints("run"), [1, 3])
        self.assertFalse((self.dir / "run/SAVE").exists(), "a file SAVE that was served")

    def test_epochs_follow_each_other_after_a_resume(self):
        small = {"data.train": harness.corpus(4), "run.steps": 13}  # about 60 samples: five steps an epoch
        self.train("whole", small)
        self.train("parts", {**small, "run.steps": 7}, ranks=2)
        self.train("parts", small, ranks=4)
        self.assert_same_run("whole", "parts")
        losses = [row[1] for row in self.numbers("whole")]
        self.assertEqual(len(set(losses)), 13)

    def test_another_batch_goes_on_with_the_next_samples(self):
        """Without learning, the loss of a step tells which samples were in it."""
        still = {"optim.lr": 0}
        self.train("sixes", {**still, "batch.global": 6, "run.steps": 6})
        self.train("run", {**still, "batch.global": 12, "run.steps": 2})
        self.train("run", {**still, "batch.global": 6, "run.steps": 4}, ranks=3)
        sixes, run = ([row[1] for row in self.numbers(name)] for name in ("sixes", "run"))
        self.assertEqual(run[2:], sixes[4:])
        self.assertEqual(self.inspect("run")["state"]["samples"], 36)
        # And the other way round.
        self.train("run", {**still, "batch.global": 12, "run.steps": 5}, ranks=2)
        self.train("twelves", {**still, "batch.global": 12, "run.steps": 4})
        self.assertEqual(self.numbers("run")[4][1], self.numbers("twelves")[3][1])

    def test_a_finished_run_ends_at_once_and_changes_nothing(self):
        self.train("run", ranks=2)
        names = sorted(self.dir.glob("run/**/*"))
        before = [(path, path.stat().st_mtime_ns) for path in names if path.name != "config.ini"]
        for ranks in (0, 2):
            result = self.train("run", ranks=ranks)
            self.assertIn("run.steps = 4 are done already", result.err)
            self.assertEqual(sorted(self.dir.glob("run/**/*")), names)
        after = [(path, path.stat().st_mtime_ns) for path in names if path.name != "config.ini"]
        self.assertEqual([b for b in before if b[0].is_file()], [a for a in after if a[0].is_file()])

    def test_the_newest_checkpoints_are_kept(self):
        self.train("two", {"checkpoint.every": 1, "checkpoint.keep": 2, "run.steps": 5}, ranks=2)
        self.assertEqual(self.checkpoints("two"), [4, 5])
        self.train("all", {"checkpoint.every": 2, "checkpoint.keep": 0, "run.steps": 5})
        self.assertEqual(self.checkpoints("all"), [2, 4, 5])
        self.train("last", {"checkpoint.every": 0})
        self.assertEqual(self.checkpoints("last"), [4])

    def test_a_resume_from_an_older_checkpoint_repeats_the_lines_of_metrics(self):
        self.train("run", {"checkpoint.every": 2, "run.steps": 6})
        before = self.numbers("run")
        for step in (4, 6):
            self.checkpoint("run", step).unlink()
        self.train("run", {"run.steps": 6}, ranks=3)
        self.assertEqual(self.numbers("run"), before)


if __name__ == "__main__":
    harness.main()
