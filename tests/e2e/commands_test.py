"""tokenize, inspect, eval, generate, config and doctor: what they print is what other programs read."""

import contextlib
import json
import math
import os
import pty
import shutil
import subprocess
from pathlib import Path

import harness
from harness import CONFIGURATION

MODELS = Path(__file__).resolve().parents[1] / "golden/models"


class Tokenize(harness.Case):
    def tokenize(self, *words):
        self.cartan("tokenize", "--output", "out", *words)
        file = harness.read_token_file(self.dir / "out")
        self.assertEqual(file.code, 8, "257 tokens fit in 16 bits")
        return list(file.texts())

    def test_text_comes_back_from_the_token_file(self):
        texts = {"b.txt": "two\nlines\n", "a.txt": "one", "c/d.txt": "Gr\u00fc\u00dfe, \u4e16\u754c \U0001f600\n"}
        (self.dir / "in/c").mkdir(parents=True)
        for name, text in texts.items():
            (self.dir / "in" / name).write_text(text, encoding="utf-8")
        (self.dir / "in/empty.txt").write_text("")
        (self.dir / "in/binary.bin").write_bytes(b"a\0b")
        self.assertEqual(self.tokenize("--input", "in"), [texts[name] for name in sorted(texts)])
        self.assertEqual(self.tokenize("--input", "in/b.txt", "in/a.txt"), [texts["b.txt"], texts["a.txt"]])

    def test_json_lines_come_back_from_the_token_file(self):
        texts = ["first", 'second "quoted"\nline', "d\u00e9j\u00e0"]
        lines = [json.dumps({"id": i, "text": text}) for i, text in enumerate(texts)]
        (self.dir / "in.jsonl").write_text("\n".join(lines[:2]) + "\n\n" + lines[2])  # an empty line, no last newline
        self.assertEqual(self.tokenize("--input", "in.jsonl"), texts)
        (self.dir / "in.jsonl").write_text(json.dumps({"text": "no", "body": "yes"}) + "\n")
        self.assertEqual(self.tokenize("--input", "in.jsonl", "--json-key", "body"), ["yes"])

    def test_the_same_input_gives_the_same_bytes(self):
        (self.dir / "in.txt").write_text(harness.some_text(3, 1000))
        files = []
        for name in ("one", "two"):
            self.cartan("tokenize", "--input", "in.txt", "--output", name)
            files.append([(self.dir / f"{name}{ending}").read_bytes() for ending in (".bin", ".idx")])
        self.assertEqual(files[0], files[1])

    def test_inspect_counts_what_is_there(self):
        (self.dir / "in.jsonl").write_text('{"text": "four"}\n{"text": "three"}\n')
        self.cartan("tokenize", "--input", "in.jsonl", "--output", "out")
        for path in ("out", "out.bin", "out.idx"):
            found = self.inspect(path, "--verify")
            self.assertEqual((found["kind"], found["documents"], found["tokens"]), ("dataset", 2, 11))
            self.assertTrue(found["verified"])


class HuggingFaceTokenizer(harness.Case):
    """From text to token files, a model and text again, with a tokenizer.json written here: words of corpus()."""

    def setUp(self):
        super().setUp()
        tokens = ["<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], "\u2581", "t", "h", "e", "th", "the", "\u2581the"]
        added = [{"id": i, "content": tokens[i], "special": True, "normalized": False} for i in (0, 1)]
        space = {"String": " "}
        decoders = [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]
        normalizers = [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": space, "content": "\u2581"}]
        document = {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
            },
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                "type": "BPE",
                "byte_fallback": True,
                "vocab": {token: i for i, token in enumerate(tokens)},
                "merges": ["t h", "th e", "\u2581 the"],
            },
        }
        (self.dir / "tok").mkdir()
        (self.dir / "tok/tokenizer.json").write_text(json.dumps(document))

    def test_the_whole_way(self):
        (self.dir / "in.jsonl").write_text(json.dumps({"text": "the a\n"}) + "\n" + json.dumps({"text": "the</s>"}) + "\n")
        self.cartan("tokenize", "--input", "in.jsonl", "--output", "out", "--tokenizer", "tok", "--threads", 2)
        tokens = harness.read_token_file(self.dir / "out").tokens
        self.assertEqual(tokens, [0, 264, 258, 2 + ord("a"), 2 + ord("\n"), 1, 0, 264, 1, 1])
        (self.dir / "text.txt").write_text("the cat and the dog " * 2000)
        self.cartan("tokenize", "--input", "text.txt", "--output", "data", "--tokenizer", "tok/tokenizer.json")
        self.train("run", {"run.steps": 20, "data.train": "data", "data.tokenizer": "tok"})
        words = ["generate", "--from", "run", "--data.tokenizer", "tok", "--prompt", "the", "--max-new-tokens", 6]
        found = json.loads(self.cartan(*words, "--json").out)
        text = self.cartan(*words).out
        self.assertEqual(text, "the" + found["text"] + "\n")
        self.assertTrue(all(0 <= token < 265 for token in found["ids"]), found)
        # A word that the model writes keeps the blank before it.
        (self.dir / "next.json").write_text(json.dumps([[0, 264]]))
        words[words.index("--prompt") :] = ["--ids", "next.json", "--max-new-tokens", 6, "--json"]
        first = json.loads(self.cartan(*words).out)
        self.assertEqual(first["ids"], found["ids"], "the template's token stands before a prompt")
        self.assertTrue(found["text"].startswith(" "), found)


class Inspect(harness.Case):
    def test_a_checkpoint_lists_its_tensors(self):
        self.train("run", {"run.steps": 1, "model.kv-heads": 1})
        found = self.inspect("run")
        self.assertEqual(found["path"], "run/checkpoints/step-1.h5")
        shapes = {tensor["name"]: tensor["shape"] for tensor in found["tensors"]}
        self.assertEqual(shapes["model/model.embed_tokens.weight"], [257, 32])
        self.assertEqual(shapes["model/model.layers.1.self_attn.k_proj.weight"], [16, 32])
        self.assertEqual(shapes["optimizer/exp_avg_sq/model.layers.0.mlp.down_proj.weight"], [32, 64])
        self.assertEqual({tensor["dtype"] for tensor in found["tensors"]}, {"fp32"})
        weights = [math.prod(shape) for name, shape in shapes.items() if name.startswith("model/")]
        self.assertEqual(found["parameters"], sum(weights))
        self.assertEqual(len(shapes), 3 * len(weights))
        self.assertEqual((found["state"]["step"], found["state"]["samples"]), (1, 12))
        self.assertEqual(found["state"]["config"], (self.dir / "run/config.ini").read_text())

    def test_a_safetensors_file_lists_its_tensors(self):
        header = b'{"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}'
        (self.dir / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
        found = self.inspect("m.safetensors")
        self.assertEqual((found["kind"], found["parameters"]), ("safetensors", 6))
        self.assertEqual(found["tensors"], [{"name": "a", "dtype": "bf16", "shape": [2, 3], "bytes": 12}])
        (self.dir / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(11))
        self.assert_refused(self.cartan("inspect", "m.safetensors", expect=harness.BAD_DATA), "m.safetensors")

    def test_several_paths_give_a_line_each(self):
        self.train("run", {"run.steps": 1})
        lines = self.cartan("inspect", "run", harness.corpus(), "--json").out.splitlines()
        self.assertEqual([json.loads(line)["kind"] for line in lines], ["checkpoint", "dataset"])

    def test_the_text_for_people_names_the_same(self):
        self.train("run", {"run.steps": 1})
        text = self.cartan("inspect", "run").out
        for part in ("run/checkpoints/step-1.h5", "model/lm_head.weight", "[257,32]", "37088", "hidden"):
            self.assertIn(part, text)

    def test_h5py_reads_a_checkpoint(self):
        try:
            import h5py
        except ImportError:
            self.skipTest("no h5py here")
        self.train("run", {"run.steps": 2}, ranks=2)
        with h5py.File(self.checkpoint("run", 2), "r") as file:
            weight = file["model/model.embed_tokens.weight"]
            self.assertEqual((weight.shape, weight.dtype.name), ((257, 32), "float32"))
            self.assertGreater(abs(weight[...]).max(), 0)
            self.assertGreater(file["optimizer/exp_avg_sq/lm_head.weight"][...].max(), 0)
            state = file["state"][()]
            self.assertEqual(json.loads(state)["step"], 2)


class Eval(harness.Case):
    def setUp(self):
        super().setUp()
        self.train("run", {"run.steps": 3})

    def evaluate(self, *words, **more):
        return json.loads(self.cartan("eval", "--from", "run", *words, "--json", **more).out, parse_float=str)

    def test_any_number_of_ranks_gives_the_same_bits(self):
        words = ["--data.valid", harness.corpus(7), "--seq", 32]
        found = [self.evaluate(*words, ranks=ranks) for ranks in (0, 1, 2, 3)]
        found += [self.evaluate(*words, "--run.threads", 3)]
        self.assertEqual(found, found[:1] * 5)
        self.assertEqual(found[0]["step"], 3)
        self.assertAlmostEqual(float(found[0]["perplexity"]), math.exp(float(found[0]["loss"])), places=6)

    def test_validation_during_training_is_the_same_evaluation(self):
        valid = {"data.valid": harness.corpus(7), "run.eval-every": 3, "run.eval-batches": 2}
        for run, options in (("plain", {}), ("valid", valid)):
            self.train(run, {"run.steps": 3, "data.shuffle": "false", **options}, ranks=2)
        self.assert_same_run("plain", "valid")  # evaluation disturbs nothing
        words = ["--data.valid", harness.corpus(7), "--seq", 32, "--samples", 24]
        found = json.loads(self.cartan("eval", "--from", "valid", *words, "--json").out)
        self.assertEqual(found["samples"], 24)
        self.assertAlmostEqual(float(self.metrics("valid")[2]["valid_loss"]), found["loss"], places=12)

    def test_training_makes_the_loss_smaller(self):
        words = ["--data.valid", harness.corpus(), "--seq", 32, "--samples", 50]
        before = self.evaluate(*words)
        self.train("run", {"run.steps": 40})
        self.assertLess(float(self.evaluate(*words)["loss"]), float(before["loss"]) - 0.5)

    def test_logits_give_the_loss_that_is_printed(self):
        lists = [[10, 200, 256, 7], [0, 1, 2, 3]]
        (self.dir / "ids.json").write_text(json.dumps(lists))
        found = self.evaluate("--ids", "ids.json", "--logits", "logits.safetensors")
        shape, values = harness.read_safetensors(self.dir / "logits.safetensors")["logits"]
        self.assertEqual(shape, [2, 4, 257])
        losses = []
        for i, ids in enumerate(lists):
            rows = [values[(4 * i + t) * 257 : (4 * i + t + 1) * 257] for t in range(4)]
            terms = [math.log(sum(math.exp(x) for x in row)) - row[target] for row, target in zip(rows, ids[1:])]
            losses.append(sum(terms) / len(terms))
        for loss, printed in zip(losses, found["losses"]):
            self.assertAlmostEqual(loss, float(printed), places=5)
        self.assertAlmostEqual(sum(losses) / 2, float(found["loss"]), places=5)
        self.assertEqual(found["targets"], 6)
        self.assertEqual(self.evaluate("--ids", "ids.json", ranks=2), found)

    def test_lists_of_different_lengths(self):
        (self.dir / "ids.json").write_text("[[1, 2, 3], [4], [5, 6]]")
        found = self.evaluate("--ids", "ids.json", "--logits", "logits.safetensors")
        tensors = harness.read_safetensors(self.dir / "logits.safetensors")
        self.assertEqual(
            {name: shape for name, (shape, _) in tensors.items()},
            {"logits.0": [3, 257], "logits.1": [1, 257], "logits.2": [2, 257]},
        )
        self.assertEqual((found["targets"], found["losses"][1]), (3, None))

    def test_the_text_for_people_names_the_same(self):
        words = ["--data.valid", harness.corpus(7), "--seq", 32]
        text = self.cartan("eval", "--from", "run", *words, ranks=2).out
        loss = float(self.evaluate(*words)["loss"])
        self.assertIn(f"loss {loss:.6f}", text)
        self.assertEqual(text.count("loss"), 1, "one rank prints")


class Generate(harness.Case):
    def setUp(self):
        super().setUp()
        self.train("run", {"run.steps": 30})

    def generate(self, *words):
        lines = self.cartan("generate", "--from", "run", *words, "--json").out.splitlines()
        return [json.loads(line) for line in lines]

    def test_greedy_text_is_always_the_same(self):
        words = ["--prompt", "the ", "--max-new-tokens", 20]
        first = self.generate(*words)
        self.assertEqual(len(first), 1)
        self.assertLessEqual(len(first[0]["ids"]), 20)
        for more in ([], ["--run.threads", 3], ["--seed", 7], ["--temperature", 5, "--top-k", 1]):
            self.assertEqual(self.generate(*words, *more), first)
        text = self.cartan("generate", "--from", "run", *words).out
        self.assertEqual(text, "the " + first[0]["text"] + "\n")

    def test_a_seed_decides_what_is_drawn(self):
        words = ["--prompt", "the ", "--max-new-tokens", 20, "--temperature", 1, "--ignore-end"]
        drawn = {seed: self.generate(*words, "--seed", seed) for seed in (1, 2, 3)}
        for seed, found in drawn.items():
            self.assertEqual(self.generate(*words, "--seed", seed), found)
            self.assertEqual(len(found[0]["ids"]), 20)
        self.assertEqual(len({json.dumps(found) for found in drawn.values()}), 3)

    def test_the_likeliest_token_of_eval_is_the_first_of_generate(self):
        prompts = [list(b"alpha be"), [0, 5, 256], list(b"t")]
        (self.dir / "ids.json").write_text(json.dumps(prompts))
        self.cartan("eval", "--from", "run", "--ids", "ids.json", "--logits", "logits.safetensors")
        tensors = harness.read_safetensors(self.dir / "logits.safetensors")
        found = self.generate("--ids", "ids.json", "--max-new-tokens", 1)
        for i, answer in enumerate(found):
            last = tensors[f"logits.{i}"][1][-257:]
            self.assertEqual(answer["ids"], [last.index(max(last))])

    def test_text_goes_on_as_it_would_from_ids(self):
        """The cache of keys and values gives what computing everything again gives."""
        whole = self.generate("--prompt", "mesh", "--max-new-tokens", 8, "--ignore-end")[0]["ids"]
        ids = list(b"mesh")
        for token in whole:
            (self.dir / "ids.json").write_text(json.dumps([ids]))
            self.assertEqual(
                self.generate("--ids", "ids.json", "--max-new-tokens", 1, "--ignore-end")[0]["ids"], [token]
            )
            ids.append(token)

    def on_stdin(self, text, *words):
        process = subprocess.run(
            [harness.program(), "generate", "--from", "run", *words],
            check=False,
            cwd=self.dir,
            env=harness.environment(),
            input=text.encode(),
            capture_output=True,
            timeout=harness.LIMIT,
        )
        self.assertEqual(process.returncode, 0, process)
        return process.stdout.decode()

    def test_every_mesh_writes_the_same_texts(self):
        """Greedy ones; with an odd number of prompts, more than a batch."""
        (self.dir / "prompts.txt").write_text("the \nof\nalpha beta gamma\nm\nmesh of \n")
        words = ["--prompts", "prompts.txt", "--max-new-tokens", 12]
        alone = self.generate(*words, "--batch", 1)
        self.assertEqual(self.generate(*words, "--batch", 3), alone)
        self.assertEqual([one["finish"] for one in alone if len(one["ids"]) == 12], ["length"] * len(alone))
        for ranks, mesh in ((2, ["--tp", 2]), (2, ["--cp", 2]), (3, ["--pp", 3]), (2, []), (4, ["--dp", 2, "--tp", 2])):
            for batch in (1, 2):
                with self.subTest(mesh=mesh, batch=batch):
                    out = self.cartan("generate", "--from", "run", *words, "--json", "--batch", batch, *mesh, ranks=ranks).out
                    self.assertEqual([json.loads(line) for line in out.splitlines()], alone)

    def test_a_checkpoint_of_any_mesh_is_continued_on_any_other(self):
        self.train("cut", {"run.steps": 2, "mesh.tp": 2, "mesh.pp": 2, "zero.stage": 1}, ranks=4)
        words = ["generate", "--from", "cut", "--prompt", "the ", "--max-new-tokens", 9, "--json"]
        alone = self.cartan(*words).out
        for mesh in ("--pp", "--cp", "--tp"):
            self.assertEqual(self.cartan(*words, mesh, 2, ranks=2).out, alone, mesh)

    def test_every_end_token_of_a_folder_ends_a_text(self):
        shutil.copytree(MODELS / "qwen2-tiny", self.dir / "model")
        (self.dir / "ids.json").write_text("[[172, 395, 379]]")
        words = ["generate", "--from", "model", "--ids", "ids.json", "--max-new-tokens", 20, "--json"]
        whole = json.loads(self.cartan(*words, "--ignore-end").out)["ids"]
        for ends in (whole[6], [511, whole[6]]):
            text = json.dumps({"eos_token_id": ends, "temperature": 2.0, "do_sample": True})
            (self.dir / "model/generation_config.json").write_text(text)
            found = json.loads(self.cartan(*words).out)
            self.assertEqual((found["ids"], found["finish"]), (whole[: whole.index(whole[6]) + 1], "end"))
        (self.dir / "model/generation_config.json").write_text('{"eos_token_id": "</s>"}')
        result = self.cartan(*words, expect=harness.BAD_DATA)
        self.assert_refused(result, "generation_config.json", "eos_token_id")

    def test_a_mesh_that_does_not_fit_is_refused(self):
        for ranks, mesh, part in (
            (0, ["--tp", 2], "does not divide the 1 ranks"),
            (3, ["--tp", 3], "mesh.tp = 3 cannot split model.heads"),
        ):
            result = self.cartan("generate", "--from", "run", "--prompt", "a", *mesh, ranks=ranks, expect=CONFIGURATION)
            self.assert_refused(result, part)

    def test_json_lines_have_rules_of_their_own(self):
        lines = [
            {"prompt": "the ", "id": 7},
            {"ids": list(b"of"), "id": {"a": [1]}, "max_new_tokens": 3},
            {"prompt": "mesh", "temperature": 1, "seed": 5, "repetition_penalty": 1.5, "top_k": 20, "top_p": 0.9},
        ]
        text = "\n".join(json.dumps(line) for line in lines)
        (self.dir / "in.jsonl").write_text(text)
        words = ["--max-new-tokens", 10, "--ignore-end"]
        found = self.generate("--jsonl", "in.jsonl", *words)
        self.assertEqual([one.get("id") for one in found], [7, {"a": [1]}, None])
        self.assertEqual([len(one["ids"]) for one in found], [10, 3, 10])
        rules = ["--temperature", 1, "--seed", 5, "--repetition-penalty", 1.5, "--top-k", 20, "--top-p", 0.9]
        self.assertEqual(found[2], self.generate("--prompt", "mesh", *words, *rules)[0])
        piped = self.on_stdin(text, "--jsonl", "-", *map(str, words)).splitlines()
        self.assertEqual([json.loads(line) for line in piped], found)
        plain = self.on_stdin("the \nof\n", "--prompts", "-", *map(str, words))
        self.assertEqual(plain, f"the {found[0]['text']}\nof{self.generate('--prompt', 'of', *words)[0]['text']}\n")
        shared = self.cartan("generate", "--from", "run", "--jsonl", "in.jsonl", *words, ranks=2).out.splitlines()
        self.assertEqual([json.loads(line) for line in shared], found)

    def test_a_stop_string_ends_the_text_and_is_not_in_it(self):
        words = ["--prompt", "the ", "--max-new-tokens", 40, "--ignore-end"]
        whole = self.generate(*words)[0]
        stop = whole["text"][5:9]
        cut = self.generate(*words, "--stop", "never in it", "--stop", stop)[0]
        self.assertEqual((cut["finish"], whole["finish"]), ("stop", "length"))
        self.assertEqual(cut["text"], whole["text"][: whole["text"].index(stop)])
        self.assertEqual(cut["ids"], whole["ids"][: len(cut["ids"])])
        for more in ([], ["--stream"]):
            out = self.cartan("generate", "--from", "run", *words, "--stop", stop, *more).out
            self.assertEqual(out, "the " + cut["text"] + "\n")

    def test_streamed_text_is_the_same_text(self):
        (self.dir / "prompts.txt").write_text("the \nof\nalpha beta\n")
        words = ["generate", "--from", "run", "--prompts", "prompts.txt", "--max-new-tokens", 30, "--temperature", 1.5]
        plain = self.cartan(*words).out
        for more in (["--batch", 1], ["--batch", 3]):
            self.assertEqual(self.cartan(*words, "--stream", *more).out, plain)

    def test_text_comes_as_it_is_written_on_a_terminal(self):
        main, side = pty.openpty()
        words = ["generate", "--from", "run", "--prompt", "the ", "--max-new-tokens", "400", "--ignore-end"]
        process = subprocess.Popen(
            [harness.program(), *words], cwd=self.dir, env=harness.environment(), stdout=side, stdin=subprocess.DEVNULL
        )
        os.close(side)
        pieces = []
        with contextlib.suppress(OSError):  # how the end of a terminal is told
            while piece := os.read(main, 1 << 16):
                pieces.append(piece)
        os.close(main)
        self.assertEqual(process.wait(harness.LIMIT), 0)
        self.assertGreater(len(pieces), 1)
        text = b"".join(pieces).decode().replace("\r\n", "\n")
        self.assertEqual(text, self.cartan(*words).out)

    def test_a_file_of_prompts_gives_a_line_each(self):
        (self.dir / "prompts.txt").write_text("the\nof\nalpha beta\n")
        found = self.generate("--prompts", "prompts.txt", "--max-new-tokens", 5)
        self.assertEqual(len(found), 3)
        self.assertEqual(found[2], self.generate("--prompt", "alpha beta", "--max-new-tokens", 5)[0])


class Config(harness.Case):
    def values(self, text):
        """Keys and values without the sources, which name files and lines."""
        return [line.rpartition(" # ")[0].strip() or line for line in text.splitlines() if not line.startswith("#")]

    def test_what_is_printed_reads_back_as_the_same(self):
        given = harness.option_words(
            {**harness.TINY, "data.train": [0.7, "some/data", 0.3, "an#other"], "run.dir": "a #b"}
        )
        for ranks in ([], ["--ranks", 4]):
            first = self.cartan("config", *given, *ranks).out
            (self.dir / "out.ini").write_text(first)
            second = self.cartan("config", "--config", "out.ini", *ranks).out
            self.assertEqual(self.values(first), self.values(second))
        self.assertIn("dp = 4", self.values(second))

    def test_each_value_has_its_source(self):
        (self.dir / "one.ini").write_text("[run]\nsteps = 7\n[optim]\nlr = 0.5\n")
        (self.dir / "two.ini").write_text("[optim]\nlr = 0.25\nclip = 2\n")
        words = ["--config", "one.ini", "--config", "two.ini", "--optim.clip", 3, "--model.preset", "tiny"]
        text = self.cartan("config", *words).out
        sources = dict(line.split("#", 1) for line in text.splitlines() if " = " in line and "#" in line)
        sources = {key.strip(): source.strip() for key, source in sources.items()}
        for entry, source in {
            "steps = 7": "one.ini:2",
            "lr = 0.25": "two.ini:2",
            "clip = 3": "command line",
            "preset = tiny": "command line",
            "beta1 = 0.9": "default",
        }.items():
            self.assertEqual(sources.get(entry), source, text)
        self.assertTrue(any(source == "preset tiny" for source in sources.values()), text)

    def test_the_configuration_of_a_run_repeats_it(self):
        self.train("run", {"schedule.kind": "cosine", "schedule.warmup": 1, "batch.micro": 3}, ranks=2)
        self.cartan("train", "--config", "run/config.ini", "--run.dir", "again", ranks=2)
        self.assert_same_run("run", "again")
        # On other ranks: what was derived for two is not binding.
        self.cartan("train", "--config", "run/config.ini", "--run.dir", "other", "--dp", 0, ranks=4)
        self.assert_same_run("run", "other")


class Doctor(harness.Case):
    def test_this_machine_is_fit(self):
        for ranks in (0, 2):
            found = json.loads(self.cartan("doctor", "--json", ranks=ranks).out)
            self.assertTrue(found["fit"])
            about = {finding["subject"]: finding for finding in found["findings"]}
            self.assertTrue({"MPI", "CPUs", "device", "GPU", "run.dir"} <= about.keys(), about)
            self.assertTrue(about["MPI"]["text"].startswith(f"{max(ranks, 1)} rank"), about)
            self.assertTrue(about["device"]["text"].startswith("cpu: "), about)
        self.assertEqual(list(self.dir.iterdir()), [], "nothing is left")

    def test_what_is_wrong_is_said_and_the_rest_is_told_all_the_same(self):
        result = self.cartan("doctor", "--run.dir", "/proc/none", expect=harness.ENVIRONMENT)
        self.assert_refused(result, "not fit for this run", "run.dir", "/proc")
        self.assertRegex(result.out, r"(?m)^run.dir +bad ")
        self.assertRegex(result.out, r"(?m)^MPI +good ")


if __name__ == "__main__":
    harness.main()
