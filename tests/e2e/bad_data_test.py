"""Token files and texts that cannot be used are refused with the name of the file and the place in it."""

import shutil
import struct

import harness
from harness import BAD_DATA, CONFIGURATION, MISSING


class BadData(harness.Case):
    def copy(self, name="data"):
        """Path without ending of a copy of the corpus."""
        for ending in (".bin", ".idx"):
            shutil.copy(harness.corpus() + ending, self.dir / (name + ending))
        return self.dir / name

    def put_token(self, name, document, position, token):
        file = harness.read_token_file(self.dir / name)
        place = file.offsets[file.documents[document]] + 2 * position
        data = bytearray((self.dir / f"{name}.bin").read_bytes())
        struct.pack_into("<H", data, place, token)
        (self.dir / f"{name}.bin").write_bytes(data)

    def refuse(self, code, *parts, ranks=0, options=None):
        options = {"data.train": "data", **(options or {})}
        result = self.train("run", options, expect=code, ranks=ranks)
        self.assert_refused(result, *parts)
        return result

    def test_missing_files(self):
        for ranks in (0, 4):
            result = self.refuse(MISSING, "data.idx", "cartan tokenize", ranks=ranks)
            self.assertNotIn("rank 1", result.err)
        for ending in (".bin", ".idx"):
            with self.subTest(ending):
                self.copy()
                (self.dir / ("data" + ending)).unlink()
                self.refuse(MISSING, "data" + ending)
        self.copy()
        self.refuse(MISSING, "other.idx", options={"data.valid": "other", "run.eval-every": 1})

    def test_damaged_files(self):
        def cut(path, size):
            path.write_bytes(path.read_bytes()[:size])

        def patch(path, at, value):
            data = bytearray(path.read_bytes())
            data[at : at + len(value)] = value
            path.write_bytes(data)

        cases = {
            "empty bin": (".bin", lambda path: cut(path, 0)),
            "half a bin": (".bin", lambda path: cut(path, path.stat().st_size // 2)),
            "an odd bin": (".bin", lambda path: cut(path, -1)),
            "a longer bin": (".bin", lambda path: path.write_bytes(path.read_bytes() + b"\0\0")),
            "empty idx": (".idx", lambda path: cut(path, 0)),
            "half a header": (".idx", lambda path: cut(path, 20)),
            "half an idx": (".idx", lambda path: cut(path, path.stat().st_size // 2)),
            "a foreign idx": (".idx", lambda path: path.write_text("some other index\n" * 30)),
            "an old idx": (".idx", lambda path: patch(path, 0, b"TNTIDX\0\0")),
            "a later version": (".idx", lambda path: patch(path, 9, b"\x07")),
            "numbers that are no ids": (".idx", lambda path: patch(path, 17, b"\x07")),
            "a huge count": (".idx", lambda path: patch(path, 18, b"\xff" * 7)),
            "a wild length": (".idx", lambda path: patch(path, 34, b"\xff\xff\xff\x7f")),
            "a wild offset": (".idx", lambda path: patch(path, 34 + 4 * 40 + 8, b"\xff" * 8)),
        }
        for i, (name, (ending, damage)) in enumerate(cases.items()):
            with self.subTest(name):
                self.copy()
                damage(self.dir / ("data" + ending))
                self.refuse(BAD_DATA, "data.", ranks=2 if i % 5 == 0 else 0)
                self.assert_refused(self.cartan("inspect", "data", "--verify", expect=BAD_DATA), "data.")

    def test_a_token_beyond_the_vocabulary(self):
        self.copy()
        self.put_token("data", 3, 17, 999)
        parts = ("data.bin", "document 3, position 17 ", "999", "0 to 256")
        in_order = {"data.shuffle": "false", "data.seq": 128, "run.steps": 10}
        for ranks in (0, 2, 4):
            with self.subTest(ranks=ranks):
                self.refuse(BAD_DATA, *parts, options=in_order, ranks=ranks)
        parts = ("document 0, position 480 ", "256", "0 to 199", "model.vocab")
        self.refuse(BAD_DATA, *parts, options={"model.vocab": 200, "data.shuffle": "false"})

    def test_a_token_beyond_the_vocabulary_in_evaluation(self):
        self.train("run", {"run.steps": 1})
        self.copy()
        self.put_token("data", 39, 100, 257)
        for ranks in (0, 3):
            result = self.cartan(
                "eval", "--from", "run", "--data.valid", "data", "--seq", 32, expect=BAD_DATA, ranks=ranks
            )
            self.assert_refused(result, "257", "document 39, position 100 ")

    def test_a_corpus_that_is_too_small(self):
        (self.dir / "short.txt").write_text("ten bytes.")
        self.cartan("tokenize", "--input", "short.txt", "--output", "data")
        self.refuse(CONFIGURATION, "data: 11 tokens", "data.seq = 32", "33")

    def test_a_validation_part_without_documents(self):
        (self.dir / "one.txt").write_text(harness.some_text(1, 200))
        self.cartan("tokenize", "--input", "one.txt", "--output", "data")
        options = {"data.valid-fraction": 0.01, "run.eval-every": 1}
        self.refuse(CONFIGURATION, "data.valid-fraction", "data.valid instead", options=options)

    def test_weights_of_a_mixture(self):
        self.copy()
        for words in (["data", 0.5], [0.5, "data", "data"], [0.5], [-1, "data"]):
            with self.subTest(words):
                self.refuse(CONFIGURATION, "data.train", options={"data.train": words})

    def test_texts_for_tokenize(self):
        def refuse(code, words, *parts):
            result = self.cartan("tokenize", "--output", "out", *words, expect=code)
            self.assert_refused(result, *parts)
            self.assertEqual(list(self.dir.glob("out*")), [], "files of a failed tokenize")

        refuse(MISSING, ["--input", "none.txt"], "none.txt")
        (self.dir / "bad.jsonl").write_text('{"text": "one"}\n{"text": "two"\n')
        refuse(BAD_DATA, ["--input", "bad.jsonl"], "bad.jsonl line 2")
        (self.dir / "key.jsonl").write_text('{"text": "one"}\n\n{"body": "two"}\n')
        refuse(BAD_DATA, ["--input", "key.jsonl"], "key.jsonl line 3", "text", "body", "--json-key")
        (self.dir / "kind.jsonl").write_text('{"text": 7}\n')
        refuse(BAD_DATA, ["--input", "kind.jsonl"], "kind.jsonl line 1", "number", "string")
        (self.dir / "binary").write_bytes(b"a\0b")
        (self.dir / "empty.txt").write_text("")
        refuse(BAD_DATA, ["--input", "binary", "empty.txt"], "2 input files", "1 binary")
        (self.dir / "good.txt").write_text("good")
        refuse(CONFIGURATION, ["--input", "good.txt", "--tokenizer", "words"], "words", "byte", "tokenizer.json")
        refuse(MISSING, ["--input", "good.txt", "--tokenizer", "tokenizer.json"], "tokenizer.json")
        (self.dir / "bad.json").write_text('{"model": {"type": "Unigram"}}')
        refuse(BAD_DATA, ["--input", "good.txt", "--tokenizer", "bad.json"], "bad.json", "model.type", "Unigram", "BPE")
        refuse(harness.IO, ["--input", "good.txt", "--output", "good.txt/out"], "good.txt/out")

    def test_what_eval_and_generate_cannot_use(self):
        self.train("run", {"run.steps": 1})
        self.copy()

        def refuse(code, words, *parts):
            with self.subTest(" ".join(words)):
                self.assert_refused(self.cartan(*words, expect=code), *parts)

        for name, text in {"ids": "[[1, 2], [1, 257]]", "text": "hello", "flat": "[1, 2]", "none": "[]"}.items():
            (self.dir / f"{name}.json").write_text(text)
        (self.dir / "negative.json").write_text("[[1, -1, 2]]")
        (self.dir / "empty").mkdir()
        (self.dir / "lines.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "top": 1}\n')
        (self.dir / "far.jsonl").write_text('{"ids": [1]}\n{"ids": [2, 999]}\n')
        (self.dir / "gap.txt").write_text("a\n\nb\n")
        generate = ["generate", "--from", "run"]
        refuse(BAD_DATA, [*generate, "--jsonl", "lines.jsonl"], "lines.jsonl:2", '"top"')
        refuse(BAD_DATA, [*generate, "--jsonl", "far.jsonl"], "far.jsonl:2", "999", "257")
        refuse(BAD_DATA, [*generate, "--prompts", "gap.txt"], "gap.txt:2", "empty")
        refuse(MISSING, [*generate, "--jsonl", "no.jsonl"], "no.jsonl")
        refuse(harness.USAGE, [*generate, "--prompt", "a", "--jsonl", "lines.jsonl"], "--jsonl")
        refuse(harness.USAGE, [*generate, "--prompt", "a", "--stop", ""], "--stop")
        refuse(harness.USAGE, [*generate, "--prompt", "a", "--json", "--stream"], "--stream")
        refuse(BAD_DATA, [*generate, "--ids", "negative.json"], "negative.json: list 0", "-1")
        for command in ("eval", "generate"):
            tail = [command, "--from", "run", "--ids"]
            refuse(MISSING, [*tail, "no.json"], "no.json")
            refuse(BAD_DATA, [*tail, "text.json"], "text.json")
            refuse(BAD_DATA, [*tail, "flat.json"], "flat.json", "list of lists")
            refuse(BAD_DATA, [*tail, "none.json"], "none.json")
            refuse(BAD_DATA, [*tail, "ids.json"], "257")
            refuse(BAD_DATA, [*tail, "negative.json"], "-1")
            refuse(MISSING, [command, "--from", "nowhere", "--ids", "ids.json"], "nowhere")
            refuse(MISSING, [command, "--from", "empty", "--ids", "ids.json"], "empty")
            refuse(BAD_DATA, [command, "--from", "data.bin", "--ids", "ids.json"], "data.bin")
        refuse(MISSING, ["inspect", "nowhere"], "nowhere")
        refuse(MISSING, ["inspect", "empty"], "empty")
        refuse(BAD_DATA, ["inspect", "ids.json"], "ids.json")


if __name__ == "__main__":
    harness.main()
