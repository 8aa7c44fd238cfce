"""Traces of real processes: a node that is killed or leaves in a window, and the clocks of two hosts."""

import gzip
import json
import re

import pytest

from cluster import wait_until
from netns import NET, Unavailable, Wire, start_server, start_worker

LONG = 100000


def traces(folder):
    """The traces of a node by rank; the node has one file of each rank."""
    found = {}
    for path in sorted(folder.glob("profile/*/rank_*/*.pt.trace.json.gz")):
        trace = json.loads(gzip.open(path).read())
        rank = trace["distributedInfo"]["rank"]
        assert rank not in found, path
        found[rank] = trace
    return found


def steps(trace):
    return [int(e["name"].split("#")[1]) for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")]


def named(trace, name):
    return [e for e in trace["traceEvents"] if e["name"] == name]


def window(cluster, node, **sets):
    """The keys of a node that is traced from the first step on."""
    return {"trace.dir": cluster.root / f"traces-{node}", "trace.wait": 0, "trace.warmup": 0, **sets}


def test_node_is_killed_in_a_window(make_cluster, slow):
    """The step of the failure is begun again in the survivor's window, which has every step once. Only the one that
    another rank had committed may be missing."""
    active = 400
    cluster = make_cluster(sets={"train.steps": LONG, "checkpoint.every_steps": 0, "train.global_batch": 4})
    cluster.start_server()
    cluster.start_worker("a", sets=window(cluster, "a", **{"trace.active": active}))
    b = cluster.start_worker("b")
    cluster.wait_world(2, 30 * slow)
    cluster.wait_step(20, 30 * slow)
    b.kill_machine()
    cluster.workers.remove(b)
    folder = cluster.root / "traces-a"
    wait_until("the window's file", lambda: list(folder.rglob("*.gz")), 60 * slow, cluster.log_tails)
    trace = traces(folder)[0]
    made = steps(trace)
    assert made == sorted(set(made)) and made[-1] == active, made
    assert len(set(range(1, active + 1)) - set(made)) <= 1, made
    for name in ("leave generation", "form generation", "open communicator", "fill state"):
        assert named(trace, name), name
    cluster.workers[0].term()
    assert cluster.wait_done(30 * slow) == {"a": 0}


def test_node_leaves_in_a_window(make_cluster, slow):
    """The file of the node that leaves has its steps up to the last one."""
    cluster = make_cluster(sets={"train.steps": LONG, "checkpoint.every_steps": 0})
    cluster.start_server()
    cluster.start_worker("a")
    b = cluster.start_worker("b", ranks=2, sets=window(cluster, "b", **{"trace.active": LONG}))
    cluster.wait_world(3, 30 * slow)
    cluster.wait_step(cluster.step() + 10, 30 * slow)
    b.term()
    assert b.wait(30 * slow) == 0, b.log_tail()
    found = traces(cluster.root / "traces-b")
    assert len(found) == 2, found.keys()
    for trace in found.values():
        made = steps(trace)
        assert len(made) >= 10 and made == list(range(made[0], made[-1] + 1)), made
    cluster.workers[0].term()
    assert cluster.wait_done(30 * slow) == {"a": 0, "b": 0}


def test_hosts_that_share_a_clock(make_cluster, slow):
    """Two network namespaces are two hosts with one clock: offset and error are 0, and a collective of both ranks has
    overlapping times in both files."""
    cluster = make_cluster(sets={"train.steps": 12, "trace.active": 6, "strategy.name": "fsdp",
                                 "strategy.sharding": "full_shard"}, shared_dirs=True)
    try:
        with Wire() as wire:
            port = start_server(cluster, wire.names[0], 10 * slow)
            for node, host, at in (("a", wire.names[0], "127.0.0.1"), ("b", wire.names[1], f"{NET}1")):
                start_worker(cluster, host, node, f"{at}:{port}", nnodes=2, sets={"trace.dir": cluster.root / "traces"})
            assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}
    except Unavailable as reason:
        pytest.skip(str(reason))
    found = traces(cluster.root / "traces")
    assert sorted(found) == [0, 1]
    said = {path: float(mb) for log in cluster.root.rglob("rank-*.log") for path, mb in
            re.findall(r"is in '(.*)': ([\d.]+) MB, written in [\d.]+ s$", log.read_text(), re.M)}
    files = (cluster.root / "traces").rglob("*.gz")
    assert said == {str(path): pytest.approx(path.stat().st_size / 1e6, abs=0.001) for path in files}, said
    gathers = []
    for trace in found.values():
        assert trace["dpt"]["clock_offset_us"] == 0 and trace["dpt"]["clock_error_us"] == 0, trace["dpt"]
        assert trace["baseTimeNanoseconds"] == found[0]["baseTimeNanoseconds"]
        assert (trace["dpt"]["hosts"], trace["dpt"]["overlap"]) == (2, True), trace["dpt"]
        assert re.fullmatch("[0-9a-f]{16}", trace["dpt"]["generation_id"]), trace["dpt"]
        assert trace["dpt"]["generation_id"] == found[0]["dpt"]["generation_id"] != "0" * 16
        waits = named(trace, "wait for peers")
        assert waits and {e["args"]["peer"] for e in waits} == {1 - trace["distributedInfo"]["rank"]}, waits[:3]
        gathers.append(sorted((e["ts"], e["ts"] + e["dur"]) for e in trace["traceEvents"]
                              if re.match(r"ncclDevKernel_AllGather", e["name"]) and e["args"].get("dtype") == "Byte"))
    # The commit of a step ends on a rank when it has the other's part: not before the other has begun its own.
    assert len(gathers[0]) == len(gathers[1]) > 0
    for mine, theirs in zip(*gathers):
        assert mine[0] <= theirs[1] and theirs[0] <= mine[1], (mine, theirs)
