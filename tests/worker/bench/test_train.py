"""dpt-bench train at tiny size: the figures of each micro-batch and precision, the memory and the kernels' times that
the rank recorded, the table, a batch that does not fit into the memory, and the reason of a rank that refuses. Standard
library only.

    python3 test_train.py build/bin/dpt-bench [no-limits | rate | group]

no-limits: without the runs in a limited address space, which sanitizers do not have. rate: only the product rate beside
a run, which takes a minute. group: only the run in a control group with a limit of memory; exits 77 where none can be
made.
"""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from cluster import wait_until  # noqa: E402
from processes import proc_children  # noqa: E402

# Steps are so short that the count of allocations may reach into the end of the run.
STEPS, WARMUP, SEQ, TIMEOUT_S = 100, 5, 64, 200
GIB = 1 << 30
FIT, TOO_MANY, LIMIT = 4, 512, 2 * GIB  # 512 sequences of 1,024 tokens need more than 4 GiB
GROUP_LIMIT = GIB // 2


def bench(program, folder, *flags, limit=None):
    def limit_memory():
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return subprocess.run([program, "train", *flags], env=dict(os.environ, TMPDIR=str(folder)), capture_output=True,
                          text=True, timeout=TIMEOUT_S, preexec_fn=limit_memory if limit else None)


def train(program, folder, *flags, **more):
    return bench(program, folder, "--preset", "tiny", "--seq", str(SEQ), "--steps", str(STEPS), "--threads", "1",
                 "--no-gemm", *flags, **more)


def number(text, pattern):
    return float(re.search(pattern, text, re.M)[1])


def check_run(run, batch):
    assert run["batch"] == batch, run
    assert run["step_ms"] > 0 and 0 < run["steps_counted"] <= STEPS - 3, run
    assert abs(run["tokens_per_s"] * run["step_ms"] / (batch * 2 * SEQ * 1000) - 1) < 1e-6, run
    assert run["allocations_in_step"] >= 0 and "share" not in run and "mfu" not in run, run
    assert run["op_times"]["steps"] == STEPS - 1 and run["op_times"]["host"]["classes"], run
    assert (run["warmup_steps"], run["steps_timed"]) == (WARMUP, STEPS - WARMUP), run
    assert run["total_tokens"] == (STEPS - WARMUP) * batch * 2 * SEQ, run
    assert abs(run["mean_tokens_per_s"] * run["elapsed_s"] / run["total_tokens"] - 1) < 1e-6, run
    assert abs(run["steps_per_s"] * run["elapsed_s"] / (STEPS - WARMUP) - 1) < 1e-6, run
    assert 0 < run["memory_bytes"] < run["true_peak_bytes"] and run["loss"] > 0, run
    assert run["memory_bytes"] == run["memory"]["counted"]["peak"], run


def several_batches(program, folder, report):
    done = train(program, folder, "--batch", "4,8", "--slots", "2", "--op-times", "on", "--price", "3.6", "--json",
                 str(report))
    assert done.returncode == 0, done
    said, found = done.stdout, json.loads(report.read_text())
    runs = found["runs"]
    assert len(runs) == 2, runs
    for run, batch in zip(runs, (4, 8)):
        check_run(run, batch)
    assert runs[1]["memory_bytes"] > runs[0]["memory_bytes"], runs
    assert "kernels of the host" in said and said.count("Allocated vs Estimated, MB (2^20 bytes)") == 2, said
    assert number(said, r"^Total tokens processed: (\d+)$") == runs[0]["total_tokens"], said
    assert abs(number(said, r"^Time elapsed: (\S+) s$") - runs[0]["elapsed_s"]) < 0.001, said
    assert abs(number(said, r"^Tokens per second: (\S+)$") - runs[0]["mean_tokens_per_s"]) < 0.1, said
    assert abs(number(said, r"^Steps per second: (\S+)$") - runs[0]["steps_per_s"]) < 0.001, said
    assert re.search(r"^precision +batch +tokens/s +memory MB +true peak MB +MFU +loss +dollars$", said, re.M), said
    for run in runs:
        assert abs(number(said, rf"^fp32 +{run['batch']} .* (\S+)$") - run["elapsed_s"] / 1000) < 1e-6, said
    total = sum(run["elapsed_s"] for run in runs) / 1000
    assert abs(found["dollars"] / total - 1) < 1e-9, found
    assert abs(number(said, r"^Cost: \$(\S+) for the timed steps of all runs$") / total - 1) < 1e-5, said
    assert abs(number(said, r"^fp32 +8 +(\S+) ") - runs[1]["mean_tokens_per_s"]) < 0.1, said
    best = max(run["mean_tokens_per_s"] for run in runs)
    assert abs(found["tokens_per_s_of_1t"] * 1e12 / (best * runs[0]["parameters"]) - 1) < 1e-9, found


def several_precisions(program, folder, report):
    """Each in turn, from the same weights on the same tokens: losses that differ by a little."""
    done = train(program, folder, "--precision", "fp32,bf16,fp16", "--json", str(report))
    assert done.returncode == 0, done
    assert "dollars" not in done.stdout + report.read_text() and "Cost" not in done.stdout, done
    full, *others = json.loads(report.read_text())["runs"]
    assert [run["precision"] for run in (full, *others)] == ["fp32", "bf16", "fp16"], others
    rows = re.findall(r"^(\w+) +4 +\S+ +\S+ +\S+ +- +(\S+) +(\S+)x +(\S+)x +(\S+)$", done.stdout, re.M)
    assert [row[0] for row in rows] == ["bf16", "fp16"], done.stdout
    for run, (_, loss, speed, memory, apart) in zip(others, rows):
        assert run["loss"] != full["loss"] and abs(run["loss"] - full["loss"]) < 0.05, (run, full)
        assert abs(float(apart) - (run["loss"] - full["loss"])) < 1e-5, rows
        assert abs(float(memory) - run["memory_bytes"] / full["memory_bytes"]) < 0.006, rows
        assert abs(float(speed) - run["mean_tokens_per_s"] / full["mean_tokens_per_s"]) < 0.006, rows


def one_run(program, folder, report):
    """Another number of warm-up steps, and a price; the report is the run itself."""
    done = train(program, folder, "--warmup", "7", "--price", "3.6", "--json", str(report))
    run = json.loads(report.read_text())
    assert done.returncode == 0 and run["batch"] == 4 and run["steps_timed"] == STEPS - 7, done
    assert abs(run["dollars"] * 1000 / run["elapsed_s"] - 1) < 1e-6, run
    assert abs(run["dollars_per_1m_tokens"] * run["total_tokens"] / 1e6 / run["dollars"] - 1) < 1e-6, run
    assert re.search(r"^Cost: \$\S+ for the timed steps, \$\S+ per 1M tokens$", done.stdout, re.M), done.stdout
    assert "precision  batch" not in done.stdout, done.stdout


def product_rate(program, folder, report):
    """The MFU on a CPU is the share of the product rate that the same call measures."""
    done = bench(program, folder, "--preset", "tiny", "--steps", "6", "--threads", "1", "--json", str(report))
    run = json.loads(report.read_text())
    assert done.returncode == 0 and run["warmup_steps"] == 2 and run["steps_timed"] == 4, done
    flops = 6 * run["parameters"] + 6 * 2 * 64 * SEQ  # 2 layers of width 64
    assert abs(run["mfu"] / (run["tokens_per_s"] * flops / (run["gemm_gflops"] * 1e9)) - 1) < 1e-9, run
    assert abs(run["share"] / (run["gflops"] / run["gemm_gflops"]) - 1) < 1e-9, run
    assert re.search(r"^MFU \S+% of \S+ TFLOP/s \(the gemm rate\)", done.stdout, re.M), done.stdout


def out_of_memory(program, folder, report):
    """A batch that does not fit into the address space: the others are measured, before and after it, and have the
    whole price."""
    flags = "--preset", "tiny", "--seq", "1024", "--steps", "5", "--threads", "1", "--no-gemm"
    done = bench(program, folder, *flags, "--batch", f"1,{TOO_MANY},{FIT}", "--price", "3.6", "--json", str(report),
                 limit=LIMIT)
    assert done.returncode == 0, done
    found = json.loads(report.read_text())
    runs = found["runs"]
    assert abs(found["dollars"] / (runs[0]["dollars"] + runs[2]["dollars"]) - 1) < 1e-9, found
    assert [run["batch"] for run in runs] == [1, TOO_MANY, FIT], runs
    assert ["oom" in run for run in runs] == [False, True, False], runs
    assert re.search(rf"^OOM at batch_size={TOO_MANY}: .*memory", done.stdout, re.M), done.stdout
    assert re.search(rf"^fp32 +{TOO_MANY} +OOM$", done.stdout, re.M), done.stdout
    alone = bench(program, folder, *flags, "--batch", str(TOO_MANY), limit=LIMIT)
    assert alone.returncode == 1 and "memory" in alone.stderr and "OOM" not in alone.stdout, alone


class LimitedGroup:
    """A control group with LIMIT bytes of memory, of version 1 or 2. `reason`: why there is none, else ""."""

    def __init__(self, limit):
        first = Path("/sys/fs/cgroup/memory")
        self.v1, self.reason = first.is_dir(), ""
        self.folder = (first if self.v1 else first.parent) / f"dpt-test-{os.getpid()}"
        self.events = self.folder / ("memory.oom_control" if self.v1 else "memory.events")
        memory, swap = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if self.v1 else (
            "memory.max", "memory.swap.max")
        try:
            self.folder.mkdir()
            (self.folder / memory).write_text(str(limit))
        except OSError as failure:
            self.reason = f"no control group with a limit of memory can be made here: {failure}"
        with suppress(OSError):  # a kernel that counts no swap
            (self.folder / swap).write_text(str(limit if self.v1 else 0))

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.folder.is_dir():
            wait_until("the group is empty", lambda: not (self.folder / "cgroup.procs").read_text(), TIMEOUT_S)
            self.folder.rmdir()

    def enter(self):
        """Moves the calling process into the group."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def kills(self):
        return int(number(self.events.read_text(), r"^oom_kill (\d+)$"))


def out_of_group_memory(program, folder, report):
    """A batch that does not fit into a limited control group: the kernel ends its process, and the batches before and
    after it are measured. With version 2 the rank reads the limit, and refuses before it allocates."""
    flags = ["--preset", "tiny", "--seq", "1024", "--steps", "5", "--threads", "1", "--no-gemm", "--batch",
             f"1,{TOO_MANY},{FIT}", "--json", str(report)]
    with LimitedGroup(GROUP_LIMIT) as group:
        if group.reason:
            print(group.reason)
            return 77
        done = subprocess.run([program, "train", *flags], env=dict(os.environ, TMPDIR=str(folder)), text=True,
                              capture_output=True, timeout=TIMEOUT_S, preexec_fn=group.enter)
        kills = group.kills()
    assert done.returncode == 0, done
    runs = json.loads(report.read_text())["runs"]
    assert [run["batch"] for run in runs] == [1, TOO_MANY, FIT], runs
    assert ["oom" in run for run in runs] == [False, True, False], runs
    why = re.search(rf"^OOM at batch_size={TOO_MANY}: (.*)$", done.stdout, re.M)[1]
    assert ("the kernel killed the process (signal 9)" in why) == (kills > 0), (why, kills)
    assert kills == 1 if group.v1 else "memory" in why, (why, kills)
    return 0


def killed_by_somebody(program, folder, report):
    """A batch whose process gets SIGKILL although there is memory, as the kernel's counter says: no OOM, but an error;
    the report has what was measured before."""
    flags = ["--preset", "tiny", "--seq", "64", "--steps", str(STEPS), "--threads", "1", "--no-gemm", "--batch", "1,64",
             "--json", str(report)]
    with subprocess.Popen([program, "train", *flags], env=dict(os.environ, TMPDIR=str(folder)), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as running:
        wait_until("the first batch is measured", report.exists, TIMEOUT_S)
        [measuring] = wait_until("the second batch is measured", lambda: proc_children(running.pid), TIMEOUT_S)
        os.kill(measuring, signal.SIGKILL)
        said, errors = running.communicate(timeout=TIMEOUT_S)
    if "does not count such ends here" in said:
        print("the kernel does not count the processes that it ends for lack of memory")
        return
    assert running.returncode == 1 and "OOM" not in said, (said, errors)
    assert "the process was killed (signal 9), but not for lack of memory" in errors, errors
    assert [run["batch"] for run in json.loads(report.read_text())["runs"]] == [1], report.read_text()


def extrapolation(program, folder, report):
    """The figures of a course, from its rate: 32,582.4 tokens/s at 124,439,808 parameters."""
    done = bench(program, folder, "--extrapolate", "32582.4,124439808", "--json", str(report))
    assert done.returncode == 0, done
    assert "1T model throughput: 4.055 tokens/s\n10T tokens at this rate: 28.5 million days\n" in done.stdout, done
    assert abs(json.loads(report.read_text())["tokens_per_s_of_1t"] - 4.05454760) < 1e-6
    for wrong in ("", "1", "1,", "x,1", "1,2,3", "-1,5", "nan,5", "5,0.5"):
        refused = bench(program, folder, "--extrapolate", wrong)
        assert refused.returncode == 2 and "--extrapolate" in refused.stderr, (wrong, refused)


def refusals(program, folder):
    refused = train(program, folder, "--seq", "2048")
    assert refused.returncode == 2 and "seq_len" in refused.stderr, refused
    assert train(program, folder, "--steps", "4").returncode == 2
    few = train(program, folder, "--warmup", str(STEPS - 2))
    assert few.returncode == 2 and "leaves fewer than 3" in few.stderr, few
    unknown = train(program, folder, "--precision", "fp8")
    assert unknown.returncode == 2 and "precision" in unknown.stderr, unknown
    for wrong in ("", "fp32,", ",fp32", "fp32,,bf16", "fp32,tf32,bf16,fp16,fp32", "a-long-name"):
        refused = train(program, folder, "--precision", wrong)
        assert refused.returncode == 2 and "--precision" in refused.stderr, (wrong, refused)


def main(program, *more):
    with tempfile.TemporaryDirectory() as folder:
        report, temporary = Path(folder) / "r.json", Path(folder) / "tmp"
        temporary.mkdir()
        if "rate" in more:
            return product_rate(program, temporary, report)
        if "group" in more:
            return out_of_group_memory(program, temporary, report)
        several_batches(program, temporary, report)
        several_precisions(program, temporary, report)
        one_run(program, temporary, report)
        extrapolation(program, temporary, report)
        killed_by_somebody(program, temporary, Path(folder) / "killed.json")
        refusals(program, temporary)
        if "no-limits" not in more:
            out_of_memory(program, temporary, report)
        assert not list(temporary.iterdir()), list(temporary.iterdir())
        return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
