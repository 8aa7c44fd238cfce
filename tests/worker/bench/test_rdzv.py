"""dpt-bench rdzv with a few nodes: its phases lead where they must, its figures fit together, wrong options are
refused, and a server or a client process that dies is reported.

Run by ctest: pytest test_rdzv.py, with DPT_BENCH naming the program.
"""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from cluster import wait_until  # noqa: E402
from processes import proc_children, proc_read, proc_state  # noqa: E402

PROGRAM = os.environ["DPT_BENCH"]
NODES, RANKS, RACK = 7, 2, 3
SMALL = ["--nodes", NODES, "--ranks-per-node", RANKS, "--rack", RACK, "--clients", 2, "--seconds", 1]
MODEL = ["--nodes", 8, "--ranks-per-node", RANKS, "--seconds", 1, "--repeats", 1]


def argv(*args):
    return [PROGRAM, "rdzv", *map(str, args)]


def refused(*args, code=2, **options):
    done = subprocess.run(argv(*args), capture_output=True, text=True, timeout=60, check=False, **options)
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("rdzv") / "figures.json"
    done = subprocess.run(argv(*SMALL, "--json", path), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text()), done.stdout


def test_each_phase_forms_one_world(report):
    figures, _ = report
    worlds = {"cold connect": (NODES, 0), "formation": (NODES, NODES * RANKS),
              "loss of one": (NODES - 1, (NODES - 1) * RANKS), "join": (NODES, NODES * RANKS),
              "loss of a rack": (NODES - RACK, (NODES - RACK) * RANKS)}
    assert {p["phase"]: (p["nodes"], p["world"]) for p in figures["phases"]} == worlds
    assert [p["generations"] for p in figures["phases"]] == [0, 1, 1, 1, 1]


def test_figures_fit_together(report):
    figures, text = report
    assert (figures["nodes"], figures["ranks_per_node"], figures["rack"]) == (NODES, RANKS, RACK)
    for phase in figures["phases"]:
        ms, counts = phase["ms"], phase["messages"]
        assert 0 < ms["p50"] <= ms["p99"] <= ms["max"] < 60_000, phase
        assert phase["server_cpu_ms"] > 0
        # A node says hello and is answered; in a formation it quiesces, is ready and runs, too.
        least = phase["nodes"] * (3 if phase["world"] else 1)
        assert counts["to_server"] >= least and counts["from_server"] >= least, phase
        assert counts["to_server_bytes"] > 20 * counts["to_server"]
        assert re.search(rf"^{phase['phase']} +{phase['nodes']} +{phase['world']} ", text, re.M)
    steady = figures["steady"]
    assert 1 <= steady["seconds"] < 10 and steady["server_cpu_percent"] > 0
    assert 0 < steady["answer_ms"]["p50"] <= steady["answer_ms"]["p99"] <= steady["answer_ms"]["max"]
    # A heartbeat of each node every 100 ms, and at first the news that its ranks run. A starved machine sends fewer.
    sent = steady["messages"]["to_server"]
    assert NODES <= steady["answers"] <= sent + NODES and sent <= 10 * NODES * steady["seconds"] + NODES * (RANKS + 5)
    assert 1 << 20 < figures["server_steady_bytes"] <= figures["server_peak_bytes"] < 1 << 30


def test_with_and_without_keys(report, tmp_path):
    path = tmp_path / "open.json"
    done = subprocess.run(argv(*SMALL, "--open", "--json", path), capture_output=True, text=True, timeout=100,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (report[0]["keys"], json.loads(path.read_text())["keys"]) == (True, False)
    assert "one dpt-rdzv with keys" in report[1] and "one dpt-rdzv without keys" in done.stdout


def test_model_of_more_nodes_than_run(tmp_path):
    """Two runs are measured, the larger one is computed from the smaller, and then more nodes than were measured."""
    path, nodes = tmp_path / "model.json", 60
    args = argv("--model", nodes, *MODEL, "--model-error", 1000000, "--json", path)
    done = subprocess.run(args, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(path.read_text())
    assert [run["nodes"] for run in figures["measured"]] == [2, 8] and figures["checked"]["nodes"] == 8
    worlds = {"cold connect": (nodes, 0, 0), "formation": (nodes, nodes * RANKS, 1),
              "loss of one": (nodes - 1, (nodes - 1) * RANKS, 1), "join": (nodes, nodes * RANKS, 1),
              "loss of a rack": (nodes - 3, (nodes - 3) * RANKS, 1)}
    model, costs = figures["model"], figures["unit_costs"]
    assert {p["phase"]: (p["nodes"], p["world"], p["generations"]) for p in model["phases"]} == worlds
    assert costs["handshake_us"] > 0 and costs["heartbeat_us"] > 0 and costs["hellos"] >= 1 and figures["runs"] == 1
    for phase in model["phases"]:
        least = phase["nodes"] * costs["reports" if phase["world"] else "hellos"]
        assert phase["messages"]["to_server"] >= least and phase["server_cpu_ms"] > 0, phase
        assert 0 < phase["ms"]["p50"] <= phase["ms"]["max"], phase
    assert model["steady"]["messages"]["to_server"] == nodes * 10  # each 100 ms
    assert model["server_peak_bytes"] >= figures["measured"][1]["server_peak_bytes"]
    assert set(figures["errors_percent"]) == set(figures["spread_percent"]) == {*worlds, "heartbeat"}
    for computed, measured in zip(figures["checked"]["phases"], figures["measured"][1]["phases"]):
        assert computed["messages"]["heartbeats"] == measured["messages"]["heartbeats"]
        news = [p["messages"]["to_server"] - p["messages"]["heartbeats"] for p in (computed, measured)]
        assert news[1] / 3 <= news[0] <= 3 * news[1], (computed, measured)
    for title in ("# CHECK OF THE MODEL: 8 nodes, computed from the costs of the runs of 2 nodes", "# ITS ERRORS:",
                  "# SPREAD of the measured CPU time", "# UNIT COSTS of the runs of 8 nodes",
                  f"# MODEL, not measured: {nodes} nodes of {RANKS} ranks with keys"):
        assert title in done.stdout


def test_model_that_fails_its_check(tmp_path):
    """No computed time is within 1 % of every measured one: 2 nodes are too few to say what 8 cost."""
    path = tmp_path / "model.json"
    args = argv("--model", 60, *MODEL, "--model-error", 1, "--json", path)
    done = subprocess.run(args, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"the model of 60 nodes is not computed: in its check with 8 nodes the CPU time of '[a-z ]+' is "
                     r"\d+ % too (high|low), and 1 % is the most \(--model-error\)", done.stderr), done.stderr
    assert "# ITS ERRORS:" in done.stdout and "# MODEL" not in done.stdout and not path.exists()


@pytest.mark.parametrize("args, says", [
    (["--nodes", 1], "--nodes: expected an integer from 2 to "),
    (["--nodes", 10 ** 6], "--nodes: expected an integer from 2 to "),
    (["--ranks-per-node", 0], "--ranks-per-node: expected an integer from 1 to "),
    (["--nodes", 6, "--rack", 4], "--rack: 4 of 6 nodes are more than half of them"),
    (["--clients", 0], "--clients: expected an integer from 1 to "),
    (["--model", 1], "--model: expected an integer from 2 to "),
    (["--repeats", 10], "--repeats: expected an integer from 1 to 9"),
    (["--model-error", 0], "--model-error: expected an integer from 1 to "),
    (["--seconds", 0], "--seconds: expected an integer from 1 to "),
    (["--timeout-s", 0], "--timeout-s: expected a number from 0.1 to 600"),
    (["--node", 3], "--node"),
])
def test_wrong_options(args, says):
    assert says in refused(*args)


def test_a_world_beyond_the_limit():
    """The most nodes with the most ranks each: the message names both numbers."""
    nodes, ranks = (int(re.search(r"to (\d+)", refused(option, 10 ** 9))[1])
                    for option in ("--nodes", "--ranks-per-node"))
    world, limit = re.search(rf"--nodes: {nodes} nodes of {ranks} ranks are (\d+) ranks, and a world has (\d+) at most",
                             refused("--nodes", nodes, "--ranks-per-node", ranks)).groups()
    assert int(world) == nodes * ranks > int(limit) >= nodes


def test_too_few_descriptors():
    error = refused("--nodes", 100, "--ranks-per-node", 1, code=77,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80)))
    assert re.search(r"100 nodes take 164 descriptors in dpt-rdzv and \d+ in each of 2 client processes, and a process "
                     r"may have 80 here \(ulimit -Hn\): raise this limit", error)


def run_and_kill(tmp_path, name, says):
    """Kills the bench's child whose command is `name` while the bench measures."""
    log = tmp_path / "out"
    with open(log, "w", encoding="utf-8") as out:
        bench = subprocess.Popen(argv(*SMALL[:-1], 600), stdout=out, stderr=out)
    try:
        wait_until("the formation is measured", lambda: "\nformation " in log.read_text(), 60, log.read_text)
        children = [pid for pid in proc_children(bench.pid) if proc_read(pid, "comm").decode().strip() == name]
        os.kill(children[0], signal.SIGKILL)
        assert bench.wait(timeout=30) == 1
        assert re.search(says, log.read_text()), log.read_text()
        wait_until("no process is left", lambda: not any(proc_state(pid) for pid in children), 10)
    finally:
        bench.kill()
        bench.wait()


def test_the_server_dies(tmp_path):
    run_and_kill(tmp_path, "dpt-rdzv", "dpt-bench rdzv: dpt-rdzv ended by signal 9 during 'steady state'")


def test_a_client_process_dies(tmp_path):
    run_and_kill(tmp_path, "dpt-bench", r"dpt-bench rdzv: client process \d ended by signal 9 during 'steady state'")
