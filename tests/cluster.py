"""Small dpt clusters on one machine: starts a server and workers, injects faults, and observes the effects.

Shared by tests/multi (pytest), tests/acceptance and deploy/quickstart; standard library only.

    with Cluster(tmp_path / "c", sets={"train.steps": 40}) as cluster:
        cluster.start_server()
        a = cluster.start_worker("a")
        b = cluster.start_worker("b")
        cluster.wait_step(5, timeout=20)
        b.kill()
        assert a.wait(timeout=60) == 0
        cluster.check_nothing_left()

No function sleeps to synchronise. Every wait polls a condition until a deadline; at the deadline it raises an error
with the condition's name and the tails of the logs. Leaving the `with` block kills the cluster's remaining processes
and no others: every process of a cluster inherits a mark in its environment.
"""

import functools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from datetime import datetime
from pathlib import Path

from outputs import ClusterError, Outputs, read_jsonl  # noqa: F401
from processes import MARK, marked_pids, proc_alive, proc_children, proc_read, proc_state, send_signal

ROOT = Path(__file__).resolve().parent.parent
POLL_S = 0.01
LOG_TAIL_LINES = 15
TINY = ROOT / "configs" / "tiny.yaml"


def quiet_port():
    """A free port below the range from which the kernel may give a port to any process on the machine."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.randrange(max(low - 16384, 1024), low)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise ClusterError(f"no free port was found below {low}")


def bin_dir():
    """The folder of the programs: $DPT_BIN, else build/bin of this checkout."""
    return Path(os.environ.get("DPT_BIN", ROOT / "build" / "bin"))


def program(name):
    path = bin_dir() / name
    if not path.exists():
        raise ClusterError(f"{path} is not built; run: cmake --preset release && cmake --build --preset release")
    return path


@functools.cache
def knows_option(name):
    """Whether dpt-rdzv has this option: some tests compare with the programs of an earlier commit."""
    return name in subprocess.run([program("dpt-rdzv"), "--help"], capture_output=True, text=True, timeout=30).stdout


def wait_until(what, condition, timeout, context=None, poll_s=POLL_S):
    """Polls `condition` until it is true and returns its value; ClusterError after `timeout` seconds.

    `context`, when given, is called for text that explains a failure (log tails)."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise ClusterError(f"not within {timeout:g} s: {what}" + ("\n" + context() if context else ""))
        time.sleep(poll_s)


# ---------------------------------------------------------------- programs

def hear_hangups():
    """Programs do not inherit the effect of nohup if the test was started with it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Process:
    """One program with its output in a file."""

    def __init__(self, name, argv, log_path, env=None, cwd=None):
        self.name, self.argv, self.log_path = name, [str(a) for a in argv], Path(log_path)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log_path, "ab") as log:
            self.popen = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=cwd,
                                          start_new_session=True, preexec_fn=hear_hangups)
        self.pid = self.popen.pid

    def alive(self):
        return self.popen.poll() is None

    def returncode(self):
        """None while running; negative: the signal that ended it."""
        return self.popen.poll()

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines=LOG_TAIL_LINES):
        tail = self.log().splitlines()[-lines:]
        return f"--- {self.name} (pid {self.pid}, exit {self.returncode()}): {self.log_path}\n" + "\n".join(tail)

    def wait(self, timeout):
        """Exit code; ClusterError when the program does not end in time."""
        return wait_until(f"{self.name} ends", lambda: (self.popen.poll() is not None, self.popen.returncode)
                          if self.popen.poll() is not None else None, timeout, self.log_tail)[1]

    def signal(self, number):
        if self.alive():
            self.popen.send_signal(number)

    def term(self):
        self.signal(signal.SIGTERM)

    def kill(self):
        """kill -9 of the program alone, and waits until it is gone."""
        self.signal(signal.SIGKILL)
        self.popen.wait()

    def wait_log(self, pattern, timeout):
        """Waits until a line of the program's output matches the regular expression; returns the match."""
        return wait_until(f"{self.name} prints /{pattern}/", lambda: re.search(pattern, self.log()), timeout,
                          self.log_tail)


class Worker(Process):
    """A dpt-worker: the agent, and the rank processes that it started."""

    def __init__(self, node, argv, log_path, log_dir, checkpoint_dir, env=None):
        super().__init__(f"worker {node}", argv, log_path, env)
        self.node, self.outputs, self.checkpoint_dir = node, Outputs(log_dir), Path(checkpoint_dir)

    def rank_pids(self):
        """Rank processes that run now: children of the agent whose first argument is --rank."""
        return sorted(pid for pid in proc_children(self.pid)
                      if proc_read(pid, "cmdline").split(b"\0")[1:2] == [b"--rank"] and proc_alive(pid))

    def family(self):
        return [self.pid] + proc_children(self.pid)

    def wait_ranks(self, count, timeout):
        def all_there():
            pids = self.rank_pids()
            return pids if len(pids) == count else None
        return wait_until(f"{self.name} has {count} ranks", all_there, timeout, self.log_tail)

    def log_tail(self, lines=LOG_TAIL_LINES):
        text = super().log_tail(lines)
        for path in sorted((self.outputs.dir / f"node-{self.node}").glob("rank-*.log")):
            text += f"\n--- {path}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
        return text

    def freeze(self):
        """Sends SIGSTOP to the agent and all its ranks, so that the whole machine stops. Returns the stopped pids."""
        send_signal(self.pid, signal.SIGSTOP)
        pids = self.family()
        for pid in pids[1:]:
            send_signal(pid, signal.SIGSTOP)
        wait_until(f"{self.name} is stopped", lambda: all(proc_state(p) in ("T", "t", "Z", "") for p in pids), 15)
        return pids

    @staticmethod
    def thaw(pids):
        for pid in pids:
            send_signal(pid, signal.SIGCONT)

    def kill_machine(self):
        """kill -9 of the agent, as if power failed. Waits until its ranks have died with it, as they must."""
        pids = self.family()
        self.kill()
        wait_until(f"the ranks of {self.name} end with their agent", lambda: not any(proc_alive(p) for p in pids), 15)
        return pids


def make_text(path, bytes_total=200_000, seed=1):
    """Writes a text for byte tokens whose loss falls within a few steps of a small model: words of a small vocabulary
    with unequal frequencies, drawn from the seed. Returns the path."""
    rng = random.Random(seed)
    words = ["".join(rng.choice("abcdefghijklmnopqrst") for _ in range(rng.randint(1, 7))) for _ in range(300)]
    weights = [1 / (i + 1) for i in range(len(words))]
    text = []
    size = 0
    while size < bytes_total:
        sentence = " ".join(rng.choices(words, weights, k=rng.randint(4, 12))).capitalize() + ".\n"
        text.append(sentence)
        size += len(sentence)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(text)[:bytes_total])
    return path


def checkpoint_hash(folder):
    """The weights hash of the checkpoint in `folder`, as dpt-ckpt computes it from the files."""
    done = subprocess.run([program("dpt-ckpt"), "hash", str(folder)], capture_output=True, text=True, timeout=120,
                          check=False)
    if done.returncode != 0:
        raise ClusterError(f"dpt-ckpt hash {folder}: {done.stderr}")
    return done.stdout.strip()


class Cluster:
    """One server and any number of workers. All files are under `root`, which is created.

    Every worker has the config file `config` with the keys of `sets` changed ({"train.steps": 40}). Each worker has its
    own log.dir and checkpoint.dir under root/NODE, as on separate machines. With `shared_dirs=True` all have root/log
    and root/checkpoints. If `sets` does not name `data.train`, the cluster makes a text. Without `journal` a server
    that is started again knows nothing of earlier runs, so it takes a run of the same name with another config."""

    def __init__(self, root, config=TINY, sets=None, shared_dirs=False, threads=1, journal=False):
        self.root = Path(root).resolve()
        self.root.mkdir(parents=True, exist_ok=True)
        self.config, self.sets = Path(config), dict(sets or {})
        if self.config == TINY and "data.train" not in self.sets:
            self.sets["data.train"] = make_text(self.root / "text.txt")
        self.shared_dirs, self.threads = shared_dirs, threads
        if "cluster.threads" in (sets or {}):
            raise ClusterError("give cluster.threads as `threads`, which would override it")
        self.mark = uuid.uuid4().hex
        self.env = dict(os.environ, **{MARK: self.mark})
        self.env.pop("DPT_RDZV_ENDPOINT", None)
        self.server, self.port, self.workers, self._starts = None, 0, [], 0
        self.state_dir = self.root / "rdzv-state" if journal else "none"

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.stop()

    # -- starting

    def start_server(self, port=0, args=(), timeout=30, env=None, before=()):
        """Starts dpt-rdzv and waits until it listens. port 0: a port that the kernel gives to no other process while
        the server is down; the server is then told that no node knows an earlier one. A restart keeps the port.
        `before`: a program that starts the server, with its arguments."""
        if port == 0:
            port, args = quiet_port(), [*(["--fresh"] if knows_option("--fresh") else []), *args]
        port_file = self.root / f"rdzv-{self._next()}.port"
        if "--state-dir" not in args and knows_option("--state-dir"):
            args = ["--state-dir", self.state_dir, *args]
        bind = [] if "--bind" in args else ["--bind", "127.0.0.1"]
        argv = [*before, program("dpt-rdzv"), "--port", port, "--port-file", port_file, *bind, *args]
        server = self.server = Process("dpt-rdzv", argv, self.root / "rdzv.log", dict(self.env, **(env or {})))

        def listening():
            text = port_file.read_text() if port_file.exists() else ""
            if text.endswith("\n") or text.strip().isdigit():
                return int(text)
            if not server.alive():
                raise ClusterError("the server ended at start\n" + server.log_tail())
            return None
        self.port = wait_until("the server listens", listening, timeout, server.log_tail)
        return server

    def restart_server(self, **options):
        """A new server process on the old port."""
        return self.start_server(port=self.port, **options)

    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    def dirs(self, node):
        base = self.root if self.shared_dirs else self.root / node
        return (base / "log", base / "checkpoints")

    def worker_argv(self, node, sets=None, args=(), config=None, nnodes=None, ranks=None, endpoint=None, node_id=True):
        """Command line of a worker. `sets` adds to the cluster's; `ranks`: number of rank processes; `config=False`:
        no --config, only the node's own keys (the run's keys come from the server); `endpoint=False`: no endpoint;
        `node_id=False`: no --node-id, so that the worker draws one."""
        log_dir, checkpoint_dir = self.dirs(node)
        argv = [program("dpt-worker")] + (["--node-id", node] if node_id else [])
        if config is not False:
            argv += ["--config", config or self.config]
        if endpoint is not False:
            argv += ["--rdzv-endpoint", endpoint or self.endpoint()]
        if nnodes is not None:
            argv += ["--nnodes", nnodes]
        values = {} if config is False else dict(self.sets)
        values.update({"log.dir": log_dir, "checkpoint.dir": checkpoint_dir, "cluster.threads": self.threads})
        if nnodes is not None:
            values.pop("cluster.nnodes", None)  # --nnodes is that key
        if ranks is not None:
            values["cluster.gpus_per_node"] = ranks
        values.update(sets or {})
        for key, value in values.items():
            argv += ["--set", f"{key}={value}"]
        return argv + list(args)

    def start_worker(self, node, env=None, **options):
        """Starts a worker (options: see worker_argv). A node id may be started again after its process ended."""
        argv = self.worker_argv(node, **options)
        faults = ("DPT_TEST_FLIP_", "DPT_TEST_SPOIL_", "DPT_TEST_SLOW_", "DPT_TEST_WRONG_")
        if any(name.startswith(faults) for name in env or {}):
            argv[0] = bin_dir().parent / "tests" / "dpt-worker-with-faults"  # faults.c, health_fault.c
        log_dir, checkpoint_dir = self.dirs(node)
        log_dir = (options.get("sets") or {}).get("log.dir", log_dir)
        worker = Worker(node, argv, self.root / f"worker-{node}-{self._next()}.log", log_dir, checkpoint_dir,
                        dict(self.env, **(env or {})))
        self.workers.append(worker)
        return worker

    def _next(self):
        self._starts += 1
        return self._starts

    # -- watching

    def formed_at(self, after):
        """Epoch seconds at which the server began to form the first generation after `after`; None: not yet."""
        for line in (self.root / "rdzv.log").read_text().splitlines():
            found = re.match(r"(\S+)Z I dpt-rdzv: .* forming generation (\d+)", line)
            if found and int(found[2]) > after:
                return datetime.fromisoformat(found[1] + "+00:00").timestamp()
        return None

    def log_tails(self):
        parts = [self.server.log_tail()] if self.server else []
        return "\n".join(parts + [w.log_tail() for w in self.workers[-4:]])

    def outputs(self):
        """Outputs of every distinct log.dir used so far."""
        return [Outputs(d) for d in dict.fromkeys(w.outputs.dir for w in self.workers)]

    def newest(self):
        """The line of the newest step that any node has logged, None when there is none."""
        lines = [line for outputs in self.outputs() if (line := outputs.newest())]
        return max(lines, key=lambda line: (line["step"], line["generation"]), default=None)

    def step(self):
        """Newest step that any node has logged, -1 when none."""
        line = self.newest()
        return line["step"] if line else -1

    def checkpoint_dirs(self):
        """Folders that hold a checkpoint. If nodes have separate folders, only the node of rank 0 writes."""
        folders = dict.fromkeys(w.checkpoint_dir for w in self.workers)
        return [folder for folder in folders if list(folder.glob("step-*"))]

    def checkpoints(self):
        """{step: folder} of the checkpoints of all nodes."""
        return {int(path.name[5:]): path for folder in self.checkpoint_dirs() for path in folder.glob("step-*")}

    def newest_checkpoint(self):
        """(step, weights hash) of the newest checkpoint of any node."""
        found = self.checkpoints()
        if not found:
            raise ClusterError("no checkpoint\n" + self.log_tails())
        return max(found), checkpoint_hash(found[max(found)])

    def summaries(self):
        return [s for s in (o.summary() for o in self.outputs()) if s]

    def events(self):
        """The events of all nodes in order, one for each generation."""
        seen = {}
        for outputs in self.outputs():
            for event in outputs.events():
                seen.setdefault(event["generation"], event)
        return [seen[g] for g in sorted(seen)]

    def metrics(self):
        """One line for each step, in order. If several nodes logged a step, the line of the newest generation."""
        lines = {}
        for outputs in self.outputs():
            for line in outputs.metrics():
                if line["step"] not in lines or line["generation"] > lines[line["step"]]["generation"]:
                    lines[line["step"]] = line
        return [lines[s] for s in sorted(lines)]

    def wait_step(self, step, timeout, alive=True):
        """Waits until some node has logged `step` or a later one; fails at once when every worker has ended (unless
        `alive` is False)."""
        def reached():
            if self.step() >= step:
                return True
            if alive and self.workers and not any(w.alive() for w in self.workers):
                if self.step() >= step:
                    return True
                raise ClusterError(f"every worker ended before step {step}\n" + self.log_tails())
            return False
        wait_until(f"step {step} (now {self.step()})", reached, timeout, self.log_tails)

    def wait_world(self, world_size, timeout):
        """Waits until the newest logged step was made by `world_size` ranks."""
        def grown():
            line = self.newest()
            return line is not None and line["world_size"] == world_size
        wait_until(f"a step at world size {world_size}", grown, timeout, self.log_tails)

    def wait_done(self, timeout):
        """Waits until every worker that still runs has ended; returns {node: exit code} of the newest start of each."""
        wait_until("every worker ends", lambda: not any(w.alive() for w in self.workers), timeout, self.log_tails, 0.02)
        return {w.node: w.returncode() for w in self.workers}

    # -- ending

    def pids(self):
        return marked_pids(self.mark)

    def stop(self):
        """Kills the remaining processes of this cluster and no others. Bounded."""
        for _ in range(50):
            pids = self.pids()
            for pid in pids:
                send_signal(pid, signal.SIGKILL)
            for process in ([self.server] if self.server else []) + self.workers:
                process.popen.poll()
            if not pids:
                return
            time.sleep(0.02)
        print(f"cluster {self.root}: processes that would not die: {self.pids()}", file=sys.stderr)

    def check_nothing_left(self, timeout=15, unreplaced=()):
        """After workers and server have ended: checks that none of their processes lives and that no unfinished
        checkpoint is left. Workers in `unreplaced` lost a rank that got no successor: its unfinished files stay until
        the next start. A run that failed leaves a rescue of the steps that no checkpoint has."""
        wait_until(f"no process is left (now {[(p, proc_read(p, 'cmdline')) for p in self.pids()]})",
                   lambda: not self.pids(), timeout)
        strays = []
        killed = {w.checkpoint_dir: w.returncode() == -signal.SIGKILL or w in unreplaced for w in self.workers}
        failed = {w.checkpoint_dir for w in self.workers if w.returncode() == 4}
        for directory in filter(Path.is_dir, killed):
            for path in directory.iterdir():
                # On a machine that lost power unfinished files stay until it starts again.
                cut_short = killed[directory] and path.name.startswith((".tmp-step-", ".dpt-dir-id."))
                known = ("step-", "OWNER.", "rescue-step-") if directory in failed else ("step-", "OWNER.")
                if not (path.name.startswith(known) or path.name == ".dpt-dir-id" or cut_short):
                    strays.append(str(path))
        if strays:
            raise ClusterError(f"files left over: {strays}")
