"""Trains a small Llama to recognise languages; deploy/languages starts it. Standard library only.

Five classes: manual pages in English, German, Spanish, French and Polish, of Debian's packages below runs/packages.
Each page is cut into pieces of running text. All pages of one name, in all languages, go to the same table, training or
validation. Each table has equally many pieces of each language, in random order, and the same bytes for the same pages.
Then dpt-worker trains configs/languages.yaml; the accuracy of its last evaluation decides the exit code."""

import csv
import gzip
import hashlib
import random
import re
from pathlib import Path

import example

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "runs" / "packages" / "usr" / "share" / "man"
TABLES = ROOT / "runs" / "languages"
CONFIG = ROOT / "configs" / "languages.yaml"
LANGUAGES = {"English": "", "German": "de", "Spanish": "es", "French": "fr", "Polish": "pl"}  # labels 0 to 4
SEED = 42
TRAIN_PIECES, VAL_PIECES = 3000, 200  # of each language
VAL_SHARE = 10  # one page in ten is for validation
PIECE_BYTES = 160
PARAGRAPH_LETTERS, LETTERS_SHARE = 60, 0.7  # below these: a table or a program, not a sentence
ENGLISH_WORDS, ENGLISH_SHARE = {"the", "of", "and", "is", "to", "with", "that", "for", "by", "are"}, 0.1
ACCURACY_PERCENT = 97

VERBATIM = {".nf": ".fi", ".EX": ".EE", ".TS": ".TE", ".Bd": ".Ed"}
FONTS = {".B", ".I", ".BR", ".BI", ".IR", ".IB", ".RB", ".RI", ".SM", ".SB"}  # requests whose arguments are text


# ---------------------------------------------------------------- pages

def plain(text):
    """Roff text without escapes."""
    text = re.sub(r"\\f(\[[^]]*\]|\(..|.)", "", text)
    text = re.sub(r"\\(\[aq\]|\(aq)", "'", text)
    text = text.replace(r"\-", "-").replace(r"\~", " ").replace(r"\e", "/")
    return re.sub(r"\\(\[[^]]*\]|\(..|s[-+]?\d|\".*|.)", "", text)


def paragraphs(source):
    """Running text of a page: the text between requests that begin a new paragraph."""
    words, until = [], None
    for line in source.split("\n"):
        request = line.split(" ")[0] if line[:1] in (".", "'") else ""
        if until:
            until = None if request == until else until
        elif request in VERBATIM:
            until = VERBATIM[request]
        elif request in FONTS:
            words += plain(line[len(request):].replace('"', "")).split()
        elif not request and line.strip():
            words += plain(line).split()
        elif not request.startswith((r'.\"', r"'\"")):
            yield " ".join(words)
            words = []
    yield " ".join(words)


def is_sentence(text):
    letters = sum(c.isalpha() for c in text)
    return letters >= PARAGRAPH_LETTERS and letters >= LETTERS_SHARE * len(text)


def is_english(text):
    """True for a paragraph that was not translated."""
    words = text.lower().split()
    return sum(w in ENGLISH_WORDS for w in words) >= ENGLISH_SHARE * len(words)


def pieces(source, english):
    """The page's sentences, cut between words to at most PIECE_BYTES; the rest at the end is dropped."""
    text = ""
    kept = (p for p in paragraphs(source) if is_sentence(p) and (english or not is_english(p)))
    for word in " ".join(kept).split():
        longer = f"{text} {word}" if text else word
        if len(longer.encode()) <= PIECE_BYTES:
            text = longer
            continue
        if text:
            yield text
        text = word if len(word.encode()) <= PIECE_BYTES else ""


def is_for_validation(name):
    """Decides by the page's name alone, so that a page and its translations are in the same table."""
    return int.from_bytes(hashlib.sha256(f"{SEED} {name}".encode()).digest()[:8], "big") % VAL_SHARE == 0


def read_language(name, folder):
    """Pieces of one language (of the pages for training, of those for validation), in random order."""
    found = set(), set()
    for path in sorted((PAGES / folder).glob("man[1-9]/*.gz")):
        if path.is_symlink():  # another name of a page
            continue
        page = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
        if not page.startswith(".so "):
            found[is_for_validation(path.name)].update(pieces(page, english=not folder))
    for_train, for_val = found
    drawn = []
    for side, wanted in (for_train, TRAIN_PIECES), (for_val - for_train, VAL_PIECES):
        if len(side) < wanted:
            raise example.Failed(f"{name} has {len(side)} pieces of text below {PAGES / folder}, and {wanted} are "
                                 "needed; run: deploy/install-deps languages")
        drawn.append(random.Random(f"{SEED} {name}").sample(sorted(side), wanted))
    return drawn


# ---------------------------------------------------------------- tables

def write_table(path, rows):
    random.Random(SEED).shuffle(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with open(new, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        table.writerows(rows)
    new.replace(path)
    print(f"languages: {path.relative_to(ROOT)}: {len(rows)} texts", flush=True)


def make_tables():
    train, val = [], []
    for label, (name, folder) in enumerate(LANGUAGES.items()):
        for_train, for_val = read_language(name, folder)
        train += [(text, label) for text in for_train]
        val += [(text, label) for text in for_val]
    write_table(TABLES / "train.csv", train)
    write_table(TABLES / "val.csv", val)


# ---------------------------------------------------------------- the run

def main():
    return example.play("languages", "Five languages by a small Llama.", "the texts of val.csv by their language",
                        ACCURACY_PERCENT, make_tables, ROOT, CONFIG)


if __name__ == "__main__":
    example.run("languages", main)
