"""Processes that do not belong to a run: they cannot join it, disturb it, or slow its formations."""

import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time

from accept.harness import NotRun
from accept.told import stories
from cluster import ROOT, Cluster, ClusterError, bin_dir, knows_option, read_jsonl, wait_until
from protocol_client import Node, follow

STRANGERS_FLOOD, ADMITTED_FLOOD = (ROOT / "tests" / "accept" / name for name in ("flood.py", "keyed_flood.py"))
RATE, REFORMATIONS, SLOWER_MAX, SLOWER_MS = 1000, 20, 0.10, 20
TRIES, SOON_S, STEP_S = 200, 20, 60
OTHER_RUN = "other"
ANSWER_S, FAILED_A_MINUTE = 1, 17  # the records that one machine may cause, and a line that counts the others
FUZZED = 10_000_000
FUZZ_SHARES = {"message": 0.4, "admission": 0.4, "server": 0.04}  # a sequence takes ten times as long
SETTINGS = {"train.steps": 1_000_000, "train.log_every": 1, "checkpoint.every_steps": 0, "cluster.nnodes": "1:2",
            "cluster.timeout_s": 5, "cluster.max_restarts": 100_000}


def has_keys():
    return knows_option("--open")


def needs_keys():
    if not has_keys():
        raise NotRun("this dpt-rdzv has no keys: any process that reaches the port may read a run's config, bring the "
                     "config of a new run, and join with the same config")


def start_pair(cluster, keys):
    """Two real workers that train together. `keys`: with keys, if this dpt has them."""
    opened = has_keys() and not keys
    cluster.start_server(args=["--open"] if opened else [])
    workers = [cluster.start_worker(node, args=["--rdzv-token", "none"] if opened else []) for node in "ab"]
    cluster.wait_world(2, STEP_S)
    return workers


def run_name(cluster):
    return re.search(r"run=(\S+) gen=\d+: new run of", cluster.server.log())[1]


# ---------------------------------------------------------------- a node that has no right to join

def told(cluster, run, node, spec, **state):
    """The end that the server tells a process, and the text."""
    with Node(("127.0.0.1", cluster.port), run, node, spec, **state) as stranger:
        follow([stranger], lambda: any(order in ("SERVER_REFUSED", "SERVER_EXPELLED") for order in stranger.orders),
               SOON_S)
        return stranger.orders[-1], stranger.message.text


def disguise(cluster, run):
    """Spec and state with which a stranger passes every check but that of the node's secret, as the server's own
    answers tell them."""
    with Node(("127.0.0.1", cluster.port), run, "stranger", None) as node:
        follow([node], lambda: node.config is not None, SOON_S)
        spec = vars(node.config)
    state = {}
    for _ in range(3):
        _, text = told(cluster, run, "a", spec, **state)
        if found := re.search(r"than the run \((.*?)\); ", text):
            state["fingerprint"] = found[1]
        elif found := re.search(r"differ from those of run '.*?' \((.*?)\)", text):
            state["data_digest"] = found[1]
    return spec, state


def try_to_expel(cluster, run, spec, state, rng, count):
    """Messages in the name of member nodes, with secrets, incarnations, epochs and phases of a stranger. Returns the
    phases that it is told."""
    answers = set()
    for _ in range(count):
        rank = {"spawn": rng.randrange(3), "phase": rng.choice(["RANK_DEAD", "RANK_STANDBY", "RANK_QUIESCED"]),
                "step_applied": rng.randrange(10 ** 6), "outcome_step": -1, "checkpoint_step": -1, "suspect": -1,
                "grant_step": -1, "plan_rank": -1, "text": "gone", "failed_generation": rng.randrange(3)}
        with Node(("127.0.0.1", cluster.port), run, rng.choice("ab"), spec, incarnation=rng.randrange(1, 1 << 62),
                  **state) as stranger:
            stranger.epoch, stranger.counter = rng.getrandbits(63), rng.randrange(1 << 40)
            stranger.generation = rng.randrange(3)
            stranger.send(ranks=[rank], leaving=rng.random() < 0.5)
            follow([stranger], lambda: stranger.message is not None, SOON_S)
            answers.add(stranger.message.phase)
    return answers


def strangers(line):
    """Without keys: a process with another config or user, or with the id of a member and all that the run checks but
    its secret, is refused, and the two real workers train on in one generation; 200 seeded messages in the name of the
    members expel nobody."""
    rng = random.Random(line.seed)
    line.command("dpt-rdzv; two dpt-worker; tests/protocol_client.py as a stranger")
    with Cluster(line.folder / "run", sets=SETTINGS) as cluster:
        workers = start_pair(cluster, keys=False)
        run, steps = run_name(cluster), cluster.step()
        spec, state = disguise(cluster, run)
        cases = [("another config", "c", {**spec, "config_digest": "other"}, "config differs"),
                 ("another user", "c", {**spec, "user": "somebody"}, "belongs to user"),
                 ("a member's id without its secret", "a", spec, "is alive .* and another process")]
        for what, node, its_spec, words in cases:
            order, text = told(cluster, run, node, its_spec, **state)
            line.show(what, f"{order}: {text}", f"SERVER_REFUSED: {words}",
                      order == "SERVER_REFUSED" and re.search(words, text))
        answers = try_to_expel(cluster, run, spec, state, rng, line.repeat(TRIES))
        bad = answers - {"SERVER_REFUSED", "SERVER_WAITING", "SERVER_EXPELLED"}
        line.show("told to strangers in a member's name", ", ".join(sorted(answers)), "no phase of a member", not bad)
        cluster.wait_step(max(steps, cluster.step()) + 5, STEP_S)
        generations = {entry["generation"] for entry in cluster.metrics() if entry["step"] > steps}
        line.show("generations meanwhile", len(generations), "1", len(generations) == 1)
        line.show("workers that train on", sum(worker.alive() for worker in workers), "2",
                  all(worker.alive() for worker in workers))


def strangers_with_keys(line):
    """With keys: a process without a key, with a key of another machine, or of a node of another run, cannot join,
    read a run's config, or take a node's place; a machine that is denied is cut off, and the others go on."""
    needs_keys()
    stories(line, "test_keys.py")


# ---------------------------------------------------------------- a flood of connections

class Flood:
    """A process that makes RATE connections a second, until the `with` block ends. `counts`: what it printed last."""

    def __init__(self, cluster, argv):
        self.counts, self.log = {}, cluster.root / "flood.jsonl"
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen([str(a) for a in argv], stdout=out, env=cluster.env)

    def __enter__(self):
        wait_until("the flood has begun", lambda: read_jsonl(self.log), SOON_S)
        return self

    def __exit__(self, kind, value, trace):
        self.process.kill()
        self.process.wait()
        self.counts = read_jsonl(self.log)[-1]


def stranger_argv(cluster):
    return [sys.executable, STRANGERS_FLOOD, cluster.endpoint(), "--rate", RATE, "--run", run_name(cluster),
            "--seconds", 10 ** 6, *(["--keys"] if has_keys() else [])]


def run_ctl(cluster, **env):
    """Seconds until `dpt-ctl runs` is answered."""
    began = time.monotonic()
    subprocess.run([bin_dir() / "dpt-ctl", "runs", "--rdzv-endpoint", cluster.endpoint()], check=True,
                   env={**cluster.env, **env}, capture_output=True, timeout=SOON_S)
    return time.monotonic() - began


def admitted_argvs(cluster):
    """Of a machine with a folder of its own, which the server admits here, for another run only."""
    keys = cluster.root / "keys-of-another-run"
    token = subprocess.run([bin_dir() / "dpt-rdzv", "--new-token", "--join-only", "--run", OTHER_RUN], env=cluster.env,
                           check=True, capture_output=True, text=True, timeout=SOON_S).stdout.strip()
    run_ctl(cluster, DPT_KEY_DIR=str(keys), DPT_RDZV_TOKEN=token)
    argv = [sys.executable, ADMITTED_FLOOD, cluster.endpoint(), "--key-dir", keys, "--run", OTHER_RUN, "--rate", RATE]
    return {"admitted": argv, "messages": [*argv, "--messages"]}


def reformation_ms(cluster, worker):
    """A rank of the worker is killed: the time in which training stands still, as the run's event has it."""
    def losses():
        return [event for event in cluster.events() if event["kind"] == "rank_lost"]
    before = len(losses())
    rank, = worker.wait_ranks(1, STEP_S)
    os.kill(rank, signal.SIGKILL)
    wait_until("the event of the loss", lambda: len(losses()) > before, STEP_S, cluster.log_tails)
    event = losses()[-1]
    wait_until("the rank is back",
               lambda: cluster.metrics()[-1]["world_size"] == 2 and
               cluster.metrics()[-1]["generation"] > event["generation"], STEP_S, cluster.log_tails)
    return event["total_ms"]


def flooded(line):
    """1,000 connections a second from this machine, of strangers (closed at once, bytes of another protocol, silent
    ones, handshakes with a drawn key) or of a machine that is admitted for another run (whole handshakes, each with a
    valid message), or as many messages of this machine (questions for the status, nodes whose health check has failed):
    the median re-formation of two real workers after a killed rank is longer by 10 % or 20 ms at most, the owner of the
    server gets an answer to dpt-ctl within a second, and the log is not filled. Kills without a flood and with each
    kind take turns."""
    line.command(f"dpt-rdzv; two dpt-worker; kill -9 of a rank, alone and beside tests/accept/flood.py --rate {RATE} "
                 f"or keyed_flood.py --rate {RATE} or keyed_flood.py --rate {RATE} --messages; dpt-ctl runs")
    with Cluster(line.folder / "run", sets=SETTINGS) as cluster:
        _, b = start_pair(cluster, keys=True)
        floods = {"strangers": stranger_argv(cluster), **(admitted_argvs(cluster) if has_keys() else {})}
        quiet, times, counts = [], {name: [] for name in floods}, {name: [] for name in floods}
        answers, began = {name: [] for name in floods}, time.monotonic()
        for _ in range(line.repeat(REFORMATIONS)):
            quiet.append(reformation_ms(cluster, b))
            for name, argv in floods.items():
                with Flood(cluster, argv) as flood:
                    times[name].append(reformation_ms(cluster, b))
                    answers[name].append(run_ctl(cluster))
                counts[name].append(flood.counts)
        minutes = (time.monotonic() - began) / 60
        failed = cluster.server.log().count("its health check has failed")
        expelled = re.findall(r"node [ab](?: \([^)]*\))? (?:lost|refused): ", cluster.server.log())
    alone = statistics.median(quiet)
    line.note(f"re-formation alone, median of {len(quiet)}: {alone:.1f} ms, longest {max(quiet):.1f} ms")
    for name in floods:
        with_it = statistics.median(times[name])
        line.note(f"{name}: median {with_it:.1f} ms, longest {max(times[name]):.1f} ms")
        rate = min((count["made"] + count["failed"]) / count["seconds"] for count in counts[name])
        what = "messages" if name == "messages" else f"connections of {name}"
        line.at_least(f"{what} a second, least", round(rate), 0.9 * RATE)
        line.at_most(f"longer by, {name}", round(with_it - alone, 1), round(max(SLOWER_MAX * alone, SLOWER_MS), 1),
                     "ms")
        line.at_most(f"dpt-ctl of the owner beside {name}, longest", round(max(answers[name]), 2), ANSWER_S, "s")
    if "messages" in floods:
        line.at_most("nodes with a failed health check in the log", failed, FAILED_A_MINUTE * (int(minutes) + 1))
    if "admitted" in floods:
        answered = min(count["answered"] / max(1, count["closed"]) for count in counts["admitted"])
        line.at_least("share of the admitted machine's connections that the server answered, least",
                      round(answered, 2), 0.5)
    line.show("nodes lost or refused", len(expelled), "0", not expelled)


# ---------------------------------------------------------------- fuzzed messages

def fuzzed_messages(line):
    """10^7 fuzzed messages: before the handshake (admission: keys, tokens, requests for admission) and after it
    (message: the decoder of every message; server: the server's machine with sequences of messages). libFuzzer,
    AddressSanitizer, UndefinedBehaviorSanitizer; no finding."""
    runs, path = line.repeat(FUZZED), line.folder / "fuzz.json"
    argv = [ROOT / "tests" / "fuzz" / "run", "--runs", runs, "--json", path, *FUZZ_SHARES]
    line.command(argv)
    code = subprocess.run([str(a) for a in argv]).returncode
    if not path.exists():
        raise ClusterError(f"tests/fuzz/run: exit {code}")
    result = json.loads(path.read_text())
    done = {target["name"]: target["runs"] for target in result["targets"]}
    for target in result["targets"]:
        line.note(f"{target['name']}: {target['runs']:,} executions, {target['edges']} of {target['edges_of']} edges")
    for name, share in FUZZ_SHARES.items():
        line.at_least(f"executions of {name}", done.get(name, 0), int(share * runs))
    line.at_least("fuzzed messages", result["runs"], runs)
    line.show("findings", result["findings"], "== 0", result["findings"] == 0)


LINES_OF_STRANGERS = (strangers, strangers_with_keys, flooded, fuzzed_messages)
