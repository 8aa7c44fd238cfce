"""dpt-ctl steers real runs: every command, also with the server killed between the command and its effect."""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import threading

import pytest

from calm import calm_hash
from cluster import program, wait_until
from doctor import doctor, texts
from processes import proc_read
from protocol_client import SCHEMA, VERSION, Dealer

STEPS = 100_000  # it is stopped long before
SOON_S = 30


def start_ctl(endpoint, *words, env=None):
    return subprocess.Popen([program("dpt-ctl"), "--rdzv-endpoint", endpoint, *map(str, words)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, **(env or {})})


def end_ctl(process, timeout, code=0):
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == code, (process.args, process.returncode, out, err)
    return out, err


def ctl(cluster, *words, code=0, timeout=120):
    """(standard output, standard error) of a command that ends with this code."""
    return end_ctl(start_ctl(cluster.endpoint(), *words), timeout, code)


def ctl_json(cluster, *words, timeout=120):
    return json.loads(ctl(cluster, *words, "--json", timeout=timeout)[0])


def only_run(cluster):
    run, = ctl_json(cluster, "runs")["runs"]
    return run


def refused(cluster, code, why, *words):
    out, err = ctl(cluster, *words, code=code)
    assert out == "" and why in err.splitlines()[-1], (words, out, err)
    assert err.splitlines()[-1].startswith("dpt-ctl: ")


def kill_between(cluster, line, slow, *words):
    """Gives a command; the server is killed as soon as it has taken it, and another one goes on. Returns the command's
    output."""
    before = cluster.server.log().count(line)
    process = start_ctl(cluster.endpoint(), *words)
    wait_until(f"the server prints '{line}'", lambda: cluster.server.log().count(line) > before, SOON_S * slow,
               cluster.log_tails)
    cluster.server.kill()
    cluster.restart_server()
    return end_ctl(process, 120 * slow)


def cpu_ticks(pids):
    """Clock ticks that these processes have computed."""
    fields = [proc_read(pid, "stat").rsplit(b")", 1)[1].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields)


# ---------------------------------------------------------------- runs

def test_save_pause_resume_stop(make_cluster, tmp_path, slow):
    """The server is killed after it has taken PAUSE, and after it has taken STOP: the next one goes on with them. The
    weights are those of an undisturbed run."""
    sets = {"train.steps": STEPS, "checkpoint.every_steps": 0, "train.log_every": 1, "cluster.nnodes": 2,
            "cluster.timeout_s": 10 * slow}
    cluster = make_cluster(sets=sets, shared_dirs=True, journal=True)
    cluster.start_server()
    workers = [cluster.start_worker(node) for node in "ab"]
    cluster.wait_step(3, 60 * slow)

    saved = ctl_json(cluster, "save")
    assert saved["command"] == "save" and saved["step"] in cluster.checkpoints(), saved
    assert os.path.exists(os.path.join(saved["folder"], "MANIFEST.json")), saved
    assert saved["folder_node"] in ("a", "b") and saved["folder_host"] == socket.gethostname(), saved
    assert only_run(cluster)["generation"] == 1  # while training goes on

    out, _ = kill_between(cluster, "an operator pauses the run", slow, "pause")
    assert "is paused after step" in out, out
    run = only_run(cluster)
    assert run["state"] == "paused" and run["nodes"] == 2, run
    ranks = [pid for worker in workers for pid in worker.rank_pids()]
    before, began = cpu_ticks(ranks), os.times().elapsed
    for _ in range(8):
        assert only_run(cluster)["step"] == run["step"]
    # The ranks wait: they send heartbeats and compute nothing.
    share = (cpu_ticks(ranks) - before) / os.sysconf("SC_CLK_TCK") / (os.times().elapsed - began)
    assert share < 0.5, share
    saved = ctl_json(cluster, "save")
    assert saved["step"] == run["step"] in cluster.checkpoints(), saved
    assert only_run(cluster)["state"] == "paused"
    ctl(cluster, "resume")
    wait_until("the run trains again", lambda: (only_run(cluster)["step"] or 0) > run["step"], SOON_S * slow,
               cluster.log_tails)

    out, _ = kill_between(cluster, "an operator stops the run", slow, "stop")
    assert re.search(r"/step-\d+ on node [ab] \(host ", out), out
    assert [worker.wait(SOON_S * slow) for worker in workers] == [0, 0], cluster.log_tails()
    stopped = max(cluster.checkpoints())
    assert run["step"] < stopped < STEPS
    assert [line["step"] for line in cluster.metrics()] == list(range(1, stopped + 1))
    for worker in workers:
        assert "left the run as asked" in worker.log(), worker.log_tail()
    ends = [worker.log().count(f"step {stopped} is saved (checkpoint in ") for worker in workers]
    assert sorted(ends) == [0, 1], cluster.log_tails()  # rank 0 has the summary
    assert f"checkpoints      the last of step {stopped}" in workers[ends.index(1)].log()
    again = ctl_json(cluster, "stop", "tiny")  # it is stopped: the same command again is done
    assert again["step"] == stopped and f"is stopped; step {stopped} is saved" in again["text"], again

    workers = [cluster.start_worker(node) for node in "ab"]
    cluster.wait_step(stopped + 2, 120 * slow)
    process = start_ctl(cluster.endpoint(), "stop")
    assert "saves its state" in process.stderr.readline()
    process.send_signal(signal.SIGSTOP)  # it does not ask again before the next run trains
    try:
        assert [worker.wait(SOON_S * slow) for worker in workers] == [0, 0], cluster.log_tails()
        step, found = cluster.newest_checkpoint()
        assert step > stopped and [line["step"] for line in cluster.metrics()] == list(range(1, step + 1))
        workers = [cluster.start_worker(node) for node in "ab"]
        cluster.wait_step(step + 1, 120 * slow)
    finally:
        process.send_signal(signal.SIGCONT)
    assert "was stopped, and was started again since" in end_ctl(process, SOON_S * slow)[0]
    cluster.wait_step(step + 2, 60 * slow)
    for worker in workers:
        worker.kill()
    assert found == calm_hash(tmp_path / "calm", sets, step, 120 * slow)


def test_all_nodes_are_gone(make_cluster, slow):
    """Both machines of the only run die at once. The server judges none lost, as it may be cut off itself; but its log,
    dpt-ctl and dpt-doctor say that no node is heard. Workers that are started again bring the run back."""
    lease_s = 0.9 * 4 * slow
    cluster = make_cluster(sets={"train.steps": STEPS, "checkpoint.every_steps": 0, "train.log_every": 1,
                                 "cluster.nnodes": 2, "cluster.timeout_s": 4 * slow}, shared_dirs=True)
    cluster.start_server()
    workers = [cluster.start_worker(node) for node in "ab"]
    cluster.wait_step(3, 60 * slow)
    run = only_run(cluster)
    assert run["state"] == "trains" and run["heard_ms_ago"] < lease_s * 1000, run

    for worker in workers:  # stopped first: neither lives to report that the other is gone
        worker.freeze()
    for worker in workers:
        worker.kill_machine()
    cluster.server.wait_log(r"W dpt-rdzv: .*no node is heard for \d+\.\d s: this server is cut off, or all nodes are",
                            SOON_S * slow)
    run = only_run(cluster)
    assert run["state"] == "unheard" and run["nodes"] == 2 and run["heard_ms_ago"] > lease_s * 1000, run
    row = re.search(r"^tiny +unheard +2/2 .* (\d+\.\d)  ", ctl(cluster, "runs")[0], re.M)
    assert row and float(row[1]) >= round(lease_s, 1), row  # in tenths of a second
    code, result = doctor("hang", "--server", cluster.endpoint(), "--seconds", 0, timeout=60 * slow)
    assert code == 1 and result["verdict"] == "no node heard", result
    assert "the server hears no node of the run for" in texts(result, "no node heard")[0], result
    refused(cluster, 4, f"but no node of the run is heard for more than {lease_s:.1f} s", "save", "--wait-s", 1)
    assert cluster.server.log().count("no node is heard") == 1

    for node in "ab":
        cluster.start_worker(node)
    wait_until("the run trains again", lambda: only_run(cluster)["state"] == "trains", 60 * slow, cluster.log_tails)


# ---------------------------------------------------------------- nodes

def states(cluster):
    return {node["node"]: node["state"] for node in ctl_json(cluster, "nodes")["nodes"]}


def test_evict_allow_drain(make_cluster, slow):
    """A denied node stays out when the server is killed, until it is allowed. A drained one leaves with 0."""
    cluster = make_cluster(sets={"train.steps": 1000000, "checkpoint.every_steps": 0, "cluster.nnodes": "1:2",
                                 "cluster.timeout_s": 20 * slow}, shared_dirs=True, journal=True)
    cluster.start_server()
    a = cluster.start_worker("a")
    b = cluster.start_worker("b")
    wait_until("both train", lambda: states(cluster) == {"a": "trains", "b": "trains"}, 60 * slow, cluster.log_tails)
    shown = ctl_json(cluster, "show")
    assert shown["run"]["ranks"] == 2 and {rank["node"] for rank in shown["ranks"]} == {"a", "b"}, shown
    table, _ = ctl(cluster, "show", "tiny")
    assert "trains" in table and "generation 1" in table, table

    pid, = b.rank_pids()
    dumped = ctl_json(cluster, "dump")
    assert all("(main): " in rank["stacks"] for rank in dumped["ranks"]) and len(dumped["ranks"]) == 2, dumped
    assert re.search(r"\b(rank_|dpt_)\w+\+0x", dumped["ranks"][0]["stacks"]), dumped
    os.kill(pid, signal.SIGSTOP)
    try:
        dumped = ctl_json(cluster, "dump")
        text, _ = ctl(cluster, "dump")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [rank["node"] for rank in dumped["ranks"] if rank["stacks"] is None] == ["b"], dumped
    assert text.count("no stack: the process has not answered") == 1 and text.count("(main): ") == 1, text

    ctl(cluster, "evict", "b")
    cluster.server.kill()
    cluster.restart_server()
    assert b.wait(SOON_S * slow) == 75 and "an operator has evicted node 'b'" in b.log(), b.log_tail()
    wait_until("a trains alone", lambda: states(cluster) == {"a": "trains", "b": "denied"}, SOON_S * slow,
               cluster.log_tails)
    heard = {node["node"]: node["heard_ms_ago"] for node in ctl_json(cluster, "nodes")["nodes"]}
    assert heard["a"] is not None and heard["b"] is None, heard  # the server has not heard a denied id
    b = cluster.start_worker("b")  # a supervisor that starts it again gets another code
    assert b.wait(SOON_S * slow) == 2 and "an operator has evicted node 'b'" in b.log(), b.log_tail()
    ctl(cluster, "allow", "b")
    b = cluster.start_worker("b")
    wait_until("both train again", lambda: states(cluster) == {"a": "trains", "b": "trains"}, 60 * slow,
               cluster.log_tails)

    out, _ = ctl(cluster, "drain", "b")
    assert "node b has left" in out, out
    assert b.wait(SOON_S * slow) == 0 and "an operator drains this node" in b.log(), b.log_tail()
    wait_until("a trains alone", lambda: states(cluster) == {"a": "trains"}, SOON_S * slow, cluster.log_tails)

    refused(cluster, 2, "no run here has a node 'x'", "drain", "x")
    refused(cluster, 2, "no run 'other' is here; the server has the runs tiny", "show", "other")
    refused(cluster, 2, "no node 'b' is denied", "allow", "b")
    cluster.server.kill()
    process = start_ctl(cluster.endpoint(), "pause", "--timeout-s", "1")
    assert "no answer of a server" in end_ctl(process, 60 * slow, 3)[1]
    assert a.alive()


def test_drain_in_a_pause_without_checkpoints(make_cluster, slow):
    """Each node has half of the state, and nothing can be saved: the node that leaves hands its half over, no step is
    made meanwhile, and the run goes on with the losses of an undisturbed one."""
    sets = {"train.steps": STEPS, "checkpoint.every_steps": 0, "train.log_every": 1, "cluster.nnodes": "1:2",
            "cluster.timeout_s": 10 * slow, "strategy.name": "fsdp", "strategy.sharding": "full_shard"}
    cluster = make_cluster(sets=sets, shared_dirs=True)
    cluster.start_server()
    _, b = [cluster.start_worker(node, sets={"checkpoint.dir": "null"}) for node in "ab"]
    cluster.wait_world(2, 60 * slow)
    ctl(cluster, "pause")
    step = only_run(cluster)["step"]
    out, _ = ctl(cluster, "drain", "b")
    assert "node b has left" in out, out
    assert b.wait(SOON_S * slow) == 0 and "NOT SAVED" not in b.log(), b.log_tail()
    run = only_run(cluster)
    assert (run["state"], run["nodes"], run["step"]) == ("paused", 1, step), run
    ctl(cluster, "resume")
    cluster.wait_step(step + 3, 60 * slow)
    assert [event["steps_lost"] for event in cluster.events()] == [0] * len(cluster.events()), cluster.events()
    ran = [(line["step"], line["loss"]) for line in cluster.metrics()]
    assert [line[0] for line in ran] == list(range(1, len(ran) + 1)), ran
    calm = make_cluster("calm", sets=sets)
    calm.start_worker("calm", nnodes=1, endpoint=False)
    calm.wait_step(len(ran), 120 * slow)
    assert [(line["step"], line["loss"]) for line in calm.metrics()][:len(ran)] == ran


# ---------------------------------------------------------------- wrong input

@pytest.mark.parametrize("words, why", [
    ([], "expected a command"), (["sve"], "unknown command 'sve'"), (["drain"], "drain needs a node"),
    (["runs", "tiny"], "runs: unexpected word 'tiny'"), (["pause", "a", "b"], "pause: unexpected word 'b'"),
    (["show", "a", "--run", "b"], "two runs are given"), (["evict", "a b"], "a run and a node are named by"),
    (["save", "../x"], "a run and a node are named by"), (["save", "--wait-s", "0"], "--wait-s"),
    (["runs", "--rdzv-endpoint", "here"], "--rdzv-endpoint"),
    (["runs", "--run", "a"], "--run belongs to other commands"),
])
def test_wrong_words(words, why):
    done = subprocess.run([program("dpt-ctl"), *words], capture_output=True, text=True, timeout=20,
                          env={**os.environ, "DPT_RDZV_ENDPOINT": "127.0.0.1:1"})
    assert done.returncode == 2 and why in done.stderr and done.stdout == "", done
    assert done.stderr.count("\n") == 1, done.stderr


class Answerer(Dealer):
    """The other end: a ROUTER that gives one answer to everything."""

    def __init__(self, accepted):
        self.socket, self.buffer = accepted, b""
        self.socket.settimeout(20)
        self.socket.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
        self._send_frame(0x04, b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"ROUTER")
        self.socket.settimeout(20)
        while len(self.buffer) < 64:
            self._fill()
        self.buffer = self.buffer[64:]

    def answer(self, **fields):
        while True:
            frame = self._next_frame()
            if frame is None:
                self.socket.settimeout(20)
                self._fill()
            elif not frame[0] & 0x04:
                question = SCHEMA.decode("AgentState", frame[1])
                stamp = {"epoch": 7, "run": question.stamp.run, "node": question.stamp.node, "incarnation": 1}
                self.send(SCHEMA.encode("ServerState", {"stamp": stamp, "grant_step": -1, **fields}))
                return


@pytest.mark.parametrize("fields, why", [
    ({"version": VERSION + 1}, f"the server speaks protocol {VERSION + 1}, this dpt-ctl protocol {VERSION}"),
    ({"version": VERSION}, "the server takes no commands: it is of an older version"),
])
def test_server_of_another_version(fields, why, slow):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        peers = []  # open until the end: a reset might overtake the answer

        def serve():
            peers.append(Answerer(listener.accept()[0]))
            peers[0].answer(**fields)
        thread = threading.Thread(target=serve)
        thread.start()
        process = start_ctl(f"127.0.0.1:{listener.getsockname()[1]}", "pause", "--timeout-s", "20",
                            env={"DPT_RDZV_TOKEN": "none"})  # the answerer has no keys
        out, err = end_ctl(process, 60 * slow, 2)
        thread.join(20)
        peers[0].close()
    assert out == "" and why in err and err.count("\n") == 1, err
