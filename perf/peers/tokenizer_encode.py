"""Encodes a text with tiktoken, and with Hugging Face's tokenizers where that is installed, on one thread.

    tokenizer_encode.py TOKENIZER_JSON TEXT REPETITIONS

Prints a line for each: its name, and JSON with the bytes, the CPU seconds of each repetition, the number of ids and a sum of them.
"""
import json
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tiktoken  # noqa: E402


def bytes_of_characters():
    """GPT-2's characters for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def measure(name, encode, text, repetitions):
    seconds = []
    for _ in range(repetitions):
        begin = time.process_time()
        ids = encode(text)
        seconds.append(time.process_time() - begin)
    checksum = sum((i % 65521 + 1) * token for i, token in enumerate(ids))
    print(name, json.dumps({"bytes": len(text.encode()), "seconds": seconds, "ids": len(ids), "checksum": checksum}), flush=True)


path, text_path, repetitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(path, encoding="utf-8") as file:
    document = json.load(file)
with open(text_path, encoding="utf-8", newline="") as file:
    text = file.read()

byte_of = bytes_of_characters()
ranks = {bytes(byte_of[c] for c in token): rank for token, rank in document["model"]["vocab"].items()}
pattern = next(step["pattern"]["Regex"] for step in document["pre_tokenizer"]["pretokenizers"] if step["type"] == "Split")
encoding = tiktoken.Encoding("peer", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
measure("tiktoken", encoding.encode_ordinary, text, repetitions)

try:
    import tokenizers
except ImportError:
    sys.exit()
peer = tokenizers.Tokenizer.from_file(path)
measure("tokenizers", lambda t: peer.encode(t, add_special_tokens=False).ids, text, 1)
