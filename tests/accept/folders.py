"""One run owns its folders: seeded kills of the owner, its server or everything, while another run and a second start
of the same command try to use the same log.dir and checkpoint.dir. `contest` is one trial, `contests` are several,
`kills` runs contests until enough kills have hit."""

import random
import signal
import subprocess
import time
from collections import Counter

from cluster import Cluster, ClusterError, program, wait_until

STEPS, EVERY = 80, 5
KINDS, WEIGHTS = ("owner", "server", "everything"), (2, 2, 1)
STRIKES = 2  # of a contest; a strike after the end of the run does not count
EMBEDDED = 0.25  # share of contests in which the owner contains the server, so that both die at once


class Lost(ClusterError):
    """A committed checkpoint is gone, or a later start resumed from an earlier one."""


class Mixed(ClusterError):
    """Two runs, or two worlds of one run, have written one log."""


class Contest:
    """The owner of the folders (a worker with a server inside, or a server and one or two workers), two contenders."""

    def __init__(self, root, seed, slow=1.0):
        self.rng, self.slow = random.Random(seed), slow
        sets = {"run": "owner", "train.steps": STEPS, "checkpoint.every_steps": EVERY, "cluster.timeout_s": 1}
        self.cluster = Cluster(root, sets=sets, shared_dirs=True)
        self.embedded = self.rng.random() < EMBEDDED
        self.nodes = ["a"] if self.embedded or self.rng.random() < 0.5 else ["a", "b"]
        self.owners, self.refused, self.newest = {}, 0, -1
        self.contenders = {"other": None, "twin": None}
        self.killed = Counter()  # strikes that killed a process, by kind
        self.committed = []  # at each strike: (events so far, step of the newest checkpoint)

    def start_owner(self, node):
        if self.embedded:
            self.owners[node] = self.cluster.start_worker(node, nnodes=1, endpoint=False)
        else:
            self.owners[node] = self.cluster.start_worker(node, nnodes=f"1:{len(self.nodes)}")

    def start_contender(self, name):
        sets = {"run": "other"} if name == "other" else None
        self.contenders[name] = self.cluster.start_worker(name, nnodes=1, endpoint=False, sets=sets)

    def starts(self):
        """The events of generations that start, in order."""
        return [e for e in self.cluster.outputs()[0].events() if "resume_step" in e]

    def look(self):
        """Checks that the newest checkpoint is not older than at the last look."""
        folder = self.cluster.dirs("a")[1]
        newest = max((int(path.name[5:]) for path in folder.glob("step-*")), default=-1)
        if newest < self.newest:
            raise Lost(f"checkpoint of step {self.newest} is lost; the newest is of step {newest}")
        self.newest = newest

    def keep_contenders(self):
        for name, process in self.contenders.items():
            if process is not None and process.alive():
                continue
            if process is not None:
                code = process.returncode()
                if name == "other" and code != 2:
                    raise ClusterError("another run was not refused\n" + process.log_tail())
                if code not in (0, 2, -signal.SIGKILL):
                    raise ClusterError("a second start ended with a wrong exit code\n" + process.log_tail())
                self.refused += code == 2
            if not self.is_done():
                self.start_contender(name)

    def keep_owners(self):
        """Starts owners again that were killed, or refused because the second start had taken their place."""
        for node in self.nodes:
            process = self.owners[node]
            if process.alive() or process.returncode() == 0:
                continue
            if process.returncode() not in (-signal.SIGKILL, 2):
                raise ClusterError("the owner ended with a wrong exit code\n" + process.log_tail())
            if not self.is_done():
                self.start_owner(node)

    def is_done(self):
        summary = self.cluster.outputs()[0].summary()
        return summary is not None and summary["steps"] == STEPS

    def strike(self):
        """Kills the workers that train now, the server, or both; returns False if none trains. The second start, which
        may have taken a dead owner's place, contains its server."""
        twin = self.contenders["twin"]
        training = [p for p in (*self.owners.values(), twin) if p is not None and p.alive() and p.rank_pids()]
        if not training:
            return False
        inside = self.embedded or twin in training
        kind = "everything" if inside else self.rng.choices(KINDS, WEIGHTS)[0]
        victims = [] if kind == "server" else training
        if kind != "owner" and not inside:
            victims = [self.cluster.server, *victims]
        self.look()
        self.committed.append((len(self.starts()), self.newest))
        for process in victims:
            process.kill() if process is self.cluster.server else process.kill_machine()
        if all(process.returncode() == -signal.SIGKILL for process in victims) and not self.is_done():
            self.killed[kind] += 1
        if self.cluster.server in victims:
            self.cluster.restart_server(timeout=30 * self.slow)
        self.look()
        return True

    def run(self):
        if not self.embedded:
            self.cluster.start_server()
        for node in self.nodes:
            self.start_owner(node)
        strikes = sorted(self.rng.randrange(1, STEPS) for _ in range(STRIKES))
        self.cluster.wait_step(1, 60 * self.slow)
        deadline = time.monotonic() + 120 * self.slow
        while not self.is_done():
            if time.monotonic() > deadline:
                raise ClusterError("the run did not end in time\n" + self.cluster.log_tails())
            self.keep_contenders()
            self.keep_owners()
            self.look()
            if strikes and self.cluster.step() >= strikes[0] and self.strike():
                strikes.pop(0)
            time.sleep(0.02)  # tidy: pause of a bounded poll
        for process in [*self.owners.values(), *(p for p in self.contenders.values() if p)]:
            process.wait(60 * self.slow)
        if self.cluster.server:
            self.cluster.server.term()
            self.cluster.server.wait(30 * self.slow)
        self.check_checkpoints()
        self.check_log()

    def check_checkpoints(self):
        starts = self.starts()
        for count, newest in self.committed:
            behind = [e["resume_step"] for e in starts[count:] if e["resume_step"] < newest]
            if behind:
                raise Lost(f"checkpoint {newest} was committed, and a later start went on from step {behind[0]}")
        listed = subprocess.run([program("dpt-ckpt"), "list", "--verify", str(self.cluster.dirs("a")[1])],
                                capture_output=True, text=True, timeout=60, check=False)
        if listed.returncode != 0 or f"step-{STEPS:08}  verified" not in listed.stdout:
            raise Lost("a checkpoint is damaged or missing\n" + listed.stdout + listed.stderr)

    def check_log(self):
        """Checks that only the owner wrote the files; that a step is logged again only after a start which resumes
        before it, once for each such start, in any generation; and that no line is older than the one above it."""
        outputs = self.cluster.outputs()[0]
        lines = outputs.metrics()
        runs = {line["run"] for line in [*lines, outputs.summary()]}
        runs |= {event["run"] for event in outputs.events() if "run" in event}
        if runs != {"owner"}:
            raise Mixed(f"lines of several runs in one log.dir: {runs}")
        back, losses = Counter(e["resume_step"] for e in self.starts()), {}
        for before, line in zip([{"step": STEPS, "time": 0}, *lines], lines):
            step = line["step"]
            if step <= before["step"]:
                back[step - 1] -= 1
                if back[step - 1] < 0:
                    raise Mixed(f"generation {line['generation']}, step {step} is there again, with no start before it")
            elif step != before["step"] + 1:
                raise Mixed(f"metrics.jsonl jumps from step {before['step']} to {step}")
            if line["time"] < before["time"]:
                raise Mixed(f"the line of step {step} is older than the one above it")
            if losses.setdefault(step, line["loss"]) != line["loss"]:
                raise Mixed(f"two losses of step {step}")


def calm_hash(root, slow):
    """The weights hash of an undisturbed run."""
    with Cluster(root, sets={"run": "owner", "train.steps": STEPS}) as calm:
        worker = calm.start_worker("a", nnodes=1, endpoint=False)
        wait_until("the calm run ends", lambda: not worker.alive(), 120 * slow, worker.log_tail)
        return calm.summaries()[0]["weights_hash"]


def contest(root, seed, expected, slow=1.0):
    """Runs one contest and returns it. Raises ClusterError with the seed, also if the weights differ."""
    trial = Contest(root / f"trial-{seed}", seed, slow)
    try:
        trial.run()
        trial.cluster.check_nothing_left()
        found = trial.cluster.summaries()[0]["weights_hash"]
        if found != expected:
            raise ClusterError(f"weights {found} instead of {expected}")
        return trial
    except ClusterError as error:
        raise type(error)(f"seed {seed}: {error}") from error
    except ValueError as error:
        raise Mixed(f"seed {seed}: a line that is no JSON: {error}") from error
    finally:
        trial.cluster.stop()


def contests(root, trials, seed, slow=1.0):
    """Trials `seed`, `seed` + 1, …: all end with the weights of a calm run. Returns how many were refused in all."""
    expected = calm_hash(root / "calm", slow)
    return sum(contest(root, seed + i, expected, slow).refused for i in range(trials))


def kills(root, wanted, seed):
    """Runs contests from `seed` on until `wanted` strikes have killed, with one of each kind at least, or until twice
    `wanted` contests are over. Returns (killed by kind, refused starts, contests, errors)."""
    expected = calm_hash(root / "calm", 1.0)
    killed, refused, errors, count = Counter(), 0, [], 0
    while count < 2 * wanted + 20 and (killed.total() < wanted or len(killed) < len(KINDS)):
        try:
            trial = contest(root, seed + count, expected)
            killed, refused = killed + trial.killed, refused + trial.refused
        except ClusterError as error:
            errors.append(error)
        count += 1
    return killed, refused, count, errors
