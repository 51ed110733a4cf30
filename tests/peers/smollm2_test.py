"""A real model, SmolLM2-135M-Instruct: CARTAN_SMOLLM2 names its Hugging Face folder, as the golden data's smollm2_to_hf.py
makes it. What cartan computes with it is what tests/golden/smollm2/expected.json says and what transformers computes,
after a training too."""

import json
import math
import os
import sys
import unittest
from pathlib import Path

import peer
import tokenizers
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
FOLDER = os.environ.get("CARTAN_SMOLLM2", "")
if not (Path(FOLDER) / "config.json").exists():
    print("skipped: CARTAN_SMOLLM2 names no folder of a model" if FOLDER else "skipped: CARTAN_SMOLLM2 is not set")
    sys.exit(77)
FOLDER = str(Path(FOLDER).resolve())
EXPECTED = json.loads((ROOT / "tests/golden/smollm2/expected.json").read_text())
PARAGRAPH = EXPECTED["losses"][0]

QUESTIONS = [
    ("Question: What is the capital of France?\nAnswer:", [" Paris", " London", " the town of \u00c9vora"], 0),
    ("Two and two are ", ["four", "five", "three hundred"], 0),  # the blank belongs to the choice
    ("Water boils at one hundred degrees", [" Celsius", " Fahrenheit", "-days"], 0),
    ("The opposite of hot is", [" cold", " warm", " purple"], 0),
]


class SmolLM2(peer.Case):
    @classmethod
    def setUpClass(cls):
        cls.tokenizer = tokenizers.Tokenizer.from_file(f"{FOLDER}/tokenizer.json")

    def evaluate(self, *words, ranks=0):
        return json.loads(self.cartan("eval", "--from", FOLDER, *words, "--json", ranks=ranks))

    def test_greedy_text_is_the_documented_one(self):
        for case in EXPECTED["greedy"]:
            words = ["generate", "--from", FOLDER, "--prompt", case["text"], "--ignore-end", "--json"]
            found = json.loads(self.cartan(*words, "--max-new-tokens", len(case["new_tokens"])))
            self.assertEqual(found["ids"], case["new_tokens"], case["text"])
            self.assertEqual(found["text"], case["continuation"])

    def test_losses_and_logits_are_the_documented_ones_on_any_mesh(self):
        ids = PARAGRAPH["ids"]
        (self.dir / "ids.json").write_text(json.dumps([ids]))
        for ranks, mesh in ((0, []), (2, ["--tp", 1, "--pp", 2]), (3, ["--tp", 3]), (2, ["--cp", 2])):
            found = self.evaluate("--ids", "ids.json", "--logits", "logits.safetensors", *mesh, ranks=ranks)
            self.assertAlmostEqual(found["loss"], PARAGRAPH["loss"], delta=1e-4)
            logits = load_file(self.dir / "logits.safetensors")["logits"][0].double()
            losses = -torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
            expected = torch.tensor(PARAGRAPH["nll_per_target"], dtype=torch.float64)
            self.assertLess((losses - expected).abs().max(), 1e-3)
            top = logits[-1].topk(5)
            self.assertEqual(top.indices.tolist(), PARAGRAPH["last_position_top5"]["ids"])
            for value, right in zip(top.values.tolist(), PARAGRAPH["last_position_top5"]["logits"]):
                self.assertAlmostEqual(value, right, delta=1e-2)

    def test_four_steps_of_training_are_the_documented_ones(self):
        (self.dir / "text.txt").write_text(PARAGRAPH["text"])
        self.cartan("tokenize", "--input", "text.txt", "--tokenizer", FOLDER, "--output", "data")
        hyper = EXPECTED["training"]["hyper"]
        self.cartan(
            *("train", "--model.from", FOLDER, "--data.train", "data", "--data.tokenizer", FOLDER),
            *("--seq", len(PARAGRAPH["ids"]) - 1, "--batch.global", 1, "--steps", hyper["steps"]),
            *("--optim.lr", hyper["lr"], "--optim.beta1", hyper["betas"][0], "--optim.beta2", hyper["betas"][1]),
            *("--optim.eps", hyper["eps"], "--optim.weight-decay", hyper["weight_decay"], "--optim.clip", hyper["clip"]),
            *("--schedule.kind", "constant", "--schedule.warmup", 0, "--checkpoint.every", 0),
        )
        lines = [json.loads(line) for line in (self.dir / "runs/default/metrics.jsonl").read_text().splitlines()]
        self.assertEqual(len(lines), hyper["steps"])
        for found, expected in zip(lines, EXPECTED["training"]["steps"]):
            self.assertAlmostEqual(found["loss"], expected["loss"], delta=1e-4)
            self.assertAlmostEqual(found["grad_norm"] / expected["grad_norm"], 1, delta=3e-4)

    def test_perplexity_of_windows_is_that_of_transformers(self):
        text = (ROOT / "docs/translation.md").read_text()[:3000]
        (self.dir / "text.txt").write_text(text)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        model = self.load_quietly(FOLDER)
        length, stride, previous, total, count = 256, 100, 0, 0.0, 0
        for begin in range(0, len(ids), stride):
            end = min(begin + length, len(ids))
            rows = torch.tensor([ids[begin:end]])
            labels = rows.clone()
            labels[:, : previous - end] = -100  # what was predicted before
            targets = (labels[:, 1:] != -100).sum().item()
            with torch.no_grad():
                total += model(rows, labels=labels).loss.double().item() * targets
            count += targets
            previous = end
            if end == len(ids):
                break
        found = self.evaluate("--text", "text.txt", "--seq", length, "--stride", stride, ranks=2)
        self.assertEqual((found["targets"], found["tokens"]), (count, len(ids)))
        self.assertAlmostEqual(found["loss"], total / count, delta=2e-5)
        self.assertAlmostEqual(found["bits_per_byte"], total / math.log(2) / len(text.encode()), delta=2e-5)

    def test_choices_are_scored_as_transformers_and_the_harness_do(self):
        def encode(text):
            return self.tokenizer.encode(text).ids

        model = self.load_quietly(FOLDER)
        lines, expected = [], []
        for context, choices, label in QUESTIONS:
            lines.append(json.dumps({"context": context, "choices": choices, "label": label}))
            expected.append([])
            for choice in choices:
                # lm-evaluation-harness, TemplateLM._encode_pair.
                stripped = context.rstrip()
                whole, before = encode(context + choice), encode(stripped)
                with torch.no_grad():
                    rows = torch.log_softmax(model(torch.tensor([whole[:-1]])).logits[0].double(), -1)
                scores = [rows[i - 1, whole[i]].item() for i in range(len(before), len(whole))]
                expected[-1].append((sum(scores), len(scores), len(choice.lstrip())))
        (self.dir / "q.jsonl").write_text("\n".join(lines))
        out = self.cartan("eval", "--from", FOLDER, "--choices", "q.jsonl", "--json", ranks=2).splitlines()
        *answers, summary = map(json.loads, out)
        right = right_norm = 0
        for answer, scores, (_, _, label) in zip(answers, expected, QUESTIONS, strict=True):
            self.assertEqual(answer["tokens"], [tokens for _, tokens, _ in scores])
            self.assertEqual(answer["characters"], [length for _, _, length in scores])
            for value, (log_likelihood, _, _) in zip(answer["log_likelihoods"], scores):
                self.assertAlmostEqual(value, log_likelihood, delta=1e-3)
            right += max(range(len(scores)), key=lambda i: scores[i][0]) == label
            right_norm += max(range(len(scores)), key=lambda i: scores[i][0] / scores[i][2]) == label
        self.assertEqual((summary["acc"], summary["acc_norm"]), (right / len(answers), right_norm / len(answers)))

    def test_a_fine_tuned_model_is_the_same_in_transformers(self):
        texts = [str(path) for path in sorted((ROOT / "docs").glob("*.md"))]
        self.cartan("tokenize", "--input", *texts, "--tokenizer", FOLDER, "--output", "docs")
        self.cartan(
            *("train", "--model.from", FOLDER, "--data.train", "docs", "--data.tokenizer", FOLDER, "--run.dir", "run"),
            *("--seq", 128, "--batch.global", 2, "--steps", 4, "--optim.lr", 5e-5, "--schedule.kind", "constant"),
            *("--schedule.warmup", 0, "--checkpoint.every", 0, "--export.dir", "tuned", "--export.dtype", "fp32"),
            ranks=2,
        )
        words = ["--data.valid", "docs", "--seq", 128, "--samples", 8]
        before = self.evaluate(*words, ranks=2)
        after = json.loads(self.cartan("eval", "--from", "run", *words, "--json", ranks=2))
        self.assertLess(after["loss"], before["loss"])
        (self.dir / "ids.json").write_text(json.dumps([PARAGRAPH["ids"]]))
        found = self.logits_of_cartan("run")
        with torch.no_grad():
            expected = self.load_quietly(self.dir / "tuned")(torch.tensor([PARAGRAPH["ids"]])).logits
        self.assertLess((found - expected).abs().max() / expected.abs().max(), 2e-5)
        self.assertGreater((self.logits_of_cartan(FOLDER) - expected).abs().max(), 0.01, "it was trained")
        self.assertTrue(torch.equal(self.logits_of_cartan("tuned"), found), "the export has the run's bits")


if __name__ == "__main__":
    unittest.main(verbosity=2)
