"""Models that transformers makes, with every rotary scaling and window, compute the same in cartan; what cartan
exports, after training too, transformers loads without a word and computes the same. Both write the same texts."""

import json
import subprocess
import unittest

import peer
import torch
import transformers
from safetensors.torch import load_file

SIZES = dict(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=56,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    initializer_range=0.3,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
)
LENGTH = 70  # beyond windows and original lengths, below the rest


def rope(kind, **entries):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=1000.0, **entries))


LONGROPE = dict(
    short_factor=[1.0, 1.1, 1.3, 1.4], long_factor=[1.5, 2.0, 3.5, 5.0], partial_rotary_factor=0.5, factor=8.0
)
CASES = {
    "llama": ("Llama", {}),
    "llama_tied": ("Llama", dict(tie_word_embeddings=True, head_dim=20)),
    "llama_linear": ("Llama", rope("linear", factor=3.0)),
    "llama_dynamic": ("Llama", dict(max_position_embeddings=32, **rope("dynamic", factor=4.0))),
    "llama_yarn": ("Llama", rope("yarn", factor=8.0, original_max_position_embeddings=32)),
    "llama_yarn_mscale": (
        "Llama",
        rope("yarn", factor=8.0, original_max_position_embeddings=32, beta_fast=8, mscale=1.2, mscale_all_dim=0.6),
    ),
    "llama_llama3": (
        "Llama",
        rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
    ),
    "mistral": ("Mistral", dict(sliding_window=None)),
    "mistral_window": ("Mistral", dict(sliding_window=9)),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True)),
    "qwen2_window": ("Qwen2", dict(use_sliding_window=True, sliding_window=11, max_window_layers=1)),
    "qwen3": ("Qwen3", dict(head_dim=16)),
    "qwen3_layers": (
        "Qwen3",
        dict(
            head_dim=16,
            use_sliding_window=True,
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
    ),
    "phi3_window": ("Phi3", dict(sliding_window=13, pad_token_id=0)),
    "phi3_longrope": (
        "Phi3",
        dict(
            original_max_position_embeddings=32,
            pad_token_id=0,
            **rope("longrope", original_max_position_embeddings=32, **LONGROPE),
        ),
    ),
}


class Transformers(peer.Case):
    def setUp(self):
        super().setUp()
        generator = torch.Generator().manual_seed(5)
        self.ids = torch.randint(0, SIZES["vocab_size"], (2, LENGTH), generator=generator)
        (self.dir / "ids.json").write_text(json.dumps(self.ids.tolist()))

    def logits_of(self, model):
        with torch.no_grad():
            return model.eval()(self.ids).logits

    def make(self, family, entries):
        torch.manual_seed(3)
        config = getattr(transformers, f"{family}Config")(**{**SIZES, **entries})
        config._attn_implementation = "eager"
        model = getattr(transformers, f"{family}ForCausalLM")(config).float()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:  # norms and biases, which begin as ones and zeros
                    parameter.add_(torch.rand(parameter.shape) - 0.5)
        model.save_pretrained(self.dir / "model")
        return model

    def text_of(self, model, prompts, **rules):
        # What a cache of transformers keeps is not turned anew where a longer text turns otherwise.
        rules = dict(max_new_tokens=30, do_sample=False, use_cache=False, pad_token_id=0, **rules)
        texts = []
        for ids in prompts:
            mask = torch.ones(1, len(ids), dtype=torch.long)  # else it leaves out what looks like padding
            texts.append(model.generate(torch.tensor([ids]), attention_mask=mask, **rules)[0, len(ids) :].tolist())
        return texts

    def text_of_cartan(self, *words, ranks=0):
        words = ("--max-new-tokens", "30", *words)
        lines = self.cartan("generate", "--from", "model", "--ids", "prompts.json", "--json", *words, ranks=ranks)
        return [json.loads(line)["ids"] for line in lines.splitlines()]

    def test_both_write_the_same(self):
        """Greedy, with a penalty, up to one of several end tokens; across windows and original lengths."""
        prompts = [self.ids[0, :20].tolist(), self.ids[1, :7].tolist()]
        (self.dir / "prompts.json").write_text(json.dumps(prompts))
        for name in ("llama_dynamic", "llama_llama3", "mistral_window", "qwen2", "qwen3_layers", "phi3_longrope"):
            with self.subTest(name):
                model = self.make(*CASES[name])
                model.generation_config.eos_token_id = None
                whole = self.text_of(model, prompts, repetition_penalty=1.3)
                self.assertEqual(self.text_of_cartan("--repetition-penalty", "1.3", "--ignore-end"), whole)
                for mesh in ("--tp", "--pp", "--cp"):
                    words = ["--repetition-penalty", "1.3", "--ignore-end", mesh, "2"]
                    self.assertEqual(self.text_of_cartan(*words, ranks=2), whole, mesh)
                ends = [whole[0][11], whole[1][17]]
                model.generation_config.eos_token_id = ends
                model.generation_config.save_pretrained(self.dir / "model")
                cut = self.text_of(model, prompts)
                self.assertEqual(self.text_of_cartan(), cut)

    def test_both_compute_the_same(self):
        for name, (family, entries) in CASES.items():
            with self.subTest(name):
                subprocess.run(["rm", "-rf", "model", "exported", "model.h5"], cwd=self.dir, check=True)
                expected = self.logits_of(self.make(family, entries))
                difference = (self.logits_of_cartan("model") - expected).abs().max() / expected.abs().max()
                self.assertLess(difference, 2e-5)
                self.cartan("import", "--from", "model", "--output", "model.h5")
                self.cartan("export", "--from", "model.h5", "--output", "exported", "--dtype", "fp32")
                exported = self.load_quietly(self.dir / "exported")
                self.assertTrue(torch.equal(self.logits_of(exported), expected))

    def test_adapters_are_those_of_peft(self):
        try:
            import peft
        except ImportError as error:
            self.skipTest(str(error))
        for name, entries in {
            "all": dict(target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
            "some_layers": dict(target_modules=["q_proj", "down_proj"], layers_to_transform=[0, 2], use_rslora=True),
        }.items():
            with self.subTest(name):
                subprocess.run(["rm", "-rf", "model", "made", "again", "merged"], cwd=self.dir, check=True)
                base = self.make("Qwen2", {})
                torch.manual_seed(4)
                config = peft.LoraConfig(r=3, lora_alpha=7, init_lora_weights=False, task_type="CAUSAL_LM", **entries)
                adapted = peft.get_peft_model(base, config)
                expected = self.logits_of(adapted)
                adapted.save_pretrained(self.dir / "made")
                self.cartan("export", "--from", "made", "--base", "model", "--output", "again")
                self.cartan("export", "--from", "made", "--base", "model", "--output", "merged", "--merge", "--dtype", "fp32")
                found = self.logits_of_cartan("again")
                self.assertLess((found - expected).abs().max() / expected.abs().max(), 2e-5)
                merged = self.logits_of(self.load_quietly(self.dir / "merged"))
                self.assertLess((merged - expected).abs().max() / expected.abs().max(), 2e-5)
                plain = transformers.AutoModelForCausalLM.from_pretrained(
                    self.dir / "model", dtype=torch.float32, attn_implementation="eager"
                )
                loaded = peft.PeftModel.from_pretrained(plain, self.dir / "again")
                self.assertLess((self.logits_of(loaded) - expected).abs().max() / expected.abs().max(), 1e-6)

    def test_a_training_leaves_what_transformers_computes(self):
        self.make("Qwen2", {})
        (self.dir / "text.txt").write_text("to be or not to be, that is the question " * 60)
        self.cartan("tokenize", "--input", "text.txt", "--output", "data")
        self.cartan(
            *("train", "--model.from", "model", "--data.train", "data", "--steps", "3", "--seq", "64"),
            *("--batch.global", "4", "--export.dir", "exported", "--export.dtype", "fp32", "--run.dir", "run"),
        )
        trained = self.load_quietly(self.dir / "exported")
        found, expected = self.logits_of_cartan("run"), self.logits_of(trained)
        self.assertLess((found - expected).abs().max() / expected.abs().max(), 2e-5)
        self.assertFalse(torch.equal(trained.lm_head.weight, load_file(self.dir / "model/model.safetensors")["lm_head.weight"]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
