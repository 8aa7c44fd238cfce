"""dpt-ckpt generate: text from the checkpoints of a run, by bytes and by GPT-2 tokens; bad input."""

import json
import math
import os
import subprocess
import threading
from pathlib import Path

import pytest

from cluster import ROOT, Cluster, make_text, program

RECORDED = ROOT / "tests" / "worker" / "data" / "recorded"  # a small vocabulary in OpenAI's form


def trained(root, slow, **sets):
    """The checkpoint.dir of a run of some steps."""
    with Cluster(root, sets=dict({"train.steps": 40, "checkpoint.every_steps": 20}, **sets)) as cluster:
        cluster.start_worker("a", nnodes=1, endpoint=False)
        assert cluster.wait_done(120 * slow) == {"a": 0}, cluster.log_tails()
        return cluster.dirs("a")[1]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("bytes"), float(os.environ.get("DPT_TEST_SLOW", "1")))


@pytest.fixture(scope="module")
def gpt2_checkpoints(tmp_path_factory):
    root = tmp_path_factory.mktemp("gpt2")
    return trained(root, float(os.environ.get("DPT_TEST_SLOW", "1")),
                   **{"data.train": make_text(root / "text.txt", 20_000), "data.tokenizer": "gpt2",
                      "data.any_vocab": "true", "data.vocab_bpe": RECORDED / "tiny.bpe",
                      "data.encoder_json": RECORDED / "tiny.json", "model.vocab": 700, "train.steps": 6})


@pytest.fixture(scope="module")
def hf_checkpoints(tmp_path_factory):
    root = tmp_path_factory.mktemp("hf")
    return trained(root, float(os.environ.get("DPT_TEST_SLOW", "1")),
                   **{"data.train": make_text(root / "text.txt", 20_000), "data.tokenizer": "hf",
                      "data.tokenizer_json": RECORDED / "hf_llama3.json", "model.vocab": 512, "train.steps": 6})


def generate(*args, code=0):
    done = subprocess.run([str(program("dpt-ckpt")), "generate", *map(str, args)], stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=120)
    assert done.returncode == code, done.stderr.decode()
    return done.stdout, done.stderr.decode()


def text_of(*args):
    return generate(*args)[0].decode("utf-8", errors="strict")


def test_text(checkpoints):
    text = text_of(checkpoints, "--prompt", "The ", "--max-tokens", 100)
    # Bytes of a small alphabet, but for the few that an early model gets wrong.
    assert text.startswith("The ") and text.endswith("\n") and len(text.encode()) >= 4 + 100 + 1
    assert text == text_of(checkpoints, "--prompt", "The ", "--max-tokens=100")
    assert text == text_of(checkpoints, "--prompt", "The ", "--max-tokens=100", "--threads", 3, "--seed=42")
    assert text != text_of(checkpoints, "--prompt", "The ", "--max-tokens=100", "--seed", 43)
    assert text != text_of(checkpoints / "step-00000020", "--prompt", "The ", "--max-tokens=100")
    greedy = text_of(checkpoints, "--prompt", "The ", "--max-tokens=50", "--temperature", 0)
    assert greedy == text_of(checkpoints, "--prompt", "The ", "--max-tokens=50", "--top-k", 1, "--seed", 5)
    assert text_of(checkpoints, "--prompt", "x", "--max-tokens", 0) == "x\n"


def test_valid_pieces(checkpoints):
    """At a high temperature most bytes are invalid UTF-8; each printed piece is valid UTF-8."""
    argv = [str(program("dpt-ckpt")), "generate", str(checkpoints), "--prompt", "é😀", "--max-tokens", "400",
            "--temperature", "100", "--top-k", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        watch = threading.Timer(60, process.kill)
        watch.start()
        pieces = []
        while piece := os.read(process.stdout.fileno(), 1 << 16):
            pieces.append(piece)
            piece.decode("utf-8", errors="strict")
        watch.cancel()
        assert process.wait() == 0
    text = b"".join(pieces).decode()
    assert text.startswith("é😀") and "\ufffd" in text


def test_log_probabilities(checkpoints, tmp_path):
    def lines(*args):
        args = [checkpoints, "--prompt", "The ", "--max-tokens", 30, *args]
        assert text_of(*args, "--logprobs", tmp_path / "lines") == text_of(*args)
        return [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]

    for line in lines("--top-k", 0):
        likely = [logprob for _, logprob in line["top"]]
        assert len(likely) == 256 and likely == sorted(likely, reverse=True)
        assert abs(sum(map(math.exp, likely)) - 1) < 1e-6
        assert [line["token"], line["logprob"]] in line["top"]
    # They are the model's own, whatever the temperature; the likeliest token comes first.
    greedy = lines("--temperature", 0, "--top-k", 3)
    assert len(greedy) == 30 and all(len(line["top"]) == 3 for line in greedy)
    assert all(line["top"][0] == [line["token"], line["logprob"]] for line in greedy)
    assert greedy[0]["top"] == lines("--temperature", 9, "--top-k", 0)[0]["top"][:3]


def test_log_probabilities_not_written(checkpoints, tmp_path):
    out, err = generate(checkpoints, "--prompt", "x", "--logprobs", tmp_path / "absent" / "lines", code=1)
    assert "--logprobs: create '" in err and len(err.splitlines()) == 1 and out == b""
    _, err = generate(checkpoints, "--prompt", "x", "--logprobs", "/dev/full", code=1)
    assert "--logprobs: write '/dev/full': No space left on device" in err and len(err.splitlines()) == 1


def test_beyond_the_context(checkpoints):
    """The text continues beyond the model's context of 32 tokens."""
    out, err = generate(checkpoints, "--prompt", "word " * 20, "--max-tokens", 200)
    assert len(out) > 300 and "the prompt has 100 tokens, the model's context 32: the model sees the last 20" in err
    # What it does not see makes no difference.
    other = generate(checkpoints, "--prompt", "drow " * 16 + "word " * 4, "--max-tokens", 200)[0]
    assert out[100:] == other[100:]


def test_gpt2_tokens(gpt2_checkpoints):
    text = text_of(gpt2_checkpoints, "--prompt", "Hello, world's end 😀", "--max-tokens", 60, "--temperature", 2)
    assert text.startswith("Hello, world's end 😀") and len(text) > 60
    # The files may lie elsewhere than when the run was.
    files = ["--vocab-bpe", RECORDED / "tiny.bpe", "--encoder-json", RECORDED / "tiny.json"]
    assert text == text_of(gpt2_checkpoints, "--prompt", "Hello, world's end 😀", "--max-tokens", 60,
                           "--temperature", 2, *files)
    _, err = generate(gpt2_checkpoints, "--prompt", "x", "--vocab-bpe", "/nonexistent/vocab.bpe", code=1)
    assert "/nonexistent/vocab.bpe" in err


def test_tokenizer_json(hf_checkpoints):
    args = ["--prompt", "<|begin_of_text|>Hello 😀", "--max-tokens", 60, "--temperature", 2]
    text = text_of(hf_checkpoints, *args)
    assert text.startswith("<|begin_of_text|>Hello 😀") and len(text) > 60
    assert text == text_of(hf_checkpoints, *args, "--tokenizer-json", RECORDED / "hf_llama3.json")
    _, err = generate(hf_checkpoints, *args, "--tokenizer-json", RECORDED / "tiny.json", code=2)
    assert "tiny.json': it has no model" in err and len(err.splitlines()) == 1
    # The prompt's special token is one token; the context is of 32.
    _, err = generate(hf_checkpoints, "--prompt", "<|begin_of_text|>" * 40, "--max-tokens", 1)
    assert "the prompt has 40 tokens, the model's context 32: the model sees the last" in err


def shards(root, *args):
    """Shards of a text, made by dpt-data."""
    make_text(root / "text.txt", 20_000)
    run = subprocess.run([str(program("dpt-data")), "encode", *map(str, args), "--out", root / "shards",
                          root / "text.txt"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return {"data.kind": "tokens", "data.train": root / "shards" / "train_*.bin", "data.tokenizer": "bytes",
            "train.steps": 2, "optimizer.warmup_steps": 0, "checkpoint.every_steps": 2}


PROMPT = ["--prompt", "the ", "--max-tokens", 20, "--temperature", 0]
NOT_SAID = "do not name the tokenizer of the shards: give --tokenizer-json FILE"


def test_shards_of_a_tokenizer_json(tmp_path, slow):
    """The record beside token shards names their tokenizer; without the record an option must name it."""
    sets = shards(tmp_path, "--tokenizer-json", RECORDED / "hf_llama3.json")
    checkpoints = trained(tmp_path, slow, **sets, **{"model.vocab": 512})
    out, err = generate(checkpoints, *PROMPT, code=2)
    assert "of a tokenizer.json: name the file with --tokenizer-json FILE" in err
    assert len(err.splitlines()) == 1 and not out
    text = text_of(checkpoints, *PROMPT, "--tokenizer-json", RECORDED / "hf_llama3.json")
    (tmp_path / "shards" / "dpt-data.json").unlink()
    out, err = generate(checkpoints, *PROMPT, code=2)
    assert NOT_SAID in err and len(err.splitlines()) == 1 and not out
    assert text == text_of(checkpoints, *PROMPT, "--tokenizer-json", RECORDED / "hf_llama3.json")
    _, err = generate(checkpoints, *PROMPT, "--vocab-bpe", RECORDED / "tiny.bpe", code=2)
    assert "this model has GPT-2's tokens: name the tokenizer's files" in err


@pytest.mark.parametrize("vocab", [256, 300])
def test_shards_of_bytes(tmp_path, slow, vocab):
    """A vocabulary of 256 means bytes; with a larger one the record or an option must say so."""
    checkpoints = trained(tmp_path, slow, **shards(tmp_path, "--tokenizer", "bytes"), **{"model.vocab": vocab})
    text = text_of(checkpoints, *PROMPT)
    (tmp_path / "shards" / "dpt-data.json").unlink()
    if vocab == 256:
        assert text == text_of(checkpoints, *PROMPT)
    else:
        assert NOT_SAID in generate(checkpoints, *PROMPT, code=2)[1]
    assert text == text_of(checkpoints, *PROMPT, "--tokenizer", "bytes")


def test_shards_of_gpt2(tmp_path, slow):
    """A GPT-2 with 50,257 tokens has GPT-2's tokenizer; for another model an option must say so."""
    sets = {**shards(tmp_path, "--tokenizer", "bytes"), "model.vocab": 50257, "train.steps": 1,
            "model.n_embd": 32, "model.n_layer": 1, "model.n_head": 2, "model.dropout": 0}
    (tmp_path / "shards" / "dpt-data.json").unlink()
    for name, said in (("gpt2", "this model has GPT-2's tokens: name the tokenizer's files"), ("llama", NOT_SAID)):
        (tmp_path / name).mkdir()
        checkpoints = trained(tmp_path / name, slow, **{**sets, "model.name": name})
        assert said in generate(checkpoints, *PROMPT, code=2)[1]


def test_help():
    assert text_of("--help").startswith("usage: dpt-ckpt generate DIR[/step-N] --prompt TEXT [options]\n")


@pytest.mark.parametrize("args, code, said", [
    (["--prompt", ""], 2, "--prompt is empty"),
    ([], 2, "--prompt is missing"),
    (["--prompt"], 2, "--prompt needs a value: --prompt TEXT"),
    (["--prompt", "x", "--temprature", "1"], 2, "unknown option '--temprature'"),
    (["--prompt", "x", "--temperature", "-1"], 2, "--temperature: expected a number from 0 to 100"),
    (["--prompt", "x", "--temperature", "nan"], 2, "--temperature"),
    (["--prompt", "x", "--top-k", "-1"], 2, "--top-k"),
    (["--prompt", "x", "--max-tokens", "many"], 2, "--max-tokens"),
    (["--prompt", "x", "--seed", "-1"], 2, "--seed"),
    (["--prompt", "x", "--threads", "0"], 2, "--threads"),
    (["--prompt", "x", "--tokenizer", "words"], 2, "--tokenizer 'words' is none of bytes, gpt2"),
    (["--prompt", "x", "--tokenizer", "gpt2"], 2, "--vocab-bpe FILE and --encoder-json FILE"),
    (["--prompt", "x", "--tokenizer", "hf"], 2, "name the file with --tokenizer-json FILE"),
    (["--prompt", "x", "another"], 2, "unexpected argument 'another'"),
])
def test_bad_options(checkpoints, args, code, said):
    out, err = generate(checkpoints, *args, code=code)
    assert said in err and len(err.splitlines()) == 1 and out == b"", err


@pytest.mark.parametrize("path, said", [
    ("absent", "no complete checkpoint in '"),
    ("absent/step-00000007", "absent': No such file or directory"),
])
def test_no_checkpoint(tmp_path, path, said):
    out, err = generate(tmp_path / path, "--prompt", "x", code=1)
    assert said in err and len(err.splitlines()) == 1 and out == b"", err


def test_damaged_checkpoint(checkpoints, tmp_path):
    subprocess.run(["cp", "-r", checkpoints, tmp_path / "copy"], check=True)
    for path in Path(tmp_path / "copy").glob("step-00000040/model-*.safetensors"):
        data = bytearray(path.read_bytes())
        data[-100] ^= 1
        path.write_bytes(data)
    out, err = generate(tmp_path / "copy", "--prompt", "x", code=1)
    assert "model-" in err and len(err.splitlines()) == 1 and out == b"", err
