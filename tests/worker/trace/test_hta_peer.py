"""Holistic Trace Analysis, PyTorch's tool for traces, reads the traces of a run of two ranks: its breakdown of time is
the one that follows from the events, and it finds communication, computation and their overlap.

Run by ctest: pytest test_hta_peer.py, with DPT_BIN naming the programs. DPT_TEST_HTA names a Python that has
HolisticTraceAnalysis (python3 -m venv DIR && DIR/bin/pip install HolisticTraceAnalysis; DIR/bin/python).
"""

import gzip
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(os.environ["DPT_BIN"])
PYTHON = os.environ.get("DPT_TEST_HTA") or sys.executable
RECORDED = Path(__file__).resolve().parents[1] / "data" / "recorded"
TIMEOUT_S, RANKS, POINTS = 120, 2, 0.5

REPORT = """
import json, sys
from hta.trace_analysis import TraceAnalysis
files = json.loads(sys.argv[1])
analysis = TraceAnalysis(trace_files={int(rank): path for rank, path in files.items()}, trace_dir="/")
types, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
print(json.dumps({
    "breakdown": analysis.get_temporal_breakdown(visualize=False).to_dict("records"),
    "overlap": analysis.get_comm_comp_overlap(visualize=False).to_dict("records"),
    "types": types.to_dict("records"),
    "kernels": sorted(set(kernels["name"]))}, default=float))
"""


def has_hta():
    try:
        return subprocess.run([PYTHON, "-c", "import hta"], capture_output=True, timeout=TIMEOUT_S).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not has_hta(), reason="Holistic Trace Analysis is not installed (DPT_TEST_HTA)")


def train(folder, strategy):
    """The newest trace of each rank of a short run."""
    text = folder / "text.txt"
    text.write_text((RECORDED / "tiny.txt").read_text() * 40)
    sets = {"data.train": text, "log.dir": folder / "log", "trace.dir": folder / "traces", "train.steps": 6,
            "train.global_batch": 8, "train.micro_batch": 2, "train.seq_len": 64, "model.n_layer": 2,
            "cluster.gpus_per_node": RANKS, "cluster.device": "cpu", **strategy}
    config = folder / "config.yaml"
    config.write_text("run: traced\n")
    argv = [BIN / "dpt-worker", "--config", config, "--nnodes", "1"]
    for key, value in sets.items():
        argv += ["--set", f"{key}={value}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    files = {}
    for rank in range(RANKS):
        found = sorted((folder / "traces").glob(f"profile/*/rank_{rank}/*.pt.trace.json.gz"))
        assert len(found) == 1, found
        files[rank] = str(found[0])
    return files


def union(intervals):
    """The time in which at least one interval is."""
    total, until = 0, None
    for begin, end in sorted(intervals):
        if until is None or begin > until:
            total, until = total + end - begin, end
        elif end > until:
            total, until = total + end - until, end
    return total


def whole_us(event):
    """The times of an event as the tool rounds them, so that events do not overlap."""
    return math.ceil(event["ts"]), math.floor(event["ts"] + event["dur"])


def compute_percent(path):
    """Percent of the time from the first kernel to the last in which kernels other than NCCL's run. As the tool does,
    without the kernels that the last step launched."""
    events = [e for e in json.loads(gzip.open(path).read())["traceEvents"] if e["ph"] == "X"]
    steps = sorted(e["ts"] for e in events if e["name"].startswith("ProfilerStep#"))
    launched = {e["args"]["correlation"] for e in events
                if e["cat"] == "cuda_runtime" and steps[0] <= e["ts"] < steps[-1]}
    kernels = [e for e in events if e["cat"] == "kernel" and e["args"]["correlation"] in launched]
    assert any(e["name"].startswith("nccl") for e in kernels)
    times = [whole_us(e) for e in kernels]
    computing = [whole_us(e) for e in kernels if not e["name"].startswith("nccl")]
    return 100 * union(computing) / (max(end for _, end in times) - min(begin for begin, _ in times))


@pytest.mark.parametrize("strategy, collective", [
    ({"strategy.name": "ddp"}, "AllReduce"),
    ({"strategy.name": "fsdp", "strategy.sharding": "full_shard"}, "ReduceScatter"),
])
def test_breakdown_and_communication(tmp_path, strategy, collective):
    files = train(tmp_path, strategy)
    done = subprocess.run([PYTHON, "-c", REPORT, json.dumps(files)], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert len(report["breakdown"]) == RANKS
    for row in report["breakdown"]:
        expected = compute_percent(files[int(row["rank"])])
        assert abs(row["compute_time_pctg"] - expected) <= POINTS, (row, expected)
        shares = row["idle_time_pctg"] + row["compute_time_pctg"] + row["non_compute_time_pctg"]
        assert abs(shares - 100) < 0.1, row
    assert all(0 <= row["comp_comm_overlap_pctg"] <= 100 for row in report["overlap"]), report["overlap"]
    assert {"COMMUNICATION", "COMPUTATION"} <= {row["kernel_type"] for row in report["types"]}
    assert any(name.startswith("nccl") and collective in name for name in report["kernels"]), report["kernels"]
