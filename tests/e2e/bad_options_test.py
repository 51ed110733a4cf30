"""What the user wrote wrong is said once, with what would be right, before anything is written."""

import os
import unittest

import harness
from harness import CONFIGURATION, DONE, ENVIRONMENT, MISSING, USAGE


class BadOptions(harness.Case):
    def refuse(self, code, words, *parts, ranks=0):
        with self.subTest(" ".join(str(word) for word in words)):
            result = self.cartan(*words, expect=code, ranks=ranks)
            self.assert_refused(result, *parts)
            self.assertEqual(result.out, "")

    def refuse_train(self, options, *parts, code=CONFIGURATION, ranks=0):
        self.refuse(code, self.train_words("run", options), *parts, ranks=ranks)
        self.assertFalse((self.dir / "run").exists(), "a run directory of a refused run")

    def test_words_that_are_not_known(self):
        for ranks in (0, 4):
            self.refuse(USAGE, ["train", "--stepz", 3], "--stepz", "--steps", ranks=ranks)
        self.refuse(USAGE, ["train", "--optim.larning-rate", 3], "--optim.larning-rate", "--optim.l")
        self.refuse(USAGE, ["train", "--modle.hidden", 3], "--modle.hidden", "--model.hidden")
        self.refuse(USAGE, ["trian"], "trian", "train")
        self.refuse(USAGE, ["train", "run.ini"], "run.ini", "--config")
        self.refuse(USAGE, ["train", "--steps"], "--steps")
        self.refuse(USAGE, ["eval", "--optim.lr", 1, "--from", "x"], "--optim.lr")
        self.refuse(USAGE, ["--steps", 3], "--steps")
        self.refuse(USAGE, ["generate", "--prompt", "a"], "--from")
        self.refuse(USAGE, ["generate", "--from", "x"], "--prompt")
        self.refuse(USAGE, ["eval", "--from", "x"], "--data.valid", "--ids")
        self.refuse(USAGE, ["tokenize", "--input", "x"], "--output")
        self.refuse(USAGE, ["inspect"], "inspect")
        self.refuse(USAGE, ["plan", "--pp", 4], "--bubble")

    def test_no_command_shows_the_commands(self):
        result = self.cartan(expect=USAGE)
        self.assertIn("cartan COMMAND --help", result.err)

    def test_commands_of_later_versions(self):
        for name in ("import", "export", "bench", "diff", "report"):
            self.refuse(USAGE, [name], name)

    def test_keys_in_a_file(self):
        file = self.dir / "my.ini"
        file.write_text("[run]\nsteps = 3\n\n[optim]\nlearning-rate = 1e-3\nbeta = 0.9\n[modle]\nhidden = 32\n")
        parts = [
            "my.ini:5",
            "optim.learning-rate",
            "my.ini:6",
            "optim.beta",
            "my.ini:8",
            "modle.hidden",
            "model.hidden",
        ]
        for ranks in (0, 4):
            self.refuse(CONFIGURATION, ["train", "--config", "my.ini"], *parts, ranks=ranks)
        file.write_text("[run]\nsteps = many\n[optim]\nlr = 1e-3 2e-3\n")
        self.refuse(CONFIGURATION, ["train", "--config", "my.ini"], "run.steps = many", "my.ini:2", "optim.lr")
        file.write_text("steps 3\n[run\nsteps = 3\nsteps = 4\n")
        self.refuse(CONFIGURATION, ["config", "--config", "my.ini"], "my.ini:1", "my.ini:2", "my.ini:4")
        self.refuse(MISSING, ["train", "--config", "none.ini"], "none.ini")

    def test_values_out_of_range(self):
        for key, value in (
            ("run.steps", 0),
            ("run.steps", -5),
            ("run.steps", "1e3x"),
            ("run.steps", "99999999999999999999"),
            ("run.threads", -1),
            ("run.device", "tpu"),
            ("run.log-every", 0),
            ("model.hidden", 0),
            ("model.layers", -1),
            ("model.preset", "gpt5"),
            ("model.tied", "perhaps"),
            ("data.seq", 0),
            ("data.valid-fraction", 1.5),
            ("data.tokenizer", "words"),
            ("batch.global", 0),
            ("zero.bucket-mb", 0),
            ("zero.stage", 5),
            ("pipeline.schedule", "dualpipe"),
            ("pipeline.chunks", 0),
            ("pipeline.cut", "3,x"),
            ("precision.compute", "fp8"),
            ("precision.reduce", "fp8"),
            ("precision.sum", "any"),
            ("precision.buffer", "fp64"),
            ("precision.products", "fp4"),
            ("precision.fp8-history", 0),
            ("precision.fp8-margin", 17),
            ("recompute.layers", "3-1"),
            ("recompute.layers", "0-99"),
            ("tensor.chunks", 0),
            ("watch.replicas", -1),
            ("mesh.tp-grid", "2by2"),
            ("hook.gradient", "qsgd"),
            ("hook.rank", 0),
            ("hook.fraction", 0),
            ("hook.fraction", 1.5),
            ("hook.warmup", -1),
            ("optim.lr", -1),
            ("optim.lr", "nan"),
            ("optim.beta2", 1),
            ("schedule.kind", "sine"),
            ("checkpoint.every", -1),
            ("checkpoint.async", "maybe"),
        ):
            self.refuse_train({key: value}, key, value)
        self.refuse_train({"schedule.kind": "cosine", "schedule.min-lr": 0.5}, "schedule.min-lr = 0.5", "optim.lr")

    def test_what_does_not_divide(self):
        self.refuse_train({"model.heads": 5}, "model.heads", "32", "5")
        self.refuse_train({"model.heads": 4, "model.kv-heads": 3}, "model.kv-heads", "3", "4")
        self.refuse_train({"model.head-dim": 7}, "model.head-dim", "7")
        self.refuse_train({"batch.global": 10}, "batch.global = 10", "8 or 12", ranks=4)
        self.refuse_train({"batch.global": 3}, "batch.global = 3", "4", ranks=4)
        self.refuse_train({"batch.global": 12, "batch.micro": 5}, "batch.micro", "10 or 15")
        self.refuse_train({"batch.micro": 4}, "batch.global = 12", "8 or 16", "6", ranks=2)

    def test_meshes_that_do_not_fit(self):
        self.refuse_train({"mesh.dp": 3}, "3", "4 ranks", "mesh.dp = 4", ranks=4)
        self.refuse_train({"mesh.dp": 2}, "1 rank", "mesh.dp = 1")
        self.refuse_train({"mesh.tp": 3}, "3", "4 ranks", "1, 2 or 4", ranks=4)

    def test_pipelines_that_do_not_fit(self):
        interleaved = {"mesh.pp": 4, "model.layers": 6, "pipeline.schedule": "interleaved", "pipeline.chunks": 2}
        self.refuse_train(interleaved, "model.layers = 6", "4 * 2 = 8", "at least 8 layers", ranks=4)
        few = {"mesh.pp": 4, "model.layers": 8, "batch.micro": 4, "pipeline.schedule": "interleaved"}
        self.refuse_train(few, "3 micro-batches", "use 4", ranks=4)
        self.refuse_train({"mesh.pp": 2, "model.layers": 4, "pipeline.cut": "1,2"}, "adds up to 3", ranks=2)

    def test_axes_that_cannot_split_the_model(self):
        self.refuse_train({"mesh.tp": 4, "model.heads": 6}, "mesh.tp = 4", "model.heads = 6", "1, 2, 3, 6", ranks=4)
        self.refuse_train({"mesh.tp": 2, "data.seq": 33}, "data.seq = 33", "32 or 34", ranks=2)
        self.refuse_train({"mesh.cp": 2, "data.seq": 30}, "data.seq = 30", "28 or 32", ranks=2)
        self.refuse_train(
            {"mesh.cp": 2, "data.seq": 32, "model.heads": 3, "context.exchange": "all-to-all"},
            "all-to-all",
            "--cp 1",
            ranks=2,
        )
        self.refuse_train({"mesh.pp": 4, "model.layers": 3}, "model.layers = 3", "4 layers", ranks=4)
        self.refuse_train({"zero.shard": 3}, "zero.shard = 3", "1, 2, 4", ranks=4)

    def test_gradients_that_cannot_travel_so(self):
        for hook in ("powersgd", "topk"):
            self.refuse_train({"hook.gradient": hook, "zero.stage": 2}, f"hook.gradient = {hook}", "zero.stage 0 or 1")
            self.refuse_train({"hook.gradient": hook, "mesh.tp-grid": "2x1"}, f"hook.gradient = {hook}", "mesh.tp-grid = 2x1", ranks=2)
            self.refuse_train({"hook.gradient": hook, "precision.compute": "fp16"}, f"hook.gradient = {hook}", "bf16")
        self.refuse_train({"precision.sum": "nccl"}, "precision.sum = nccl", "needs run.device = cuda", "precision.sum canonical")
        self.refuse_train({"precision.sum": "nccl", "precision.reduce": "bf16"}, "precision.sum = nccl", "adds fp32 gradients", "leave one of them away")
        self.refuse_train({"nccl.ib-timeout": 23}, "nccl.ib-timeout = 23", "1 to 22")
        self.refuse_train({"nccl.ib-disable": "yes"}, "nccl.ib-disable = yes", "one of 0, 1")
        self.refuse_train({"watch.timeout": 5}, "watch.timeout = 5", "is for calls of NCCL", "run.device = cpu")
        self.refuse_train({"precision.reduce": "fp16"}, "precision.reduce = fp16", "precision.reduce bf16")

    def test_fp8_products_of_other_numbers_than_bf16(self):
        for compute in ("fp32", "fp16"):
            self.refuse_train(
                {"precision.products": "fp8", "precision.compute": compute},
                f"precision.compute = {compute}",
                "use precision.compute bf16",
            )

    def test_offloading_to_a_folder_that_does_not_exist(self):
        result = self.train("run", {"zero.offload": "states", "zero.offload-dir": "nowhere"}, expect=74)
        self.assertIn("nowhere", result.err)
        self.assertIn("No such file or directory", result.err)

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "there is a GPU here")
    def test_a_gpu_where_there_is_none(self):
        for ranks in (0, 2):
            self.refuse_train({"run.device": "cuda"}, "run.device = cuda", "use run.device = cpu", code=ENVIRONMENT, ranks=ranks)

    def test_keys_of_later_versions(self):
        for key in ("recompute.policy", "watch.heartbeat"):
            self.refuse_train({key: 1}, key)

    def test_several_mistakes_are_said_together(self):
        self.refuse_train(
            {"model.heads": 5, "batch.global": 10, "schedule.warmup": -1, "precision.compute": "fp8"},
            "schedule.warmup",
            "precision.compute",
        )
        self.refuse_train({"model.heads": 5, "batch.global": 10}, "model.heads", "batch.global", ranks=4)

    def test_no_data_and_evaluation_without_data(self):
        words = [word for word in self.train_words("run", {}) if word not in ("--data.train", harness.corpus())]
        self.refuse(CONFIGURATION, words, "data.train", "cartan tokenize")
        self.refuse_train({"run.eval-every": 1}, "run.eval-every", "data.valid")

    def test_the_right_words_are_taken(self):
        """The frame of these tests is sound: with nothing wrong in it, it trains."""
        self.train("run", {"mesh.dp": 2, "batch.micro": 3, "run.steps": 1}, expect=DONE, ranks=2)


if __name__ == "__main__":
    harness.main()
