"""dpt-data as a program: its output and exit codes, kills at any moment, and the faults that verify finds."""

import fcntl
import hashlib
import json
import os
import signal
import struct
import subprocess
from pathlib import Path

import pytest

PROGRAM = os.environ["DPT_DATA"]
RECORDED = Path(__file__).resolve().parent.parent / "recorded"
TINY = ["--vocab-bpe", RECORDED / "tiny.bpe", "--encoder-json", RECORDED / "tiny.json", "--any-vocab"]
TIMEOUT_S = 60
KILLS_MAX = 200
BLOCK_BYTES_MAX = 256 << 20
WIDE = 130_000  # more than verify takes for Llama 3's, too


def run(*args, code=0):
    """Standard output and error of dpt-data ARGS, which must exit with `code`."""
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def make_text(path, lines):
    """Writes lines that differ."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"Line {i} of the text: {hashlib.sha256(str(i).encode()).hexdigest()}\n"
                            for i in range(lines)))
    return path


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def shard(tokens, magic=20240520, version=1, width="H"):
    header = struct.pack("<256i", magic, version, len(tokens), *[0] * 253)
    return header + struct.pack(f"<{len(tokens)}{width}", *tokens)


def test_usage(tmp_path):
    out, _ = run("--help")
    assert "encode" in out and "inspect" in out and "verify" in out
    assert "dpt-data" in run("--version")[0]
    for command in ("encode", "inspect", "verify"):
        out, _ = run(command, "--help")
        assert out.startswith(f"usage: dpt-data {command}")
        for option in (line.split()[0] for line in out.splitlines() if line.startswith("  --")):
            assert "unknown option" not in subprocess.run([PROGRAM, command, f"{option}=x"], capture_output=True,
                                                          text=True, timeout=TIMEOUT_S).stderr
    make_text(tmp_path / "a.txt", 1)
    text, out = tmp_path / "a.txt", tmp_path / "out"
    wrong = [
        ([], "expected encode, inspect or verify, got ''"),
        (["decode"], "expected encode, inspect or verify, got 'decode'"), (["encode"], "--out DIR is missing"),
        (["encode", "--out", out], "no PATH is given"),
        (["encode", "--out"], "--out needs a value"),
        (["encode", "--any-vocab=x", "--out", out, text], "--any-vocab takes no value"),
        (["inspect", "--any-vocab=x", text], "--any-vocab takes no value"),
        (["encode", "--out", out, "--sed", "1", text], "unknown option '--sed'"),
        (["encode", "--out", out, "--seed", "x", text], "--seed: expected an integer from 0"),
        (["encode", "--out", out, "--val-fraction=1.5", text], "--val-fraction: expected a number above 0 and below 1"),
        (["encode", "--out", out, "--split=word", text], "--split: expected document or line"),
        (["encode", "--out", out, "--tokenizer=bpe", text], "--tokenizer: expected bytes, gpt2 or hf"),
        (["encode", "--out", out, "--shard-tokens=0", text], "--shard-tokens: expected an integer from 1"),
        (["inspect"], "no FILE is given"), (["verify"], "no PATH is given"),
        (["verify", "--vocab=0", text], "--vocab: expected an integer from 1"),
    ]
    for args, says in wrong:
        _, error = run(*args, code=2)
        assert says in error, (args, error)
    assert not out.exists()


def test_failures(tmp_path):
    text, out = make_text(tmp_path / "a.txt", 10), tmp_path / "out"
    (tmp_path / "half.json").write_text((RECORDED / "hf_gpt2.json").read_text()[:2000])
    failing = [
        (1, [tmp_path / "none.txt"], "none.txt': No such file or directory"),
        (1, ["--ext=md", tmp_path], "there is no text"),
        (1, ["--val-fraction=0.1", "--split=document", text], "nothing to split: 1 document; --split line"),
        # what a tokenizer is made of: as a wrong option
        (2, ["--tokenizer=gpt2", text], "--vocab-bpe: tokenizer gpt2 needs the path of OpenAI's vocab.bpe"),
        (2, [*TINY[:4], text], "tiny.bpe' is not OpenAI's vocab.bpe"),
        (2, ["--tokenizer=hf", text], "--tokenizer-json: tokenizer hf needs the path of a tokenizer.json"),
        (2, ["--tokenizer-json", tmp_path / "none.json", text], "none.json': No such file or directory"),
        (2, ["--tokenizer-json", tmp_path / "half.json", text], "half.json', line 141, column "),
        (2, ["--tokenizer-json", RECORDED / "tiny.json", text], "tiny.json': it has no model: is it a tokenizer.json"),
    ]
    for code, args, says in failing:
        _, error = run("encode", "--out", out, *args, code=code)
        assert error.startswith("dpt-data: ") and error.count("\n") == 1 and says in error, (args, error)
    text.chmod(0)
    if os.geteuid() != 0:
        assert "Permission denied" in run("encode", "--out", out, text, code=1)[1]
    text.chmod(0o644)
    (tmp_path / "file").write_text("")
    assert "file" in run("encode", "--out", tmp_path / "file" / "out", text, code=1)[1]


def test_texts_without_an_end(tmp_path):
    """Texts longer than a block without a cut: no end of line, no white space, a pattern that permits no cut."""
    odd = ["--tokenizer-json", RECORDED / "hf_odd.json"]
    cases = [
        ("a.jsonl", TINY, "without the end of a line; is it text?"),
        ("a.txt", TINY, "without white space between words; is it text?"),
        ("a.txt", odd, "without its end, and the tokenizer's pattern may match across any place to cut it"),
    ]
    for name, tokenizer, says in cases:
        with open(tmp_path / name, "wb") as file:
            file.truncate(BLOCK_BYTES_MAX + 1)
        _, error = run("encode", *tokenizer, "--split=document", "--out", tmp_path / "out", tmp_path / name, code=1)
        assert f"{name}' has {BLOCK_BYTES_MAX} bytes from byte 0 on {says}" in error and error.count("\n") == 1, error


def test_encode_verify_inspect(tmp_path):
    make_text(tmp_path / "texts/a.txt", 100)
    (tmp_path / "texts/b.md").write_text("The machines come and go.")
    (tmp_path / "texts/c.jsonl").write_text(json.dumps({"body": "and the training goes on"}) + "\n")
    (tmp_path / "texts/d.bin").write_text("not text")
    out = tmp_path / "out"
    said, error = run("encode", *TINY, "--out", out, "--text-key=body", "--shard-tokens=2000", tmp_path / "texts")
    assert error == "" and "of 3 documents" in said and "1 files of folders were left out" in said
    assert sorted(p.name for p in out.iterdir())[:2] == ["SHA256SUMS", "dpt-data.json"]
    record = json.loads((out / "dpt-data.json").read_text())
    assert sum(s["tokens"] for s in record["train"]["shards"]) == record["train"]["tokens"]
    sums = dict(reversed(line.split("  ")) for line in (out / "SHA256SUMS").read_text().splitlines())
    assert sums == {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in out.glob("*.bin")}
    said, _ = run("verify", out)
    assert said.count("checksum right") == len(sums) and "0 bad" in said
    said, _ = run("inspect", *TINY, "--first=3", out / "train_000000.bin")
    assert 'as text        "<|endoftext|>' in said and "documents      " in said and "magic 20240520" in said
    assert "give --tokenizer gpt2" in run("inspect", out / "train_000000.bin")[0]
    assert "was done already" in run("encode", *TINY, "--out", out, "--text-key=body", "--shard-tokens=2000",
                                     tmp_path / "texts")[0]
    run("encode", "--out", tmp_path / "bytes", tmp_path / "texts/b.md")
    assert 'as text        "The machines come and go."' in run("inspect", tmp_path / "bytes/train_000000.bin")[0]


def test_inspect_escapes(tmp_path):
    """inspect escapes every byte that controls a terminal: C0, delete, C1 (two bytes of UTF-8), and invalid UTF-8."""
    text = "a\n\t\x1b[31m\x7f\x80\x9b2J\x9f\xa0ä\u201c\"\\".encode() + b"\xff\x9b\xc2"
    (tmp_path / "a.txt").write_bytes(text)
    run("encode", "--out", tmp_path / "out", tmp_path / "a.txt")
    said, _ = run("inspect", f"--first={len(text)}", tmp_path / "out/train_000000.bin")
    assert (r'as text        "a\n\x09\x1b[31m\x7f\xc2\x80\xc2\x9b2J\xc2\x9f' "\xa0ä\u201c"
            r'\"\\\xff\x9b\xc2"') in said, said
    assert not any(ord(c) < 0x20 and c != "\n" or 0x7f <= ord(c) < 0xa0 for c in said)


def test_refuses_what_is_no_text(tmp_path):
    """Compressed files and Parquet are refused under any name, given as a file or found in a folder; nothing is
    written."""
    kinds = [
        ("a.txt.gz", b"\x1f\x8b\x08\0" + bytes(20), "is compressed with gzip; decompress it first: gzip -dk"),
        ("a.txt", b"\x28\xb5\x2f\xfd" + bytes(20), "is compressed with zstd; decompress it first: zstd -dk"),
        ("a.jsonl", b"PAR1" + bytes(20) + b"PAR1", "is a Parquet file; write its text to .jsonl first"),
    ]
    out = tmp_path / "out"
    for name, data, says in kinds:
        path = tmp_path / "texts" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        ways = [[path], ["--val", path, make_text(tmp_path / "good.txt", 10)], ["--ext=gz,txt,jsonl", path.parent]]
        for args in ways:
            _, error = run("encode", "--out", out, *args, code=1)
            assert f"'{path}' {says}" in error and error.count("\n") == 1, error
        path.unlink()
    assert not out.exists()
    # As long as the magic bytes or shorter, and bytes alike further on: text.
    for i, data in enumerate((b"\x1f", b"PAR", b" PAR1", b"PAR2 is no Parquet")):
        (tmp_path / "ok.txt").write_bytes(data)
        run("encode", "--out", tmp_path / f"ok{i}", tmp_path / "ok.txt")


def test_verify_finds_damage(tmp_path):
    good = shard([5, 6, 50256])
    (tmp_path / "a.bin").write_bytes(good)
    assert "no checksum to compare" in run("verify", tmp_path / "a.bin")[0]
    cases = [
        (good[:-1], "is truncated"), (good + b"x", "is damaged"), (good[:100], "no token shard"),
        (b"", "no token shard"), (shard([1], magic=7), "its magic number is 7"), (shard([1], version=9), "version 9"),
        (shard([5, 50257, 6]), "token 1 of"), (shard([128256], 20240801, 7, "I"), "token 0 of"),
    ]
    for data, says in cases:
        (tmp_path / "a.bin").write_bytes(data)
        for command in ("verify", "inspect"):
            if command == "inspect" and says.startswith("token"):
                continue
            _, error = run(command, tmp_path / "a.bin", code=1)
            assert says in error and "a.bin" in error and error.count("\n") == 1, (says, error)
    (tmp_path / "a.bin").write_bytes(shard([50257]))
    run("verify", "--vocab=50258", tmp_path / "a.bin")
    # The list: another file, one that is absent, one that is not listed.
    (tmp_path / "a.bin").write_bytes(good)
    (tmp_path / "b.bin").write_bytes(good)
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  a.bin\n{'1' * 64} *c.bin\n# comment\n")
    said, error = run("verify", tmp_path, code=1)
    assert "a.bin' is not the file of its line in SHA256SUMS" in error and "c.bin' is named" in error
    assert "b.bin  good, 3 tokens, no checksum" in said and "1 shard good, 3 tokens; 2 bad" in said
    (tmp_path / "empty").mkdir()
    assert "has no .bin files" in run("verify", tmp_path / "empty", code=1)[1]
    assert "No such file" in run("verify", tmp_path / "none.bin", code=1)[1]


def wide_tokenizer(path, first=WIDE):
    """A tokenizer.json whose ids begin at the given number."""
    form = json.loads((RECORDED / "hf_gpt2.json").read_text())
    shifted = {token: i + first for token, i in form["model"]["vocab"].items()}
    form["model"]["vocab"] = {f" {i}": i for i in range(first)} | shifted
    form["added_tokens"][0]["id"] += first
    path.write_text(json.dumps(form))
    return ["--tokenizer-json", path]


def test_tokenizer_json(tmp_path):
    """Shards have 16-bit tokens, or 32-bit tokens if the ids need them; a special token in a text stays text."""
    texts = make_text(tmp_path / "texts/a.txt", 50).parent
    (texts / "b.txt").write_text("machine<|endoftext|>s come 1234 and go.")
    narrow, wide = tmp_path / "narrow", tmp_path / "wide"
    file = ["--tokenizer-json", RECORDED / "hf_gpt2.json"]
    said, _ = run("encode", *file, "--out", narrow, texts)
    assert "the tokenizer has 480 tokens: train with model.vocab: 480 or more" in said
    assert json.loads((narrow / "dpt-data.json").read_text())["settings"]["tokenizer"] == "hf"
    said, _ = run("encode", *wide_tokenizer(tmp_path / "wide.json"), "--out", wide, texts)
    assert "the tokenizer has 130480 tokens" in said
    a, b = ((folder / "train_000000.bin").read_bytes() for folder in (narrow, wide))
    assert struct.unpack("<2i", a[:8]) == (20240520, 1) and struct.unpack("<2i", b[:8]) == (20240801, 7)
    ids = struct.unpack(f"<{len(a) // 2 - 512}H", a[1024:])
    assert struct.unpack(f"<{len(b) // 4 - 256}i", b[1024:]) == tuple(i + WIDE for i in ids)
    assert ids.count(0) == 2 and ids[0] == 0  # before each document
    for folder, args in ((narrow, file), (wide, ["--tokenizer-json", tmp_path / "wide.json"])):
        assert "0 bad" in run("verify", folder)[0]
        last = max(ids) + (WIDE if folder == wide else 0)
        assert "1 bad" in run("verify", f"--vocab={last}", folder, code=1)[0]
        said, _ = run("inspect", *args, "--first=4", folder / "train_000000.bin")
        assert 'as text        "<|endoftext|>' in said and "documents      2 begin here" in said
        assert "give --tokenizer-json FILE" in run("inspect", folder / "train_000000.bin")[0]
        assert "was done already" in run("encode", *args, "--out", folder, texts)[0]
    other = ["--tokenizer-json", RECORDED / "hf_llama3.json"]
    assert "vocab was" in run("encode", *other, "--out", narrow, texts, code=1)[1]


@pytest.mark.parametrize("width", [16, 32])
def test_killed_at_any_moment(tmp_path, width):
    """SIGKILL after a growing time, until a run completes: the bytes are those of an undisturbed run."""
    text = make_text(tmp_path / "a.txt", 20000)
    tokenizer = TINY if width == 16 else wide_tokenizer(tmp_path / "wide.json", 1 << 16)
    args = ["encode", *tokenizer, "--val-fraction=0.1", "--shard-tokens=40000", "--block-kib=4", text]
    run(*args, "--out", tmp_path / "whole")
    command = [PROGRAM, *map(str, args), "--out", str(tmp_path / "killed")]
    for kills in range(KILLS_MAX):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            code = process.wait(0.01 + 0.01 * kills)
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait(TIMEOUT_S)
    else:
        pytest.fail(f"not done after {KILLS_MAX} kills")
    assert code == 0 and kills > 0
    killed, whole = content(tmp_path / "killed"), content(tmp_path / "whole")
    assert sorted(killed) == sorted(whole)
    assert [name for name in whole if killed[name] != whole[name]] == []


def test_one_at_a_time(tmp_path):
    """A second process is refused while the first runs, and accepted afterwards."""
    text, out = make_text(tmp_path / "a.txt", 10), tmp_path / "out"
    out.mkdir()
    first = os.open(out, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    assert "another dpt-data writes to" in run("encode", "--out", out, text, code=1)[1]
    os.close(first)
    run("encode", "--out", out, text)
