"""dpt-trace on traces whose times are known: the figures of the CSV, the files, the lines, and bad input.

Run by ctest: pytest test_program.py, with DPT_TRACE naming the program."""

import gzip
import json
import os
import re
import subprocess

import pytest
import synthetic
from dpt_trace import PROGRAM, TIMEOUT_S, change_events, near, refused, report, rows_of, trace
from synthetic import Run, Step, even


# ---------------------------------------------------------------- figures

@pytest.mark.parametrize("form, annotated, hosts_wait", [("dpt", True, False), ("dpt", False, False),
                                                         ("pytorch", False, False), ("dpt", False, True)])
def test_times_of_a_slow_rank(tmp_path, form, annotated, hosts_wait):
    """Three counted steps; rank 1 computes 20 ms longer, so the others wait for 20 ms in each all-reduce. With NCCL
    only the hosts' waits are annotated, which are outside of its kernels: those inside are estimated."""
    steps = even(ranks=3, steps=4)
    for step in steps[1]:
        step.compute_ms = 60.0
    run = Run(steps, transfer_ms=5.0, form=form, annotated=annotated, hosts_wait=hosts_wait)
    rows, _ = report(tmp_path, run)
    assert [row["rank"] for row in rows] == ["0", "1", "2"] and all(row["steps"] == "3" for row in rows)
    for rank, row in enumerate(rows):
        late = 0 if rank == 1 else 20
        near(row["step_ms"], 0.5 + 60 + 5 + 2)
        near(row["all_reduce_ms"], 3 * (5 + late))
        near(row["all_reduce_wait_ms"], 3 * late)
        near(row["peer_wait_ms"], 3 * late)
        near(row["data_wait_ms"], 3 * 0.5)
        near(row["optimizer_ms"], 3 * 2)
        near(row["forward_ms"], 3 * (60 - late) / 3)
        near(row["backward_ms"], 3 * (60 - late) * 2 / 3)
        near(row["all_reduce_bus_gb_s"], 4e6 * 2 * 2 / 3 / 5e-3 / 1e9)
        assert row["all_reduce_calls"] == "3" and float(row["all_reduce_bytes"]) == 3 * 4e6
        # From the first kernel to the last; the wait for data of the first step is before it.
        window = 3 * 67.5 - 0.5
        near(row["window_ms"], window, 0.001)
        near(row["compute_percent"], 100 * 3 * (60 - late + 2) / window, 0.001)
        near(row["idle_percent"], 100 * 2 * 0.5 / window, 0.01)
        near(row["comm_overhead_percent"], 100 * (5 + late) / (5 + 60 + 2), 0.001)
        near(row["exposed_percent"], 100 * 3 * (5 + late) / window, 0.001)
        assert float(row["overlap_percent"]) == 0


@pytest.mark.parametrize("form, annotated", [("dpt", True), ("dpt", False), ("pytorch", False)])
def test_wait_inside_of_two_collectives_counts_once(tmp_path, form, annotated):
    """Each of the two all-reduces under way contains the wait for rank 1. The rank waits only once."""
    steps = even(ranks=2, steps=4)
    for step in steps[1]:
        step.compute_ms = 60.0
    rows, _ = report(tmp_path, Run(steps, transfer_ms=5.0, form=form, annotated=annotated, all_reduces=2))
    for row, late in zip(rows, (20, 0)):
        near(row["all_reduce_calls"], 3 * 2)
        near(row["all_reduce_ms"], 3 * 2 * (5 + late))
        near(row["all_reduce_wait_ms"], 3 * 2 * late)
        near(row["peer_wait_ms"], 3 * late)


def test_rank_without_waits_beside_others_with_waits(tmp_path):
    """Rank 2 says when it waits for rank 1. So rank 0 would say it, too, and its waits are not estimated."""
    steps = even(ranks=3, steps=4)
    for step in steps[1]:
        step.compute_ms = 60.0
    path = synthetic.write(tmp_path / "traces", Run(steps))[0]
    change_events(path, lambda events: [event for event in events if event["name"] != "wait for peers"])
    done = trace(tmp_path, "ddp")
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "reports/ddp/summary.csv")
    assert float(rows[0]["peer_wait_ms"]) == 0
    near(rows[2]["peer_wait_ms"], 3 * 20)


def test_step_that_no_trace_has(tmp_path):
    """A failure left step 4 out. The page shows the steps before and after it under their numbers."""
    steps = even(ranks=2, steps=5)
    for step in (steps[0][3], steps[1][3]):
        step.compute_ms = 100.0
    for path in synthetic.write(tmp_path / "traces", Run(steps)):
        change_events(path, lambda events: [event for event in events if event["name"] != "ProfilerStep#4"])
    assert trace(tmp_path, "ddp").returncode == 0
    page = (tmp_path / "reports/ddp/summary.html").read_text()
    dots = dict(re.findall(r"<title>step (\d+): ([\d.]+) ms on average", page))
    assert list(dots) == ["3", "5", "6"]
    near(dots["5"], 0.5 + 40 + 1 + 2)
    near(dots["6"], 0.5 + 100 + 1 + 2)
    assert "steps 3 to 6" in page


def test_last_step_counts_on_demand(tmp_path):
    run = Run(even(ranks=2, steps=4))
    rows, _ = report(tmp_path, run, "--include-last-step", "--enable-multiprocessing")
    assert all(row["steps"] == "4" and row["all_reduce_calls"] == "4" for row in rows)


def test_one_step_counts(tmp_path):
    rows, _ = report(tmp_path, Run(even(ranks=2, steps=1)))
    assert all(row["steps"] == "1" and row["all_reduce_calls"] == "1" for row in rows)


def test_memory_over_the_time(tmp_path):
    """100 bytes for 60 ms, 900 for 36 ms, 1000 for 4 ms; then 50."""
    run = Run(even(ranks=1), memory=[(0, 100), (60, 900), (96, 1000), (100, 50)])
    rows, _ = report(tmp_path, run)
    assert [rows[0][f"memory_{word}_bytes"] for word in ("peak", "final", "p50", "p95")] == ["1000", "50", "100", "900"]


def test_no_memory_events_leave_fields_empty(tmp_path):
    rows, _ = report(tmp_path, Run(even(ranks=1)))
    assert rows[0]["memory_peak_bytes"] == "" and rows[0]["all_gather_bus_gb_s"] == ""


def test_sharding_has_its_folder(tmp_path):
    run = Run(even(ranks=2), strategy="full_shard")
    rows, done = report(tmp_path, run, command="sharding", base="reports_sharding")
    assert len(rows) == 2 and (tmp_path / "reports_sharding" / "full_shard" / "summary.html").exists()
    lines = done.stdout.splitlines()
    assert lines[0] == "full_shard, world size 2, 3 steps from step 3, generation 1, window 0"
    assert [line.split()[0] for line in lines[2:5]] == ["mean", "rank", "rank"]
    assert lines[-2:] == ["reports_sharding/full_shard/summary.csv", "reports_sharding/full_shard/summary.html"]


def test_exposed_communication_is_a_warning(tmp_path):
    _, done = report(tmp_path, Run(even(ranks=2), transfer_ms=20.0))
    assert "Warning: 32 % of the step is exposed communication" in done.stdout
    assert all(word in done.stdout for word in ("train.global_batch", "strategy.compression"))
    _, done = report(tmp_path, Run(even(ranks=2), transfer_ms=8.0))
    assert "Warning" not in done.stdout


@pytest.mark.parametrize("setup, advised, others", [
    ({"hosts": 1}, "a larger train.global_batch", ("strategy.compression", "strategy.overlap")),
    ({"hosts": 1, "overlap": False}, "strategy.overlap: true", ("strategy.compression",)),
    ({"hosts": 2}, "strategy.compression: bf16 halves", ("strategy.overlap",)),
    ({"hosts": 0}, "If the ranks are on several hosts, strategy.compression", ()),
    ({"form": "pytorch"}, "If the ranks are on several hosts, strategy.compression", ()),
    ({"facts": {"compression": "bf16"}}, "A larger train.global_batch", ("strategy.compression", "strategy.overlap")),
    ({"facts": {"compression": "none", "may_compress": False}}, "A larger train.global_batch",
     ("strategy.compression",)),
    ({"facts": {"compression": "fp16", "sends_slots": True}}, "a larger train.micro_batch", ("strategy.compression",)),
    ({"facts": {"compression": "fp16", "sends_slots": True, "memory_free": 1000, "activation_checkpointing": "none"},
      "memory": [(30.0, 10 ** 6)]}, "train.activation_checkpointing: full makes room", ("strategy.compression",)),
    ({"facts": {"compression": 3, "may_compress": "x", "sends_slots": [], "memory_free": -1, "micro_batch": 1e30}},
     "strategy.compression: bf16 halves", ("strategy.overlap",)),
])
def test_remedy_of_communication_fits_the_run(tmp_path, setup, advised, others):
    """By the facts on the config in the head of the traces. A fact of a wrong type is not known."""
    _, done = report(tmp_path, Run(even(ranks=2), transfer_ms=20.0, **setup))
    assert "The bottleneck is communication" in done.stdout and advised in done.stdout, done.stdout
    assert not any(word in done.stdout for word in others), done.stdout


# ---------------------------------------------------------------- diff and compare

def test_diff_by_op(tmp_path):
    synthetic.write(tmp_path / "a", Run(even(ranks=2)))
    synthetic.write(tmp_path / "b", Run(even(ranks=2, compute_ms=60.0), compute_kernels=5))
    done = trace(tmp_path, "diff", "a", "b")
    assert done.returncode == 0, done.stderr
    rows = {(row["category"], row["name"]): row for row in rows_of(tmp_path / "reports" / "diff.csv")}
    kernel = rows["kernel", "matmul_0"]
    assert (kernel["a_calls"], kernel["b_calls"], kernel["diff_calls"]) == ("6", "6", "0")
    near(kernel["a_ms"], 6 * 10)
    near(kernel["b_ms"], 6 * 12)
    near(kernel["diff_step_ms"], 2)
    assert rows["kernel", "matmul_4"]["change"] == "added"
    near(rows["annotation", "ProfilerStep"]["diff_step_ms"], 20)
    assert re.search(r"Added in B:\n.*matmul_4", done.stdout)
    removed = trace(tmp_path, "diff", "b", "a", "--rank", "1")
    assert re.search(r"Removed from A:\n.*matmul_4 \(3\)", removed.stdout), removed.stdout
    refused(trace(tmp_path, "diff", "a", "b", "--rank", "2"), "no trace of rank 2")


def test_compare_beside_figures_of_the_user(tmp_path):
    synthetic.write(tmp_path / "traces", Run(even(ranks=1)))
    synthetic.write(tmp_path / "traces", Run(even(ranks=4)), 1_790_500_000_000_000_000)
    synthetic.write(tmp_path / "traces", Run(even(ranks=4, compute_ms=44.0), strategy="full_shard"))
    (tmp_path / "torch.csv").write_text('name,step_ms,world_size,remark\n"PyTorch, DDP",51.5,4,"said ""so"""\nb,,2,\n')
    done = trace(tmp_path, "compare", "--csv", "torch.csv")
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "reports" / "compare" / "summary.csv")
    assert [row["name"] for row in rows] == ["baseline", "ddp", "full_shard", "PyTorch, DDP", "b"]
    near(rows[0]["step_ms"], 43.5)
    near(rows[2]["step_ms"], 47.5)
    near(rows[3]["step_ms"], 51.5)
    assert rows[4]["step_ms"] == "" and rows[3]["source"] == "csv"
    assert (tmp_path / "reports" / "compare" / "summary.html").read_text().startswith("<!")


@pytest.mark.parametrize("text, words", [
    ("step_ms\n1\n", ["no column 'name'", "'step_ms'"]), ("name,x\na,1\n", ["no column with a figure"]),
    ("", ["is empty", "'name'"]), ("\ufeff \r\n\n", ["is empty"]), ("name,step_ms,name\na,1,b\n", ["2 columns 'name'"]),
    ("timestamp, utilization.gpu [%]\n2026/01/02, 93 %\n", ["no column 'name'", "'timestamp', ' utilization.gpu [%]'"]),
    ("name;step_ms\na;1\n", ["no column 'name'", "'name;step_ms'", "separated by commas"]),
    ("name\tstep_ms\na\t1\n", ["no column 'name'", "separated by commas"]),
    (",".join(["Avg. CPU time of an op"] * 20) + "\n", ["no column 'name'", "…"]),
    ("name,step_ms\na,nan\n", ["step_ms 'nan' is not a number"]), ("name,step_ms\na,1,2\n", ["line 2", "3 fields"]),
    ("name,step_ms\n\"a,1\nb,2\n", ["line 2", "a quote is not closed"]),
    ("name,step_ms\na,\"1\n2\"\n", ["line 2", "step_ms '1 2'"]),
    ("name,step_ms\na,fast\n", ["line 2", "step_ms 'fast'"]), ("name,step_ms\na\n", ["line 2", "1 fields"]),
    ("name,step_ms\n,1\n", ["line 2", "no name"]), ("name,step_ms\n", ["no rows"]),
    ("name,step_ms,world_size\na,1,0\n", ["world_size '0'"]), ("name,step_ms\n" + "a,1\n" * 70, ["rows"]),
    ("name,step_ms\na,1\0\n", ["not text"]), (",".join(["name"] * 200) + "\n", ["columns"]),
])
def test_refuses_figures_of_the_user(tmp_path, text, words):
    synthetic.write(tmp_path / "traces", Run(even(ranks=2)))
    (tmp_path / "mine.csv").write_text(text)
    refused(trace(tmp_path, "compare", "--csv", "mine.csv"), "mine.csv", *words)


def test_refuses_files_that_are_no_csv(tmp_path):
    synthetic.write(tmp_path / "traces", Run(even(ranks=2)))
    refused(trace(tmp_path, "compare", "--csv", "absent.csv"), "absent.csv", "No such file")
    refused(trace(tmp_path, "compare", "--csv", "traces"), "traces")
    (tmp_path / "large.csv").write_text("name,step_ms\n" + "a,1\n" * 300_000)
    refused(trace(tmp_path, "compare", "--csv", "large.csv"), "large.csv")


def test_takes_figures_of_a_spreadsheet(tmp_path):
    """A byte order mark, lines that end as on Windows, a quoted line break, no last line break."""
    synthetic.write(tmp_path / "traces", Run(even(ranks=2)))
    (tmp_path / "mine.csv").write_bytes('\ufeffstep_ms,name\r\n51.5,"Two\nlines"\r\n\r\n52,b'.encode())
    done = trace(tmp_path, "compare", "--csv", "mine.csv")
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "reports" / "compare" / "summary.csv")
    assert [(row["name"], row["step_ms"]) for row in rows[1:]] == [("Two lines", "51.500000"), ("b", "52.000000")]


# ---------------------------------------------------------------- bad input

def test_no_files(tmp_path):
    refused(trace(tmp_path, "ddp"), "No trace files found.")
    refused(trace(tmp_path, "diff", "a", "b"), "No trace files found.", "'a'")
    synthetic.write(tmp_path / "traces", Run(even(ranks=2), strategy="full_shard"))
    refused(trace(tmp_path, "ddp"), "No trace files found.", "full_shard", "dpt-trace sharding")


@pytest.mark.parametrize("text, words", [
    (b"", ["is empty"]), (b"not json", ["not a trace", "JSON object"]), (b"[1, 2]", ["not a trace", "JSON object"]),
    (b'{"a": 1}', ["no array traceEvents"]), (b'{"traceEvents": 3}', ["no array traceEvents"]),
    (b'{"traceEvents": {"a": 1}}', ["an array of events"]), (b'{"traceEvents": [1]}', ["expected an event"]),
    (b'{"traceEvents": []}', ["no events"]), (b'{"traceEvents": []} x', ["expected the end"]),
    (b'{"traceEvents": [{"ph": X}]}', ["event 0 is not JSON"]),
    (b'{"rank": x, "traceEvents": []}', ["head is not JSON"]),
    (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": -1, "dur": 1}]}', ["event 0", "no ts"]),
    (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1}]}', ["event 0", "no dur"]),
    (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -1}]}', ["event 0", "no dur"]),
    (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1e400}]}', ["event 0", "not JSON"]),
    (b'{"traceEvents": [' + b",".join([b'{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1e12}'] * 3) + b"]}",
     ["2e+12 us together"]),
    (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "k", "ts": 1, "dur": 1}]}', ["no kernels"]),
    (b'{"traceEvents": [{"ph": "X", "cat"', ["is truncated"]), (b'{"traceEvents": ', ["is truncated"]),
    (b'{"traceEvents": [' + b'{"a":' * 3000, ["fewer brackets"]),
    (b'{"dpt": {"strategy": "../../x"}, "traceEvents": []}', ["strategy"]),
])
@pytest.mark.parametrize("packed", [False, True])
def test_refuses_foreign_files(tmp_path, text, words, packed):
    path = tmp_path / ("x.json.gz" if packed else "x.json")
    path.write_bytes(gzip.compress(text) if packed else text)
    refused(trace(tmp_path, "ddp", "--trace-files", path), str(path), *words)


def test_refuses_truncated_file(tmp_path):
    paths = synthetic.write(tmp_path / "traces", Run(even(ranks=2)))
    whole = paths[1].read_bytes()
    for bytes_kept in (len(whole) - 4, len(whole) // 2, 30, 5):
        paths[1].write_bytes(whole[:bytes_kept])
        refused(trace(tmp_path, "ddp"), "worker_1", "truncated" if bytes_kept > 20 else "")
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0x55
    paths[1].write_bytes(damaged)
    refused(trace(tmp_path, "ddp"), "worker_1")


def test_refuses_files_that_are_none(tmp_path):
    refused(trace(tmp_path, "ddp", "--trace-files", "absent.json"), "absent.json")
    os.mkfifo(tmp_path / "pipe")
    refused(trace(tmp_path, "ddp", "--trace-files", "pipe"), "'pipe' is not a regular file")


def test_warns_of_a_missing_rank(tmp_path):
    paths = synthetic.write(tmp_path / "traces", Run(even(ranks=4)))
    paths[1].unlink()
    paths[3].unlink()
    done = trace(tmp_path, "ddp")
    assert done.returncode == 0
    assert done.stderr == ("dpt-trace: warning: no trace of rank 1, 3 (world size 4): the figures are those of 2 "
                           "ranks\n")


def test_warns_of_dropped_events(tmp_path):
    paths = synthetic.write(tmp_path / "traces", Run(even(ranks=1)))
    packed = json.loads(gzip.decompress(paths[0].read_bytes()))
    packed["dpt"] |= {"dropped_events": 12, "dropped_device_records": 30}
    paths[0].write_bytes(gzip.compress(json.dumps(packed).encode()))
    assert "the trace of rank 0 lacks 42 events" in trace(tmp_path, "ddp").stderr


def test_output_that_cannot_be_written(tmp_path):
    synthetic.write(tmp_path / "traces", Run(even(ranks=1)))
    (tmp_path / "reports").write_text("a file")
    refused(trace(tmp_path, "ddp"), "reports")
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1 and "standard output" in done.stderr


@pytest.mark.parametrize("args", [
    [], ["help"], ["ddp", "x"], ["ddp", "--select", "some"], ["ddp", "--nothing"], ["ddp", "--csv", "x.csv"],
    ["ddp", "--trace-dir", "a", "--trace-files", "b"], ["ddp", "--trace-dir", "a", "--trace-dir", "b"],
    ["ddp", "--trace-files", "a,,b"], ["ddp", "--trace-dir", ""], ["ddp", "--rank", "1"], ["diff", "a"],
    ["diff", "a", "b", "c"], ["diff", "a", "b", "--trace-dir", "c"], ["diff", "a", "b", "--select", "all"],
    ["compare", "--select", "all"], ["diff", "a", "b", "--rank", "-1"], ["ddp", "--trace-dir"],
    ["ddp", *["--trace-files", "a"] * 5000],
    ["compare", *["--trace-dir", "a"] * 17],
])
def test_usage_errors(tmp_path, args):
    refused(trace(tmp_path, *args), code=2)


def test_one_run_is_no_comparison(tmp_path):
    synthetic.write(tmp_path / "traces", Run(even(ranks=2)))
    refused(trace(tmp_path, "compare"), "there is one run, ddp")


def test_diff_of_a_folder_with_two_strategies(tmp_path):
    synthetic.write(tmp_path / "a", Run(even(ranks=1)))
    synthetic.write(tmp_path / "a", Run(even(ranks=1), strategy="full_shard"))
    refused(trace(tmp_path, "diff", "a", "a"), "ddp and of full_shard")
    assert trace(tmp_path, "diff", "a/profile/ddp", "a/profile/full_shard").returncode == 0


def test_help_and_version(tmp_path):
    for words in (["--help"], ["ddp", "--help"]):
        assert trace(tmp_path, *words).stdout.startswith("usage: dpt-trace")
    assert re.fullmatch(r"dpt-trace \d+\.\d+\.\d+\n", trace(tmp_path, "--version").stdout)


def test_facts_of_the_run_are_on_its_page(tmp_path):
    facts = {"compression": "bf16", "precision": "fp32", "device": "cpu", "data": "tokens", "global_batch": 8,
             "micro_batch": 2, "activation_checkpointing": "none", "memory_free": 3 << 30}
    report(tmp_path, Run(even(ranks=2), facts=facts))
    page = (tmp_path / "reports" / "ddp" / "summary.html").read_text()
    shown = dict(re.findall(r"<li>([a-z._ ]+): ([^<]*)</li>", page))
    assert shown == {"number of hosts": "2", "cluster.device": "cpu", "train.precision": "fp32",
                     "train.global_batch": "8", "train.micro_batch": "2", "train.activation_checkpointing": "none",
                     "strategy.overlap": "true", "strategy.compression": "bf16", "data.kind": "tokens"}
    report(tmp_path / "b", Run(even(ranks=2), form="pytorch"))
    assert "Config of the run" not in (tmp_path / "b" / "reports" / "ddp" / "summary.html").read_text()


def test_uneven_steps_name_imbalance(tmp_path):
    """Another rank has more work in each step."""
    steps = even(ranks=3, steps=4)
    for index in range(4):
        steps[index % 3][index] = Step(compute_ms=60.0, work=768)
    _, done = report(tmp_path, Run(steps))
    assert "The bottleneck is imbalance: the last rank of a step has 50 % more work" in done.stdout, done.stdout
