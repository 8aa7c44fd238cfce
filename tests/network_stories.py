"""Stories of networks that fail, with a server and nodes in network namespaces (netns.py): each raises AssertionError
where dpt does not what docs/membership.md says. Used by tests/multi and by `tests/acceptance rendezvous`.

A story takes a cluster whose settings are settings(timeout_s), a Star of three hosts and `slow`, a factor for
deadlines. The server is on the head."""

import re
import signal
import time

from cluster import ROOT, Process, wait_until
from netns import NET, start_server, start_worker

HEAD, A, B = 1, 2, 3
LEASE, LATEST = 0.9, 1.2  # of cluster.timeout_s: a silent node is found in between
SLOW_MBIT = 2
GONE = r"the server at \S+ is gone"
TO_SERVER, FROM_SERVER, TO_PEER, FROM_PEER = (B, HEAD), (HEAD, B), (B, A), (A, B)


def settings(timeout_s):
    return {"train.steps": 1_000_000, "train.log_every": 1, "checkpoint.every_steps": 0, "cluster.nnodes": "1:2",
            "cluster.timeout_s": timeout_s}


def start_pair(cluster, star, slow):
    """Nodes a and b on the other hosts, which train together."""
    port = start_server(cluster, star.names[HEAD - 1], 10 * slow, "--fresh")
    a = start_worker(cluster, star.names[A - 1], "a", f"{NET}1:{port}")
    cluster.wait_step(3, 30 * slow)
    b = start_worker(cluster, star.names[B - 1], "b", f"{NET}1:{port}")
    cluster.wait_world(2, 30 * slow)
    wait_until("both log one generation", lambda: 0 < generation(a) == generation(b), 30 * slow, cluster.log_tails)
    return a, b


def generation(worker):
    lines = worker.outputs.metrics()
    return lines[-1]["generation"] if lines else 0


def newest_step(worker):
    return max((int(step) for step in re.findall(r"^step (\d+)/", worker.log(), re.M)), default=0)


def pass_time(seconds, slow):
    """Lets real time pass: the length of a fault is what a story varies."""
    until = time.monotonic() + seconds
    wait_until("the time has passed", lambda: time.monotonic() >= until, seconds + 60 * slow)


def trains_alone(worker, before, cluster, seconds):
    """Waits until the worker trains alone in a generation after `before`; returns the seconds that it took."""
    began = time.monotonic()
    wait_until(f"{worker.node} trains alone",
               lambda: generation(worker) > before and worker.outputs.metrics()[-1]["world_size"] == 1,
               seconds, cluster.log_tails)
    return time.monotonic() - began


def ends_in_one_generation(cluster, a, b, slow):
    """Both nodes train in one generation, the newest. No step was logged twice in a generation, and within a log
    generations only grow: so at no time two of them trained beside one another."""
    def together():
        newest = [worker.outputs.metrics()[-1:] for worker in (a, b)]  # a node that has just joined has no line yet
        lines = [line for each in newest for line in each]
        return len({line["generation"] for line in lines}) == 1 and [line["world_size"] for line in lines] == [2, 2]
    wait_until("both train in one generation", together, 60 * slow, cluster.log_tails)
    for worker in (a, b):
        steps = [(line["generation"], line["step"]) for line in worker.outputs.metrics()]
        assert [g for g, _ in steps] == sorted(g for g, _ in steps)
        assert len(steps) == len(set(steps))
    worlds = {}
    for worker in (a, b):
        for line in worker.outputs.metrics():
            worlds.setdefault(line["step"], set()).add(line["loss"])
    assert all(len(losses) == 1 for losses in worlds.values())  # whoever made a step, it is the same step


def cut_and_mend(cluster, star, lost, meanwhile):
    """Packets of the pairs in `lost` (sender, receiver) are lost until `meanwhile()` returns."""
    for sender, receiver in lost:
        star.block(sender, receiver)
    meanwhile()
    for sender, receiver in lost:
        star.unblock(sender, receiver)


def silent_node(cluster, star, slow):
    """The link of node b is gone, which ends no connection: the lease finds it. Returns the seconds from its last
    message until it was found."""
    timeout_s = cluster.sets["cluster.timeout_s"]
    a, _ = start_pair(cluster, star, slow)
    star.cut(B)
    cut = time.monotonic()
    cluster.server.wait_log(r"node b .*lost: silent for", LATEST * timeout_s + 1)
    assert time.monotonic() - cut < LATEST * timeout_s
    lost = wait_until("the next generation", lambda: [e for e in a.outputs.events() if e["kind"] == "node_lost"],
                      30 * slow, cluster.log_tails)[0]
    assert "peers reach it" not in lost["cause"] and lost["world_size"] == 1, lost
    return lost["detect_ms"] / 1000


def head_is_cut_off(cluster, star, slow):
    """Both nodes train on, for longer than a lease, in their generation; the server expels none."""
    a, b = start_pair(cluster, star, slow)
    before = generation(a)
    star.cut(HEAD)
    for worker in (a, b):
        worker.wait_log(GONE + "; training goes on, reconnecting", 20 * slow)
    step = newest_step(a)  # rank 0 prints the steps
    pass_time(1.5 * cluster.sets["cluster.timeout_s"], slow)
    assert newest_step(a) > step
    star.mend(HEAD)
    for worker in (a, b):
        worker.wait_log(r"the server at \S+ is back", 30 * slow)
    ends_in_one_generation(cluster, a, b, slow)
    assert generation(a) == before
    assert not re.search(r" lost: |excluded|expelled", cluster.server.log()), cluster.server.log_tail()


def start_translator(cluster, star, port, slow):
    """A translator of addresses before the server, on the head; returns it and its port."""
    port_file = cluster.root / "translator-port"
    argv = ["ip", "netns", "exec", star.names[HEAD - 1], ROOT / "tests" / "translator.py", port_file, "127.0.0.1", port]
    translator = Process("translator", argv, cluster.root / "translator.log", cluster.env)
    text = wait_until("the translator listens", lambda: port_file.exists() and port_file.read_text(), 20 * slow,
                      translator.log_tail)
    return translator, int(text)


def translator_forgets(cluster, star, slow):
    """The table of a translator between node b and the server is flushed, which ends no connection: the agent makes
    another one in time, and the generation goes on."""
    port = start_server(cluster, star.names[HEAD - 1], 10 * slow, "--fresh")
    a = start_worker(cluster, star.names[A - 1], "a", f"{NET}1:{port}")
    cluster.wait_step(3, 30 * slow)
    translator, other_port = start_translator(cluster, star, port, slow)
    try:
        b = start_worker(cluster, star.names[B - 1], "b", f"{NET}1:{other_port}")
        ends_in_one_generation(cluster, a, b, slow)
        before, made = generation(a), translator.log().count("connection ")
        translator.signal(signal.SIGUSR1)
        translator.wait_log("forgets [1-9]", 20 * slow)
        translator.wait_log(f"connection {made + 1}", cluster.sets["cluster.timeout_s"])
        step = newest_step(a)
        pass_time(1.5 * cluster.sets["cluster.timeout_s"], slow)
        assert newest_step(a) > step
        ends_in_one_generation(cluster, a, b, slow)
        assert generation(a) == before
        assert not re.search(r" lost: |excluded|expelled", cluster.server.log()), cluster.server.log_tail()
    finally:
        translator.kill()


def slow_links(cluster, star, slow):
    """All links have 2 Mbit/s from the start: nodes form a generation, train and lose nobody for two timeouts."""
    star.limit(SLOW_MBIT)
    a, b = start_pair(cluster, star, slow)
    ends_in_one_generation(cluster, a, b, slow)
    before, step = generation(a), newest_step(a)
    pass_time(2 * cluster.sets["cluster.timeout_s"], slow)
    assert newest_step(a) > step
    ends_in_one_generation(cluster, a, b, slow)
    assert generation(a) == before
    assert not re.search(r" lost: |excluded|expelled", cluster.server.log()), cluster.server.log_tail()


def cut_from_the_server(cluster, star, slow, lost):
    """Node b, in one direction or in both, while its peer reaches it: the server says so. When the routes are back it
    joins again."""
    a, b = start_pair(cluster, star, slow)
    before = generation(a)

    def is_found():
        cluster.server.wait_log(r"node b .*lost: silent for \S+ s; peers reach it: cut from the server", 20 * slow)
        b.wait_log(GONE, 20 * slow)
        trains_alone(a, before, cluster, 20 * slow)
    cut_and_mend(cluster, star, lost, is_found)
    b.wait_log("expelled .*joining again as incarnation", 30 * slow)
    ends_in_one_generation(cluster, a, b, slow)
    assert "excluded" not in cluster.server.log()


def cut_from_the_peer(cluster, star, slow, lost):
    """Nodes a and b, in one direction or in both, while the server reaches both: it loses none, and after two
    formations leaves one of them out. If both name each other in time that is b, which joined later; if only one
    complains in time it is the other one (loss_end_test.c)."""
    a, b = start_pair(cluster, star, slow)
    before = generation(a)

    def is_found():
        out = cluster.server.wait_log("node ([ab]): two formations in a row failed, as peers could not reach it; the "
                                      "server hears it, so it is cut from its peers: excluded for", 60 * slow)[1]
        trains_alone({"a": b, "b": a}[out], before, cluster, 30 * slow)
    cut_and_mend(cluster, star, lost, is_found)
    ends_in_one_generation(cluster, a, b, slow)
    assert not re.search("silent for|control connection broken", cluster.server.log()), cluster.server.log_tail()
    assert not any(re.search(GONE, worker.log()) for worker in (a, b))


def cut_from_one_another(cluster, star, slow):
    """Nodes a and b, in both directions, while the server reaches both: one of them is left out, again and again, and
    the other trains on with the newest state. Returns the time until it does so first, in timeouts."""
    a, b = start_pair(cluster, star, slow)
    found_s = []

    def is_found():
        began = time.monotonic()
        for turn in range(1, 4):
            wait_until(f"exclusion {turn}", lambda: cluster.server.log().count("cut from its peers: excluded") >= turn,
                       60 * slow, cluster.log_tails)
            step = cluster.step()
            wait_until("a step after it", lambda: cluster.step() > step, 30 * slow, cluster.log_tails)
            found_s.append(time.monotonic() - began)
    cut_and_mend(cluster, star, [TO_PEER, FROM_PEER], is_found)
    ends_in_one_generation(cluster, a, b, slow)
    assert not re.search("silent for|control connection broken", cluster.server.log()), cluster.server.log_tail()
    return found_s[0] / cluster.sets["cluster.timeout_s"]


def flapping_link(cluster, star, slow, draw):
    """The link of node b comes and goes, for shorter and longer than a lease. `draw`: random.Random."""
    timeout_s = cluster.sets["cluster.timeout_s"]
    a, b = start_pair(cluster, star, slow)
    for _ in range(6):
        star.cut(B)
        pass_time(timeout_s * draw.choice([0.1, 0.4, 1.3]), slow)
        star.mend(B)
        pass_time(timeout_s * draw.choice([0.1, 0.3, 0.6]), slow)
    ends_in_one_generation(cluster, a, b, slow)
    assert a.alive() and b.alive()
