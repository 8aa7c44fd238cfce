"""dpt-bench strategies at tiny size: strategies of both orders, the figures that it must give, one hash an order, and a
page that is well-formed, draws every strategy, and has no finding in Chromium where it is installed. Standard library
only.

    python3 test_strategies.py build/bin/dpt-bench
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from accept import pages  # noqa: E402

ONLY = ["ddp", "zero1", "zero2", "full_shard", "hybrid_shard", "no_shard"]
ORDERS = {"ddp": "local", "zero1": "local", "hybrid_shard": "local", "zero2": "reduce", "full_shard": "reduce",
          "no_shard": "reduce"}
MODEL = "n_layer: 2, n_head: 2, n_embd: 48, context: 32, vocab: 256, dropout: 0.0"
STEPS, TIMEOUT_S, STOP_TIMEOUT_S = 3, 150, 40
POSITIVE = ("step_ms", "step_ms_best_run", "step_ms_worst_run", "tokens_per_s", "sent_bytes", "sent_bytes_formula",
            "held_bytes", "held_bytes_formula", "peak_bytes_per_rank", "loss")


def bench(program, *flags):
    return subprocess.run([program, "strategies", *flags], capture_output=True, text=True, timeout=TIMEOUT_S)


def check_row(row):
    name = row["strategy"]
    assert row["accumulate"] == ORDERS[name], row
    assert row["nodes"] == 2, row
    assert row["runs"] == 1 and row["one_hash"] is True and len(row["weights_hash"]) >= 16, row
    assert all(row[key] > 0 for key in POSITIVE), row
    assert 0 <= row["wait_share"] < 1, row
    # The communicator counts what the plan says, and the commit's few bytes.
    over = row["sent_bytes"] - row["sent_bytes_formula"]
    assert 0 < over < 1000, f"{name}: {row['sent_bytes']} bytes sent, {row['sent_bytes_formula']} by the plan"
    # At this size what the formula leaves open (links, a thread's workspace) is no small share.
    assert abs(row["held_bytes"] - row["held_bytes_formula"]) < 1 << 20, row
    assert row["peak_bytes_per_rank"] > row["held_bytes"], row


def check_page(text):
    page = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    assert page.tag == "html"
    assert not any(e.tag in ("script", "link", "img") for e in page.iter()), "the page needs something from elsewhere"
    assert "http" not in text and "@import" not in text
    pictures = [e for e in page.iter("svg") if e.get("role") == "img"]
    assert len(pictures) == 3
    for picture in pictures:
        words = ["".join(e.itertext()) for e in picture.iter("text")]
        assert all(words.count(name) == 1 for name in ONLY), words
        assert any(word in ("milliseconds", "MiB") for word in words), words  # the axis has a name
        assert sum(1 for e in picture.iter("rect") if e.get("class") == "compute") == len(ONLY)
    assert len(list(page.iter("tr"))) == 1 + len(ONLY)


def check_layout(page, folder):
    if not pages.find_chromium():
        print("chromium is not installed: the layout of the page is not examined; run: deploy/install-deps pages")
        return
    with pages.Browser() as browser:
        findings = pages.check_page(browser, page, folder, [(380, "light"), (1200, "dark")])
    assert findings == [], findings


def check_stopped(program):
    """SIGTERM during a run: exit 1, the reason in a message, no file and no process left."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [program, "strategies", "--only", "ddp", "--model", MODEL, "--seq", "16", "--steps", "1000"]
        run = subprocess.Popen(argv, env=dict(os.environ, TMPDIR=folder), text=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while not list(Path(folder).glob("*/ddp-0/n0/metrics.jsonl")) and run.poll() is None:
            assert time.monotonic() < deadline, "no step within the time"
            time.sleep(0.02)  # tidy: pause of a bounded poll
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=STOP_TIMEOUT_S)
        assert run.returncode == 1 and "ended by signal 15" in said, (run.returncode, said)
        assert not list(Path(folder).iterdir()), list(Path(folder).iterdir())
        needle = folder.encode()
        left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if needle in read(p)]
        assert not left, left


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has ended


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        report, page = Path(folder) / "r.json", Path(folder) / "page.html"
        run = bench(program, "--only", ",".join(ONLY), "--model", MODEL, "--rounds", "1", "--steps", str(STEPS),
                    "--batch", "8", "--seq", "16", "--json", str(report), "--html", str(page))
        assert run.returncode == 0, f"exit {run.returncode}\n{run.stdout}{run.stderr}"
        told = json.loads(report.read_text())
        rows = {row["strategy"]: row for row in told["rows"]}
        assert sorted(rows) == sorted(ONLY), sorted(rows)
        for row in rows.values():
            check_row(row)
        for order in ("local", "reduce"):
            hashes = {row["weights_hash"] for row in rows.values() if row["accumulate"] == order}
            assert len(hashes) == 1 and told[f"one_hash_{order}"] is True, hashes
        assert told["ranks"] == 2 and told["steps"] == STEPS and told["parameters"] > 50_000, told
        check_page(page.read_text())
        check_layout(page, folder)
        assert bench(program, "--ranks", "0").returncode == 2
        assert bench(program, "--hosts", "3").returncode == 2
        refused = bench(program, "--only", "no_such_strategy")
        assert refused.returncode == 2 and "no strategy to measure" in refused.stderr, refused
        refused = bench(program, "--only", "ddp", "--batch", "7")
        assert refused.returncode == 2 and "ddp is left out" in refused.stderr, refused
    check_stopped(program)


if __name__ == "__main__":
    main(sys.argv[1])
