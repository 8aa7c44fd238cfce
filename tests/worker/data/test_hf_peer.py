"""dpt-data encode beside the package tokenizers of Hugging Face, live: the ids of drawn Unicode strings, by the small
tokenizers of recorded/ and by OpenAI's vocabulary, where DPT_TEST_DATA has it, in the forms of GPT-2 and Llama 3.

Run by ctest: pytest test_hf_peer.py, with DPT_DATA naming the program. tests/run installs tokenizers. The seed is
printed when a test fails; DPT_TEST_SEED sets it.
"""

import json
import os
import random
import struct
import subprocess
import unicodedata
from pathlib import Path

import pytest

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: tests/run installs it by pip")

PROGRAM = os.environ["DPT_DATA"]
HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded"
DATA = Path(os.environ.get("DPT_TEST_DATA") or HERE.parents[3] / "shared" / "data").resolve()
SEED = int(os.environ.get("DPT_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
STRINGS, PARTS_MAX, WORDS, TIMEOUT_S = 3000, 24, 3000, 120
NAMES = ["hf_gpt2", "hf_llama3", "hf_smollm2", "hf_odd"]
REAL = ["gpt2", "llama3"]

# Characters of this Python's Unicode. Not every library knows newer ones.
KNOWN = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
POOL = [
    "'", "'s", "'T", "'Re", "'VE", "'m", "'ll", "'LL", "'d", "'ſ", "\u2019s", " ", "  ", "   ", "      ",
    "\n", "\n\n", "\r\n", "\t", " \n", "\x0b", "\x1c", "\u0085", "\u00a0", "\u180e", "\u2003", "\u200b",
    "\u2028", "\u3000", "the", " the", "The", "ing", "machine", "goes", "x", "xx", "Z", "ß", "K", "é",
    "e\u0301", "ж", "中", "ا", "ก", "𝔘", "0", "7", "42", "1999", "1234567", "٣", "½", "²", "ⅷ", "𝟘", ".",
    ",", "!", "?!", "-", "--", "(", ")", "_", "€", "😀", "👍🏽", "<", "<a>", "<a", "a><", "foo bar", "<|x|>",
    "<|endoftext|>", "<|im_start|>", "<|begin_of_text|>", "wordless", "the  machine",
]


def draw_string(draw):
    parts = []
    for _ in range(draw.randint(1, PARTS_MAX)):
        parts.append(draw.choice(POOL) if draw.random() < 0.7 else draw.choice(KNOWN))
    return "".join(parts)


def openai_form(name):
    """A tokenizer.json with the same content as OpenAI's two files."""
    if not (DATA / "vocab.bpe").exists():
        pytest.skip(f"no vocab.bpe in {DATA} (DPT_TEST_DATA)")
    form = json.loads((RECORDED / f"hf_{name}.json").read_text())
    merges = (DATA / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    vocab = json.loads((DATA / "encoder.json").read_text())
    form["model"]["vocab"] = vocab
    form["model"]["merges"] = [merge.split() for merge in merges] if name == "llama3" else merges
    form["added_tokens"] = [{"id": vocab["<|endoftext|>"], "content": "<|endoftext|>", "single_word": False,
                             "lstrip": False, "rstrip": False, "normalized": True, "special": True}]
    form["post_processor"] = None
    return form


def file_of(name, folder):
    if name in NAMES:
        return RECORDED / f"{name}.json"
    (folder / "tokenizer.json").write_text(json.dumps(openai_form(name)))
    return folder / "tokenizer.json"


def package(file):
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    tokenizer.encode_special_tokens = True
    ends = (tokenizer.token_to_id(token) for token in ("<|endoftext|>", "<|end_of_text|>"))
    return tokenizer, next(([end] for end in ends if end is not None), [])


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def encode(file, out, *args):
    """The tokens that dpt-data makes."""
    done = subprocess.run([PROGRAM, "encode", "--tokenizer-json", file, "--out", out, *map(str, args)],
                          capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    data = (out / "train_000000.bin").read_bytes()
    assert struct.unpack("<2i", data[:8]) == (20240520, 1)
    return list(struct.unpack(f"<{len(data) // 2 - 512}H", data[1024:]))


@pytest.mark.parametrize("name", NAMES + REAL)
def test_drawn_strings(tmp_path, name):
    draw = random.Random(SEED)
    file = file_of(name, tmp_path)
    texts = [draw_string(draw) for _ in range(STRINGS)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    found = encode(file, tmp_path / "out", tmp_path / "texts.jsonl")
    tokenizer, end = package(file)
    at = 0
    for text in texts:
        ids = end + ids_of(tokenizer, text)
        assert found[at:at + len(ids)] == ids, f"seed {SEED}: {name}, {text!r}"
        at += len(ids)
    assert at == len(found)


@pytest.mark.parametrize("name", NAMES + REAL)
def test_a_text_in_blocks(tmp_path, name):
    """Where dpt-data cuts a text into blocks, the tokens stay those of the whole text."""
    draw = random.Random(SEED)
    file = file_of(name, tmp_path)
    text = "".join(draw.choice([" ", " ", "\n", ".\n", "  ", "?\r\n\r\n"]) + draw.choice(POOL) for _ in range(WORDS))
    (tmp_path / "a.txt").write_bytes(text.encode())
    found = encode(file, tmp_path / "out", "--block-kib", 1, tmp_path / "a.txt")
    tokenizer, end = package(file)
    assert found == end + ids_of(tokenizer, text), f"seed {SEED}: {name}"
