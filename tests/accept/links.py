"""Many ranks that relay: kills in a run above cluster.mesh_max."""

import os
import random
import signal
import time

from accept.stories import RUN_TIMEOUT_S, pause
from cluster import Cluster, ClusterError, wait_until

NODES, RANKS = 16, 4  # each node is a host of its own
WORLD = NODES * RANKS
KILLS, STEPS_BETWEEN = 30, 2
STEPS_OF_A_KILL = 10  # a rank that comes back joins within so many steps
WAIT_S = 300
SETS = {"train.global_batch": WORLD, "train.micro_batch": 1, "train.lanes": WORLD, "train.log_every": 1,
        "checkpoint.every_steps": 0, "cluster.timeout_s": 30, "cluster.max_restarts": 10 * KILLS}


def undisturbed_hash(line, steps):
    sets = {**SETS, "train.steps": steps, "cluster.nnodes": 1}
    with Cluster(line.folder / "alone", sets=sets, shared_dirs=True) as cluster:
        if cluster.start_worker("alone", nnodes=1, endpoint=False).wait(RUN_TIMEOUT_S) != 0:
            raise ClusterError("the run of one rank failed\n" + cluster.log_tails())
        return cluster.summaries()[0]["weights_hash"]


def connections(worker):
    """The largest number of TCP connections of a rank of this node."""
    def sockets(pid):
        inodes = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        with open(f"/proc/{pid}/net/tcp", encoding="ascii") as table:
            rows = [row.split() for row in table][1:]
        return sum(row[3] == "01" and f"socket:[{row[9]}]" in inodes for row in rows)  # 01: established
    return max(sockets(pid) for pid in worker.rank_pids())


def kill_some(line, cluster, rng, steps):
    """Kills random ranks, each after a few more steps. Returns the number of kills and the seconds until the next
    step."""
    took = []
    for _ in range(line.repeat(KILLS)):
        at = cluster.step()
        if at > steps - STEPS_OF_A_KILL:
            break
        cluster.wait_step(at + STEPS_BETWEEN, WAIT_S)
        pause(rng.uniform(0, 0.5))
        pids = [pid for worker in cluster.workers for pid in worker.rank_pids()]
        before, generation = time.monotonic(), cluster.metrics()[-1]["generation"]
        os.kill(rng.choice(pids), signal.SIGKILL)
        wait_until("a step of a later generation", lambda: cluster.metrics()[-1]["generation"] > generation, WAIT_S,
                   cluster.log_tails)
        took.append(time.monotonic() - before)
    return took


def links_through_kills(line):
    """64 real ranks on 16 hosts, above cluster.mesh_max, train one hash through 30 kills of ranks, without a lost step;
    a rank has at most 2 log2 64 connections by TCP."""
    rng, steps = random.Random(line.seed), STEPS_OF_A_KILL * line.repeat(KILLS) + 2 * STEPS_OF_A_KILL
    want = undisturbed_hash(line, steps)
    sets = {**SETS, "train.steps": steps, "cluster.nnodes": f"{NODES // 2}:{NODES}", "cluster.mesh_max": 8}
    line.command(f"dpt-worker, {NODES} nodes of {RANKS} ranks, each with its cluster.host_group, "
                 f"cluster.mesh_max=8; kill -9 of {line.repeat(KILLS)} random ranks")
    with Cluster(line.folder / "run", sets=sets, shared_dirs=True) as cluster:
        cluster.start_server()
        for i in range(NODES):
            cluster.start_worker(f"n{i}", ranks=RANKS, sets={"cluster.host_group": f"host{i}"})
        cluster.wait_world(WORLD, WAIT_S)
        line.at_most("connections by TCP of a rank", max(connections(w) for w in cluster.workers), 12)
        took = kill_some(line, cluster, rng, steps)
        codes = cluster.wait_done(4 * RUN_TIMEOUT_S)
        summaries, events = cluster.summaries(), cluster.events()
        metrics = cluster.metrics()
    line.at_least("kills", len(took), line.repeat(KILLS))
    line.show("nodes with another exit code than 0", sum(map(bool, codes.values())), "0", not any(codes.values()))
    line.show("largest world", max(m["world_size"] for m in metrics), str(WORLD),
              max(m["world_size"] for m in metrics) == WORLD)
    lost = sum(event["steps_lost"] for event in events)
    line.show("steps lost", lost, "0", lost == 0)
    hashes = {s["weights_hash"] for s in summaries}
    line.show("weights hashes", sorted(hashes), f"{want}, of one rank", hashes == {want})
    if took:
        line.note(f"from a kill to the next step: median {sorted(took)[len(took) // 2]:.1f} s, "
                  f"longest {max(took):.1f} s; {len(events)} generations")
