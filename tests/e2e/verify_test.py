"""cartan verify: a user's configuration at toy size, on the ranks that it was started with and on one."""

import json

import harness

WORDS = ["verify", "--model.preset", "llama3-8b", "--batch.global", 12, "--batch.micro", 1, "--run.threads", 1]


class Verify(harness.Case):
    def verify(self, *words, ranks):
        return json.loads(self.cartan(*WORDS, *words, "--json", ranks=ranks).out)

    def test_meshes_give_the_numbers_of_one_rank(self):
        meshes = [
            (1, []),
            (2, ["--zero", 2]),
            (2, ["--pp", 2, "--precision.compute", "bf16"]),
            (4, ["--tp", 2, "--pp", 2]),
            (4, ["--mesh.tp-grid", "2x2", "--tensor.chunks", 2]),
            (4, ["--cp", 2, "--tp", 2, "--context.exchange", "all-to-all", "--precision.compute", "fp16"]),
            (4, ["--pp", 2, "--pipeline.schedule", "interleaved", "--pipeline.chunks", 2, "--zero", 3]),
        ]
        for ranks, words in meshes:
            with self.subTest(ranks=ranks, words=words):
                found = self.verify(*words, ranks=ranks)
                self.assertTrue(found["agrees"])
                splits = found["mesh"]["tp"] * found["mesh"]["cp"] > 1
                self.assertEqual(found["expected"]["same_bits"], not splits)
                rows = {(row["quantity"], row["step"]): row for row in found["quantities"]}
                self.assertEqual(len(rows), len(found["quantities"]))
                losses = [rows["loss", step] for step in (1, 2, 3)]
                self.assertNotEqual(losses[0]["mesh"], losses[2]["mesh"], "the parameters move")
                tensors = [row for row in found["quantities"] if row["tensor"]]
                self.assertEqual(len(tensors), 2 * (3 + 9 * found["model"]["layers"]))
                if not splits:
                    self.assertEqual({row["verdict"] for row in rows.values()}, {"same bits"})
                    self.assertTrue(all(row["one_rank"] == row["mesh"] for row in rows.values()))
        self.assertEqual(list(self.dir.iterdir()), [], "nothing is written")

    def test_the_table_for_people_ends_with_the_verdict(self):
        text = self.cartan(*WORDS, "--pp", 2, ranks=2).out
        lines = text.splitlines()
        self.assertEqual(lines[-1], "the mesh gives the numbers of one rank")
        self.assertIn("mesh pp 2 x dp 1 x cp 1 x tp 1, ZeRO 0", lines)
        self.assertRegex(text, r"\ngradient of model\.embed_tokens\.weight +1 .* same bits\n")
        self.assertRegex(text, r"\nparameter lm_head\.weight +3 .* same bits\n")
        self.assertNotIn("DIFFERS", text)

    def test_a_file_serves_train_and_verify(self):
        (self.dir / "run.ini").write_text("[model]\nhidden = 64\nlayers = 3\n[batch]\nglobal = 4\n[mesh]\ntp = 2\n")
        found = json.loads(self.cartan("verify", "--config", "run.ini", "--json", ranks=2).out)
        self.assertTrue(found["agrees"])
        self.assertEqual(found["mesh"], {"pp": 1, "dp": 1, "cp": 1, "tp": 2, "tp-grid": ""})

    def test_what_train_refuses_is_refused(self):
        result = self.cartan(*WORDS, "--tp", 3, ranks=3, expect=harness.CONFIGURATION)
        self.assert_refused(result, "mesh.tp = 3", "model.heads = 32")
        words = ["--model.preset", "llama3-70b", "--pp", 2, "--pipeline.cut", "39,41"]
        result = self.cartan(*WORDS, *words, ranks=2, expect=harness.CONFIGURATION)
        self.assert_refused(result, "pipeline.cut = 39,41")

    def test_numbers_that_are_not_finite_end_with_the_code_of_numbers(self):
        result = self.cartan(*WORDS, "--model.init-std", 1e20, ranks=2, expect=harness.DIVERGED)
        self.assert_refused(result, "not finite", "model.embed_tokens.weight")
        self.assertEqual(result.out, "")


if __name__ == "__main__":
    harness.main()
