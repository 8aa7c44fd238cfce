#!/usr/bin/env python3
"""Trains the tiny vocabulary of the tests on recorded/tiny.txt and writes recorded/tiny.bpe and recorded/tiny.json, in
the two formats of OpenAI's vocab.bpe and encoder.json. Run once, by hand; needs the module regex of PyPI:

    python3 tests/worker/data/train_tiny.py
"""

import collections
import json
from pathlib import Path

import regex

HERE = Path(__file__).resolve().parent / "recorded"
MERGES = 400
PIECES = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def symbols():
    """The order of the bytes, and the character that stands for each."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in seen]
    order = seen + hidden
    return order, {b: chr(b) for b in seen} | {b: chr(0x100 + i) for i, b in enumerate(hidden)}


def main():
    order, symbol = symbols()
    text = (HERE / "tiny.txt").read_text(encoding="utf-8")
    words = collections.Counter(tuple(symbol[b] for b in piece.encode()) for piece in PIECES.findall(text))
    merges = []
    while len(merges) < MERGES:
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        pair = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(pair)
        merged = collections.Counter()
        for word, count in words.items():
            out, i = [], 0
            while i < len(word):
                step = 2 if word[i:i + 2] == pair else 1
                out.append("".join(word[i:i + step]))
                i += step
            merged[tuple(out)] += count
        words = merged
    tokens = [symbol[b] for b in order] + ["".join(pair) for pair in merges] + ["<|endoftext|>"]
    (HERE / "tiny.bpe").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    (HERE / "tiny.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))


if __name__ == "__main__":
    main()
