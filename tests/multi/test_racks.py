"""Racks of machines (cluster.rack): all nodes of one die at once, and the run goes on without the loss of a step."""

import json
import subprocess

from cluster import program

RACKS = {"a": "r1", "b": "r1", "c": None, "d": None}  # nodes without a rack are one rack, too
TIMEOUT_S = 3
SETS = {"train.steps": 150, "checkpoint.every_steps": 0, "cluster.nnodes": "2:4", "strategy.name": "fsdp",
        "strategy.sharding": "full_shard"}


def racks_listed(cluster):
    """{node: rack} as dpt-ctl lists them."""
    out = subprocess.run([program("dpt-ctl"), "--rdzv-endpoint", cluster.endpoint(), "nodes", "--json"],
                         capture_output=True, text=True, check=True, timeout=60).stdout
    return {node["node"]: node["rack"] for node in json.loads(out)["nodes"]}


def newest_members(cluster):
    """Members of the newest generation in the journal."""
    out = subprocess.run([program("dpt-rdzv"), "history", "--state-dir", cluster.state_dir, "--json"],
                         capture_output=True, text=True, check=True, timeout=60).stdout
    run, = json.loads(out)["runs"]
    return run["generations"][-1]["members"]


def test_rack_dies(make_cluster, slow):
    """Each node is on a host of its own. The shadows of a rack's shards are in the other rack, so that no part of the
    state is lost. There is no checkpoint: a lost part would cost all steps."""
    calm = make_cluster("calm", sets=SETS)
    assert calm.start_worker("calm", nnodes=1, endpoint=False).wait(120 * slow) == 0
    sets = {**SETS, "strategy.redundancy": "shadow", "cluster.timeout_s": TIMEOUT_S * slow}
    cluster = make_cluster(sets=sets, shared_dirs=True, journal=True)
    cluster.start_server()
    workers = {node: cluster.start_worker(node, sets={"cluster.host_group": node, "cluster.rack": rack or "null"})
               for node, rack in RACKS.items()}
    cluster.wait_world(len(RACKS), 60 * slow)
    assert racks_listed(cluster) == RACKS
    assert {member["node"]: member["rack"] for member in newest_members(cluster)} == RACKS
    for node in "ab":
        workers[node].kill()
    assert [workers[node].wait(120 * slow) for node in "cd"] == [0, 0], cluster.log_tails()
    events = cluster.events()
    assert [event["kind"] for event in events].count("node_lost") >= 1, events
    assert sum(event["steps_lost"] for event in events) == 0, events
    # The lease of the node that no peer has named, 0.9 timeouts, is not waited for.
    assert max(event["total_ms"] for event in events) < 450 * TIMEOUT_S * slow, events
    assert cluster.metrics()[-1]["world_size"] == 2
    assert {s["weights_hash"] for s in cluster.summaries()} == {calm.summaries()[0]["weights_hash"]}
