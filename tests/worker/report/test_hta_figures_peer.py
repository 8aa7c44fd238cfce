"""The figures of dpt-trace are those of Holistic Trace Analysis on the same traces: shares within 0.5 points, times of
the breakdown within 1 us and 1 us for each kernel that is shorter than its rounding, times of communication kernels
within 2 us a call.

The tool rounds the begin of a kernel up and its end down. A kernel within one microsecond then ends before it begins,
and takes a microsecond from the merged kernels, or nothing: that depends on its place among kernels with the same
begin, which the tool sorts in no fixed order.

Traces are those of real runs with ddp and with full_shard, and the synthetic ones in the form of PyTorch's profiler.
Run by ctest: pytest test_hta_figures_peer.py, with DPT_BIN naming the programs. DPT_TEST_HTA names a Python that has
HolisticTraceAnalysis (python3 -m venv DIR && DIR/bin/pip install HolisticTraceAnalysis; DIR/bin/python)."""

import csv
import gzip
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import synthetic
from synthetic import Run, even

BIN = Path(os.environ["DPT_BIN"])
PYTHON = os.environ.get("DPT_TEST_HTA") or sys.executable
RECORDED = Path(__file__).resolve().parents[1] / "data" / "recorded"
TIMEOUT_S, RANKS, POINTS = 120, 2, 0.5
BREAKDOWN_US, ROUNDED_US = 1, 2  # of a sum over the window; of a call, whose begin and end the tool rounds
KERNELS = {"all_reduce": "AllReduce", "reduce_scatter": "ReduceScatter", "all_gather": "AllGather",
           "broadcast": "Broadcast", "all_to_all": "AllToAll", "send_recv": "SendRecv"}

REPORT = """
import json, sys
from hta.trace_analysis import TraceAnalysis
files, last = json.loads(sys.argv[1])
analysis = TraceAnalysis(trace_files={int(rank): path for rank, path in files.items()}, trace_dir="/",
                         include_last_profiler_step=last)
types, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10 ** 6, duration_ratio=1.0,
                                                   include_memory_kernels=True)
print(json.dumps({
    "breakdown": analysis.get_temporal_breakdown(visualize=False).to_dict("records"),
    "overlap": analysis.get_comm_comp_overlap(visualize=False).to_dict("records"),
    "kernels": kernels.to_dict("records")}, default=float))
"""

DIFF = """
import json, sys
from hta.trace_diff import DeviceType, LabeledTrace, TraceDiff
from hta.common.trace import Trace
sides = []
for label, path in zip("ab", sys.argv[1:]):
    trace = Trace(trace_files={0: path}, trace_dir="/")
    trace.parse_traces()
    trace.decode_symbol_ids(use_shorten_name=False)
    sides.append(LabeledTrace(label=label, t=trace))
first = [side.iterations() for side in sides]
table = TraceDiff.compare_traces(sides[0], sides[1], control_iteration=first[0][:-1], test_iteration=first[1][:-1],
                                 device_type=DeviceType.GPU)
print(json.dumps(table.reset_index().to_dict("records"), default=float))
"""


def has_hta():
    try:
        return subprocess.run([PYTHON, "-c", "import hta"], capture_output=True, timeout=TIMEOUT_S).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not has_hta(), reason="Holistic Trace Analysis is not installed (DPT_TEST_HTA)")


def run_python(code, *args):
    done = subprocess.run([PYTHON, "-c", code, *map(str, args)], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def train(folder, strategy):
    """Trains for some steps; the traces are in folder/traces."""
    folder.mkdir(exist_ok=True)
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


def trace_files(folder):
    paths = {rank: sorted((folder / "traces").glob(f"profile/*/rank_{rank}/*.pt.trace.json.gz"))
             for rank in range(RANKS)}
    assert all(len(found) == 1 for found in paths.values()), paths
    return {rank: str(found[0]) for rank, found in paths.items()}


def dpt_trace(folder, *args):
    done = subprocess.run([BIN / "dpt-trace", *args], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def overhead_of(kernels, rank):
    """Percent of the sum of a rank's kernels that communication takes."""
    mine = [row for row in kernels if int(row["rank"]) == rank]
    moved = sum(row["sum (us)"] for row in mine if row["kernel_type"] == "COMMUNICATION")
    return 100 * moved / sum(row["sum (us)"] for row in mine)


def short_kernels(path):
    """The kernels that end before they begin when they are rounded."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return sum(math.floor(event["ts"] + event["dur"]) < math.ceil(event["ts"])
               for event in events if event.get("cat") == "kernel")


def assert_times_agree(folder, row, breakdown, kernels):
    """Times of one rank, in us."""
    breakdown_us = BREAKDOWN_US + short_kernels(folder / row["file"])
    for ours, theirs in (("window", "kernel_time(us)"), ("compute", "compute_time(us)"),
                         ("non_compute", "non_compute_time(us)"), ("idle", "idle_time(us)")):
        assert abs(float(row[f"{ours}_ms"]) * 1000 - breakdown[theirs]) <= breakdown_us, (ours, row, breakdown)
    assert abs(float(row["kernels_ms"]) * 1000 - sum(kernel["sum (us)"] for kernel in kernels)) <= BREAKDOWN_US
    communication, named = [kernel for kernel in kernels if kernel["kernel_type"] == "COMMUNICATION"], 0
    for word, part in KERNELS.items():
        these = [kernel for kernel in communication if part in kernel["name"]]
        calls, took = int(row[f"{word}_calls"]), sum(kernel["sum (us)"] for kernel in these)
        named += len(these)
        if all(kernel["sum (us)"] > 0 for kernel in these):  # else the mean does not give the number
            assert sum(round(kernel["sum (us)"] / kernel["mean (us)"]) for kernel in these) == calls, (word, these)
        assert abs(float(row[f"{word}_ms"]) * 1000 - took) <= ROUNDED_US * calls, (word, row, these)
    assert named == len(communication) > 0


def assert_agree(folder, rows, last):
    report = run_python(REPORT, json.dumps([trace_files(folder), last]))
    assert len(rows) == len(report["breakdown"]) == RANKS
    for row, breakdown, overlap in zip(rows, report["breakdown"], report["overlap"]):
        rank = int(row["rank"])
        assert rank == int(breakdown["rank"]) == int(overlap["rank"])
        ours_and_theirs = [(row["compute_percent"], breakdown["compute_time_pctg"]),
                           (row["non_compute_percent"], breakdown["non_compute_time_pctg"]),
                           (row["idle_percent"], breakdown["idle_time_pctg"]),
                           (row["overlap_percent"], overlap["comp_comm_overlap_pctg"]),
                           (row["comm_overhead_percent"], overhead_of(report["kernels"], rank))]
        print(rank, ours_and_theirs)
        assert all(abs(float(ours) - theirs) <= POINTS for ours, theirs in ours_and_theirs), ours_and_theirs
        mine = [kernel for kernel in report["kernels"] if int(kernel["rank"]) == rank]
        assert_times_agree(folder, row, breakdown, mine)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("strategy, command, folder", [
    ({"strategy.name": "ddp"}, "ddp", "reports/ddp"),
    ({"strategy.name": "fsdp", "strategy.sharding": "full_shard"}, "sharding", "reports_sharding/full_shard"),
])
def test_real_runs(tmp_path, strategy, command, folder, last):
    train(tmp_path, strategy)
    dpt_trace(tmp_path, command, *(["--include-last-step"] if last else []))
    assert_agree(tmp_path, rows_of(tmp_path / folder / "summary.csv"), last)


def test_traces_in_the_form_of_pytorch(tmp_path):
    steps = even(ranks=RANKS, steps=5)
    for step in steps[1]:
        step.compute_ms = 55.5
    synthetic.write(tmp_path / "traces", Run(steps, transfer_ms=7.25, form="pytorch"))
    dpt_trace(tmp_path, "ddp")
    assert_agree(tmp_path, rows_of(tmp_path / "reports" / "ddp" / "summary.csv"), False)


def test_diff_of_kernels(tmp_path):
    for name, strategy in (("a", {"strategy.name": "ddp"}), ("b", {"strategy.name": "zero1"})):
        train(tmp_path / name, strategy)
    dpt_trace(tmp_path, "diff", "a/traces", "b/traces", "--rank", "0")
    ours = {row["name"]: row for row in rows_of(tmp_path / "reports" / "diff.csv") if row["category"] == "kernel"}
    files = [trace_files(tmp_path / name)[0] for name in "ab"]
    theirs = {row["name"]: row for row in run_python(DIFF, *files)}
    assert len(theirs) > 5 and set(ours) == set(theirs)
    for name, row in theirs.items():
        assert int(ours[name]["a_calls"]) == row["a_counts"] and int(ours[name]["b_calls"]) == row["b_counts"], name
        for side in "ab":  # the tool's times are whole microseconds
            ours_us, theirs_us = float(ours[name][f"{side}_ms"]) * 1000, row[f"{side}_total_duration"]
            assert abs(ours_us - theirs_us) <= 2 * row[f"{side}_counts"], name
