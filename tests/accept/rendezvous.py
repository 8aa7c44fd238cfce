"""Topic rendezvous: a server for ten thousand machines that survives its own death and keeps strangers out."""

import json
import os
import re
import signal
import socket
import sqlite3
import statistics
import subprocess

from accept.bad_input import EXIT_CONFIG, show_complaint
from accept.harness import NotRun
from accept.journal import LINES as LINES_OF_JOURNAL
from accept.links import links_through_kills
from accept.networks import LINES_OF_NETWORKS
from accept.strangers import LINES_OF_STRANGERS, needs_keys
from accept.told import stories
from cluster import ROOT, Cluster, ClusterError, bin_dir, program, quiet_port
from protocol_client import VERSION, Node, follow, run_spec

RANKS, RACK, CLIENTS, COLD_S = 8, 500, 4, 10
MEMORY_MIB, STEADY_PERCENT = 1024, 20
GRACE_S = 0.5  # twice the grace: nodes that die together
# Nodes: seconds of a core for a formation and for a loss.
BARS = {10_000: (2.0, 1.0), 1_000: (0.2, 0.2)}
SIZES = (10_000, 8_000, 4_000, 2_000, 1_000, 500, 128)
REPEATS = 3  # figures are medians: the machine is shared
STORIES = ("test_control.py", "test_ctl.py", "test_health.py", "test_networks.py", "test_racks.py")
STORIES_OF_KEYS = [f"test_keys.py::test_{name}" for name in (
    "two_machines_with_one_token", "stranger_is_refused", "machine_with_another_server_key_says_so", "bad_tokens",
    "spent_tokens_are_known_after_a_restart", "token_is_revoked", "many_tokens_stop_no_start",
    "readable_keys_are_refused")]
BENCH_TIMEOUT_S, CORE_TIMEOUT_S, PEER_TIMEOUT_S, SERVER_S = 900, 600, 240, 20


# ---------------------------------------------------------------- scale

def bars_of(nodes):
    """The bars of the next larger size that has some."""
    return BARS[min(size for size in BARS if size >= nodes)]


def measure_nodes(line, nodes):
    """The figures of dpt-bench rdzv; None: it takes no such number of nodes here, and says why."""
    path = line.folder / f"rdzv-{nodes}.json"
    argv = [program("dpt-bench"), "rdzv", "--nodes", nodes, "--ranks-per-node", RANKS, "--rack", min(RACK, nodes // 4),
            "--clients", CLIENTS, "--json", path]
    run = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=BENCH_TIMEOUT_S)
    if run.returncode == EXIT_CONFIG or "descriptors" in run.stderr:
        line.note(f"{nodes} nodes: {run.stderr.strip()}")
        return None
    if run.returncode != 0:
        raise ClusterError(f"dpt-bench rdzv of {nodes} nodes: exit {run.returncode}\n{run.stderr[-2000:]}")
    line.command(argv)
    print("             " + run.stdout.strip().replace("\n", "\n             "))
    return json.loads(path.read_text())


def phase_of(figures, name):
    return next(phase for phase in figures["phases"] if phase["phase"] == name)


def show_nodes(line, runs):
    nodes, clients = runs[0]["nodes"], runs[0]["clients"]
    formation_s, loss_s = bars_of(nodes)

    def median(value_of):
        values = [value_of(run) for run in runs]
        return statistics.median(values), f" (median of {', '.join(f'{value:.3g}' for value in values)})"

    for phase in runs[0]["phases"]:
        p50, p99, longest = (median(lambda run: phase_of(run, phase["phase"])["ms"][key])[0]
                             for key in ("p50", "p99", "max"))
        line.note(f"{nodes} nodes, {phase['phase']}: p50 {p50:.0f}, p99 {p99:.0f}, longest {longest:.0f} ms, with "
                  f"{clients} client processes on this machine")
    for name, bar in (("formation", formation_s), ("loss of one", loss_s), ("loss of a rack", loss_s)):
        seconds, of = median(lambda run: phase_of(run, name)["server_cpu_ms"] / 1000)
        line.at_most(f"{nodes} nodes, {name}: CPU time of the server{of}", round(seconds, 4), bar, "s")
        seconds, of = median(lambda run: phase_of(run, name)["ms"]["max"] / 1000)
        line.at_most(f"{nodes} nodes, {name}: until the last node runs{of}", round(seconds, 3),
                     2 * bar + (GRACE_S if name != "formation" else 0), "s")
    for name in ("formation", "loss of one", "loss of a rack"):
        generations = [phase_of(run, name)["generations"] for run in runs]
        line.show(f"{nodes} nodes, {name}: generations", generations, "1 each", set(generations) == {1})
    percent, of = median(lambda run: run["steady"]["server_cpu_percent"])
    line.at_most(f"{nodes} nodes, steady state: of a core{of}", round(percent, 2), STEADY_PERCENT, "%")
    peak = max(run["server_peak_bytes"] for run in runs)
    line.at_most(f"{nodes} nodes: memory of the server", round(peak / 2 ** 20, 1), MEMORY_MIB, "MiB")


def connected_nodes(line):
    """Real clients in several processes against one real server, at the largest number of nodes that this machine
    manages and at 1,000 (8 ranks each): a formation takes 2 s of the server's CPU at 10,000 nodes and 0.2 s at 1,000, a
    loss 1 s; the last node runs within twice the time, as the clients share the server's two cores, and within the
    graces of broken connections; losing a rack of 500 at once is one generation; the steady state takes 20 % of a core;
    memory is below 1 GiB."""
    largest = None
    for nodes in SIZES:
        if largest and nodes > 1_000:
            continue
        first = measure_nodes(line, nodes)
        if first:
            largest = largest or nodes
            show_nodes(line, [first, *(measure_nodes(line, nodes) for _ in range(REPEATS - 1))])
            if nodes <= 1_000:
                break
    line.show("largest number of nodes measured", largest, "== 10000", largest == SIZES[0])


def pure_core(line):
    """The server's machine alone with 10,000 nodes of 8 ranks, each message encoded, decoded and checked, on one core:
    formation within 2 s, a loss within 1 s, the steady state at most 20 % of a core, below 1 GiB; a loss, a rack of 500
    and a silent rack are one generation and one restart each."""
    path = bin_dir().parent / "tests" / "dpt_scale"
    if not path.exists():
        raise ClusterError(f"{path} is not built: build it with ninja -C build dpt_scale")
    argv = [path, "--nodes", 10_000, "--ranks", RANKS, "--beats", 3, "--rack", RACK, "--check"]
    line.command(argv)
    run = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=CORE_TIMEOUT_S)
    line.note("\n             ".join(run.stdout.strip().splitlines()))
    for value, most, what in re.findall(r"^bar +([\d.]+) of at most ([\d.]+): (.+)$", run.stdout, re.M):
        line.at_most(what, float(value), float(most))
    failed = re.findall(r"^FAILED: (.+)$", run.stdout, re.M)
    line.show("broken rules", "; ".join(failed) or "none", "none, exit 0", run.returncode == 0 and not failed)


def run_beside_tcpstore(argv):
    """What the comparison prints, or None and why there is none."""
    process = subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    try:
        out, err = process.communicate(timeout=PEER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the store, its clients, and dpt's
        process.communicate()
        return None, f"not done after {PEER_TIMEOUT_S} s"
    return (out, "") if process.returncode == 0 else (None, (err or out).strip().splitlines()[-1])


def beside_tcpstore(line):
    """PyTorch's TCPStore beside it, with the largest number of clients that both manage here within four minutes. The
    store has no keys and checks nobody, so it is compared with dpt-rdzv --open: a start (cold connect and formation)
    and a formation take no more of the server's CPU time than the store's, whose keys each node reads whole. With keys
    a formation does so, too. A cold connect alone is noted: a node of dpt registers in it, one of the store later."""
    python = os.environ.get("DPT_TORCH_PYTHON", "python3")
    if subprocess.run([python, "-c", "import torch.distributed as d; d.TCPStore"], capture_output=True).returncode != 0:
        raise NotRun(f"{python} has no PyTorch with a TCPStore (DPT_TORCH_PYTHON names another)")
    largest = None
    for nodes in reversed(SIZES):
        path = line.folder / f"store-{nodes}.json"
        argv = [ROOT / "tests" / "worker" / "bench" / "peer_rdzv.py", program("dpt-bench"), "--nodes", nodes,
                "--ranks-per-node", RANKS, "--clients", CLIENTS, "--json", path]
        said, why_not = run_beside_tcpstore(argv)
        if said is None:
            line.note(f"{nodes} nodes: {why_not}")
            break
        largest = nodes, argv, said, json.loads(path.read_text())
    if largest is None:
        raise ClusterError("no number of nodes worked")
    nodes, argv, said, figures = largest
    line.command(argv)
    print("             " + said.strip().replace("\n", "\n             "))
    store_ms = figures["store"]["server_cpu_ms"]
    keys_ms, open_ms = ({phase["phase"]: phase["server_cpu_ms"] for phase in figures[side]["phases"]}
                        for side in ("keys", "open"))
    for ms in (store_ms, keys_ms, open_ms):
        ms["start"] = ms["cold connect"] + ms["formation"]
    for name in ("cold connect", "formation", "start"):
        line.note(f"{name}: CPU time of the store's server {store_ms[name]:.1f} ms, of dpt-rdzv --open "
                  f"{open_ms[name]:.1f}, of dpt-rdzv, which checks keys and encrypts, {keys_ms[name]:.1f}")
    for name in ("formation", "start"):
        line.at_most(f"{nodes} nodes, {name} without keys: CPU time beside the store's, ms", open_ms[name],
                     store_ms[name])
    line.at_most(f"{nodes} nodes, formation with keys: CPU time beside the store's, ms", keys_ms["formation"],
                 store_ms["formation"])


def cold_connects_with_keys(line):
    """10,000 nodes that connect with keys at once have all joined within 10 s."""
    needs_keys()
    for nodes in SIZES:
        first = measure_nodes(line, nodes)
        if first:
            break
    else:
        raise ClusterError("no number of nodes worked")
    runs = [first, *(measure_nodes(line, nodes) for _ in range(REPEATS - 1))]
    line.show("nodes that connect", nodes, "== 10000", nodes == SIZES[0])
    seconds = [phase_of(run, "cold connect")["ms"]["max"] / 1000 for run in runs]
    line.note("until the last has joined: " + ", ".join(f"{each:.2f}" for each in seconds) + " s")
    line.at_most("until the last has joined, in the median", statistics.median(seconds), COLD_S, "s")


def run_server(*args):
    run = subprocess.run([str(a) for a in (program("dpt-rdzv"), *args)], stdin=subprocess.DEVNULL, capture_output=True,
                         text=True, timeout=SERVER_S)
    return run.returncode, run.stderr


def show_server(line, what, args, patterns):
    code, said = run_server(*args)
    show_complaint(line, what, code, [EXIT_CONFIG], said, patterns)


def set_version(journal, version):
    with sqlite3.connect(journal) as database:
        database.execute(f"PRAGMA user_version={version}")
    database.close()


def other_config(line):
    """With keys: a worker whose config differs from that of a run that is there."""
    needs_keys()
    with Cluster(line.folder / "other-config") as cluster:
        cluster.start_server()
        cluster.start_worker("a", nnodes=2).wait_log("waiting for nodes: 1 of 2", SERVER_S)
        other = cluster.start_worker("b", nnodes=2, sets={"seed": 99, "train.steps": 41})
        show_complaint(line, "a config that differs", other.wait(SERVER_S), [EXIT_CONFIG], other.log(),
                       ["config differs from that of run tiny", r"\bseed\b", r"train\.steps", "another name"])


def bad_server(line):
    """Port in use, state folder in use, a journal of another version, a damaged one and another program's: one clear
    line with the file or port and the remedy, exit 2; a refused journal is not changed. A worker with keys and a config
    that differs: refused with the keys of the config that differ, exit 2. Another protocol version (of a client without
    keys, at a server without keys): refused with both versions."""
    other_config(line)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        show_server(line, "port in use", ("--port", port, "--state-dir", "none"), [str(port), "in use", "--port"])
    with Cluster(line.folder / "run", journal=True) as cluster:
        cluster.start_server(args=["--open"])  # the client of tests/protocol_client.py has no key
        folder = cluster.state_dir
        show_server(line, "state folder in use", ("--port", quiet_port(), "--state-dir", folder),
                    [re.escape(str(folder)), f"process {cluster.server.pid}", "--state-dir"])
        with Node(("127.0.0.1", cluster.port), "later", "a", run_spec(), version=VERSION + 1) as node:
            node.send()
            follow([node], lambda: node.message is not None, SERVER_S)
            line.show("another protocol version", node.message.text, f"{VERSION + 1}, {VERSION}, same version",
                      all(word in node.message.text for word in (str(VERSION + 1), str(VERSION), "same version")))
        cluster.server.term()
        cluster.server.wait(SERVER_S)
    journal = folder / "journal.sqlite"
    whole = journal.read_bytes()
    set_version(journal, 99)
    newer = journal.read_bytes()
    damaged = whole[:5000] + b"\xa5" * 4000 + whole[9000:]
    for what, content, words in (("a journal of another version", newer, ["version 99", "--state-dir"]),
                                 ("a damaged journal", damaged, ["is damaged"]),
                                 ("another program's file", b"x" * 5000, ["no journal of dpt-rdzv"])):
        journal.write_bytes(content)
        show_server(line, what, ("--port", quiet_port(), "--state-dir", folder), [re.escape(str(folder)), *words])
        line.show(f"{what}: bytes changed", journal.read_bytes() != content, "False", journal.read_bytes() == content)


def bad_keys(line):
    """A wrong key, a token that is used up, cut, expired or none, keys that others can read: one clear line each, with
    its exit code. A real server with a clock that is far off, when it makes a token or when it judges one: one line on
    either side with the time and the remedy, exit code 5."""
    needs_keys()
    stories(line, *STORIES_OF_KEYS, "test_clocks.py")


def told_stories(line):
    """What operators meet, as stories of real processes: an unknown node, orders, health checks, racks that die, and
    networks: IPv6 only, no DNS, rate limits, a head whose address changes, a translator of addresses (NAT) that forgets
    its connections."""
    stories(line, *STORIES)


LINES = [connected_nodes, pure_core, beside_tcpstore, cold_connects_with_keys, links_through_kills, *LINES_OF_JOURNAL,
         *LINES_OF_STRANGERS, *LINES_OF_NETWORKS, bad_server, bad_keys, told_stories]
