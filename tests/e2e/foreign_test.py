"""Configurations of others: `train --from FILE` trains what the INI trains that `config --from FILE` prints."""

import json

import harness

# A DeepSpeed configuration for four replicas, and what it does not say: the model, the data, the length of the run.
DEEPSPEED = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 2, "warmup_type": "linear", "total_num_steps": 6},
    },
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e7},
    "steps_per_print": 1,
}
MODEL = {"model.hidden": 32, "model.layers": 2, "model.heads": 2, "model.ffn": 64, "data.seq": 32, "run.threads": 1}
MEGATRON = {
    "tensor_model_parallel_size": 2,
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "ffn_hidden_size": 64,
    "seq_length": 32,
    "vocab_size": 257,
    "swiglu": True,
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "micro_batch_size": 4,
    "train_iters": 4,
    "lr": 0.01,
    "min_lr": 0.001,
    "lr_decay_style": "cosine",
    "lr_warmup_iters": 2,
}
CLUSTER = """
parallelism: {{tensor: 1, pipeline: 2, data: 1}}
checkpoint: {{interval: 2, keep_last: 1, async_save: true}}
elastic_restart: true
data: {{train: {corpus}, seq: 32}}
model: {{hidden: 32, layers: 2, heads: 2, ffn: 64}}
training: {{steps: 4, global_batch_size: 8}}
"""


class Foreign(harness.Case):
    def write(self, name, content):
        (self.dir / name).write_text(content if isinstance(content, str) else json.dumps(content))

    def assert_printed_ini_is_the_same(self, name, options, ranks):
        words = harness.option_words(options)
        self.cartan("train", "--from", name, *words, "--run.dir", "straight", ranks=ranks)
        ini = self.cartan("config", "--from", name, "--ranks", ranks, *words).out
        self.write("printed.ini", ini)
        self.cartan("train", "--config", "printed.ini", "--run.dir", "printed", ranks=ranks)
        self.assert_same_run("straight", "printed")
        self.assertIn(f"# {name}: ", (self.dir / "straight/config.ini").read_text())

    def test_deepspeed(self):
        self.write("ds_config.json", DEEPSPEED)
        options = {**MODEL, "data.train": harness.corpus(), "run.steps": 5}
        self.assert_printed_ini_is_the_same("ds_config.json", options, ranks=2)
        # Updates 0 and 1 use the lowest rate, as DeepSpeed's do; after the warm-up it falls in a line.
        rates = [float(line["lr"]) for line in self.metrics("straight")]
        for rate, expected in zip(rates, [0, 0, 0.005, 0.01, 0.0075], strict=True):
            self.assertAlmostEqual(rate, expected, places=15)
        # Another number of replicas contradicts the file, and says so before the run.
        words = ["train", "--from", "ds_config.json", *harness.option_words(options), "--run.dir", "wrong"]
        refused = self.cartan(*words, expect=harness.CONFIGURATION)
        self.assert_refused(refused, "ds_config.json: train_batch_size = 16 is not", "4 * 2 * 1 = 8")
        self.assertFalse((self.dir / "wrong").exists())

    def test_megatron(self):
        self.write("megatron.json", {**MEGATRON, "data_path": [harness.corpus()]})
        self.assert_printed_ini_is_the_same("megatron.json", {"run.threads": 1}, ranks=2)
        lines = self.metrics("straight")
        for line, expected in zip(lines, [0, 0.005, 0.01]):
            self.assertAlmostEqual(float(line["lr"]), expected, places=15)
        self.assertIn("\nglobal = 4 ", (self.dir / "straight/config.ini").read_text())

    def test_a_cluster_resumes_on_another_mesh(self):
        self.write("cluster.yaml", CLUSTER.format(corpus=harness.corpus()))
        self.assert_printed_ini_is_the_same("cluster.yaml", {"run.threads": 1, "optim.lr": 0.01}, ranks=2)
        self.assertEqual(self.checkpoints("straight"), [4])
        words = ["--from", "cluster.yaml", "--run.threads", 1, "--optim.lr", 0.01, "--run.steps", 6]
        self.cartan("train", *words, "--run.dir", "straight", "--pp", 1)
        self.assertEqual(self.steps_done("straight"), 6)

    def test_what_cannot_be_done_ends_with_78_on_all_ranks(self):
        self.write("ds.json", {**DEEPSPEED, "optimizer": {"type": "Lamb"}, "sparse_attention": {"mode": "fixed"}})
        words = ["train", "--from", "ds.json", *harness.option_words(MODEL), "--data.train", harness.corpus()]
        refused = self.cartan(*words, ranks=2, expect=harness.CONFIGURATION)
        self.assert_refused(refused, "2 problems", "optimizer.type = Lamb", "sparse_attention", "taken: ")
        self.write("broken.json", '{"train_batch_size": 8,')
        self.assert_refused(self.cartan("train", "--from", "broken.json", expect=harness.BAD_DATA), "broken.json", "line 1")
        self.assert_refused(self.cartan("verify", "--from", "none.json", expect=harness.MISSING), "none.json")

    def test_verify_takes_it(self):
        self.write("ds_config.json", DEEPSPEED)
        self.cartan("verify", "--from", "ds_config.json", *harness.option_words(MODEL), ranks=2)


if __name__ == "__main__":
    harness.main()
