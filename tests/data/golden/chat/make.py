"""Writes expected.json: what transformers (5.24.0) makes of chats with the published chat templates of Qwen2, Llama 3
and Phi-3 (*.jinja) and the tokenizers that the unit tests look for beside the checkout.

    make.py FOLDER_WITH_TOKENIZERS
"""

import gzip
import json
import sys
import tempfile
from pathlib import Path

from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
# Phi-3 has Llama 2's vocabulary and these tokens (and some between, without which the library counts on).
PHI3 = ["<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"]
FAMILIES = {
    "qwen2": ("qwen3", None, "<|im_end|>", "<|im_start|>assistant\n", "<|im_end|>"),
    "llama3": ("llama3", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    "phi3": ("llama2", "<s>", "<|endoftext|>", "<|assistant|>\n", "<|end|>"),
}
SYSTEM = {"role": "system", "content": "Answer  in\none line.\n"}


def turns(*texts):
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]


CHATS = [
    turns("Hello!", "Hi there."),
    [SYSTEM, *turns("What is 2+2?", "4")],
    turns("a", "b", "c", "d", "e", "f"),
    turns("  blanks before", "  two blanks ", "\n\nlines\n", "\nline\n\n\ttab\t "),
    turns("", "", "x", " "),
    turns("d\u00e9j\u00e0 vu \u4f60\u597d \U0001f600 \u0928\u092e\u0938\u094d\u0924\u0947", "\u4f60\u597d\uff0c\u4e16\u754c\uff01 \u00fcber 12345.678 e\u0301"),
    turns("def f(x):\n    return x\n\nprint(f(1))", "```python\nfor i in range(10):\n\tprint(i)\n```\n\nDone."),
    [{"role": "assistant", "content": "I begin."}, *turns("OK", "I'll GO 'S")],
    turns("\u00a0\u2003wide blanks\u3000", "\u0085\u001c x \u2028"),
]


def tokenizer_of(name, folder, family):
    text = gzip.decompress((folder / f"{name}.tokenizer.json.gz").read_bytes())
    document = json.loads(text)
    if family == "phi3":
        for i, content in enumerate(PHI3):
            document["added_tokens"].append(dict(id=32000 + i, content=content, single_word=False, lstrip=False,
                                                 rstrip=i > 0, normalized=False, special=True))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(document, file)
        file.flush()
        return PreTrainedTokenizerFast(tokenizer_file=file.name)


def counted(text, encoded, special, begin, end):
    """1 for tokens that hold something of an assistant's turn or are its end; not for the token before it, whose
    offsets are those of the white space that it takes along too."""
    spans, at = [], 0
    while (at := text.find(begin, at)) >= 0:
        at += len(begin)
        spans.append((at, text.index(end, at) + len(end)))
    tokens = zip(encoded["input_ids"], encoded["offset_mapping"])
    return [
        int(any(a < last and b > first and (a >= first or i not in special) for first, last in spans) and a < b)
        for i, (a, b) in tokens
    ]


folder = Path(sys.argv[1])
result = {}
for family, (name, bos, eos, begin, end) in FAMILIES.items():
    tokenizer = tokenizer_of(name, folder, family)
    tokenizer.bos_token, tokenizer.eos_token = bos, eos
    tokenizer.chat_template = (HERE / f"{family}.jinja").read_text()
    cases = []
    for chat in CHATS:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
        ids = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        assert encoded["input_ids"] == ids
        special = set(tokenizer.added_tokens_decoder)
        cases.append({"messages": chat, "ids": ids, "counted": counted(text, encoded, special, begin, end)})
    result[family] = {"tokenizer": name, "bos": bos, "eos": eos, "cases": cases}
lines = [f'"{family}": ' + json.dumps(entry) for family, entry in result.items()]
(HERE / "expected.json").write_text("{" + ",\n".join(lines) + "}\n")
