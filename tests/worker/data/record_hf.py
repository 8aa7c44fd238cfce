#!/usr/bin/env python3
"""Trains small tokenizers on recorded/tiny.txt in the forms of tokenizer.json that models have (recorded/hf_*.json),
and writes the ids of the package tokenizers for awkward strings (recorded/hf.txt).

    python3 tests/worker/data/record_hf.py

Run once, by hand, with tokenizers, regex and tiktoken (record_bpe.py) from PyPI. The forms:

    hf_gpt2     GPT-2: ByteLevel with its own regular expression; merges as "a b"
    hf_llama3   Llama 3: Split by its pattern, ByteLevel without one; ignore_merges; as many merges to one token as
                there are, as in the conversion from tiktoken's form, and a token that no merge makes; added special
                tokens after the others; merges as ["a", "b"]
    hf_smollm2  SmolLM2: Digits one by one, then ByteLevel; special tokens before the others; bytes without a token of
                their own, which become unk_token
    hf_odd      two Splits, Digits together, a prefix blank; added tokens that are not special, normalized or not, one
                within another; bytes that are left out

Lines of the file: "NAME HEX IDS" treats special tokens in the string as text (encode_special_tokens), "NAME+ HEX IDS"
recognises them. Neither has the tokens that the post-processor adds. Strings with characters that Python's Unicode does
not know are left out, because libraries with another Unicode version classify them differently.
"""

import itertools
import json
import unicodedata

from record_bpe import BY_HAND, POOL, random_strings
from tokenizers import AddedToken, Regex, Tokenizer, __version__, decoders, models, pre_tokenizers, processors, trainers
from train_tiny import HERE

STRINGS_MAX, SIZE = 180, 480
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
OWN = [
    "I'M YOU'RE it\u2019S 'ſ 'K", "1234567 12 3456", "a!\n\nb?\r\n \r\n c", "x   \n  y\n\n\n  z \t\n", "tab\t\tword",
    "a\u180eb \u180e \u0085 \x1c", "<|begin_of_text|>Hi<|end_of_text|>", "<|im_start|>user\nHi<|im_end|>\n",
    "<|endoftext|><|endoftext|> x", "<a><ab><a", "the  machine goes", "a <|x<a>|> b", "<|x|><a>", "   three    four",
    "foo barfoo bar", "₂₃ 4५६ ⅷ7", "a1b22c333 d4444", "wordwordless", "'LL'Ll 'Ve", "\r\r\n", " \u3000\u3000x",
]


def bpe(**settings):
    return Tokenizer(models.BPE(**settings))


def train(tokenizer, size=SIZE, alphabet=True, special=()):
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=list(special),
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [])
    tokenizer.train([str(HERE / "tiny.txt")], trainer)
    tokenizer.decoder = decoders.ByteLevel()


def gpt2():
    tokenizer = bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    train(tokenizer, special=["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    form = json.loads(tokenizer.to_str())
    form["model"]["merges"] = [" ".join(pair) for pair in form["model"]["merges"]]
    form["model"]["continuing_subword_prefix"] = form["model"]["end_of_word_suffix"] = ""
    return form


def llama3():
    tokenizer = bpe(ignore_merges=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    train(tokenizer)
    form = json.loads(tokenizer.to_str())
    vocab = form["model"]["vocab"]
    merges = []
    for token in vocab:
        parts = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = [pair for pair in parts if pair[0] in vocab and pair[1] in vocab]
        merges += sorted(known, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    form["model"]["merges"] = [list(pair) for pair in merges]
    vocab["wordless"] = len(vocab)
    tokenizer = Tokenizer.from_str(json.dumps(form))
    begin = "<|begin_of_text|>"
    tokenizer.add_special_tokens([begin, "<|end_of_text|>", *(f"<|reserved_special_token_{i}|>" for i in range(4))])
    template = processors.TemplateProcessing(single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1",
                                             special_tokens=[(begin, tokenizer.token_to_id(begin))])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return json.loads(tokenizer.to_str())


def smollm2():
    tokenizer = bpe(unk_token="<|endoftext|>")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    train(tokenizer, alphabet=False, special=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"])
    return json.loads(tokenizer.to_str())


def odd():
    tokenizer = bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"[A-Z]?[a-z]+|\d{2,3}|(?<=\s)\S(?!o)|x*"), "isolated"),
         pre_tokenizers.Split(Regex(r"o|[^\s\p{Lu}]{1,4}?m"), "isolated"),
         pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(add_prefix_space=True)])
    train(tokenizer, size=300, alphabet=False)
    tokenizer.add_tokens(["<a>", "   ", "the  machine", AddedToken("foo bar", normalized=False)])
    tokenizer.add_tokens([AddedToken("<a", normalized=False), AddedToken("a><", normalized=True)])
    tokenizer.add_special_tokens([AddedToken("<|x<a>|>", special=True), AddedToken("<|x|>", normalized=True)])
    return json.loads(tokenizer.to_str())


def known(text):
    return all(unicodedata.category(c) != "Cn" for c in text)


def main():
    assert POOL  # of random_strings
    drawn = itertools.islice(random_strings(), STRINGS_MAX)
    texts = [*BY_HAND, *(text.encode() for text in OWN), *drawn]
    texts = [text for text in texts if len(text) < 1500 and known(text.decode("utf-8", "replace"))]
    lines = [f"# Made by record_hf.py with tokenizers {__version__}."]
    for name, form in (("hf_gpt2", gpt2()), ("hf_llama3", llama3()), ("hf_smollm2", smollm2()), ("hf_odd", odd())):
        (HERE / f"{name}.json").write_text(json.dumps(form, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        tokenizer = Tokenizer.from_file(str(HERE / f"{name}.json"))
        for mark in ("", "+"):
            tokenizer.encode_special_tokens = not mark
            for text in texts:
                ids = tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids
                if not mark or b"<" in text:
                    lines.append(" ".join([name + mark, text.hex() or "-", *map(str, ids)]))
    (HERE / "hf.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
