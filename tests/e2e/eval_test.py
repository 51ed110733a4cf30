"""`cartan eval` as a user meets it: texts by windows, questions with choices, and models over meshes. The numbers came
from transformers with the same models; texts are bytes."""

import json
import math
from pathlib import Path

import harness
from harness import BAD_DATA, CONFIGURATION, MISSING, USAGE

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
MODEL = str(GOLDEN / "models/qwen2-tiny")

TEXT = (
    "To be, or not to be: that is the question. Whether 't is nobler in the mind to suffer the slings and arrows of "
    "outrageous fortune, or to take arms against a sea of troubles, and by opposing end them. To die, to sleep, no "
    "more; caf\u00e9 \u2014 na\u00efve.\n"
)
QUESTIONS = [
    {
        "id": "a",
        "context": "Question: what is the capital of France?\nAnswer:",
        "choices": [" Paris", " London", " the small town of Rome", " \u00c9vora"],
        "label": 0,
    },
    {"id": 7, "context": "Two and two are ", "choices": ["four", "five", "three hundred"], "label": 1},
    {"context": "", "choices": ["Yes", "No"], "label": 1},
    {"context": "The weather today is", "choices": [" good", " bad"]},
    {"context_ids": [5, 17, 400, 256], "choices": [[1, 2], [300], [511, 0, 7]]},
]
LOG_LIKELIHOODS = [
    [-37.5738422, -45.1721245, -143.3300052, -44.4163370],
    [-31.8200312, -30.0612312, -83.6714722],
    [-19.8327424, -13.0235396],
    [-33.3011658, -27.5798829],
    [-14.1205355, -7.5532642, -18.2593648],
]


class Eval(harness.Case):
    def evaluate(self, *words, **more):
        return json.loads(self.cartan("eval", "--from", MODEL, *words, "--json", **more).out, parse_float=str)

    def write_questions(self, questions=QUESTIONS):
        (self.dir / "q.jsonl").write_text("\n\n".join(json.dumps(question) for question in questions))


class Texts(Eval):
    def setUp(self):
        super().setUp()
        (self.dir / "hamlet.txt").write_text(TEXT)

    def test_windows_give_the_loss_of_transformers_on_any_mesh(self):
        words = ["--text", "hamlet.txt", "--seq", 48, "--stride", 20]
        found = self.evaluate(*words)
        self.assertAlmostEqual(float(found["loss"]), 6.383496790635781, places=5)
        self.assertAlmostEqual(float(found["perplexity"]), math.exp(float(found["loss"])), places=6)
        counts = [found[key] for key in ("targets", "tokens", "windows", "texts", "bytes", "words")]
        self.assertEqual(counts, [244, 245, 11, 1, 245, 49])
        bits = float(found["loss"]) * 244 / math.log(2) / 245
        self.assertAlmostEqual(float(found["bits_per_byte"]), bits, places=9)
        for ranks, mesh in ((2, []), (3, []), (3, ["--pp", 3]), (2, ["--run.threads", 2])):
            self.assertEqual(self.evaluate(*words, *mesh, ranks=ranks), found, "the same bits")
        for ranks, mesh in ((2, ["--tp", 2]), (3, ["--cp", 3]), (4, ["--cp", 2, "--tp", 2])):
            other = self.evaluate(*words, *mesh, ranks=ranks)
            self.assertAlmostEqual(float(other["loss"]), float(found["loss"]), places=5)
            self.assertEqual(other["targets"], 244)

    def test_a_file_is_a_text_and_so_is_a_document_of_a_token_file(self):
        (self.dir / "one.txt").write_text("a")
        words = ["--seq", 64, "--stride", 16]
        found = self.evaluate("--text", "hamlet.txt", "one.txt", "hamlet.txt", *words)
        self.assertEqual((found["texts"], found["tokens"], found["targets"]), (3, 491, 488))
        alone = self.evaluate("--text", "hamlet.txt", *words)
        self.assertAlmostEqual(float(found["loss"]), float(alone["loss"]), places=9)
        self.cartan("tokenize", "--input", "hamlet.txt", "hamlet.txt", "--output", "data")
        tokens = self.evaluate("--data.valid", "data", *words)
        self.assertEqual((tokens["texts"], tokens["tokens"], tokens["targets"]), (2, 492, 490), "with an end each")
        (self.dir / "ids.json").write_text(json.dumps([list(TEXT.encode()) + [256]]))
        whole = self.evaluate("--data.valid", "data", "--seq", 300, "--stride", 300)
        self.assertAlmostEqual(float(whole["loss"]), float(self.evaluate("--ids", "ids.json")["loss"]), places=6)
        self.assertEqual(self.evaluate("--text", "hamlet.txt", *words, "--samples", 2)["windows"], 2)

    def test_packed_samples_of_any_length_go_on_any_mesh(self):
        words = ["--data.valid", harness.corpus(7), "--seq", 33, "--samples", 20]
        found = self.evaluate(*words)
        self.assertEqual(self.evaluate(*words, "--pp", 3, ranks=3), found)
        for ranks, mesh in ((2, ["--cp", 2]), (2, ["--tp", 2]), (3, ["--cp", 3])):
            other = self.evaluate(*words, *mesh, ranks=ranks)
            self.assertAlmostEqual(float(other["loss"]), float(found["loss"]), places=5)
            self.assertEqual(other["targets"], found["targets"])
        (self.dir / "grid.ini").write_text("[mesh]\ntp-grid = 2x1\ntp = 2\n")
        result = self.cartan("eval", "--from", MODEL, *words, "--config", "grid.ini", ranks=2, expect=CONFIGURATION)
        self.assertIn("without mesh.tp-grid", result.err)

    def test_without_a_length_a_window_is_what_the_model_is_made_for(self):
        self.assertEqual(self.evaluate("--text", "hamlet.txt")["window"], 512)
        self.train("run", {"run.steps": 1, "data.seq": 24})
        found = json.loads(self.cartan("eval", "--from", "run", "--text", "hamlet.txt", "--json").out)
        self.assertEqual((found["window"], found["stride"]), (24, 24))

    def test_what_cannot_be_is_refused(self):
        def refused(expect, *words, ranks=0, says=()):
            result = self.cartan("eval", "--from", MODEL, *words, ranks=ranks, expect=expect)
            self.assert_refused(result, *says)

        refused(USAGE, says=["--text FILE"])
        refused(USAGE, "--text", "hamlet.txt", "--ids", "i.json", says=["one of"])
        refused(USAGE, "--ids", "i.json", "--stride", 3, says=["--stride goes with"])
        refused(USAGE, "--text", "hamlet.txt", "--output", "o", says=["--output goes with"])
        refused(USAGE, "--text", "hamlet.txt", "--seq", 8, "--stride", 9, says=["--stride 9", "8 tokens"])
        refused(MISSING, "--text", "none.txt", says=["none.txt"])
        (self.dir / "a.txt").write_text("a")
        refused(BAD_DATA, "--text", "a.txt", says=["a.txt", "nothing to predict"])
        refused(CONFIGURATION, "--text", "hamlet.txt", "--tp", 3, ranks=3, says=["mesh.tp = 3"])


class Choices(Eval):
    def check(self, answers):
        self.assertEqual(len(answers), len(LOG_LIKELIHOODS))
        for answer, expected in zip(answers, LOG_LIKELIHOODS):
            for value, right in zip(answer["log_likelihoods"], expected, strict=True):
                self.assertAlmostEqual(float(value), right, delta=2e-4)

    def test_answers_are_those_of_transformers_on_any_mesh(self):
        self.write_questions()
        lines = {}
        for name, ranks, mesh in (
            ("alone", 0, []),
            ("dp", 3, []),
            ("pp", 2, ["--pp", 2]),
            ("tp", 2, ["--tp", 2]),
            ("cp", 3, ["--cp", 3]),
        ):
            out = self.cartan("eval", "--from", MODEL, "--choices", "q.jsonl", "--json", *mesh, ranks=ranks).out
            lines[name] = [json.loads(line, parse_float=str) for line in out.splitlines()]
            self.check(lines[name][:-1])
        self.assertEqual(lines["dp"], lines["alone"], "the same bits")
        self.assertEqual(lines["pp"], lines["alone"], "the same bits")
        *answers, summary = lines["alone"]
        self.assertEqual([answer["line"] for answer in answers], [1, 3, 5, 7, 9])
        self.assertEqual([answer.get("id") for answer in answers], ["a", 7, None, None, None])
        self.assertEqual(answers[0]["characters"], [5, 6, 22, 5])
        self.assertEqual(answers[0]["bytes"], [5, 6, 22, 6])
        self.assertEqual([answer["predicted"] for answer in answers], [0, 1, 1, 1, 1])
        self.assertEqual([answer["predicted_per_token"] for answer in answers], [2, 2, 1, 0, 2])
        self.assertEqual([answer["predicted_per_character"] for answer in answers], [2, 2, 1, 0, None])
        self.assertEqual((summary["questions"], summary["labels"]), (5, 3))
        self.assertEqual((summary["acc"], summary["acc_norm"]), ("1.0", str(1 / 3)))

    def test_a_file_takes_the_answers(self):
        self.write_questions()
        words = ["eval", "--from", MODEL, "--choices", "q.jsonl", "--output", "a.jsonl"]
        text = self.cartan(*words, ranks=2).out
        self.assertIn("5 questions, 3 with a label\nacc 1.0000\nacc_norm 0.3333\n", text)
        self.check([json.loads(line) for line in (self.dir / "a.jsonl").read_text().splitlines()])
        summary = json.loads(self.cartan(*words, "--json").out)
        self.assertEqual(summary["acc"], 1.0)

    def test_many_questions_come_in_their_order(self):
        self.write_questions([{**QUESTIONS[3], "id": i} for i in range(600)])
        out = self.cartan("eval", "--from", MODEL, "--choices", "q.jsonl", "--json", ranks=2).out
        *answers, summary = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([answer["id"] for answer in answers], list(range(600)))
        self.assertEqual({tuple(answer["log_likelihoods"]) for answer in answers}, {tuple(answers[0]["log_likelihoods"])})
        self.assertEqual((summary["questions"], summary["labels"]), (600, 0))
        self.assertNotIn("acc", summary)

    def test_what_is_too_long_loses_its_beginning(self):
        self.write_questions()
        out = self.cartan("eval", "--from", MODEL, "--choices", "q.jsonl", "--json", "--seq", 9).out
        *answers, summary = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([answer.get("cut", False) for answer in answers], [True, True, False, True, False])
        self.assertEqual(summary["cut"], 3)

    def test_a_wrong_line_is_named(self):
        for line, says in (
            ('{"context": "a"}', "expected choices"),
            ('{"context": "a", "choices": ["b", "c"], "label": 2}', "label is 2"),
            ('{"context": "a", "choices": ["b", [512]]}', "token 512"),
            ('{"context": "a", "choices": ["b", "c"]', "q.jsonl:2"),
        ):
            (self.dir / "q.jsonl").write_text(json.dumps(QUESTIONS[0]) + "\n" + line + "\n")
            for ranks in (0, 2):
                result = self.cartan("eval", "--from", MODEL, "--choices", "q.jsonl", ranks=ranks, expect=BAD_DATA)
                self.assertIn("q.jsonl:2", result.err)
                self.assertIn(says, result.err)
        (self.dir / "q.jsonl").write_text("\n")
        self.assert_refused(
            self.cartan("eval", "--from", MODEL, "--choices", "q.jsonl", expect=BAD_DATA), "q.jsonl: no question"
        )


class Logits(Eval):
    def test_meshes_give_the_logits_of_one_rank(self):
        lists = [[10, 200, 256, 7, 511], [3], [0, 1, 2, 3, 4, 5, 6, 7, 8]]
        (self.dir / "ids.json").write_text(json.dumps(lists))

        def logits(*mesh, ranks):
            found = self.evaluate("--ids", "ids.json", "--logits", "l.safetensors", *mesh, ranks=ranks)
            self.assertEqual((found["targets"], found["losses"][1]), (12, None))
            return harness.read_safetensors(self.dir / "l.safetensors")

        expected = logits(ranks=0)
        self.assertEqual([shape for shape, _ in expected.values()], [[len(ids), 512] for ids in lists])
        for ranks, mesh in ((2, []), (2, ["--pp", 2])):
            self.assertEqual(logits(*mesh, ranks=ranks), expected)
        for ranks, mesh in ((4, ["--tp", 4]), (3, ["--cp", 3]), (4, ["--tp", 2, "--cp", 2]), (4, ["--tp", 2, "--pp", 2])):
            found = logits(*mesh, ranks=ranks)
            for name, (shape, values) in expected.items():
                self.assertEqual(found[name][0], shape)
                self.assertLess(max(abs(a - b) for a, b in zip(found[name][1], values, strict=True)), 5e-5, (name, mesh))


if __name__ == "__main__":
    harness.main()
