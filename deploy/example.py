"""Shared by deploy/languages.py and deploy/digits.py: dpt-worker trains a config of a classifier, and the accuracy of
its last evaluation decides the exit code. Standard library only."""

import argparse
import re
import shutil
import signal
import subprocess
import sys


# dpt-worker prints the first form after each evaluation, the second in its closing summary, with --quiet too.
ACCURACY = re.compile(r"(?:[Ee]valuation accuracy:|^ +accuracy) +([0-9.]+)\s*%")


class Failed(Exception):
    """A failure; its text says what the user can do."""


class Stop:
    """Handler of SIGTERM and SIGINT. Before the run a signal ends the program. During the run each signal goes to
    dpt-worker as SIGTERM (the first ends it after the step, the second at once), and the program ends after it."""

    def __init__(self):
        self.first = None
        self.running = False
        self.worker = None

    def __call__(self, number, _frame):
        self.first = self.first or signal.Signals(number)
        if not self.running:
            raise KeyboardInterrupt
        if self.worker:
            self.worker.terminate()


stop = Stop()


def model_of(root, config):
    """The checkpoint.dir of the config."""
    return root / "runs" / config.stem / "checkpoints"


def train(root, config, arguments):
    """Runs dpt-worker of the tree `root` from the first step on, shows its output, returns the accuracy of the last
    evaluation, in percent. Removes the model of an earlier run."""
    if model_of(root, config).exists():
        shutil.rmtree(model_of(root, config))
    argv = [root / "build" / "bin" / "dpt-worker", "--config", config, "--nnodes", "1", *arguments]
    accuracy = None
    stop.running = True
    with subprocess.Popen([str(a) for a in argv], cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True, errors="replace") as worker:
        stop.worker = worker
        if stop.first:  # the signal came before the worker was started
            worker.terminate()
        for line in worker.stdout:
            print(line, end="", flush=True)
            said = ACCURACY.search(line)
            accuracy = float(said.group(1)) if said else accuracy
    if stop.first:
        raise KeyboardInterrupt
    if worker.returncode != 0:
        raise Failed(f"dpt-worker ended with exit code {worker.returncode} (above)")
    if accuracy is None:
        raise Failed(f"dpt-worker printed no accuracy; set train.eval_every in configs/{config.name}")
    return accuracy


def play(name, description, what, bar, make_tables, root, config):
    """The program deploy/NAME: makes the tables, trains, compares the accuracy of `what` with the bar, both in percent,
    and prints the place of the model. Returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"deploy/{name}", description=description, allow_abbrev=False)
    parser.add_argument("--tables", action="store_true", help="make the tables and end")
    parser.add_argument("worker", nargs="*", metavar="-- ARGUMENT", help="more arguments of dpt-worker")
    options = parser.parse_args()
    try:
        make_tables()
        if options.tables:
            return 0
        accuracy = train(root, config, options.worker)
    except (Failed, OSError) as failed:
        print(f"{name}: {failed}", file=sys.stderr)
        return 1
    good = accuracy >= bar
    print(f"{name}: {accuracy:.2f}% of {what}, {bar}% at least is {'reached' if good else 'not reached'}")
    model = model_of(root, config)
    if model.exists():  # an argument may name another folder
        print(f"{name}: the model is in {model.relative_to(root)}; to evaluate it, also with --set data.val=FILE: "
              f"build/bin/dpt-worker --config configs/{config.name} --nnodes 1 --eval")
    return 0 if good else 1


def run(name, main):
    """Ends the process with main's exit code, or with 128 + the number of the signal that stopped it."""
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        code = main()
    except KeyboardInterrupt:
        print(f"{name}: stopped by {stop.first.name}", file=sys.stderr)
        code = 128 + stop.first
    sys.exit(code)
