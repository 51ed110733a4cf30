"""What a run leaves behind and what a person sees of it."""

import json
import math
import os
import pty
import re
import subprocess
import threading

import harness

KEYS = {"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_s", "step_s", "mfu", "comm_s", "sent_bytes", "memory_peak"}


class RunDirectory(harness.Case):
    def test_each_step_has_a_line_of_metrics(self):
        options = {"data.valid-fraction": 0.2, "run.eval-every": 2, "run.eval-batches": 1, "run.steps": 5}
        for ranks in (0, 3):
            run = f"run{ranks}"
            self.train(run, options, ranks=ranks)
            lines = [json.loads(line) for line in (self.dir / run / "metrics.jsonl").read_text().splitlines()]
            self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4, 5])
            tokens = 0
            for line in lines:
                valid = {"valid_loss"} if line["step"] in (2, 4, 5) else set()  # every second one, and the last
                self.assertEqual(set(line), KEYS | valid)
                sent = line.pop("sent_bytes")
                self.assertEqual(set(sent), {"pp", "dp", "cp", "tp"})
                self.assertTrue(sent["dp"] > 0 if ranks > 1 else sent["dp"] == 0, sent)
                self.assertEqual(sent["pp"] + sent["cp"] + sent["tp"], 0)
                self.assertTrue(all(math.isfinite(value) for value in line.values()), line)
                self.assertTrue(0 < line["tokens"] - tokens <= 12 * 32, line)  # the ends of documents predict nothing
                tokens = line["tokens"]
                for key in ("tokens_per_s", "step_s", "mfu", "memory_peak", "grad_norm"):
                    self.assertGreater(line[key], 0)
                self.assertGreaterEqual(line["comm_s"], 0)

    def test_files_are_in_the_run_directory_only(self):
        data = self.dir / "data"
        data.mkdir()
        (data / "text.txt").write_text(harness.some_text(1, 1000))
        self.cartan("tokenize", "--input", "data/text.txt", "--output", "data/tokens")
        for name in ("home", "temporary"):
            (self.dir / name).mkdir()
        env = {"HOME": str(self.dir / "home"), "TMPDIR": str(self.dir / "temporary")}
        options = {"data.train": "data/tokens", "checkpoint.every": 2, "run.steps": 4}
        self.train("deep/run", options, ranks=2, env=env)
        self.cartan("generate", "--from", "deep/run", "--prompt", "a", "--max-new-tokens", 2, env=env)
        files = {str(path.relative_to(self.dir)) for path in self.dir.glob("**/*") if path.is_file()}
        run = {"config.ini", "metrics.jsonl", "checkpoints/step-2.h5", "checkpoints/step-4.h5"}
        given = {"data/text.txt", "data/tokens.bin", "data/tokens.idx"}
        self.assertEqual(files, given | {f"deep/run/{name}" for name in run})

    def test_the_configuration_is_complete(self):
        self.train("run", {"run.steps": 1}, ranks=3)
        text = (self.dir / "run/config.ini").read_text()
        entries = [line.split("#")[0].split() for line in text.splitlines()]
        for entry in (["dp", "=", "3"], ["global", "=", "12"], ["micro", "=", "4"], ["vocab", "=", "257"]):
            self.assertIn(entry, entries)


class Log(harness.Case):
    LINE = re.compile(r"\d\d:\d\d:\d\d [IW] r\d\d\d [a-z]+ +\S")

    def test_one_rank_speaks_in_plain_lines(self):
        result = self.train("run", {"run.steps": 6, "run.log-every": 2}, ranks=4)
        self.assertEqual(result.out, "")
        for line in result.err.splitlines():
            self.assertRegex(line, self.LINE)
            self.assertIn(" r000 ", line)
        self.assertEqual(re.findall(r"train +step (\d+) \|", result.err), ["2", "4", "6"])
        for line in re.findall(r"train +step .*", result.err):
            for part in (" loss ", " grad_norm ", " lr ", " ktok/s ", " mfu ", " mem ", " ETA "):
                self.assertIn(part, line)
        self.assertNotRegex(result.err, r"[\r\033]")
        self.assertIn("finished at step 6 of 6", result.err)

    def test_the_banner_predicts_the_memory_to_the_byte(self):
        for ranks, options in ((0, {}), (3, {}), (2, {"precision.compute": "bf16", "batch.micro": 1})):
            with self.subTest(ranks=ranks):
                err = self.train(f"run{ranks}", options, ranks=ranks).err
                match = re.search(r"predicted .*? \((\d+) bytes\), allocated .*? \((\d+) bytes\)", err)
                self.assertEqual(match[1], match[2])
                self.assertIn(f"mesh pp 1 x dp {max(ranks, 1)} x cp 1 x tp 1", err)
                self.assertIn("37.1 k parameters", err)

    def test_validation_is_in_the_log(self):
        err = self.train("run", {"data.valid": harness.corpus(7), "run.eval-every": 4, "run.eval-batches": 1}).err
        valid = float(self.metrics("run")[3]["valid_loss"])
        self.assertIn(f"step 4 | validation loss {valid:.5f}", err)

    def test_a_terminal_gets_a_bar(self):
        ours, theirs = pty.openpty()
        text = bytearray()

        def read():
            try:
                while data := os.read(ours, 4096):
                    text.extend(data)
            except OSError:  # the other end is closed
                pass

        process = subprocess.Popen(
            [harness.program(), *self.train_words("run", {})], cwd=self.dir, stderr=theirs, env=harness.environment()
        )
        os.close(theirs)
        reader = threading.Thread(target=read)
        reader.start()
        self.assertEqual(process.wait(harness.LIMIT), 0)
        reader.join(harness.LIMIT)
        os.close(ours)
        self.assertRegex(text.decode(), r"\r.*\[#+\] 4/4  loss ")
        self.assertNotIn("step 4 |", text.decode())

    def test_a_bar_can_be_asked_for_and_refused(self):
        always = self.train("always", {"run.progress": "always"}, ranks=2).err
        self.assertIn("] 4/4  loss ", always)
        never = self.train("never", {"run.progress": "never"}, ranks=2).err
        self.assertNotIn("] 4/4", never)
        self.assertIn("step 4 |", never)


if __name__ == "__main__":
    harness.main()
