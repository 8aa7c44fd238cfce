"""Lines of daily-bread about tokens: OpenAI's ids, and the speed of encoding."""

import hashlib
import os
import re
import subprocess
from pathlib import Path

from accept.speed import bench
from cluster import ROOT, ClusterError, bin_dir, program

RECORDED = ROOT / "tests" / "worker" / "data" / "recorded"
HEADER_BYTES = 1024
SPEED_BAR_MB_S = 20
TIMEOUT_S = 300


def real_data(*names):
    """Paths of real data: DPT_TEST_DATA, or shared/data beside the checkout."""
    folder = Path(os.environ.get("DPT_TEST_DATA") or ROOT.parent / "shared" / "data").resolve()
    for name in names:
        if not (folder / name).exists():
            raise ClusterError(f"no {name} in {folder}: set DPT_TEST_DATA to the folder of OpenAI's vocab.bpe and "
                               "encoder.json and of tinyshakespeare.txt")
    return [folder / name for name in names]


def unit_test(name):
    """A test program of the build folder that contains the programs."""
    path = bin_dir().parent / "tests" / name
    if not path.exists():
        raise ClusterError(f"no {path}: this line runs that test; --bin must be bin of a build with tests")
    return path


def run(line, argv, env=None):
    line.command(argv)
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=TIMEOUT_S,
                          env=dict(os.environ, **(env or {})))
    return done.returncode, done.stdout + done.stderr


def bpe_ids(line):
    """BPE: identical ids to a reference encoder on tinyshakespeare and on a committed list of awkward strings (both
    recorded by tests/worker/data/record_bpe.py, which says how)."""
    text, merges, encoder = real_data("tinyshakespeare.txt", "vocab.bpe", "encoder.json")
    test = unit_test("test_worker_data_bpe")
    out = line.folder / "shards"
    code, said = run(line, [program("dpt-data"), "encode", "--vocab-bpe", merges, "--encoder-json", encoder,
                            "--out", out, text])
    if code != 0:
        raise ClusterError(f"dpt-data encode: exit {code}\n{said}")
    recorded = (RECORDED / "awkward.txt").read_text()
    count, digest = re.search(r"^shakespeare (\d+) (\w+)$", recorded, re.M).groups()
    ids = (out / "train_000000.bin").read_bytes()[HEADER_BYTES + 2:]  # without the first <|endoftext|>
    line.show("ids of tinyshakespeare", len(ids) // 2, f"== {count}", len(ids) == 2 * int(count))
    line.show("their SHA-256", hashlib.sha256(ids).hexdigest()[:16] + "…", f"== {digest[:16]}…",
              hashlib.sha256(ids).hexdigest() == digest)
    strings = len(re.findall(r"^g ", recorded, re.M))
    code, said = run(line, [test], {"DPT_TEST_DATA": str(text.parent)})
    passed = len(re.findall(r"\[ +OK \] awkward_strings_(?:openai|tiny)", said))
    line.show(f"{strings} awkward strings by two vocabularies: exit code", code, "== 0", code == 0)
    line.show("tests of them that ran and passed", passed, "== 2", passed == 2)


def bpe_speed(line):
    """BPE: >= 20 MB/s a core on plain English text, including the first search of each word. The bar is on a core's CPU
    time; wall-clock time is a note."""
    text, merges, encoder = real_data("tinyshakespeare.txt", "vocab.bpe", "encoder.json")
    result = bench(line, "tokenize", "--text", text, "--vocab-bpe", merges, "--encoder-json", encoder)
    line.note(f"by the clock {result['mb_per_s_core']:.1f} MB/s on one core, {result['mb_per_s_all']:.1f} MB/s with "
              f"{result['threads']} threads; vocabulary loaded in {result['load_ms']:.0f} ms")
    line.at_least("text encoded by one core", round(result["mb_per_cpu_s"], 1), SPEED_BAR_MB_S, "MB/s")
