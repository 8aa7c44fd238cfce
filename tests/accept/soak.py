"""The soak: an hour of seeded faults, one story after another. A run and a server live through all stories, and their
resources may not grow."""

import random
import time

from accept.stories import STEP_TIMEOUT_S, Mishaps, disturbed, settings, undisturbed
from cluster import Cluster, ClusterError
from processes import proc_fds, proc_read, proc_threads

SOAK_S = 3600
STORY_STEPS = 3000
STORY_MISHAPS = (4, 9)   # drawn between these
FAILURES_MAX = 3         # enough to look at
WARM_STORIES = 3         # by then every buffer, pool and cache has been used
GROWTH_MIB_MAX = 8       # of a process, over all stories after those
ENDLESS = 1_000_000_000
COMPANION_LOG_EVERY = 20


class Growth:
    """The resources of the processes that live through the soak, after each story."""

    def __init__(self):
        self.looks = {}

    def look(self, name, pid):
        status = {k: v for k, _, v in (t.partition(":") for t in proc_read(pid, "status").decode().splitlines())}
        if "VmRSS" not in status:
            raise ClusterError(f"{name} (pid {pid}) has ended")
        self.looks.setdefault(name, []).append({"MiB": int(status["VmRSS"].split()[0]) / 1024,
                                                "descriptors": len(proc_fds(pid)), "threads": proc_threads(pid)})

    def show(self, line):
        """Compares the last counts with the highest of the first ones. A leak of one per story would add up."""
        for name, looks in self.looks.items():
            warm, late = looks[:WARM_STORIES], looks[-1]
            line.note(f"{name}: {looks[0]} … {late}, {len(looks)} looks")
            grown = late["MiB"] - max(look["MiB"] for look in warm)
            line.at_most(f"{name}: memory grown since story {len(warm)}", round(grown, 1), GROWTH_MIB_MAX, "MiB")
            for kind in ("descriptors", "threads"):
                most = max(look[kind] for look in warm)
                line.at_most(f"{name}: {kind} at the end", late[kind], most)


class Companion:
    """An endless run of two or three nodes on the soak's server: one node is never hit, the others come and go."""

    def __init__(self, cluster, seed):
        self.cluster, self.random, self.started = cluster, random.Random(seed), 0
        self.ranks = set()  # pids of the survivor's rank; a new process has no resources yet
        self.survivor = self._join()
        self.others = [self._join()]
        cluster.wait_world(2, STEP_TIMEOUT_S)

    def _join(self):
        self.started += 1
        return self.cluster.start_worker(f"c{self.started}")

    def change(self):
        """One node leaves and another joins. Waits for the new node and for a step with it."""
        victim = self.others.pop(0)
        self.random.choice((victim.kill_machine, victim.term))()
        self.others.append(self._join())
        newcomer = self.others[-1]
        self.cluster.wait_step(self.cluster.step() + COMPANION_LOG_EVERY, STEP_TIMEOUT_S)
        self.cluster.wait_world(2, STEP_TIMEOUT_S)
        if not newcomer.alive():
            raise ClusterError(f"{newcomer.name} has ended\n" + newcomer.log_tail())
        for worker in [w for w in self.cluster.workers if not w.alive()]:
            self.cluster.workers.remove(worker)  # their folders are not read again

    def look(self, growth):
        ranks = self.survivor.rank_pids()
        if len(ranks) != 1:
            raise ClusterError(f"the companion's survivor has ranks {ranks}\n" + self.survivor.log_tail())
        self.ranks.add(ranks[0])
        growth.look("agent that lives on", self.survivor.pid)
        growth.look(f"rank that lives on (pid {ranks[0]})", ranks[0])


def soak(line):
    """An hour of seeded faults (--scale of it): kills, stops, joins, drains and deaths of the server, in stories with
    3-4 nodes; no hang, one hash, no process left; a server, an agent and a rank that live through all stories do not
    grow."""
    seconds, rng, growth = SOAK_S * line.scale, random.Random(line.seed), Growth()
    sets = settings(8, STORY_STEPS, train__log_every=1)
    reference = undisturbed(line.folder / "reference", 1, sets=sets)
    line.command(f"stories of {STORY_STEPS} steps for {seconds:.0f} s, seeds from {line.seed * 100_000}")
    stories, mishaps, hashes, failed = 0, 0, set(), []
    with Cluster(line.folder / "companion", sets=settings(8, ENDLESS, run="companion", optimizer__schedule="constant",
                                                          train__log_every=COMPANION_LOG_EVERY)) as around:
        around.start_server()
        companion = Companion(around, line.seed)
        started = time.monotonic()
        while time.monotonic() - started < seconds and len(failed) < FAILURES_MAX:
            seed = line.seed * 100_000 + stories
            stories += 1
            own_server = rng.random() < 0.5  # the soak's server is never killed
            kinds = Mishaps.KINDS + (("stop", "server") if own_server else ("stop",))
            try:
                story = disturbed(line.folder / f"seed{seed}", seed, rng.choice((3, 4)), rng.randint(*STORY_MISHAPS),
                                  sets=dict(sets, run=f"soak-{seed}"), nodes_max=5, early=True, kinds=kinds,
                                  server=None if own_server else around, calm_s=1.0)
                hashes.add(story.weights_hash)
                mishaps += len(story.told)
                line.note(f"{story.weights_hash}  seed {seed}, {story.generations} generations: "
                          + ", ".join(story.told))
            except ClusterError as failure:
                failed.append(seed)
                line.note(f"seed {seed}: {failure}")
            companion.change()
            companion.look(growth)
            growth.look("server that lives on", around.server.pid)
        line.note(f"{stories} stories, {mishaps} faults; the companion made {around.step()} steps in "
                  f"{around.metrics()[-1]['generation']} generations")
    line.show("seeds of runs that hung, failed or left a process or file", failed, "none", not failed)
    line.show("weights_hash of all runs and of an undisturbed one", sorted(hashes | {reference}), "one value",
              hashes == {reference})
    line.show("processes of the rank that lives through all stories", len(companion.ranks), "== 1",
              len(companion.ranks) == 1)
    growth.show(line)
