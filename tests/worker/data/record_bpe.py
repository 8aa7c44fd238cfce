#!/usr/bin/env python3
"""Writes recorded/awkward.txt: the ids of a reference encoder for awkward strings and for tinyshakespeare.

    python3 tests/worker/data/record_bpe.py DIR

Run once, by hand, with regex and tiktoken from PyPI; DIR has OpenAI's vocab.bpe and encoder.json and
tinyshakespeare.txt. The reference is written here from the description of GPT-2's encoder: the regular expression cuts
the text, then the adjacent pair of lowest rank is merged, every occurrence at once, until none is left. Bytes are
decoded as UTF-8 with errors="replace" first. With OpenAI's vocabulary every result is checked against tiktoken,
OpenAI's own library, made from the same two files; nothing is downloaded.

Lines of the file: "t HEX IDS" a string with the tiny vocabulary, "g HEX IDS" with OpenAI's; "shakespeare TOKENS
SHA256" of tinyshakespeare.txt's ids as 16-bit little-endian numbers; "classes SHA256" of one digit a code point
(surrogates left out): 0 other, 1 letter, 2 number, 3 white space, as the module regex has them.
"""

import hashlib
import json
import random
import struct
import sys
from pathlib import Path

import regex
import tiktoken
from train_tiny import HERE, PIECES, symbols

SEED, RANDOM_STRINGS = 20261120, 500

BY_HAND = [
    b"", b" ", b"a", b"\n", b"\0", b"Hello, world!", b"hello world",
    # contractions, and strings that only look like them
    b"I'm you're he's we've they'll she'd don't", b"I'M YOU'RE HE'S WE'VE", b"'s", b"''s", b"'", b"' s", b" 's",
    b"!'s", b"'ll'll'", b"'r 're 'v 've 'l 'll", b"'tis 'twas rock'n'roll o'clock",
    "l\u2019homme don\u2019t".encode(), b"'sss",
    # digits
    b"0123456789", b"1 22 333 4444 55555", b"3.14159 1,000,000 1e-5", b"abc123def 123abc",
    "½ ² ³ ¼ ٣٤ ⅷ ① 〇 𝟘𝟙".encode(), "x²+y³".encode(), "１２３".encode(),
    # blanks and lines
    b"  ", b"   ", b"a  b", b"a   b", b"a    b", b"  a", b"a  ", b" \n ", b"\n\n", b"\n\n\n", b"a\n\n\nb",
    b"a\n \n b", b"\t", b"\t\t", b"a\tb", b"\ta", b" \ta", b"\r\n", b"a\r\nb\r\n\r\nc", b"\x0b\x0c",
    b"    int x = 0;\n\treturn x;\n", b" " * 100, b"\n" * 100, b"x" + b" " * 1000 + b"y", b"a \n",
    b"\x1c\x1d\x1e\x1f",
    # other white space: no-break space, en quad … hair space, separators, ideographic space; and look-alikes
    "a\u00a0b".encode(), "a \u00a0 b".encode(), "\u00a0\u00a0a".encode(), "a\u1680b\u2000c\u200ad".encode(),
    "a\u2028b\u2029c".encode(), "a\u202fb\u205fc\u3000d".encode(), "a\u200bb\u200cc\u200dd\ufeffe".encode(),
    "a\u0085b".encode(), "a\u180eb".encode(), " \u3000 ".encode(),
    # scripts
    "Größe naïve café ÀÉÎÕÜ".encode(), "Привет, мир!".encode(), "Γειά σου Κόσμε".encode(), "שלום עולם".encode(),
    "مرحبا بالعالم".encode(), "你好，世界！".encode(), "こんにちは世界".encode(), "안녕하세요 세계".encode(), "नमस्ते दुनिया".encode(),
    "สวัสดีชาวโลก".encode(), "e\u0301 n\u0303".encode(), "ǅ ʰ ª º ℵ".encode(),
    "\U0001d400\U0001d7ce \U00020000\U0002ebf0".encode(),
    # signs and emoji
    b"...---...", b"!!! ??? ;;; ***", b"a+b=c", b"<|endoftext|>", b"foo<|endoftext|>bar",
    b"http://example.org/?q=1&r=%20#x", "€£¥".encode(), "😀".encode(), "👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪".encode(), " 😀 😀".encode(),
    "\ufffd".encode(), "“q” — …".encode(),
    # long pieces
    b"a" * 47, b"a" * 48, b"a" * 49, b"ab" * 300, b"the" * 1000, b"=" * 3000,
    b"supercalifragilisticexpialidocious" * 20, b"antidisestablishmentarianism", b"0" * 1000, "é".encode() * 500,
    "你好".encode() * 400, b" " + b"Z" * 200,
    # bytes that are not UTF-8
    b"\x80", b"\xff", b"a\x80b", b"a\xffb", b"\xc3", b"\xc3 ", b"caf\xe9 ", b"\xe2\x82", b"\xe2\x82a",
    b"\xe2\x28\xa1", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\xa0", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xed\xb0\x80",
    b"\xf0\x9f\x98", b"\xf0\x9f\x98\x80\xf0", b"\xf0\x82\x82\xac", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80",
    b"\xf8\x88\x80\x80\x80", b"\xfe\xff", b"\xc2\xa0\x80", b" \xc2", b"\xef\xbb\xbfBOM", bytes(range(256)),
    bytes(range(255, -1, -1)),
]
POOL = [
    "'", "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0",
    "\u3000", "\u2003", "\u200b", "\u2028", "the", " the", "The", "ing", "a", "b", "Z", "ß", "é", "ж", "中", "ا", "ก",
    "𝔘", "0", "7", "42", "1999", "٣", "½", "²", ".", ",", "!", "?", "-", "--", "(", ")", "_", "€", "😀", "👍🏽", "\u0301",
    "\ufffd", "<|endoftext|>",
]
BROKEN = [b"\x80", b"\xbf", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xff", b"\xed\xa0\x80", b"\xc0\xaf",
          b"\xf4\x90"]


class Reference:
    def __init__(self, merges_path, encoder_path):
        self.symbol = symbols()[1]
        lines = merges_path.read_text(encoding="utf-8").split("\n")[1:-1]
        self.ranks = {tuple(line.split()): i for i, line in enumerate(lines)}
        self.ids = json.loads(encoder_path.read_text())
        self.kept = {}

    def piece(self, piece):
        if piece in self.kept:
            return self.kept[piece]
        word = [self.symbol[b] for b in piece.encode()]
        while len(word) > 1:
            pair = min(zip(word, word[1:]), key=lambda p: self.ranks.get(p, 1 << 30))
            if pair not in self.ranks:
                break
            out, i = [], 0
            while i < len(word):
                step = 2 if tuple(word[i:i + 2]) == pair else 1
                out.append("".join(word[i:i + step]))
                i += step
            word = out
        self.kept[piece] = [self.ids[token] for token in word]
        return self.kept[piece]

    def encode(self, data):
        return [i for piece in PIECES.findall(data.decode("utf-8", "replace")) for i in self.piece(piece)]


def openai_library(reference):
    """tiktoken over the same two files."""
    byte_of = {c: b for b, c in reference.symbol.items()}
    ranks = {bytes(byte_of[c] for c in token): i for token, i in reference.ids.items() if token != "<|endoftext|>"}
    return tiktoken.Encoding("gpt2-here", pat_str=PIECES.pattern, mergeable_ranks=ranks, special_tokens={})


def random_strings():
    draw = random.Random(SEED)
    for i in range(RANDOM_STRINGS):
        parts = [draw.choice(POOL).encode() for _ in range(draw.randint(1, 24))]
        if i % 3 == 0:
            for _ in range(draw.randint(1, 4)):
                parts.insert(draw.randint(0, len(parts)), draw.choice(BROKEN))
        if i % 5 == 0:
            codes = [draw.choice([draw.randrange(0x20, 0x3000), draw.randrange(0xE000, 0x33480)]) for _ in range(12)]
            parts += ["".join(map(chr, codes)).encode()]
        yield b"".join(parts)


def classes():
    kinds = [(regex.compile(p), k) for p, k in ((r"\s", b"3"), (r"\p{L}", b"1"), (r"\p{N}", b"2"))]
    points = (chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    return hashlib.sha256(b"".join(next((k for p, k in kinds if p.match(c)), b"0") for c in points)).hexdigest()


def main():
    data = Path(sys.argv[1])
    gpt2 = Reference(data / "vocab.bpe", data / "encoder.json")
    tiny = Reference(HERE / "tiny.bpe", HERE / "tiny.json")
    library = openai_library(gpt2)
    versions = f"regex {regex.__version__}, checked against tiktoken {tiktoken.__version__}"
    lines = [f"# Made by record_bpe.py with {versions}."]
    for text in [*BY_HAND, *random_strings()]:
        ids = gpt2.encode(text)
        said = library.encode_ordinary(text.decode("utf-8", "replace"))
        if ids != said:
            sys.exit(f"the reference and tiktoken differ on {text!r}: {ids} {said}")
        for name, found in (("t", tiny.encode(text)), ("g", ids)):
            lines.append(" ".join([name, text.hex() or "-", *map(str, found)]))
    text = (data / "tinyshakespeare.txt").read_bytes()
    ids = gpt2.encode(text)
    if ids != library.encode_ordinary(text.decode()):
        sys.exit("the reference and tiktoken differ on tinyshakespeare")
    lines.append(f"shakespeare {len(ids)} {hashlib.sha256(struct.pack(f'<{len(ids)}H', *ids)).hexdigest()}")
    lines.append(f"classes {classes()}")
    (HERE / "awkward.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
