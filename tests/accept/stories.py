"""Runs that acceptance lines share: a run to its end, with or without faults ("mishaps"), and the checks afterwards."""

import random
import re
import signal
import time
from pathlib import Path

from cluster import TINY, Cluster, ClusterError, wait_until
from processes import proc_alive, proc_fds, proc_threads, send_signal

RUN_TIMEOUT_S = 600   # for a run to its end, also on a busy machine; a longer run hangs
STEP_TIMEOUT_S = 120   # longest wait for a step or for a world size
SETTLE_TIMEOUT_S = 5  # descriptors and threads of an old generation are gone by then
STEPS = 1500          # of a story: enough for its kills and joins at hundreds of steps a second


def settings(slots=8, steps=STEPS, **keys):
    """Run-wide keys of a story: a step of `slots` micro-batches of 2; keys such as train__log_every=1."""
    sets = {"train.steps": steps, "train.global_batch": 2 * slots, "train.micro_batch": 2, "cluster.nnodes": "1:4",
            "checkpoint.every_steps": 50}
    return dict(sets, **{key.replace("__", "."): value for key, value in keys.items()})


def pause(seconds):
    """Waits for a drawn time, so that a mishap comes at a random moment. It synchronises nothing."""
    end = time.monotonic() + seconds
    wait_until("the drawn moment", lambda: time.monotonic() >= end, seconds + 5, poll_s=0.002)


def check_run(summaries, metrics, steps):
    """Checks the results of a finished run; returns its weights_hash."""
    if not summaries:
        raise ClusterError("no node wrote summary.json")
    hashes = {s["weights_hash"] for s in summaries}
    if len(hashes) != 1:
        raise ClusterError(f"nodes of one run disagree: {hashes}")
    for s in summaries:
        if s["start_step"] != 0 or s["steps"] != steps or s["steps_lost"] != 0:
            raise ClusterError(f"start_step {s['start_step']}, steps {s['steps']}, steps_lost {s['steps_lost']}: {s}")
    if not metrics or not metrics[-1]["loss"] < metrics[0]["loss"]:
        raise ClusterError(f"the loss did not fall: {metrics[:1]} … {metrics[-1:]}")
    return hashes.pop()


def skipped_steps(metrics):
    """The number of steps that the scaler skipped because of an overflow; 0 without a scaler."""
    return metrics[-1].get("skipped_steps", 0)


def undisturbed_run(root, world, one_node=False, sets=None, env=None, nodes=None, shared_dirs=False, config=TINY):
    """A run of `world` ranks to its end, spread evenly over `nodes` nodes. By default each rank has its own node;
    with one_node all share one. Returns the weights_hash and the count of skipped steps. `env`: of the first worker."""
    sets = dict(settings(), **(sets or {}))
    nodes = nodes or (1 if one_node else world)
    sets["cluster.nnodes"] = str(nodes)
    with Cluster(root, config, sets, shared_dirs) as cluster:
        cluster.start_server()
        for i in range(nodes):
            cluster.start_worker(f"n{i}", ranks=world // nodes + (i < world % nodes), env=env if i == 0 else None)
        codes = cluster.wait_done(RUN_TIMEOUT_S)
        if any(codes.values()):
            raise ClusterError(f"exit codes {codes}\n" + cluster.log_tails())
        metrics = cluster.metrics()
        worlds = {m["world_size"] for m in metrics}
        if worlds != {world}:
            raise ClusterError(f"ran at world sizes {worlds}, not {world}")
        return check_run(cluster.summaries(), metrics, sets["train.steps"]), skipped_steps(metrics)


def undisturbed(root, world, **how):
    """The same; returns only the weights_hash."""
    return undisturbed_run(root, world, **how)[0]


class Resources:
    """Counts descriptors, memfds and threads of surviving rank processes. They must be equal whenever a process has the
    same world size and number of gradient buffers, which depends on its place in the world (both are in its log)."""

    def __init__(self, folder):
        """`folder` is the root of a cluster."""
        self.folder, self.first, self.compared = folder, {}, 0

    def _place(self, pid):
        """World size and number of gradient buffers, from the rank's log line of its last formation."""
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                args = dict(a.split("=", 1) for a in f.read().decode().split("\0") if "=" in a)
        except OSError:
            return None
        # As in Cluster.dirs. A search of all folders could meet checkpoints that are being removed.
        name = f"log/node-{args['node']}/rank-{args['local_rank']}.log"
        logs = [log for pattern in (name, f"*/{name}") for log in self.folder.glob(pattern)]
        said = r"rank \d+ of (\d+) continues .* of gradients in (\d+) buffers"
        told = [m for log in logs for m in re.findall(said, log.read_text())]
        return told[-1] if told else None

    @staticmethod
    def _count(pid):
        """{kind: count}. Files of checkpoints do not count: the rank that writes a part has them open meanwhile. None
        is open when the run is over."""
        count = {"threads": proc_threads(pid)}
        for target in proc_fds(pid).values():
            if "/checkpoints/" not in target and not target.endswith("/checkpoints"):
                kind = "memfd" if target.startswith("/memfd:") else target
                kind = kind if kind.startswith("/") else kind.split(":")[0]
                count[kind] = count.get(kind, 0) + 1
        return count

    def check(self, pids):
        """Call it while the ranks make steps. The first counts of a process in a place are kept. Later counts may
        exceed them for at most SETTLE_TIMEOUT_S, while an old generation is freed."""
        for pid in pids:
            place = self._place(pid)
            if place is None:
                continue
            if (pid, place) not in self.first:
                look = self._settled(pid)
                if self._place(pid) == place:
                    self.first[pid, place] = look
                continue
            bar = self.first[pid, place]
            wait_until(f"resources of pid {pid} in place {place} are as before, {bar} (now {self._count(pid)})",
                       lambda p=pid, b=bar, at=place: not proc_alive(p) or self._place(p) != at or self._within(p, b),
                       SETTLE_TIMEOUT_S)
            self.compared += 1

    def _within(self, pid, bar):
        return all(n <= bar.get(kind, 0) for kind, n in self._count(pid).items())

    def _settled(self, pid):
        """The smallest of several counts, because a file may be open for a moment."""
        looks = []
        for _ in range(5):
            looks.append(self._count(pid))
            pause(0.02)
        return {kind: min(look.get(kind, 0) for look in looks) for kind in looks[0]}


class Mishaps:
    """A run with seeded kills, joins and drains. At any time at least one node that holds the state is not hit."""

    KINDS = ("kill machine", "kill rank", "drain", "join")
    MORE_KINDS = ("stop", "server")  # a machine is stopped for a while; the server is killed and restarted

    def __init__(self, cluster, seed, nodes_min, nodes_max, must=(), kinds=KINDS):
        """`must`: kinds that come first, each as soon as it is possible; the others are drawn from `kinds`."""
        self.cluster, self.random, self.must, self.kinds = cluster, random.Random(seed), list(must), kinds
        self.nodes_min, self.nodes_max = nodes_min, nodes_max
        self.members, self.started, self.killed, self.told = [], 0, set(), []
        self.emptied = {}  # worker: number of steps that it had logged when it lost its state

    def join(self):
        self.started += 1
        worker = self.cluster.start_worker(f"n{self.started}")
        self.members.append(worker)
        self.told.append(f"join {worker.node}")

    def ended(self):
        """True if the run is over for all members."""
        return not any(worker.alive() for worker in self.members)

    def holders(self):
        """Members that hold the state: they have made steps since their rank was started."""
        return [w for w in self.members if w.alive() and len(w.outputs.metrics()) > self.emptied.get(w, 0)]

    def one(self):
        """Causes one mishap of a kind that is possible now; returns "" if none is."""
        holders = self.holders()
        safe = len([w for w in holders if w.rank_pids()]) >= 2
        alive = [w for w in self.members if w.alive()]
        possible = [k for k in self.kinds if (k == "join" and len(alive) < self.nodes_max) or k == "server"
                    or (k not in ("join", "server") and safe
                        and (k in ("kill rank", "stop") or len(alive) > self.nodes_min))]
        if not possible:
            return ""
        wanted = [k for k in self.must if k in possible]
        kind = self.random.choice(wanted or possible)
        if wanted:
            self.must.remove(kind)
        if kind == "join":
            self.join()
            return kind
        if kind == "server":
            self.cluster.server.kill()
            pause(self.random.uniform(0, 1))
            self.cluster.restart_server()
            self.told.append(kind)
            return kind
        victim = self.random.choice(holders)
        if kind == "kill machine":
            victim.kill_machine()
        elif kind == "drain":
            victim.term()
        elif kind == "kill rank":
            for pid in victim.rank_pids()[:1]:
                send_signal(pid, signal.SIGKILL)
        elif kind == "stop":
            stopped = victim.freeze()
            self.emptied[victim] = len(victim.outputs.metrics())
            pause(self.random.uniform(0, 4))
            victim.thaw(stopped)
        if kind == "kill rank":
            self.emptied[victim] = len(victim.outputs.metrics())
        elif kind != "stop":
            self.members.remove(victim)
            self.killed.add(victim) if kind == "kill machine" else None
        self.told.append(f"{kind} {victim.node}")
        return kind


class Story:
    """The result of a disturbed run: its hash, its mishaps, the number of generations, and how often the resources of a
    process were compared with earlier ones."""

    def __init__(self, weights_hash, told, generations, compared):
        self.weights_hash, self.told, self.generations, self.compared = weights_hash, told, generations, compared


def disturbed(root, seed, world, mishaps, sets=None, nodes_max=4, early=False, must=(), kinds=Mishaps.KINDS,
              server=None, calm_s=0.05, config=TINY):
    """A run that starts with `world` nodes and meets `mishaps` mishaps at drawn moments, at most `calm_s` after some
    steps, some of them (`early`) while a generation is still forming; returns its Story. Afterwards no process or file
    of it may be left. `server`: a Cluster whose server it uses, else it starts its own."""
    sets = dict(settings(), **(sets or {}))
    sets["cluster.nnodes"] = f"1:{nodes_max}"
    look = Resources(Path(root))
    with Cluster(root, config, sets) as cluster:
        if server:
            cluster.port = server.port
        else:
            cluster.start_server()
        story = Mishaps(cluster, seed, nodes_min=1, nodes_max=nodes_max, must=must, kinds=kinds)
        for _ in range(world):
            story.join()
        if early:
            # While the first generation forms nobody holds anything: whoever dies now is simply not there.
            pause(story.random.uniform(0, 0.6))
            if world > 2 and story.random.random() < 0.5:
                victim = story.members.pop()
                victim.kill_machine()
                story.killed.add(victim)
                story.told.append(f"kill machine {victim.node} while forming")
        cluster.wait_step(1, STEP_TIMEOUT_S)
        for _ in range(mishaps):
            if early and story.random.random() < 0.4:
                pause(story.random.uniform(0, 0.3))  # the last one's recovery may still be under way
            else:
                target = cluster.step() + story.random.randint(2, 12)
                wait_until(f"step {target} after {story.told}", lambda t=target: cluster.step() >= t or story.ended(),
                           STEP_TIMEOUT_S, cluster.log_tails)
                pause(story.random.uniform(0, calm_s))
                if not story.ended():
                    look.check([p for w in story.holders() for p in w.rank_pids()])
            if story.ended():
                raise ClusterError(f"the run was over after {story.told}: too few steps for this story")
            story.one()
        codes = {w.node: w for w in cluster.workers if w not in story.killed}
        wait_until(f"the run ends after {story.told}", lambda: not any(w.alive() for w in cluster.workers),
                   RUN_TIMEOUT_S, cluster.log_tails, 0.02)
        bad = {node: w.returncode() for node, w in codes.items() if w.returncode() != 0}
        if bad:
            raise ClusterError(f"exit codes {bad} after {story.told}\n" + cluster.log_tails())
        if cluster.server:
            cluster.server.term()
            cluster.server.wait(10)
        cluster.check_nothing_left()
        weights_hash = check_run(cluster.summaries(), cluster.metrics(), sets["train.steps"])
        return Story(weights_hash, story.told[world:], cluster.metrics()[-1]["generation"], look.compared)
