"""Worlds above cluster.mesh_max, whose ranks relay: the same weights as a mesh, also through losses and joins."""

import os
import signal

import pytest

NODES, RANKS = "ab", 3  # nodes on hosts of their own; a rank has no connection to one of the other host's
STEPS = 8
ONE_ORDER = {"train.steps": STEPS, "train.accumulate": "reduce", "train.lanes": 6, "train.global_batch": 16,
             "checkpoint.every_steps": 0, "cluster.nnodes": len(NODES), "cluster.timeout_s": 5}
STRATEGIES = {
    "zero1": {"strategy.name": "zero1"},
    "full_shard": {"strategy.name": "fsdp", "strategy.sharding": "full_shard", "strategy.redundancy": "shadow",
                   "cluster.encrypt": "data"},
    "hybrid_shard": {"strategy.name": "fsdp", "strategy.sharding": "hybrid_shard", "cluster.encrypt": "mac"},
}


def run(make_cluster, name, sets, slow):
    """The weights_hash of a run to its end."""
    cluster = make_cluster(name, sets={**ONE_ORDER, **sets}, shared_dirs=True)
    cluster.start_server()
    for node in NODES:
        cluster.start_worker(node, ranks=RANKS, sets={"cluster.host_group": node})
    assert cluster.wait_done(120 * slow) == dict.fromkeys(NODES, 0)
    assert {m["world_size"] for m in cluster.metrics()} == {len(NODES) * RANKS}
    (told,) = {s["weights_hash"] for s in cluster.summaries()}
    return told


def test_strategies_have_the_weights_of_a_mesh(make_cluster, slow):
    mesh = run(make_cluster, "mesh", {}, slow)
    for name, sets in {"ddp": {}, **STRATEGIES}.items():
        assert run(make_cluster, name, {"cluster.mesh_max": 2, **sets}, slow) == mesh, name


@pytest.mark.parametrize("name", ["ddp", "full_shard"])
def test_ranks_die_and_come_back(make_cluster, name, slow):
    """Two ranks are killed, one after the other. Their successors get the state over relays."""
    sets = {**ONE_ORDER, **STRATEGIES.get(name, {}), "train.steps": 250, "cluster.nnodes": "1:2"}
    calm = make_cluster("calm", sets={**sets, "strategy.redundancy": "none"}, shared_dirs=True)
    assert calm.start_worker("calm", nnodes=1, endpoint=False).wait(120 * slow) == 0
    cluster = make_cluster(sets={**sets, "cluster.mesh_max": 2}, shared_dirs=True)
    cluster.start_server()
    workers = [cluster.start_worker(node, ranks=RANKS, sets={"cluster.host_group": node}) for node in NODES]
    cluster.wait_world(len(NODES) * RANKS, 60 * slow)
    for worker, which in zip(workers, (1, 2)):
        at = cluster.step()
        cluster.wait_step(at + 3, 60 * slow)
        os.kill(worker.rank_pids()[which], signal.SIGKILL)
        cluster.wait_step(at + 20, 60 * slow)
    assert cluster.wait_done(120 * slow) == dict.fromkeys(NODES, 0)
    assert {s["weights_hash"] for s in cluster.summaries()} == {calm.summaries()[0]["weights_hash"]}
    assert all(s["steps_lost"] == 0 for s in cluster.summaries())
    assert all(s["generations"] >= 3 for s in cluster.summaries())
