"""dpt-bench scaling, compare and accumulation at tiny size: the figures that they must give, equal weights where the
trajectory promises them, pages that are well-formed, and wrong options. Standard library only.

    python3 test_scaling.py scaling|compare|accumulation build/bin/dpt-bench build/tests/dpt-worker-with-faults
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

MODEL = "n_layer: 2, n_head: 2, n_embd: 48, context: 32, vocab: 256, dropout: 0.0"
SMALL = ["--model", MODEL, "--seq", "16", "--rounds", "1", "--steps", "3"]
TIMEOUT_S, IMAGES = 150, 96
SLOW_MS = 100  # a slot of the slowed rank; without it a step takes 1 to 20 ms
TEXT_CONFIG = """\
run: small
cluster: {{nnodes: "1:4", threads: 1, timeout_s: 20}}
model: {{{model}}}
data: {{kind: text, train: "{folder}/text", tokenizer: bytes}}
train: {{steps: 900, global_batch: 8, micro_batch: 2, seq_len: 16, accumulate: reduce, eval_every: 100,
         log_every: 50}}
optimizer: {{warmup_steps: 300, lr: 1.0e-3}}
checkpoint: {{dir: "{folder}/never", every_steps: 10}}
log: {{dir: "{folder}/never-log"}}
"""
IMAGE_CONFIG = """\
run: images
cluster: {{nnodes: "{nodes}:4", threads: 1, timeout_s: 20}}
model: {{name: resnet, labels: 3, width: 8, n_layer: 3}}
data: {{kind: cifar10, train: "{folder}/images.bin", val: "{folder}/images.bin"}}
train: {{epochs: 7, global_batch: 8, micro_batch: 2, accumulate: {order}}}
optimizer: {{name: sgd, lr: 0.1, warmup_steps: 9}}
strategy: {{{strategy}}}
checkpoint: {{dir: "{folder}/never", keep_best: 2}}
log: {{dir: "{folder}/never-log"}}
"""


def bench(program, name, *flags, env=None):
    return subprocess.run([program, name, *map(str, flags)], capture_output=True, text=True, timeout=TIMEOUT_S,
                          env={**os.environ, **(env or {})})


def measured(program, name, *flags, env=None):
    """(report, what was printed) of a bench that succeeds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.json"
        run = bench(program, name, *flags, "--json", path, env=env)
        assert run.returncode == 0, f"exit {run.returncode}\n{run.stdout}{run.stderr}"
        return json.loads(path.read_text()), run.stdout


def refused(program, name, code, words, *flags):
    run = bench(program, name, *flags)
    assert run.returncode == code and words in run.stderr, run


def beside(program, own, command):
    """dpt-bench in the folder `own`, beside a worker that is this shell command."""
    own.mkdir()
    shutil.copy(program, own / "dpt-bench")
    (own / "dpt-rdzv").symlink_to(Path(program).resolve().parent / "dpt-rdzv")
    worker = own / "dpt-worker"
    worker.write_text(f"#!/bin/sh\nexec {command}\n")
    worker.chmod(0o755)
    return own / "dpt-bench"


def unsteady(program, folder):
    """dpt-bench beside a worker that trains from another seed in each run."""
    worker = Path(program).resolve().parent / "dpt-worker"
    return beside(program, folder / "unsteady", f'"{worker}" "$@" --set seed=$$')


def check_price(report, said, rows):
    """The cost at 7.2 dollars an hour, 0.002 a second, of one machine. rows: dollars for a million, rate, milliseconds
    of a step; each has one run."""
    assert report["price"] == 7.2 and rows, report
    for dollars, rate, _ in rows:
        assert abs(dollars * rate / (0.002 * 1e6) - 1) < 1e-9, (dollars, rate)
        assert f" {dollars:.6f}" in said, (dollars, said)
    seconds = sum(ms for _, _, ms in rows) * report["steps"] / 1000
    assert abs(report["dollars"] / (0.002 * seconds) - 1) < 1e-9, (report, seconds)
    total = f"Cost: ${report['dollars']:.6g} for the measured steps of all runs, at $7.2 a machine and hour"
    assert total in said.splitlines(), said


def check_scaling(program, folder):
    page = folder / "page.html"
    report, said = measured(program, "scaling", "--worlds", "2,1,2", "--batch", "8", *SMALL, "--html", page)
    assert [row["ranks"] for row in report["rows"]] == [1, 2] and report["mode"] == "strong", report
    one, two = report["rows"]
    assert one["global_batch"] == two["global_batch"] == 8 and one["weights_hash"] == two["weights_hash"], report
    assert (one["waves"], two["waves"], one["sent_bytes"]) == (4, 2, 0) and two["sent_bytes"] > 0, report
    assert one["speed_up"]["median"] == 1 and one["efficiency"]["median"] == 1 and one["bottleneck"] == "none", one
    ratio = one["step_ms"]["median"] / two["step_ms"]["median"]
    assert abs(two["speed_up"]["median"] / ratio - 1) < 1e-9 and two["speed_up"]["min"] == two["speed_up"]["max"], two
    assert abs(two["efficiency"]["median"] * 2 / ratio - 1) < 1e-9, two
    for row in report["rows"]:
        lost = sum(row["lost_ms"].values())
        assert abs(row["ideal_ms"] + lost - row["step_ms"]["median"]) < 1e-6 * row["step_ms"]["median"], row
        assert row["exposed_ms"] >= 0 and row["late_ms"] >= 0, row
    assert "strong scaling: " in said and "bottleneck" in said, said
    tree = ElementTree.fromstring(page.read_text().removeprefix("<!DOCTYPE html>\n"))
    pictures = [e for e in tree.iter("svg") if e.get("role") == "img"]
    assert len(pictures) == 2 and len(list(tree.iter("tr"))) == 3, page.read_text()

    # Every rank has as many threads as there are cores: two ranks have half of the efficiency at most.
    cores = report["cores"]
    assert "dollars" not in report and "$" not in said and "dollars_per_1m_tokens" not in one, said
    report, said = measured(program, "scaling", "--weak", "--worlds", "1,2", "--batch", "4", "--threads", cores,
                            "--strategy", "dp", *SMALL, "--price", "7.2", "--html", page)
    one, two = report["rows"]
    assert (one["global_batch"], two["global_batch"]) == (4, 8) and report["mode"] == "weak", report
    assert two["efficiency_bound"] == 0.5 and two["nodes"] == 1 and two["strategy"] == "dp", two
    assert abs(two["efficiency_of_bound"] / two["efficiency"]["median"] - 2) < 1e-9, two
    threads = f" of {cores} threads" if cores > 1 else ""
    check_price(report, said, [(row["dollars_per_1m_tokens"], row["tokens_per_s"], row["step_ms"]["median"])
                               for row in report["rows"]])
    assert "$ per 1M tokens" in page.read_text() and re.search(r"sent MiB \$/1M tokens +bottleneck", said), said
    note = f"2 ranks{threads} on {cores} cores: efficiency is bounded by cores at 50.0 %"
    assert report["notes"] == [note] and note in said, (report["notes"], said)

    refused(program, "scaling", 2, "--strong and --weak", "--strong", "--weak")
    refused(program, "scaling", 2, "--worlds", "--worlds", "9")
    refused(program, "scaling", 2, "there is no world", "--worlds", "4", "--batch", "2", *SMALL)
    refused(program, "scaling", 2, "on 2 ranks is left out", "--worlds", "2", "--strategy", "none_such")
    refused(program, "scaling", 2, "unknown key", "--worlds", "1", "--set", "train.stpes=1")
    refused(unsteady(program, folder), "scaling", 1, "two runs of ddp on 1 ranks ended with different weights",
            "--worlds", "1", "--batch", "4", *SMALL, "--rounds", "2")


def check_straggler(program, faulty, folder):
    """Rank 1 of four is slowed by a known time in each of its two slots. The others wait for it, whether every rank has
    a node (ddp) or all are in one (dp)."""
    env = {"DPT_TEST_SLOW_SLOTS": f"{SLOW_MS * 1000}:{folder / 'delays'}", "DPT_TEST_SLOW_RANK": "1"}
    bench_of_it = beside(program, folder / "slowed", f'"{Path(faulty).resolve()}" "$@"')
    report, said = measured(bench_of_it, "scaling", "--strategy", "ddp,dp", "--worlds", "1,4", "--batch", "16", *SMALL,
                            env=env)
    rows = [row for row in report["rows"] if row["ranks"] == 4]
    assert [(row["strategy"], row["nodes"]) for row in rows] == [("ddp", 4), ("dp", 1)], report
    for row in rows:
        step_ms = row["step_ms"]["median"]
        assert step_ms >= 2 * SLOW_MS, row
        # Three of four ranks wait for all but their own computation, and the slow one for transfers.
        assert 0.6 * step_ms < row["late_ms"] < 0.75 * step_ms and row["exposed_ms"] < 0.2 * step_ms, row
        assert row["bottleneck"] == "straggler", said


def check_compare(program, folder):
    rng = random.Random(1)
    images = (bytes([rng.randrange(3)]) + rng.randbytes(3072) for _ in range(IMAGES))
    (folder / "images.bin").write_bytes(b"".join(images))
    for name, nodes, strategy in (("ddp", 1, "name: ddp"), ("fsdp", 2, "name: fsdp")):
        (folder / name).write_text(IMAGE_CONFIG.format(folder=folder, nodes=nodes, strategy=strategy, order="local"))
    report, said = measured(program, "compare", "--ddp-config", folder / "ddp", "--fsdp-config", folder / "fsdp",
                            "--repeats", "2", "--steps", "3", "--warmup", "1")
    ddp, fsdp = report["rows"]
    assert report["nodes"] == 2 and ddp["ranks"] == fsdp["ranks"] == 2, report
    assert ddp["strategy"] == "ddp" and fsdp["strategy"] == "full_shard" and ddp["unit"] == "images", report
    assert ddp["weights_hash"] == fsdp["weights_hash"], report
    for row in report["rows"]:
        step = row["step_s"]
        assert row["repeats"] == len(step["values"]) == 2 and 0 < step["min"] <= step["mean"] <= step["max"], row
        rates = [8 / value for value in step["values"]]  # images of a step
        assert abs(row["per_s"] / (sum(rates) / 2) - 1) < 1e-9, row
        assert row["peak_bytes"]["mean"] > 1 << 20 and row["sent_bytes"] > 0, row
    assert [word.strip() for word in said.splitlines()[2].split("|")] == [
        "Method", "Avg step time (s)", "Images/sec", "Peak memory (MB)"], said
    assert len(report["observations"]) == 4 and all(f"- {text}" in said for text in report["observations"]), said
    assert "ddp and fsdp end with the same weights, bit for bit." in report["observations"], report
    assert not list(folder.glob("never*")), "a run wrote to the folders of its config"
    refused(program, "compare", 2, "two configs at least", "--ddp-config", folder / "ddp")
    refused(program, "compare", 2, "NAME=FILE", "--config", "=x")
    refused(program, "compare", 1, "no/such", "--config", "a=/no/such", "--config", f"b={folder}/ddp")
    refused(unsteady(program, folder), "compare", 1, f"two runs of a ({folder}/ddp) ended with different weights",
            "--config", f"a={folder}/ddp", "--config", f"b={folder}/ddp", "--repeats", "2", "--steps", "1")
    report, said = measured(program, "compare", "--config", f"one={folder}/ddp", "--config", f"two={folder}/ddp",
                            "--repeats", "1", "--steps", "2", "--warmup", "0", "--price", "7.2")
    check_price(report, said, [(row["dollars_per_1m"], row["per_s"], 1000 * row["step_s"]["mean"])
                               for row in report["rows"]])
    assert said.splitlines()[2].endswith("| Peak memory (MB) | $ per 1M images"), said
    refused(program, "compare", 2, "--price", "--price", "-1")
    (folder / "wrong").write_text("train: {stpes: 1}\n")
    refused(program, "compare", 2, "wrong:1", "--config", f"a={folder}/wrong", "--config", f"b={folder}/ddp")


def check_accumulation(program, folder):
    (folder / "text").write_text("".join(random.Random(2).choices("abcdefgh ", k=20000)))
    (folder / "text.yaml").write_text(TEXT_CONFIG.format(folder=folder, model=MODEL))
    report, said = measured(program, "accumulation", "--config", folder / "text.yaml", "--micro", "1,2,3", "--worlds",
                            "1,2", "--repeats", "1", "--steps", "3")
    rows = {(row["micro_batch"], row["ranks"]): row for row in report["rows"]}
    assert sorted(rows) == [(1, 1), (1, 2), (2, 1), (2, 2)] and report["global_batch"] == 8, report
    assert rows[1, 1]["slots"] == 8 and rows[2, 1]["slots"] == 4, report
    for micro in (1, 2):
        one, two = rows[micro, 1], rows[micro, 2]
        assert one["weights_hash"] == two["weights_hash"] and one["losses"] == two["losses"], report
    assert rows[1, 1]["weights_hash"] != rows[2, 1]["weights_hash"], "another order of addition gives other bits"
    assert rows[1, 2]["loss_difference"] == 0 and 0 < rows[2, 1]["loss_difference"] < 1e-2, report
    assert len(rows[1, 1]["losses"]) == 5 and rows[1, 1]["held_bytes"] < rows[2, 1]["held_bytes"], report
    assert "micro_batch" in said and not list(folder.glob("never*")), said
    report, said = measured(program, "accumulation", "--config", folder / "text.yaml", "--micro", "2", "--repeats", "1",
                            "--steps", "2", "--price", "7.2")
    check_price(report, said, [(row["dollars_per_1m"], 8 * 16 * 1000 / row["step_ms"], row["step_ms"])
                               for row in report["rows"]])
    assert "$/1M tokens  weights_hash" in said, said
    refused(program, "accumulation", 2, "there is no micro-batch", "--config", folder / "text.yaml", "--micro", "3")
    refused(program, "accumulation", 2, "--micro", "--micro", "0")
    refused(unsteady(program, folder), "accumulation", 1, "two runs with micro-batch 2 on 1 ranks end with different",
            "--config", folder / "text.yaml", "--micro", "2", "--repeats", "2", "--steps", "1")


def main(name, program, faulty):
    with tempfile.TemporaryDirectory() as folder:
        {"scaling": check_scaling, "compare": check_compare, "accumulation": check_accumulation}[name](
            program, Path(folder))
        if name == "scaling":
            check_straggler(program, faulty, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
