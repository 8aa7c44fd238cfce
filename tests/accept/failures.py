"""Lines of first-light about failures: the time until a loss is noticed and repaired, and the check that nothing is
left behind."""

import random
import re
import signal
import statistics
import time

from accept.stories import SETTLE_TIMEOUT_S, STEP_TIMEOUT_S, Resources, disturbed, pause, settings, undisturbed
from cluster import ROOT, Cluster, ClusterError, Process, make_text, program, wait_until
from processes import proc_alive, send_signal

DETECT_BAR_MS = 500
RESUME_BAR_S = 2.0
EXIT_BAR_S = 10.0
TIMEOUT_S = 5.0        # cluster.timeout_s of these lines: the default
KILL_REPEATS = 5
STOP_REPEATS = 3
CHAOS_RUNS = 100
CHAOS_FAILURES_MAX = 3  # enough to look at
LEAK_ROUNDS = 20
ENDLESS = 1_000_000    # steps of a run that is ended by the line


def endless(**keys):
    return settings(8, ENDLESS, **{"cluster__timeout_s": TIMEOUT_S, "checkpoint__every_steps": 0, **keys})


class Watch:
    """The survivors of one fault ("mishap"): their processes, the newest event, the first step after the fault."""

    def __init__(self, cluster, survivors, world):
        self.cluster, self.survivors, self.world = cluster, survivors, world
        self.pids = {w.node: w.rank_pids() for w in survivors}
        self.generation = cluster.metrics()[-1]["generation"]
        self.step_s = statistics.median(m["step_ms"] for m in cluster.metrics()[-20:]) / 1000
        self.started, self.clock = time.monotonic(), time.time()

    def found_ms(self):
        """Seconds from the fault (this process's clock) to the server's decision to form a generation (its log)."""
        at = wait_until("the server's log", lambda: self.cluster.formed_at(self.generation), 5, self.cluster.log_tails)
        return round((at - self.clock) * 1000, 1)

    def first_step(self, timeout):
        """Waits for the first step that a later generation computed (not an outcome handed over), from the survivors'
        logs; returns the seconds since the fault."""
        def later():
            newest = [m for w in self.survivors for m in w.outputs.metrics()[-3:]]
            return any(m["generation"] > self.generation and m["step_ms"] > 0 for m in newest)
        wait_until("a step of the next generation", later, timeout, self.cluster.log_tails, 0.002)
        return time.monotonic() - self.started

    def event(self):
        """The recovery after the fault, from events.jsonl."""
        def found():
            return [e for w in self.survivors for e in w.outputs.events() if e["generation"] > self.generation]
        return wait_until("events.jsonl has the recovery", found, 5, self.cluster.log_tails)[0]

    def show(self, line, what, detect_bar_ms, resume_bar_s):
        resume_s = self.first_step(timeout=60)
        event = self.event()
        line.at_most(f"{what}: detection, as told", event["detect_ms"], detect_bar_ms, "ms")
        line.at_most(f"{what}: detection, seen from outside", self.found_ms(), detect_bar_ms, "ms")
        line.at_most(f"{what}: next completed step", round(resume_s, 3), round(resume_bar_s + self.step_s, 3), "s")
        line.show(f"{what}: steps_lost", event["steps_lost"], "== 0", event["steps_lost"] == 0)
        now = {w.node: w.rank_pids() for w in self.survivors}
        line.show(f"{what}: survivors' rank pids", now, f"{self.pids}", now == self.pids and all(now.values()))
        line.note(f"{event}")
        return event


def running(line, name, nodes, **keys):
    """A cluster of `nodes` workers that make steps in one world."""
    cluster = Cluster(line.folder / name, sets=endless(**keys))
    try:
        cluster.start_server()
        for i in range(nodes):
            cluster.start_worker(f"n{i}")
        cluster.wait_world(nodes, STEP_TIMEOUT_S)
        cluster.wait_step(20, STEP_TIMEOUT_S)
    except ClusterError:
        cluster.stop()
        raise
    return cluster


def kill_rank(line):
    """kill -9 of a rank: detection <= 0.5 s, next completed step <= 2 s plus one step, steps_lost 0, survivors' process
    ids unchanged."""
    with running(line, "rank", 3) as cluster:
        rng = random.Random(line.seed)
        for i in range(line.repeat(KILL_REPEATS)):
            victim = rng.choice(cluster.workers)
            pids = victim.rank_pids()
            line.command(f"kill -9 {pids[0]}, the rank of {victim.node}, of 3")
            pause(rng.uniform(0, 0.2))
            watch = Watch(cluster, [w for w in cluster.workers if w is not victim], 3)
            send_signal(pids[0], signal.SIGKILL)
            watch.show(line, f"kill {i + 1}", DETECT_BAR_MS, RESUME_BAR_S)
            cluster.wait_world(3, STEP_TIMEOUT_S)
            line.show(f"kill {i + 1}: the rank was started again", victim.rank_pids(), f"not {pids}",
                      victim.rank_pids() != pids and len(victim.rank_pids()) == 1)
            cluster.wait_step(cluster.step() + 20, STEP_TIMEOUT_S)


def kill_worker(line):
    """kill -9 of a whole worker: detection <= 0.5 s, next completed step <= 2 s plus one step, steps_lost 0, survivors'
    process ids unchanged."""
    with running(line, "worker", 3) as cluster:
        rng = random.Random(line.seed)
        members = list(cluster.workers)
        for i in range(line.repeat(KILL_REPEATS)):
            victim = rng.choice(members)
            members.remove(victim)
            line.command(f"kill -9 {victim.pid}, the worker {victim.node}, of 3")
            pause(rng.uniform(0, 0.2))
            watch = Watch(cluster, members, 3)
            victim.kill_machine()
            watch.show(line, f"kill {i + 1}", DETECT_BAR_MS, RESUME_BAR_S)
            members.append(cluster.start_worker(f"r{i}"))
            cluster.wait_world(3, STEP_TIMEOUT_S)
            cluster.wait_step(cluster.step() + 20, STEP_TIMEOUT_S)


def stopped_worker(line):
    """SIGSTOP of a worker: noticed within timeout_s, next completed step 2 s plus one step later, steps_lost 0,
    survivors' process ids unchanged; after SIGCONT it writes nothing and rejoins as new."""
    with running(line, "stop", 3) as cluster:
        rng = random.Random(line.seed)
        for i in range(line.repeat(STOP_REPEATS)):
            victim = rng.choice(cluster.workers)
            survivors = [w for w in cluster.workers if w is not victim]
            line.command(f"kill -STOP {victim.pid} and its ranks, the worker {victim.node}, of 3")
            watch = Watch(cluster, survivors, 3)
            old_ranks = victim.rank_pids()
            stopped = victim.freeze()
            before = Written(victim)
            watch.show(line, f"stop {i + 1}", TIMEOUT_S * 1000, TIMEOUT_S + RESUME_BAR_S)
            without_it = watch.event()["generation"]
            cluster.wait_step(cluster.step() + 10, STEP_TIMEOUT_S)
            line.command(f"kill -CONT {victim.pid} and its ranks")
            victim.thaw(stopped)
            cluster.wait_world(3, STEP_TIMEOUT_S + TIMEOUT_S)
            stale = before.stale(without_it)
            line.show(f"stop {i + 1}: files and lines that it wrote for generations without it", stale[:3], "nothing",
                      not stale)
            line.show(f"stop {i + 1}: rank pids after it came back", victim.rank_pids(), f"not {old_ranks}",
                      not set(victim.rank_pids()) & set(old_ranks) and bool(victim.rank_pids()))
            line.show(f"stop {i + 1}: old ranks that still exist", [p for p in old_ranks if proc_alive(p)], "none",
                      not any(proc_alive(p) for p in old_ranks))
            line.show(f"stop {i + 1}: the worker continues with a new incarnation", victim.alive(), "True",
                      victim.alive())
            cluster.wait_step(cluster.step() + 20, STEP_TIMEOUT_S)


class Written:
    """The files that a worker had written when it was stopped, to find what it writes afterwards."""

    def __init__(self, worker):
        self.worker = worker
        self.metrics, self.events = len(worker.outputs.metrics()), len(worker.outputs.events())
        self.logs = {path: path.stat().st_size for path in self._logs()}
        self.checkpoints = self._checkpoints()

    def _logs(self):
        return sorted(self.worker.outputs.dir.glob("node-*/rank-*.log"))

    def _checkpoints(self):
        folder = self.worker.checkpoint_dir
        return {str(p) for p in folder.rglob("*")} if folder.is_dir() else set()

    def stale(self, generation):
        """Later lines that belong to `generation` or an earlier one, and new files of checkpoints (these runs write
        none)."""
        lines = [str(m) for m in self.worker.outputs.metrics()[self.metrics:] if m["generation"] <= generation]
        lines += [str(e) for e in self.worker.outputs.events()[self.events:] if e["generation"] <= generation]
        for path in self._logs():
            new = path.read_bytes()[self.logs.get(path, 0):].decode(errors="replace")
            lines += [text for text in new.splitlines()
                      for g in re.findall(r"\bgen=(\d+) step=", text) if int(g) <= generation]
        return lines + sorted(self._checkpoints() - self.checkpoints)


def chaos(line):
    """100 seeded random kills, joins and drains with 3-4 nodes, some during formation and communicator creation: no
    hang, one hash, no process, thread, descriptor, memfd or file left over."""
    sets = settings(8)
    reference = undisturbed(line.folder / "reference", 1, sets=sets)
    rng = random.Random(line.seed)
    survived, compared, runs, hashes, failed, wanted = 0, 0, 0, set(), [], line.repeat(CHAOS_RUNS)
    while survived < wanted and len(failed) < CHAOS_FAILURES_MAX:
        seed = line.seed * 100_000 + runs
        nodes, mishaps = rng.choice((3, 4)), min(rng.randint(3, 6), wanted - survived)
        runs += 1
        try:
            story = disturbed(line.folder / f"seed{seed}", seed, nodes, mishaps, sets=sets, nodes_max=5, early=True)
        except ClusterError as failure:
            failed.append(seed)
            line.note(f"seed {seed}, {nodes} nodes: {failure}")
            continue
        line.note(f"{story.weights_hash}  seed {seed}, {nodes} nodes, {story.generations} generations: "
                  + ", ".join(story.told))
        hashes.add(story.weights_hash)
        survived += len(story.told)
        compared += story.compared
    line.command(f"{runs} runs of 3 or 4 workers, seeds {line.seed * 100_000} … {line.seed * 100_000 + runs - 1}")
    line.at_least("kills, joins and drains survived", survived, wanted)
    line.show("seeds of runs that hung, failed, or left a process, thread, descriptor, memfd or file over", failed,
              "none", not failed)
    line.note(f"{compared} times the resources of a surviving process were compared with before")
    line.show("weights_hash of all runs and of an undisturbed one", sorted(hashes | {reference}), "one value",
              hashes == {reference})


def leaks(line):
    """After many losses and joins a survivor holds as many descriptors, memfds and threads as after the first."""
    look, rounds = Resources(line.folder / "leaks"), line.repeat(LEAK_ROUNDS)
    line.command(f"{rounds} times: a worker of 3 is killed or leaves, another joins")
    with running(line, "leaks", 3) as cluster:
        rng = random.Random(line.seed)
        survivor, others = cluster.workers[0], list(cluster.workers[1:])
        pids = survivor.rank_pids()
        look.check(pids)
        for i in range(rounds):
            victim = others.pop(0)
            rng.choice((victim.kill_machine, victim.term))()
            cluster.wait_world(2, STEP_TIMEOUT_S)
            others.append(cluster.start_worker(f"r{i}"))
            cluster.wait_world(3, STEP_TIMEOUT_S)
            look.check(pids)
        line.show("rank of the survivor", survivor.rank_pids(), f"{pids}", survivor.rank_pids() == pids)
    line.at_least("times its resources were as at the start", look.compared, rounds)


# ---------------------------------------------------------------- signals

def _timed_exit(line, process, number, what):
    started = time.monotonic()
    process.signal(number)
    code = process.wait(EXIT_BAR_S + 20)
    line.at_most(f"{what}, {signal.Signals(number).name}: exit {code} after", round(time.monotonic() - started, 2),
                 EXIT_BAR_S, "s")


def _worker_states(folder, number):
    """(description, cluster, worker) for each state in which a worker may be told to end."""
    def cluster_of(name, server=True, **keys):
        cluster = Cluster(folder / f"{name}-{number.name}", sets=endless(**keys))
        if server:
            cluster.start_server()
        return cluster

    cluster = cluster_of("no-server", server=False, cluster__timeout_s=30)
    worker = cluster.start_worker("a", endpoint="127.0.0.1:1")
    worker.wait_log(r"127\.0\.0\.1:1\b", 20)
    yield "worker that finds no server", cluster, worker

    cluster = cluster_of("starting")
    yield "worker that has just been started", cluster, cluster.start_worker("a")

    cluster = cluster_of("waiting", cluster__nnodes="2")
    worker = cluster.start_worker("a")
    worker.wait_ranks(1, 20)
    pause(0.5)
    yield "worker that waits for a second node", cluster, worker

    cluster = cluster_of("settling", cluster__nnodes="1:3", cluster__timeout_s=60)
    worker = cluster.start_worker("a")
    worker.wait_ranks(1, 20)
    yield "worker in its last call", cluster, worker

    for nodes in (1, 2):
        cluster = cluster_of(f"training{nodes}")
        workers = [cluster.start_worker(f"n{i}") for i in range(nodes)]
        cluster.wait_world(nodes, STEP_TIMEOUT_S)
        yield f"worker that trains, one of {nodes}", cluster, workers[0]

    cluster = cluster_of("checkpointing", checkpoint__every_steps=1, model__n_embd=512, model__n_layer=6)
    worker = cluster.start_worker("a")
    cluster.wait_step(3, STEP_TIMEOUT_S)
    yield "worker that writes checkpoints", cluster, worker

    cluster = cluster_of("server-gone")
    worker = cluster.start_worker("a")
    cluster.wait_step(3, STEP_TIMEOUT_S)
    cluster.server.kill()
    yield "worker that trains while the server is gone", cluster, worker

    cluster = cluster_of("embedded", server=False)
    worker = cluster.start_worker("a", endpoint=False, nnodes=1)
    cluster.wait_step(3, STEP_TIMEOUT_S)
    yield "worker with the server embedded", cluster, worker


def signals_end_all(line):
    """Every program exits within 10 s of SIGTERM or SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        line.command(f"kill -{number.name[3:]} of dpt-rdzv, dpt-worker in each state, and the tools")
        for what, cluster, worker in _worker_states(line.folder, number):
            with cluster:
                _timed_exit(line, worker, number, what)
                left = [p for p in cluster.pids() if cluster.server is None or p != cluster.server.pid]
                others = [p for w in cluster.workers if w is not worker for p in w.family()]
                stray = [p for p in left if p not in others and proc_alive(p)]
                if stray:
                    line.show(f"{what}: processes left over", stray, "none", False)
                if cluster.server and cluster.server.alive():
                    _timed_exit(line, cluster.server, number, "server after that")
        with Cluster(line.folder / f"idle-{number.name}") as cluster:
            _timed_exit(line, cluster.start_server(), number, "server without runs")
        _tools_end(line, number)


def _tools_end(line, number):
    """Programs without a server, in the middle of their work. The quickstart may build or run its demonstration."""
    text = line.folder / "text.txt"
    if not text.exists():
        text.write_bytes(make_text(line.folder / "seed.txt").read_bytes() * 500)
    tools = {"dpt-bench gemm": [program("dpt-bench"), "gemm"],
             "dpt-bench comm": [program("dpt-bench"), "comm"],
             "dpt-bench recover": [program("dpt-bench"), "recover", "--trials", "50"],
             "dpt-data encode": [program("dpt-data"), "encode", "--out", line.folder / f"shards-{number.name}", text],
             "deploy/quickstart": [ROOT / "deploy" / "quickstart"]}
    for what, argv in tools.items():
        with Cluster(line.folder / f"{what.replace(' ', '-').replace('/', '-')}-{number.name}") as mark:
            tool = Process(what, argv, mark.root / "log", mark.env)
            pause(0.3 if what == "dpt-data encode" else 4.0)
            if not tool.alive():
                raise ClusterError(f"{what} ended before it was told to end\n{tool.log_tail()}")
            _timed_exit(line, tool, number, what)
            wait_until(f"the processes of {what} are gone", lambda m=mark: not m.pids(), SETTLE_TIMEOUT_S)
