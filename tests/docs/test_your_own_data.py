"""Runs every command in the sh blocks of docs/your-own-data.md, in order, in a folder like the one that the page
describes. Two things differ. A run has fewer steps. deploy/fetch fetches from a folder: OpenAI's files from
DPT_TEST_DATA or, without them, the tiny vocabulary under their names, with an option that accepts it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "worker" / "data" / "recorded"
BIN = Path(os.environ.get("DPT_BIN", ROOT / "build" / "bin"))
DATA = Path(os.environ.get("DPT_TEST_DATA") or ROOT.parent / "shared" / "data").resolve()
STEPS, STEPS_HERE = "steps: 300", "steps: 4"
TIMEOUT_S = 240


def make_texts(folder):
    """Writes forty documents: twenty files, and twenty lines of a file."""
    folder.mkdir()
    text = (RECORDED / "tiny.txt").read_text()
    for i in range(20):
        (folder / f"story{i}.txt").write_text(f"Story {i}.\n{text}")
    (folder / "more.jsonl").write_text("".join(f'{{"text": "Line {i} of many, and some more words."}}\n'
                                               for i in range(20)))


def make_deploy(folder, real):
    """Makes a deploy/fetch with a folder as its publisher; without OpenAI's files this folder has the tiny
    vocabulary."""
    folder.mkdir()
    if real:
        script = f'exec {ROOT}/deploy/fetch "$@" --cache cache --source file://{DATA}\n'
    else:
        script = (f"mkdir -p data/gpt2-vocab\ncp {RECORDED}/tiny.bpe data/gpt2-vocab/vocab.bpe\n"
                  f"cp {RECORDED}/tiny.json data/gpt2-vocab/encoder.json\n")
    (folder / "fetch").write_text("#!/bin/sh\n# Plays deploy/fetch.\n" + script)
    (folder / "fetch").chmod(0o755)


def as_tried(block, real):
    """The block with the test's changes."""
    block = block.replace(STEPS, STEPS_HERE).replace("eval_every: 100", "eval_every: 2")
    block = block.replace("every_steps: 100", "every_steps: 2").replace("warmup_steps: 20", "warmup_steps: 2")
    if not real:
        block = block.replace("--vocab-bpe ", "--any-vocab --vocab-bpe ")
        block = block.replace("--set data.tokenizer=gpt2", "--set data.tokenizer=gpt2 --set data.any_vocab=true")
    return block


def test_every_command(tmp_path):
    real = all((DATA / name).exists() for name in ("vocab.bpe", "encoder.json"))
    page = (ROOT / "docs" / "your-own-data.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.S)
    assert len(blocks) == 5 and STEPS in page
    make_texts(tmp_path / "texts")
    shutil.copy(RECORDED / "hf_smollm2.json", tmp_path / "tokenizer.json")
    make_deploy(tmp_path / "deploy", real)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "bin").symlink_to(BIN)
    said = ""
    for block in blocks:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", as_tried(block, real)], cwd=tmp_path, text=True,
                              capture_output=True, timeout=TIMEOUT_S, env=dict(os.environ, HOME=str(tmp_path)))
        assert done.returncode == 0, (block, done.stdout[-2000:], done.stderr[-2000:])
        said += done.stdout + done.stderr
    assert "train  " in said and "0 bad" in said and 'as text        "<|endoftext|>' in said
    assert (tmp_path / "runs/mine/summary.json").exists() and (tmp_path / "runs/text/summary.json").exists()
    assert "step-00000004  verified" in said


def test_options_are_there():
    """The options that the page names outside its blocks exist."""
    page = (ROOT / "docs" / "your-own-data.md").read_text()
    encode = subprocess.run([BIN / "dpt-data", "encode", "--help"], capture_output=True, text=True, timeout=TIMEOUT_S)
    fetch = subprocess.run([ROOT / "deploy" / "fetch", "--help"], capture_output=True, text=True, timeout=TIMEOUT_S)
    languages = subprocess.run([ROOT / "deploy" / "languages", "--help"], capture_output=True, text=True,
                               timeout=TIMEOUT_S)
    worker = subprocess.run([BIN / "dpt-worker", "--help"], capture_output=True, text=True, timeout=TIMEOUT_S)
    ckpt = subprocess.run([BIN / "dpt-ckpt", "--help"], capture_output=True, text=True, timeout=TIMEOUT_S)
    texts = encode.stdout + fetch.stdout + languages.stdout + worker.stdout + ckpt.stdout
    known = set(re.findall(r"--[a-z][a-z-]+", texts)) | {"--port"}
    assert sorted(set(re.findall(r"--[a-z][a-z-]+", page)) - known) == []
