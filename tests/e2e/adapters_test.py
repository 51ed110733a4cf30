"""Adapters, and parameters trained alone, as a user meets them: train, resume, go on, look at, export, merge."""

import json
import shutil
from pathlib import Path

import harness
from harness import BAD_DATA, CONFIGURATION, MISSING

MODELS = Path(__file__).resolve().parents[1] / "golden" / "models"
# 512 tokens in the vocabulary: more than the bytes of the corpus.
TRAINING = {
    "model.from": "model",
    "data.seq": 32,
    "batch.global": 4,
    "run.steps": 4,
    "run.threads": 1,
    "optim.lr": 0.01,
    "schedule.kind": "constant",
    "lora.rank": 3,
    "lora.targets": "q_proj,v_proj,down_proj",
    "lora.dropout": 0.2,
}


class Adapters(harness.Case):
    def setUp(self):
        super().setUp()
        shutil.copytree(MODELS / "qwen2-tiny", self.dir / "model")

    def fine_tune(self, run, options=None, ranks=0, expect=0):
        entries = {"run.dir": run, "data.train": harness.corpus(), **TRAINING, **(options or {})}
        words = harness.option_words({key: value for key, value in entries.items() if value is not None})
        return self.cartan("train", *words, ranks=ranks, expect=expect)

    def losses(self, run):
        lines = (self.dir / run / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]

    def loss(self, source, *words, ranks=0):
        (self.dir / "ids.json").write_text(json.dumps([[1, 5, 400, 7, 7, 200, 3, 9, 11, 450, 2]]))
        words = ("eval", "--from", source, "--ids", "ids.json", "--run.threads", "1", "--json", *words)
        return json.loads(self.cartan(*words, ranks=ranks).out)["loss"]

    def test_a_training_goes_on_on_another_mesh_with_the_same_bits(self):
        self.fine_tune("a")
        self.fine_tune("b", {"run.steps": 2}, ranks=2)
        self.fine_tune("b", {"zero.stage": 3, "mesh.pp": 2}, ranks=4)
        self.assertEqual(self.losses("a"), self.losses("b"))
        self.assertLess(self.losses("a")[-1], self.losses("a")[0])

    def test_checkpoints_hold_what_is_trained(self):
        result = self.fine_tune("a")
        self.assertIn("adapters of rank 3 beside q_proj, v_proj, down_proj", result.err)
        found = self.inspect("a")
        names = {tensor["name"] for tensor in found["tensors"]}
        self.assertEqual(len(names), 3 * 3 * 3 * 2, "values and two moments of two matrices of 3 layers in 3 blocks")
        self.assertTrue(all("lora_" in name for name in names))
        self.assertLess((self.dir / "a/checkpoints/step-4.h5").stat().st_size, 200_000)

    def test_adapters_are_exported_alone_or_merged(self):
        self.fine_tune("a", {"export.dir": "alone"})
        expected = self.loss("a")
        config = json.loads((self.dir / "alone/adapter_config.json").read_text())
        self.assertEqual(config["target_modules"], ["down_proj", "q_proj", "v_proj"])
        self.assertEqual(config["base_model_name_or_path"], str(self.dir / "model"))
        self.assertEqual(self.loss("alone"), expected)
        self.cartan("export", "--from", "alone", "--output", "again")
        self.assertEqual(
            (self.dir / "alone/adapter_model.safetensors").read_bytes(),
            (self.dir / "again/adapter_model.safetensors").read_bytes(),
        )
        self.cartan("export", "--from", "a", "--output", "merged", "--merge", "--dtype", "fp32", ranks=2)
        self.assertAlmostEqual(self.loss("merged"), expected, places=5)
        self.assertNotAlmostEqual(self.loss("model"), expected, places=3)
        self.assertEqual(
            harness.safetensors_entries(self.dir / "merged/model.safetensors").keys(),
            {name for path in (self.dir / "model").glob("*.safetensors") for name in harness.safetensors_entries(path)},
        )
        self.fine_tune("b", {"export.dir": "merged2", "export.dtype": "fp32", "export.merge": "true"})
        self.assertEqual(
            (self.dir / "merged/model.safetensors").read_bytes(), (self.dir / "merged2/model.safetensors").read_bytes()
        )

    def test_a_run_or_a_folder_of_adapters_can_be_gone_on_with(self):
        self.fine_tune("a", {"export.dir": "alone"})
        lora = {key: None for key in TRAINING if key.startswith("lora.")}
        self.fine_tune("b", {**lora, "model.from": "a", "run.steps": 1})
        self.fine_tune("c", {**lora, "lora.from": "alone", "run.steps": 1})
        self.fine_tune("d", {**lora, "model.from": "alone", "run.steps": 1, "export.dir": "of_d"})
        self.assertEqual(self.losses("b"), self.losses("c"))
        self.assertEqual(self.losses("b"), self.losses("d"))
        self.assertLess(self.losses("b")[0], self.losses("a")[0])
        self.assertIn("rank = 3 ", (self.dir / "c/config.ini").read_text())
        config = json.loads((self.dir / "of_d/adapter_config.json").read_text())
        self.assertEqual(config["base_model_name_or_path"], str(self.dir / "model"), "not the first adapters")
        self.fine_tune("d", {**lora, "model.from": "alone", "run.steps": 2})
        config["base_model_name_or_path"] = str(self.dir / "of_d")
        (self.dir / "of_d/adapter_config.json").write_text(json.dumps(config))
        (self.dir / "ids.json").write_text("[[1, 2]]")
        result = self.cartan("eval", "--from", "of_d", "--ids", "ids.json", expect=BAD_DATA)
        self.assert_refused(result, "which is a folder of adapters itself")

    def test_the_base_is_found_or_asked_for(self):
        self.fine_tune("a", {"export.dir": "alone"})
        expected = self.loss("a")
        (self.dir / "model").rename(self.dir / "moved")
        for source in ("a", "alone"):
            words = ("eval", "--from", source, "--ids", "ids.json")
            self.assert_refused(self.cartan(*words, ranks=2, expect=MISSING), str(self.dir / "model"), "--base")
            self.assertEqual(self.loss(source, "--base", "moved"), expected)
        self.cartan("export", "--from", "a", "--base", "moved", "--output", "merged", "--merge")
        self.fine_tune("a", {"model.from": "moved", "run.steps": 5})
        self.assertEqual(len(self.losses("a")), 5)
        shutil.copytree(MODELS / "llama-tied-tiny", self.dir / "model")
        self.assert_refused(
            self.cartan("eval", "--from", "a", "--ids", "ids.json", expect=BAD_DATA), "belongs to another model"
        )

    def test_chosen_parameters_alone(self):
        only = {"lora.rank": None, "lora.targets": None, "lora.dropout": None, "train.only": "*.mlp.*,norm.weight"}
        self.fine_tune("a", {**only, "export.dir": "out", "export.dtype": "fp32"})
        names = {tensor["name"] for tensor in self.inspect("a")["tensors"] if tensor["name"].startswith("model/")}
        self.assertEqual(len(names), 3 * 3 + 1)
        self.assertEqual(self.loss("a"), self.loss("out"), "the export is whole")
        before, after = {}, harness.safetensors_entries(self.dir / "out/model.safetensors")
        for path in (self.dir / "model").glob("*.safetensors"):
            before.update(harness.safetensors_entries(path))
        changed = {name for name in before if before[name] != after[name]}
        self.assertEqual({"model/" + name for name in changed}, names)
        self.fine_tune("b", {**only, "zero.stage": 2, "run.steps": 2}, ranks=2)
        self.fine_tune("b", {**only, "mesh.tp": 1})
        self.assertEqual(self.losses("a"), self.losses("b"))

    def test_without_a_base_the_initial_values_stay(self):
        model = {"model.from": None, "model.hidden": 32, "model.layers": 2, "model.heads": 2, "model.ffn": 64}
        self.fine_tune("a", {**model, "run.steps": 2})
        self.fine_tune("a", model)
        self.fine_tune("b", model)
        self.assertEqual(self.losses("a"), self.losses("b"))
        words = ("eval", "--from", "a", "--data.valid", harness.corpus(), "--seq", "32", "--samples", "3", "--json")
        self.assertGreater(json.loads(self.cartan(*words).out)["loss"], 0)

    def test_verify_compares_them(self):
        words = harness.option_words({**TRAINING, "model.from": "model", "mesh.tp": 2, "train.only": "*norm.weight"})
        self.cartan("verify", "--data.train", harness.corpus(), *words, ranks=2)

    def test_what_is_wrong_is_named(self):
        for options, texts in (
            ({"lora.targets": "q_porj"}, ("lora.targets", "did you mean q_proj?")),
            ({"lora.layers": "2-3"}, ("lora.layers", "numbers from 0 to 2")),
            ({"train.only": "lm_head"}, ("train.only", "lm_head names no parameter")),
            ({"model.from": None, "lora.from": "x"}, ("x/adapter_model.safetensors",)),
        ):
            expect = MISSING if "lora.from" in options else CONFIGURATION
            self.assert_refused(self.fine_tune("x", options, ranks=2, expect=expect), *texts)
        self.fine_tune("a", {"run.steps": 1})
        self.assert_refused(self.fine_tune("a", {"lora.rank": 4}, expect=CONFIGURATION), '"rank":3', '"rank":4')
        self.assert_refused(
            self.fine_tune("b", {"model.from": "a", "lora.rank": 0}, expect=CONFIGURATION), "has adapters", "--merge"
        )


if __name__ == "__main__":
    harness.main()
