"""Chats, completions and ready ids as a user brings them: from JSON lines to a training that counts the answers only;
and files of tokens that other trainers wrote."""

import json
import random
import struct

import harness
from harness import BAD_DATA, CONFIGURATION, MISSING


def completions(count):
    pick = random.Random(3)
    return [
        {"prompt": f"{a} and {b} are ", "completion": str(a + b) + "." * pick.randrange(9)}
        for a, b in ((pick.randrange(99), pick.randrange(99)) for _ in range(count))
    ]


class InstructionData(harness.Case):
    def put_lines(self, name, lines):
        (self.dir / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return name

    def test_json_lines_train_as_the_token_files_made_of_them(self):
        self.put_lines("in.jsonl", completions(120))
        self.cartan("tokenize", "--input", "in.jsonl", "--output", "tokens")
        found = self.inspect("tokens", "--verify")
        self.assertTrue(found["samples"])
        self.assertEqual(found["documents"], 120)
        self.assertGreater(found["counted_tokens"], 240)
        self.assertLess(found["counted_tokens"], found["tokens"] / 2)
        self.train_all(
            {
                "tokens": (0, {"data.train": "tokens"}),
                "lines": (0, {"data.train": "in.jsonl"}),
                "ranks": (3, {"data.train": "in.jsonl"}),
                "mixed": (2, {"data.train": ["0.5", "in.jsonl", "0.5", harness.corpus()]}),
            }
        )
        self.assert_same_run("tokens", "lines")
        self.assert_same_run("tokens", "ranks")
        self.assertEqual(len(list((self.dir / "lines/data").glob("in-*.idx"))), 1)
        # Answers only: 12 sequences of 32 places hold more tokens than count.
        self.assertLess(self.metrics("lines")[0]["tokens"], 12 * 32 / 2)

    def test_a_run_goes_on_with_the_files_that_it_made(self):
        self.put_lines("in.jsonl", completions(80))
        options = {"data.train": "in.jsonl", "data.valid-fraction": 0.2, "run.eval-every": 2, "run.eval-batches": 1}
        self.train("whole", options)
        first = self.train("parts", {**options, "run.steps": 2}, ranks=2)
        self.assertIn("making token files", first.err)
        self.assertIn("packed ", first.err)
        second = self.train("parts", options)
        self.assertIn("were made of it before", second.err)
        self.assert_same_run("whole", "parts")
        self.assertIn("valid_loss", self.metrics("parts")[-1])

    def test_evaluation_takes_the_same_lines(self):
        self.put_lines("in.jsonl", completions(40))
        self.train("run", {"data.train": "in.jsonl"})
        words = ("eval", "--from", "run", "--data.valid", "in.jsonl", "--seq", "32", "--json")
        self.assert_refused(self.cartan(*words, expect=CONFIGURATION), "in.jsonl", "data.cache")
        alone = json.loads(self.cartan(*words, "--data.cache", "cache").out)
        shared = json.loads(self.cartan(*words, "--data.cache", "cache", ranks=2).out)
        self.assertEqual(alone, shared)
        self.assertEqual(alone["targets"], sum(len(c["completion"]) + 1 for c in completions(40)))

    def test_a_bad_line_ends_every_rank(self):
        for ranks in (0, 3):
            with self.subTest(ranks):
                self.put_lines("in.jsonl", [*completions(5), {"prompt": "no completion"}])
                result = self.train(f"run{ranks}", {"data.train": "in.jsonl"}, expect=BAD_DATA, ranks=ranks)
                self.assert_refused(result, "in.jsonl line 6", "no sample")
        result = self.train("run", {"data.train": "none.jsonl"}, expect=MISSING, ranks=2)
        self.assert_refused(result, "none.jsonl")
        self.put_lines("chat.jsonl", [{"messages": [{"role": "assistant", "content": "a"}]}])
        result = self.train("run", {"data.train": "chat.jsonl"}, expect=CONFIGURATION)
        self.assert_refused(result, "data.template = auto", "tokenizer byte")
        result = self.train("run", {"data.train": "chat.jsonl", "data.template": "llama3"}, expect=CONFIGURATION)
        self.assert_refused(result, "<|begin_of_text|>")

    def test_files_of_other_trainers(self):
        pick = random.Random(4)
        tokens = [pick.randrange(256) for _ in range(3000)]
        raw = struct.pack("<3000H", *tokens)
        (self.dir / "nano.bin").write_bytes(raw)
        (self.dir / "llmc.bin").write_bytes(struct.pack("<256i", 20240520, 1, 3000, *[0] * 253) + raw)
        self.assertEqual(self.inspect("llmc.bin")["format"], "llm.c")
        self.assertEqual(self.inspect("nano.bin", "--raw-type", "u16")["tokens"], 3000)
        self.train_all(
            {
                "nano": (0, {"data.train": "nano.bin", "data.raw-type": "u16"}),
                "llmc": (2, {"data.train": "llmc.bin"}),
            }
        )
        self.assert_same_run("nano", "llmc")
        result = self.train("run", {"data.train": "nano.bin"}, expect=CONFIGURATION)
        self.assert_refused(result, "nano.bin", "data.raw-type = u16")
        (self.dir / "llmc.bin").write_bytes((self.dir / "llmc.bin").read_bytes()[:-2])
        result = self.train("run", {"data.train": "llmc.bin"}, expect=BAD_DATA)
        self.assert_refused(result, "llmc.bin", "announces 3000 tokens")


if __name__ == "__main__":
    harness.main()
