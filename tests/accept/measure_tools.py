"""Programs of other people on dpt's files, pages in a browser, and bad input: functions of the topic `measure`."""

import os
import re
import subprocess
from pathlib import Path

from accept import pages
from accept.harness import NotRun
from cluster import ROOT, ClusterError, Cluster, make_text, program

TESTS, TIMEOUT_S = ROOT / "tests", 900
SHOTS = ROOT / "runs" / "acceptance" / "measure-pages"
TINY = "n_layer: 2, n_head: 2, n_embd: 64, context: 32, vocab: 256"


def pytest_passes(line, path, select="", env=None):
    """Runs a test file with the programs under test. NotRun: it skipped for want of a foreign program."""
    folder = Path(program("dpt-worker")).parent
    argv = ["/usr/bin/python3", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", TESTS / path]
    argv += ["-k", select] if select else []
    line.command(argv)
    env = dict(os.environ, DPT_BIN=str(folder), DPT_TRACE=str(folder / "dpt-trace"), PYTHONDONTWRITEBYTECODE="1",
               PYTHONPATH=os.pathsep.join([str(folder.parent / "python"), os.environ.get("PYTHONPATH", "")]),
               **(env or {}))
    done = subprocess.run([str(each) for each in argv], capture_output=True, text=True, timeout=TIMEOUT_S, env=env)
    passed, skipped = (int(found[1]) if (found := re.search(rf"(\d+) {word}", done.stdout)) else 0
                       for word in ("passed", "skipped"))
    if done.returncode in (0, 5) and passed == 0 and "SKIPPED" in done.stdout:
        raise NotRun(re.search(r"^SKIPPED.*", done.stdout, re.M)[0])
    if done.returncode != 0:
        raise ClusterError(f"{path}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    line.show(f"tests passed, {path}", passed, f">= 1, {skipped} skipped", passed >= 1 and skipped == 0)


def holistic_trace_analysis(line):
    """Holistic Trace Analysis ($DPT_TEST_HTA) reads the traces of runs: temporal breakdown, overlap, communication."""
    pytest_passes(line, "worker/trace/test_hta_peer.py")


def csv_beside_holistic_trace_analysis(line):
    """The CSV of dpt-trace and Holistic Trace Analysis ($DPT_TEST_HTA) agree on the same traces: shares within 0.5
    points, times of the breakdown within 1 us (and 1 us for each kernel below 1 us), those of communication kernels
    within 2 us a call; their differences between two traces are the same."""
    pytest_passes(line, "worker/report/test_hta_figures_peer.py")


def tensorboard_reader(line):
    """TensorBoard's own reader has the values of metrics.jsonl, also after a kill (tests/run installs it by pip)."""
    pytest_passes(line, "multi/test_tensorboard_peer.py")


def memory_viz(line):
    """PyTorch's torch.cuda._memory_viz ($DPT_TORCH_PYTHON) reads a snapshot, and Python's pickle does."""
    pytest_passes(line, "worker/trace/test_memory_snapshot.py")
    pytest_passes(line, "worker/trace/test_memory_viz_peer.py")


# The traced runs of the pages. Every step of a window is traced, and there are two windows.
TRACED = {"ddp": {"strategy.name": "ddp"}, "full_shard": {"strategy.name": "fsdp", "strategy.sharding": "full_shard"}}
SCHEDULE = {"train.steps": 8, "trace.wait": 1, "trace.warmup": 0, "trace.active": 3, "trace.repeat": 2}


def trained(line, name):
    """Trains with two ranks; returns the log.dir."""
    config = line.folder / "config.yaml"
    config.write_text("run: pages\n")
    sets = dict(TRACED[name], **SCHEDULE, **{"data.train": make_text(line.folder / "text.txt"),
                                             "trace.dir": line.folder / "traces"})
    with Cluster(line.folder / f"run-{name}", config, sets) as cluster:
        worker = cluster.start_worker("a", nnodes=1, endpoint=False, ranks=2)
        if worker.wait(TIMEOUT_S) != 0:
            raise ClusterError(worker.log_tail())
        return cluster.dirs("a")[0]


def made_pages(line):
    """{name: page or picture} of every kind that the programs make, of real runs."""
    logs = [trained(line, name) for name in TRACED]
    out = line.folder / "pages"
    out.mkdir()
    (line.folder / "other.csv").write_text("name,step_ms,memory_peak_mib\n\"torch, DDP\",51.5,310\n")
    trace, bench, of = program("dpt-trace"), program("dpt-bench"), ["--trace-dir", line.folder / "traces"]
    small = ["--model", TINY, "--seq", "32", "--rounds", "1", "--steps", "4"]
    commands = [[trace, "ddp", *of, "--out", out / "trace"],
                [trace, "sharding", *of, "--out", out / "trace"],
                [trace, "ddp", *of, "--select", "all", "--out", out / "trace-all"],
                [trace, "compare", *of, "--csv", line.folder / "other.csv", "--out", out / "trace"],
                [bench, "scaling", "--strong", "--worlds", "1,2", *small, "--html", out / "scaling-strong.html"],
                [bench, "scaling", "--weak", "--worlds", "1,2", *small, "--html", out / "scaling-weak.html"],
                [bench, "strategies", "--only", "ddp,full_shard", *small, "--html", out / "strategies.html"],
                [bench, "collectives", "--draw", out / "collectives", "--ranks", "4"],
                [program("dpt-plot"), "--out", out / "plot.svg", *logs]]
    for argv in commands:
        line.command(argv)
        done = subprocess.run([str(each) for each in argv], capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode != 0:
            raise ClusterError(f"exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return {"-".join(page.relative_to(out).with_suffix("").parts): page
            for page in sorted([*out.rglob("*.html"), *out.rglob("*.svg")])}


PAGES_MIN = 8  # ddp, full_shard, two windows, comparison, scaling twice, strategies
PICTURES_MIN = 5


def pages_in_chromium(line):
    """Pages of every kind (dpt-trace ddp, sharding, all windows and compare, dpt-bench scaling and strategies) of real
    runs, and all pages made by hand, in headless Chromium, at 380 and 1200 pixels, light and dark, and the pictures of
    dpt-bench collectives and dpt-plot at 1200: no finding of tests/accept/pages.py (script errors, requests, overflow,
    faint or small text). The screenshots stay in runs/acceptance/measure-pages."""
    if not pages.find_chromium():
        raise NotRun("chromium is not installed; run: deploy/install-deps pages")
    made = made_pages(line)
    pictures = [name for name, page in made.items() if page.suffix == ".svg"]
    line.at_least("pages", len(made) - len(pictures), PAGES_MIN)
    line.at_least("pictures", len(pictures), PICTURES_MIN)
    with pages.Browser() as browser:
        for name, page in made.items():
            screens = [screen for screen in pages.SCREENS if page.suffix == ".html" or screen[0] > 380]
            found = pages.check_page(browser, page, SHOTS, screens, name)
            for text in found:
                line.note(text)
            line.show(f"findings in {name}", len(found), "== 0", not found)
    samples = Path(program("dpt-trace")).parent.parent / "tests" / "test_worker_report_page_samples"
    pytest_passes(line, "worker/report/test_page_chromium.py",
                  env={"DPT_PAGE_SAMPLES": str(samples), "DPT_PAGES": str(SHOTS), "DPT_PAGES_ALL": "1"})


def bad_input(line):
    """Truncated and foreign traces, ranks of different runs, mixed windows: one clear line each. A full disk while
    tracing: training goes on and says so once."""
    pytest_passes(line, "worker/report/test_program.py")
    pytest_passes(line, "multi/test_disk.py", "traces")


LINES_OF_MEASURE = [holistic_trace_analysis, csv_beside_holistic_trace_analysis, tensorboard_reader, memory_viz,
                    pages_in_chromium, bad_input]
