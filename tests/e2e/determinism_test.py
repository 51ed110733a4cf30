"""The same bits of loss, gradient norm, weights and moments, however the same batch is split."""

import harness

SHORT = {"run.steps": 3, "zero.bucket-mb": 0.02}


class Determinism(harness.Case):
    def compare(self, reference, variants, common=None):
        """variants: name -> (ranks, options, environment)"""
        runs = {"reference": (0, reference), **variants}
        common = {**SHORT, **(common or {})}
        self.train_all({name: (run[0], {**common, **run[1]}, *run[2:]) for name, run in runs.items()})
        self.assertEqual(len(self.numbers("reference")), 3)
        for name in variants:
            with self.subTest(name):
                self.assert_same_run("reference", name)

    def test_any_number_of_ranks_gives_the_same_bits(self):
        variants = {f"ranks{n}": (n, {}) for n in (1, 2, 3, 4, 6)}
        variants["messages3"] = (3, {}, {"CARTAN_COMM": "messages"})
        variants["nodes-of-2"] = (4, {}, {"CARTAN_COMM": "nodes:2"})
        variants["nodes-of-3"] = (6, {}, {"CARTAN_COMM": "nodes:3"})
        self.compare({}, variants)

    def test_any_micro_batch_gives_the_same_bits(self):
        variants = {f"micro{m}": (0, {"batch.micro": m}) for m in (1, 2, 3, 6, 12)}
        variants["micro1-ranks2"] = (2, {"batch.micro": 1})
        variants["micro2-ranks3"] = (3, {"batch.micro": 2})
        self.compare({"batch.micro": 4}, variants)

    def test_any_bucket_size_gives_the_same_bits(self):
        variants = {f"bucket{b}": (2, {"zero.bucket-mb": b}) for b in (0.001, 0.03, 0.1, 64)}
        self.compare({"zero.bucket-mb": 16}, variants)

    def test_any_zero_stage_gives_the_same_bits(self):
        variants = {f"stage{z}-ranks{n}": (n, {"zero.stage": z}) for z in (1, 2, 3) for n in (2, 3)}
        variants["offload"] = (0, {"zero.offload": "all"})
        variants["stage3-offload"] = (2, {"zero.stage": 3, "zero.offload": "all", "batch.micro": 2})
        variants["stage3-shards-of-2"] = (4, {"zero.stage": 3, "zero.shard": 2, "batch.micro": 1})
        for z in (1, 2, 3):
            variants[f"stage{z}-nodes"] = (4, {"zero.stage": z, "batch.micro": 1}, {"CARTAN_COMM": "nodes:2"})
        variants["stage3-shards-of-2-nodes"] = (
            6, {"zero.stage": 3, "zero.shard": 2, "batch.micro": 1}, {"CARTAN_COMM": "nodes:3"})
        variants["stage2-messages"] = (3, {"zero.stage": 2, "batch.micro": 2}, {"CARTAN_COMM": "messages"})
        self.compare({}, variants)

    def test_pipelines_give_the_same_bits(self):
        common = {"batch.micro": 1, "model.layers": 4, "model.tied": "true"}
        variants = {
            "1f1b": (2, {"mesh.pp": 2}),
            "gpipe": (4, {"mesh.pp": 4, "pipeline.schedule": "gpipe"}),
            "zero-bubble": (4, {"mesh.pp": 2, "pipeline.schedule": "zero-bubble", "zero.stage": 3}),
            "interleaved": (2, {"mesh.pp": 2, "pipeline.schedule": "interleaved", "pipeline.chunks": 2}),
            "recompute": (2, {"mesh.pp": 2, "recompute.policy": "block", "pipeline.cut": "1,3"}),
        }
        self.compare({}, variants, common)

    def test_any_number_of_threads_gives_the_same_bits(self):
        variants = {f"threads{t}": (0, {"run.threads": t}) for t in (2, 3)}
        variants["threads3-ranks2"] = (2, {"run.threads": 3})
        self.compare({}, variants)

    def test_bf16_gives_the_same_bits(self):
        variants = {f"ranks{n}": (n, {}) for n in (2, 3)}
        variants["ranks4-micro1"] = (4, {"batch.micro": 1})
        variants["micro12-threads2"] = (0, {"batch.micro": 12, "run.threads": 2})
        variants["bucket-ranks2"] = (2, {"zero.bucket-mb": 0.001})
        self.compare({}, variants, {"precision.compute": "bf16"})

    def test_odd_batches_and_all_parts_of_a_model_give_the_same_bits(self):
        common = {
            "batch.global": 15,
            "data.seq": 37,
            "model.heads": 4,
            "model.kv-heads": 2,
            "model.head-dim": 10,
            "model.ffn": 52,
            "model.tied": "true",
            "model.qkv-bias": "true",
            "model.qk-norm": "true",
            "model.rope-scaling": "llama3",
        }
        variants = {"ranks3": (3, {}), "ranks5": (5, {}), "micro1-threads2": (0, {"batch.micro": 1, "run.threads": 2})}
        self.compare({"batch.micro": 15}, variants, common)

    def test_a_mixture_with_validation_gives_the_same_bits(self):
        common = {
            "data.train": [0.75, harness.corpus(), 0.25, harness.corpus(7)],
            "data.valid-fraction": 0.1,
            "run.eval-every": 2,
            "run.eval-batches": 2,
        }
        self.compare({}, {"ranks4": (4, {})}, common)
        losses = [[line.get("valid_loss") for line in self.metrics(run)] for run in ("reference", "ranks4")]
        self.assertEqual(losses[0], losses[1])
        self.assertEqual([loss is not None for loss in losses[0]], [False, True, True])

    def test_a_seed_changes_the_numbers(self):
        """What the other tests compare does depend on something."""
        runs = {
            "same": {},
            "weights": {"run.seed": 99},
            "order": {"data.seed": 99},
            "bf16": {"precision.compute": "bf16"},
        }
        self.train_all({name: (0, {**SHORT, **options}) for name, options in runs.items()})
        first = {name: self.numbers(name)[0][1] for name in runs}
        self.assertEqual(len(set(first.values())), len(first), first)


if __name__ == "__main__":
    harness.main()
