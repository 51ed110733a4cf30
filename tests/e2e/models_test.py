"""Hugging Face folders as a user meets them: train from one, look into it, import, export, and what is refused."""

import json
import shutil
from pathlib import Path

import harness
from harness import BAD_DATA, CONFIGURATION, MISSING, USAGE

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
MODELS = GOLDEN / "models"
# 512 tokens in the vocabulary: more than the bytes of the corpus.
TRAINING = {
    "data.seq": 32,
    "batch.global": 4,
    "run.steps": 2,
    "run.threads": 1,
    "optim.lr": 0.01,
    "schedule.kind": "constant",
}


class Models(harness.Case):
    def copy(self, model="qwen2-tiny", name="model"):
        """The model's folder, which may be changed."""
        folder = self.dir / name
        shutil.copytree(MODELS / model, folder)
        return folder

    def change(self, folder, **entries):
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config.update(entries)
        path.write_text(json.dumps(config))

    def fine_tune(self, run, options, ranks=0, expect=0):
        words = harness.option_words(
            {"run.dir": run, "data.train": harness.corpus(), **TRAINING, **options}
        )
        return self.cartan("train", *words, ranks=ranks, expect=expect)

    def losses(self, run):
        lines = (self.dir / run / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]

    def logits(self, source, name):
        (self.dir / "ids.json").write_text(json.dumps([[1, 5, 400, 7, 7, 200, 3]]))
        self.cartan("eval", "--from", source, "--ids", "ids.json", "--logits", name, "--run.threads", "1")
        return (self.dir / name).read_bytes()

    def test_training_begins_with_the_parameters_of_the_folder(self):
        self.copy()
        self.fine_tune("a", {"model.from": "model"})
        self.fine_tune("b", {"model.from": "model", "zero.stage": 3}, ranks=2)
        self.assertEqual(self.losses("a"), self.losses("b"), "the same bits on two ranks")
        self.cartan("import", "--from", "model", "--output", "model.h5")
        self.fine_tune("c", {"model.from": "model.h5"})
        self.assertEqual(self.losses("a"), self.losses("c"), "the same from a checkpoint")
        self.fine_tune("d", {"model.from": "a", "run.steps": 1})
        self.assertLess(self.losses("d")[0], self.losses("a")[0], "or from a run")
        # A run that has a checkpoint goes on with it.
        self.fine_tune("a", {"model.from": "model", "run.steps": 3})
        self.assertEqual(len(self.losses("a")), 3)
        config = (self.dir / "a/config.ini").read_text()
        self.assertIn("from = model ", config)
        self.assertRegex(config, r"hidden = 64 +# model model")

    def test_what_is_exported_is_the_model(self):
        for model in ("llama-tied-tiny", "qwen2-tiny", "qwen3-tiny", "phi3-longrope-tiny"):
            with self.subTest(model):
                before = self.logits(str(MODELS / model), "before.safetensors")
                self.cartan("import", "--from", str(MODELS / model), "--output", f"{model}.h5")
                self.assertEqual(before, self.logits(f"{model}.h5", "checkpoint.safetensors"))
                words = ["export", "--from", f"{model}.h5", "--output", model, "--dtype", "fp32"]
                self.cartan(*words, ranks=2)
                self.assertEqual(before, self.logits(model, "after.safetensors"))
                # One file has the tensors of all of the original ones.
                original = {}
                for path in (MODELS / model).glob("*.safetensors"):
                    original.update(harness.safetensors_entries(path))
                self.assertEqual(harness.safetensors_entries(self.dir / model / "model.safetensors"), original)

    def test_a_training_exports_its_last_parameters(self):
        folder = self.copy()
        (folder / "tokenizer.json").write_text("{}")
        self.change(folder, eos_token_id=7)
        options = {"model.from": "model", "export.dir": "out", "export.dtype": "fp32", "mesh.tp": 2}
        self.fine_tune("run", options, ranks=2)
        self.assertEqual(self.logits("run", "a.safetensors"), self.logits("out", "b.safetensors"))
        self.assertEqual((self.dir / "out/tokenizer.json").read_text(), "{}")
        self.assertEqual(json.loads((self.dir / "out/config.json").read_text())["eos_token_id"], 7)
        self.cartan("export", "--from", "run", "--output", "out", expect=CONFIGURATION)
        self.cartan("export", "--from", "run", "--output", "out", "--overwrite")
        dtypes = {dtype for dtype, _, _ in harness.safetensors_entries(self.dir / "out/model.safetensors").values()}
        self.assertEqual(dtypes, {"BF16"})

    def test_a_model_made_from_nothing_has_the_length_of_its_samples(self):
        self.train("run", {"run.steps": 1, "export.dir": "out", "export.dtype": "fp32"})
        self.cartan("export", "--from", "run", "--output", "other", "--dtype", "fp32")
        for folder in ("out", "other"):
            self.assertEqual(json.loads((self.dir / folder / "config.json").read_text())["max_position_embeddings"], 32)
        (self.dir / "ids.json").write_text("[[1, 5, 40, 7]]")
        self.cartan("eval", "--from", "run", "--ids", "ids.json", "--logits", "a")
        for folder in ("out", "other"):
            self.cartan("eval", "--from", folder, "--ids", "ids.json", "--logits", "b")
            self.assertEqual((self.dir / "a").read_bytes(), (self.dir / "b").read_bytes())

    def test_inspect_shows_what_is_in_a_folder(self):
        found = self.inspect(str(MODELS / "phi3-longrope-tiny"))
        self.assertEqual((found["kind"], found["model"]["family"]), ("model", "phi3"))
        shapes = {tensor["name"]: tensor["shape"] for tensor in found["tensors"]}
        self.assertEqual(shapes["model.layers.2.self_attn.qkv_proj.weight"], [128, 64])

    def test_what_does_not_fit_is_named(self):
        folder = self.copy()
        self.assert_refused(
            self.fine_tune("run", {"model.from": "model", "model.layers": 2}, ranks=2, expect=CONFIGURATION),
            "holds layers = 3, the configuration says 2",
        )
        self.assert_refused(
            self.fine_tune("run", {"model.from": "model", "model.preset": "tiny"}, expect=CONFIGURATION),
            "model.from = model and model.preset = tiny: use one of them",
        )
        self.assert_refused(self.fine_tune("run", {"model.from": "none"}, expect=MISSING), "none")
        self.change(folder, hidden_act="gelu", final_logit_softcapping=30.0)
        for ranks in (0, 2):
            result = self.fine_tune("run", {"model.from": "model"}, ranks=ranks, expect=BAD_DATA)
            self.assertIn('hidden_act = "gelu": cartan has only "silu"', result.err)
            self.assertIn("final_logit_softcapping = 30.0: cartan does not know this entry", result.err)
        self.change(folder, hidden_act="silu", final_logit_softcapping=None, intermediate_size=161)
        result = self.cartan("eval", "--from", "model", "--ids", "none.json", ranks=2, expect=BAD_DATA)
        self.assertIn("mlp.up_proj.weight is [160, 64] in fp32, expected [161, 64]", result.err)
        self.cartan("import", "--from", str(MODELS / "qwen2-tiny"), "--output", "model.bin", expect=USAGE)


if __name__ == "__main__":
    harness.main()
