"""The journal of the server: kill -9 of dpt-rdzv at seeded moments of real runs, and simulated crashes between a record
and the messages of its step."""

import os
import random
import re
import signal
import sqlite3
import time
from contextlib import closing
from datetime import datetime

from accept.simulator import simulate
from cluster import Cluster, ClusterError, checkpoint_hash, wait_until
from network_stories import pass_time

NODES, STEPS, EVERY = "abcd", 400, 10
KILLS, KILLS_OF_A_RUN = 300, 6
SEEDS, SEEDS_NET, SEEDS_EACH_RECORD, SEEDS_LARGE, LARGE = 100_000, 20_000, 200, 10, 2_000
WAIT_S = 180
MOMENTS = ("any", "formation", "grant", "end")


def settings():
    return {"train.steps": STEPS, "checkpoint.every_steps": EVERY, "train.log_every": 1, "cluster.nnodes": len(NODES),
            "cluster.timeout_s": 5}


def undisturbed_hash(line):
    with Cluster(line.folder / "undisturbed", sets=settings(), shared_dirs=True) as cluster:
        cluster.start_server()
        workers = [cluster.start_worker(node) for node in NODES]
        if [worker.wait(WAIT_S) for worker in workers] != [0] * len(NODES):
            raise ClusterError("the undisturbed run failed\n" + cluster.log_tails())
        return cluster.newest_checkpoint()[1]


class Killed:
    """A run whose server is killed several times."""

    def __init__(self, root, rng):
        self.rng, self.cluster = rng, Cluster(root, sets=settings(), shared_dirs=True, journal=True)
        self.back_s, self.adopted_s, self.kills = [], [], 0

    def newest(self):
        return max(self.cluster.checkpoints(), default=0)

    def wait_moment(self, moment):
        """Waits until about the moment; the kill comes up to 300 ms later."""
        cluster, rng = self.cluster, self.rng
        if moment == "formation":
            pids = [pid for worker in cluster.workers for pid in worker.rank_pids()]
            os.kill(rng.choice(pids), signal.SIGKILL)
        elif moment == "grant":
            before = self.newest()
            wait_until("a checkpoint", lambda: self.newest() > before or cluster.step() >= STEPS, WAIT_S,
                       cluster.log_tails)
        elif moment == "end":
            cluster.wait_step(STEPS - rng.randrange(12), WAIT_S, alive=False)
        pass_time(rng.uniform(0, 0.3), 1)

    def kill_server(self):
        cluster, rng = self.cluster, self.rng
        away_s = rng.choices([rng.uniform(0, 0.5), rng.uniform(0.5, 10), rng.uniform(10, 90)], [85, 13, 2])[0]
        cluster.server.kill()
        self.kills += 1
        pass_time(away_s, 1)
        before = len(cluster.server.log())
        started = time.time()
        cluster.restart_server()

        def trains():
            found = re.search(r"^(\S+)Z I dpt-rdzv: .*(adopted generation|generation \d+ runs|run done|has ended)",
                              cluster.server.log()[before:], re.M)
            return found and (datetime.fromisoformat(found[1] + "+00:00").timestamp(), found[2])

        def is_over():
            return not any(worker.alive() for worker in cluster.workers)
        at = wait_until("the run goes on", lambda: trains() or is_over(), WAIT_S, cluster.log_tails)
        if at is not True:
            (self.adopted_s if "adopted" in at[1] else self.back_s).append(at[0] - started)

    def ranks(self):
        """The ranks of each generation that was planned, over its nodes, as the journal has them."""
        plans = {}
        with closing(sqlite3.connect(self.cluster.state_dir / "journal.sqlite")) as journal:
            for record, first, count in journal.execute("SELECT record, first_rank, ranks FROM members"):
                plans.setdefault(record, []).extend(range(first, first + count))
        if not plans:
            raise ClusterError("the journal has no generation")
        return [sorted(ranks) for ranks in plans.values()]

    def run(self, n_kills):
        cluster = self.cluster
        cluster.start_server()
        workers = [cluster.start_worker(node) for node in NODES]
        cluster.wait_step(3, WAIT_S)
        moments = [self.rng.choice(MOMENTS[:3]) for _ in range(n_kills - 1)] + ["end"]
        for moment in moments:
            if moment != "end" and cluster.step() > STEPS - 60:
                continue
            self.wait_moment(moment)
            self.kill_server()
        codes = [worker.wait(WAIT_S) for worker in workers]
        events = cluster.events()
        wrong = [] if codes == [0] * len(NODES) else [f"exit codes {codes}"]
        lost = sum(event["steps_lost"] for event in events)
        wrong += [f"{lost} steps lost"] if lost else []
        wrong += [f"a generation has the ranks {each}" for each in self.ranks() if each != list(range(len(each)))]
        steps = [entry["step"] for entry in cluster.metrics()]
        wrong += [] if steps == list(range(1, STEPS + 1)) else [f"{len(steps)} lines of {STEPS} steps"]
        return wrong, checkpoint_hash(cluster.checkpoints()[STEPS]) if STEPS in cluster.checkpoints() else "none"


def kills(line):
    """kill -9 of dpt-rdzv at 300 seeded moments of runs of four nodes (formations, grants and ends included), away for
    0 to 90 s: no step lost, no wrong exit code or rank, one hash; a generation that trains is adopted within a second
    of the restart."""
    rng, wanted = random.Random(line.seed), line.repeat(KILLS)
    line.command(f"dpt-rdzv --state-dir …; dpt-worker on {len(NODES)} nodes; kill -9 of dpt-rdzv, {wanted} times")
    want, done, back_s, adopted_s, wrong, hashes, runs = undisturbed_hash(line), 0, [], [], [], set(), 0
    while done < wanted:
        runs += 1
        killed = Killed(line.folder / f"run-{runs}", rng)
        with killed.cluster:
            broken, found = killed.run(min(KILLS_OF_A_RUN, wanted - done))
        wrong += [f"run {runs}: {each}" for each in broken]
        hashes.add(found)
        done += killed.kills
        back_s += killed.back_s
        adopted_s += killed.adopted_s
    line.at_least("kills", done, wanted)
    line.show("runs with lost steps, wrong lines, ranks or exit codes", len(wrong), "0", not wrong)
    for each in wrong:
        line.note(each)
    line.show("weights hashes beside the undisturbed run's", sorted(hashes), [want], hashes == {want})
    adopted_s.sort()
    line.note(f"restart to re-adoption, {len(adopted_s)} times: median {adopted_s[len(adopted_s) // 2]:.3f} s, 99 % "
              f"within {adopted_s[len(adopted_s) * 99 // 100]:.3f} s")
    line.at_most("restart to re-adoption, longest", round(adopted_s[-1], 3), 1, "s")
    line.note(f"restart until a generation that was forming or forms again runs, {len(back_s)} times: longest "
              f"{max(back_s, default=0):.2f} s (it waits for ranks that start)")


def simulated(line):
    """100,000 seeds of the simulator whose server has a journal; 20,000 with one-way partitions, split networks, slow
    agents, clocks that differ and jump; 200 seeds with a crash at each of their records; 10 seeds with 2,000 agents."""
    for mode, seeds in ((["--journal"], SEEDS), (["--net"], SEEDS_NET), (["--each-record"], SEEDS_EACH_RECORD),
                        (["--nodes", LARGE], SEEDS_LARGE)):
        simulate(line, 1 + line.seed * 1_000_000, line.repeat(seeds), *map(str, mode))


LINES = [kills, simulated]
