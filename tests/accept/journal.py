"""The journal of the server: kill -9 of dpt-rdzv at seeded moments of real runs, and simulated crashes between a record
and the messages of its step."""

import math
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
KILLS, KILLS_OF_A_RUN, FORMED_S = 300, 6, 5
SEEDS, SEEDS_NET, SEEDS_OLDER, SEEDS_EACH_RECORD, SEEDS_LARGE, LARGE = 100_000, 20_000, 10_000, 200, 10, 2_000
WAIT_S = 180
MOMENTS = ("any", "formation", "grant", "end")
# The newest record of the journal when the server dies, and the share of the kills that must fall there at least.
STATES = {"a generation is being formed": (("generation", "plan", "crash", "removed", "joined"), 0.05),
          "a checkpoint has the grant and is not saved": (("grant",), 0.05),
          "the run trains": (("runs", "start", "adopted", "saved", "refill"), 0.2),  # start: and then nothing new
          "the run is over": (("end", "forget"), 0.01)}
TRAINS = ("a checkpoint has the grant and is not saved", "the run trains")


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
        self.states, self.not_adopted = [], []

    def newest_record(self):
        """Its number and kind. Read-only, so that the journal stays as the server left it."""
        path = f"file:{self.cluster.state_dir / 'journal.sqlite'}?mode=ro"
        with closing(sqlite3.connect(path, uri=True, timeout=WAIT_S)) as journal:
            return journal.execute("SELECT seq, kind FROM record ORDER BY seq DESC LIMIT 1").fetchone()

    def newest(self):
        return max(self.cluster.checkpoints(), default=0)

    def wait_moment(self, moment):
        """Waits until about the moment; the kill comes up to 300 ms later, of half of the grants at once."""
        cluster, rng = self.cluster, self.rng
        if moment == "grant" and rng.random() < 0.5:
            wait_until("a grant", lambda: self.newest_record()[1] == "grant" or cluster.step() >= STEPS, WAIT_S,
                       cluster.log_tails, poll_s=0.001)
            return
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

    def kill_server(self, moment):
        cluster, rng = self.cluster, self.rng
        away_s = rng.choices([rng.uniform(0, 0.5), rng.uniform(0.5, 10), rng.uniform(10, 90)], [85, 13, 2])[0]
        cluster.server.kill()
        cluster.server.wait(WAIT_S)
        self.kills += 1
        record = self.newest_record()[1]
        state = next((state for state, (kinds, _) in STATES.items() if record in kinds), record)
        self.states.append(state)
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
        if at is True:
            return
        (self.adopted_s if "adopted" in at[1] else self.back_s).append(at[0] - started)
        # A rank that died before the server may not be in the journal yet.
        if state in TRAINS and moment != "formation" and "runs" in at[1]:
            self.not_adopted.append(f"{state}, away for {away_s:.1f} s: {at[1]}")

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
            self.kill_server(moment)
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
    0 to 90 s: no step lost, no wrong exit code or rank, one hash; a generation that trains is always adopted, within a
    second of the restart. The journal tells in which state each kill found the run: each is there often enough."""
    rng, wanted = random.Random(line.seed), line.repeat(KILLS)
    line.command(f"dpt-rdzv --state-dir …; dpt-worker on {len(NODES)} nodes; kill -9 of dpt-rdzv, {wanted} times")
    want, done, back_s, adopted_s, wrong, hashes, runs = undisturbed_hash(line), 0, [], [], [], set(), 0
    states, not_adopted = [], []
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
        states += killed.states
        not_adopted += [f"run {runs}: {each}" for each in killed.not_adopted]
    line.at_least("kills", done, wanted)
    for state, (_, share) in STATES.items():
        line.at_least(f"kills while {state}", states.count(state), math.floor(share * wanted))
    line.show("kills in another state", sorted(set(states) - set(STATES)), "[]", set(states) <= set(STATES))
    line.show("generations that trained and were not adopted", len(not_adopted), "0", not not_adopted)
    for each in not_adopted:
        line.note(each)
    line.show("runs with lost steps, wrong lines, ranks or exit codes", len(wrong), "0", not wrong)
    for each in wrong:
        line.note(each)
    line.show("weights hashes beside the undisturbed run's", sorted(hashes), [want], hashes == {want})
    adopted_s.sort()
    line.note(f"restart to re-adoption, {len(adopted_s)} times: median {adopted_s[len(adopted_s) // 2]:.3f} s, 99 % "
              f"within {adopted_s[len(adopted_s) * 99 // 100]:.3f} s")
    line.at_most("restart to re-adoption, longest", round(adopted_s[-1], 3), 1, "s")
    line.at_most(f"restart until a generation that was forming runs, {len(back_s)} times (it waits for ranks that "
                 "start), longest", round(max(back_s, default=0), 3), FORMED_S, "s")


def simulated(line):
    """100,000 seeds of the simulator whose server has a journal; 20,000 with one-way partitions, split networks, slow
    agents, clocks that differ and jump; 10,000 whose servers get older copies of the journal; 200 seeds with a crash at
    each of their records; 10 seeds with 2,000 agents. Each kind of fault was there."""
    for mode, seeds, faults in (("--journal", SEEDS, ("outages", "overloads", "second runs", "expulsions")),
                                ("--net", SEEDS_NET, ("unheard", "hears nothing", "split", "slow agent", "clock",
                                                      "server clock")),
                                ("--older-copies", SEEDS_OLDER, ("older copies of the journal",)),
                                ("--each-record", SEEDS_EACH_RECORD, ("crashes at a record",)),
                                ("--nodes", SEEDS_LARGE, ("generations",))):
        mode = [mode, str(LARGE)] if mode == "--nodes" else [mode]
        totals = simulate(line, 1 + line.seed * 1_000_000, line.repeat(seeds), *mode)
        for fault in faults:
            line.at_least(f"{' '.join(mode)}: {fault}",
                          sum(int(n) for text in totals for n in re.findall(rf"(\d+) {fault}\b", text)), 1)


LINES = [kills, simulated]
