"""Random chats become the same ids in cartan as in transformers, with the published chat templates and a tokenizer made
here: what the templates' tokens do beside white space, and what follows them, is seen for many texts."""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

JINJA = Path(__file__).parent.parent / "data/golden/chat"
PHI3 = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
FAMILIES = {
    "qwen2": (["<|im_start|>", "<|im_end|>"], None, "<|im_end|>"),
    "llama3": (
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "<|begin_of_text|>",
        "<|eot_id|>",
    ),
    "phi3": ([*PHI3, "<|endoftext|>"], None, "<|endoftext|>"),
}
ATOMS = ["the", " ", "  ", "\n", "\n\n", "\t", "'s", "12", "\u00e9", "e\u0301", "\u4f60\u597d", ".", "\u00a0", "\u2028", "Yes", "\U0001f600"]


def tokens_of(prefix):
    """The documents of a token file."""
    data = (prefix.with_suffix(".idx")).read_bytes()
    sequences = struct.unpack_from("<Q", data, 18)[0]
    lengths = struct.unpack_from(f"<{sequences}i", data, 34)
    ids = struct.unpack(f"<{sum(lengths)}H", prefix.with_suffix(".bin").read_bytes())
    documents, at = [], 0
    for length in lengths:
        documents.append(list(ids[at : at + length]))
        at += length
    return documents


class ChatTemplates(unittest.TestCase):
    def setUp(self):
        self.dir = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def tokenizer(self, family):
        special, bos, eos = FAMILIES[family]
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
        made.train_from_iterator(["the assistant said: yes, \n\n the user 12 \n"] * 20, trainer)
        made.add_special_tokens([AddedToken(t, rstrip=t in PHI3, normalized=False, special=True) for t in special])
        wrapped = PreTrainedTokenizerFast(tokenizer_object=made, bos_token=bos, eos_token=eos)
        wrapped.chat_template = (JINJA / f"{family}.jinja").read_text()
        wrapped.save_pretrained(self.dir / family)
        return wrapped

    def test_the_ids_are_the_same(self):
        pick = random.Random(11)

        def text():
            return "".join(pick.choice(ATOMS) for _ in range(pick.randrange(8)))

        chats = []
        for _ in range(300):
            turns = [{"role": "system", "content": text()}] if pick.random() < 0.3 else []
            for _ in range(pick.randrange(1, 4)):
                turns += [{"role": "user", "content": text()}, {"role": "assistant", "content": text()}]
            chats.append(turns)
        (self.dir / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
        for family in FAMILIES:
            with self.subTest(family):
                theirs = self.tokenizer(family)
                words = ["--input", "chats.jsonl", "--output", f"{family}_out", "--tokenizer", family]
                done = subprocess.run([os.environ["CARTAN"], "tokenize", *words], cwd=self.dir, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                ours = tokens_of(self.dir / f"{family}_out")
                self.assertEqual(len(ours), len(chats))
                for chat, ids in zip(chats, ours):
                    self.assertEqual(ids, theirs.apply_chat_template(chat, tokenize=True, return_dict=False), chat)


if __name__ == "__main__":
    unittest.main(verbosity=2)
