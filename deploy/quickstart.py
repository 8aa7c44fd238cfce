"""Shows a kill and a join on this machine; deploy/quickstart starts it. Standard library only.

A server and two workers, each with its own folders like a separate machine, train a GPT-2. Machine B is killed with -9
in the middle of a step, machine A continues, machine C takes B's place, the run ends. Then the same config runs
undisturbed in one process, in another empty directory. Both runs must end with the same weights_hash: exit 0, else 1
and the ends of the logs."""

import argparse
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "runs" / "quickstart"
CONFIG = ROOT / "configs" / "quickstart.yaml"
BIN = ROOT / "build" / "bin"
TEXTS = ["usr/share/dictd/foldoc.dict.dz", "usr/share/dictd/gcide.dict.dz"]
START_TIMEOUT_S = 30
STEP_TIMEOUT_S = 60  # longest time without a step before the demonstration fails
EXIT_TIMEOUT_S = 30
TTY = sys.stdout.isatty()
COLOUR = TTY and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


class Failed(Exception):
    """The demonstration failed; the text says where."""


# ---------------------------------------------------------------- the screen

def paint(code, text):
    return f"\033[{code}m{text}\033[0m" if COLOUR else text


def bold(text):
    return paint("1", text)


class Screen:
    """Lines that stay, and on a terminal one live line below them."""

    def __init__(self):
        self.live_shown = False
        self.last_plain = 0.0

    def say(self, text=""):
        self.clear()
        print(text, flush=True)

    def chapter(self, number, title):
        self.say()
        self.say(bold(f"{number}. {title}"))

    def fact(self, name, text):
        self.say(f"   {name:<14}{text}")

    def live(self, text):
        """Shows the newest progress; without a terminal, a line every five seconds."""
        if TTY:
            width = shutil.get_terminal_size().columns - 1
            print("\r" + paint("36", f"   {text}"[:width]) + "\033[K", end="", flush=True)
            self.live_shown = True
        elif time.monotonic() - self.last_plain >= 5:
            self.last_plain = time.monotonic()
            print(f"   {text}", flush=True)

    def clear(self):
        if self.live_shown:
            print("\r\033[K", end="")
            self.live_shown = False


screen = Screen()


# ---------------------------------------------------------------- processes

class Program:
    """A program of dpt with its output in a file."""

    def __init__(self, name, argv, log):
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as out:
            self.popen = subprocess.Popen([str(a) for a in argv], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out,
                                          stderr=out, start_new_session=True)
        programs.append(self)

    @property
    def pid(self):
        return self.popen.pid

    def ended(self):
        return self.popen.poll() is not None

    def kill(self):
        if not self.ended():
            self.popen.kill()
        self.popen.wait()

    def tail(self, lines=12):
        text = self.log.read_text(errors="replace").splitlines()[-lines:]
        return f"--- {self.name}: {self.log.relative_to(ROOT)}\n" + "\n".join(text)

    def ranks(self):
        """Process ids of the rank processes that this worker has started."""
        try:
            return sorted(int(c) for task in os.listdir(f"/proc/{self.pid}/task")
                          for c in Path(f"/proc/{self.pid}/task/{task}/children").read_text().split())
        except OSError:
            return []


programs = []


class Worker(Program):
    """A dpt-worker with its own folders, like a separate machine; one thread by default."""

    def __init__(self, name, folder, flags, threads):
        self.dir = folder
        argv = [BIN / "dpt-worker", "--config", CONFIG.relative_to(ROOT), *flags, "--set", f"log.dir={rel(folder)}",
                "--set", f"checkpoint.dir={rel(folder / 'checkpoints')}", "--set", f"cluster.threads={threads}",
                "--set", f"train.steps={options.steps}"]
        self.metrics_read, self.metrics = 0, []
        super().__init__(name, argv, folder / "worker.log")

    def lines(self):
        """Objects of metrics.jsonl so far."""
        try:
            with open(self.dir / "metrics.jsonl", "rb") as file:
                file.seek(self.metrics_read)
                new = file.read()
        except FileNotFoundError:
            return self.metrics
        new = new[:new.rfind(b"\n") + 1]
        self.metrics_read += len(new)
        self.metrics += [json.loads(line) for line in new.splitlines()]
        return self.metrics

    def summary(self):
        path = self.dir / "summary.json"
        if not path.exists():
            raise Failed(f"{self.name} ended without {rel(path)}")
        return json.loads(path.read_text())

    def events(self):
        path = self.dir / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def rel(path):
    return path.relative_to(ROOT)


def wait(what, condition, timeout, alive):
    """Polls until `condition` holds; raises Failed after `timeout` seconds, or at once when one of `alive` ends."""
    deadline = time.monotonic() + timeout
    while not condition():
        for program in alive:
            if program.ended() and not condition():
                raise Failed(f"{program.name} ended with exit code {program.popen.returncode} before {what}")
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {timeout} s")
        time.sleep(0.02)


def progress(worker):
    """The newest step of a worker: loss, speed, world size, time left."""
    lines = worker.lines()
    if not lines:
        return "waiting for the first step"
    last = lines[-1]
    recent = sorted(line["step_ms"] for line in lines[-15:])
    left = (options.steps - last["step"]) * recent[len(recent) // 2] / 1000
    plural = "s" if last["world_size"] != 1 else ""
    return (f"step {last['step']:>4}/{options.steps}   loss {last['loss']:.4f}   "
            f"{last['tokens_per_s']:>8,.0f} tokens/s   world {last['world_size']} rank{plural}   ETA {left:3.0f} s")


def train_until(worker, what, condition, alive):
    """Shows progress until `condition` holds; gives up when no step is completed for STEP_TIMEOUT_S."""
    deadline = time.monotonic() + STEP_TIMEOUT_S
    seen = -1
    while not condition():
        if worker.lines() and worker.metrics[-1]["step"] != seen:
            seen, deadline = worker.metrics[-1]["step"], time.monotonic() + STEP_TIMEOUT_S
        for program in alive:
            if program.ended() and not condition():
                raise Failed(f"{program.name} ended with exit code {program.popen.returncode} before {what}")
        if time.monotonic() > deadline:
            raise Failed(f"no step for {STEP_TIMEOUT_S} s while waiting for: {what}")
        screen.live(progress(worker))
        time.sleep(0.05)
    screen.clear()


# ---------------------------------------------------------------- the chapters

def prepare_text():
    """Writes the training text to runs/quickstart/text.txt; returns its size and name."""
    target = RUN / "text.txt"
    if options.text:
        shutil.copyfile(options.text, target)
        name = options.text
    else:
        places = [Path(base, text) for text in TEXTS for base in ("/", ROOT / "runs/packages")]
        found = [path for path in places if path.exists()]
        if not found:
            raise Failed("there is no text; run deploy/install-deps text, or name one with --text FILE")
        target.write_bytes(gzip.decompress(found[0].read_bytes()))
        names = {"foldoc": "Free On-line Dictionary of Computing", "gcide": "Collaborative Dictionary of English"}
        name = "the " + names[found[0].name.split(".")[0]]
    return f"{target.stat().st_size / 1e6:.1f} MB of text: {name}"


def start_server():
    port_file = RUN / "server" / "port"
    # Keys of the demonstration's server and workers, in place of the user's own.
    os.environ["DPT_KEY_DIR"] = str(RUN / "keys")
    argv = [BIN / "dpt-rdzv", "--bind", "127.0.0.1", "--port", 0, "--port-file", port_file]
    server = Program("server", argv, RUN / "server" / "rdzv.log")
    wait("the server listens", lambda: port_file.exists() and port_file.read_text().strip(), START_TIMEOUT_S, [server])
    return server, f"127.0.0.1:{int(port_file.read_text())}"


def join(name, endpoint):
    node = name.lower().replace(" ", "-")
    worker = Worker(name, RUN / "cluster" / node, ["--rdzv-endpoint", endpoint, "--node-id", node], threads=1)
    screen.fact(name, f"dpt-worker --config {rel(CONFIG)} --rdzv-endpoint {endpoint} …   (pid {worker.pid})")
    return worker


def kill_in_mid_step(survivor, victim, step):
    """kill -9 half a step after `step` was completed."""
    train_until(survivor, f"step {step}", lambda: survivor.lines() and survivor.metrics[-1]["step"] >= step,
                [survivor, victim])
    time.sleep(survivor.metrics[-1]["step_ms"] / 2000)
    victim.kill()


def recovery_text(event):
    """A line of events.jsonl in words; the "abort" of a join is the wait for the end of the step."""
    first = "end of step" if event["kind"] in ("joined", "left") else "abort"
    parts = [(first, "abort"), ("rendezvous", "rendezvous"), ("rebuild", "rebuild"), ("restore", "restore")]
    times = ", ".join(f"{name} {event[key + '_ms']:.0f}" for name, key in parts)
    noticed = f"noticed after {event['detect_ms']:.0f} ms, " if event["kind"] not in ("joined", "left") else ""
    return f"{noticed}training again after {event['total_ms']:.0f} ms ({times}), steps lost {event['steps_lost']}"


def say_recovery(worker, since):
    """Prints the recoveries that the worker has written since event number `since`; returns the number of events so
    far."""
    events = worker.events()
    for event in events[since:]:
        screen.fact(event["kind"].replace("_", " "), recovery_text(event))
    return len(events)


def disturbed():
    """Chapters 1 to 3; returns the survivor's summary and the wall time."""
    third = max(2, options.steps // 3)
    screen.chapter(1, "A server and two machines")
    server, endpoint = start_server()
    screen.fact("server", f"dpt-rdzv on {endpoint}   (pid {server.pid})")
    a, b = join("machine A", endpoint), join("machine B", endpoint)
    started = time.monotonic()
    train_until(a, "the first step at world size 2", lambda: a.lines() and a.metrics[-1]["world_size"] == 2,
                [server, a, b])
    ranks = a.ranks()
    said = len(a.events())

    kill_in_mid_step(a, b, third)
    killed = time.monotonic()
    screen.say(f"   {progress(a)}")
    completed = a.metrics[-1]["step"]
    screen.chapter(2, f"kill -9 of machine B, in the middle of step {completed + 1}")
    train_until(a, "a step by machine A alone", lambda: a.lines()[-1]["world_size"] == 1, [server, a])
    screen.fact("machine A", f"completed its next step {time.monotonic() - killed:.2f} s after the kill")
    said = say_recovery(a, said)
    alone_until = a.metrics[-1]["step"] + max(2, options.steps // 20)
    train_until(a, "some steps by machine A alone", lambda: a.lines()[-1]["step"] >= alone_until, [server, a])

    screen.say(f"   {progress(a)}")

    screen.chapter(3, "Machine C takes its place")
    c = join("machine C", endpoint)
    train_until(a, "a step at world size 2", lambda: a.lines()[-1]["world_size"] == 2 or a.ended(), [server, c])
    if a.metrics[-1]["world_size"] != 2:
        raise Failed("the run ended before machine C had joined; give it more steps with --steps")
    say_recovery(a, said)
    if a.ranks() != ranks:
        raise Failed(f"machine A's rank processes changed from {ranks} to {a.ranks()}: survivors must not restart")
    screen.fact("machine A", f"the same processes as at the start (ranks: pid {', '.join(map(str, ranks))})")
    train_until(a, "the end of the run", lambda: a.ended() and c.ended(), [server])
    screen.say(f"   {progress(a)}")
    for worker in (a, c):
        if worker.popen.returncode != 0:
            raise Failed(f"{worker.name} ended with exit code {worker.popen.returncode}")
    wall = time.monotonic() - started
    server.popen.send_signal(signal.SIGTERM)
    wait("the server ends after SIGTERM", server.ended, EXIT_TIMEOUT_S, [])
    return a, wall


def undisturbed():
    screen.chapter(4, "The same config, undisturbed, in one process, in another empty directory")
    worker = Worker("one machine", RUN / "alone", ["--nnodes", "1"], threads="auto")
    screen.fact("one machine", f"dpt-worker --config {rel(CONFIG)} --nnodes 1 …   (pid {worker.pid})")
    started = time.monotonic()
    train_until(worker, "the end of the run", worker.ended, [])
    screen.say(f"   {progress(worker)}")
    if worker.popen.returncode != 0:
        raise Failed(f"{worker.name} ended with exit code {worker.popen.returncode}")
    return worker, time.monotonic() - started


def verdict(cluster, cluster_s, alone, alone_s):
    """Prints the closing table; returns the problems, "" if there are none."""
    one, two = cluster.summary(), alone.summary()
    worlds = [line["world_size"] for line in cluster.lines()]
    phases = [w for i, w in enumerate(worlds) if i == 0 or worlds[i - 1] != w]
    screen.chapter(5, "Were the weights changed by any of this?")
    rows = [("", "with a kill and a join", "undisturbed"),
            ("world size", " → ".join(map(str, phases)), str(two["world_size"])),
            ("steps", f"{one['start_step']} … {one['steps']}", f"{two['start_step']} … {two['steps']}"),
            ("loss", f"{cluster.metrics[0]['loss']:.3f} → {one['loss']:.6f}",
             f"{alone.lines()[0]['loss']:.3f} → {two['loss']:.6f}"),
            ("steps lost", str(one["steps_lost"]), str(two["steps_lost"])),
            ("tokens/s", f"{one['tokens_per_s']:,.0f}", f"{two['tokens_per_s']:,.0f}"),
            ("wall time", f"{cluster_s:.1f} s", f"{alone_s:.1f} s"),
            ("weights_hash", one["weights_hash"], two["weights_hash"])]
    width = max(len(row[1]) for row in rows) + 3
    for name, left, right in rows:
        screen.say(f"   {name:<14}{left:<{width}}{right}")
    screen.say()
    problems = []
    if one["weights_hash"] != two["weights_hash"]:
        problems.append("the weights differ")
    for name, worker, summary in (("the disturbed run", cluster, one), ("the undisturbed run", alone, two)):
        if summary["start_step"] != 0 or summary["steps"] != options.steps:
            problems.append(f"{name} made steps {summary['start_step']} … {summary['steps']}")
        if summary["loss"] >= worker.lines()[0]["loss"]:
            problems.append(f"the loss of {name} did not fall")
    if one["steps_lost"] != 0:
        problems.append(f"{one['steps_lost']} steps were lost")
    return ", ".join(problems)


def main():
    programs_needed = [name for name in ("dpt-rdzv", "dpt-worker") if not (BIN / name).exists()]
    if programs_needed:
        raise Failed(f"{' and '.join(programs_needed)} not built; run deploy/quickstart")
    shutil.rmtree(RUN, ignore_errors=True)
    RUN.mkdir(parents=True)
    screen.say(bold("dpt quickstart") + f"   {prepare_text()}")
    started = time.monotonic()
    cluster, cluster_s = disturbed()
    alone, alone_s = undisturbed()
    problems = verdict(cluster, cluster_s, alone, alone_s)
    if problems:
        raise Failed(problems)
    screen.say(paint("1;32", "   Equal, bit for bit: the failure and the join cost time and nothing else."))
    screen.say(f"   Took {time.monotonic() - started:.0f} s. Logs, metrics and checkpoints: {rel(RUN)}/. "
               "README.md has the commands for several machines.")


def parse_options():
    steps = int(re.search(r"^  steps: (\d+)", CONFIG.read_text(), re.M).group(1))
    parser = argparse.ArgumentParser(prog="deploy/quickstart", description=__doc__)
    parser.add_argument("--steps", type=int, default=steps, help=f"steps of each run (default {steps}, at least 12)")
    parser.add_argument("--text", type=Path, help="your own text to train on, instead of the dictionary")
    parsed = parser.parse_args()
    if parsed.steps < 12:
        parser.error("--steps: at least 12, to have room for a failure and a join")
    return parsed


def interrupted(number, _frame):
    raise KeyboardInterrupt(signal.Signals(number).name)


if __name__ == "__main__":
    options = parse_options()
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGINT, interrupted)
    code = 0
    try:
        main()
    except KeyboardInterrupt as stop:
        screen.say(f"stopped by {stop}")
        code = 130
    except (Failed, OSError, KeyError, ValueError) as error:
        screen.say()
        screen.say(paint("1;31", f"FAILED: {error if isinstance(error, Failed) else repr(error)}"))
        for program in programs:
            screen.say(program.tail())
        code = 1
    finally:
        for program in programs:
            program.kill()
    sys.exit(code)
