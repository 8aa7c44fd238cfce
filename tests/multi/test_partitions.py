"""Parts of a network that fail: the head, one direction, the peers' side or the server's, a link that flaps. However it
ends, there is one generation. Hosts are network namespaces; needs root and ip(8), else skipped."""

import random
import re
import time

import pytest

from cluster import wait_until
from netns import NET, Star, Unavailable, start_server, start_worker

HEAD, A, B = 1, 2, 3
ENDLESS = {"train.steps": 1_000_000, "train.log_every": 1, "checkpoint.every_steps": 0, "cluster.nnodes": "1:2"}
GONE = r"the server at \S+ is gone"


@pytest.fixture
def star():
    try:
        with Star(3) as network:
            yield network
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def pair(make_cluster, star, slow):
    """pair(timeout_s): a server on the head, nodes a and b on the other hosts, which train: (cluster, a, b)."""
    def start(timeout_s):
        cluster = make_cluster(sets={**ENDLESS, "cluster.timeout_s": timeout_s})
        port = start_server(cluster, star.names[HEAD - 1], 10 * slow, "--insecure", "--fresh")
        a = start_worker(cluster, star.names[A - 1], "a", f"{NET}1:{port}")
        cluster.wait_step(3, 30 * slow)
        b = start_worker(cluster, star.names[B - 1], "b", f"{NET}1:{port}")
        cluster.wait_world(2, 30 * slow)
        return cluster, a, b
    return start


def generation(worker):
    lines = worker.outputs.metrics()
    return lines[-1]["generation"] if lines else 0


def newest_step(worker):
    return max((int(step) for step in re.findall(r"^step (\d+)/", worker.log(), re.M)), default=0)


def pass_time(seconds, slow):
    until = time.monotonic() + seconds
    wait_until("the time has passed", lambda: time.monotonic() >= until, seconds + 60 * slow)


def ends_in_one_generation(cluster, a, b, slow):
    """Both nodes train in one generation, the newest. No step was logged twice in a generation, and within a log
    generations only grow: so at no time two of them trained beside one another."""
    def together():
        lines = [worker.outputs.metrics()[-1] for worker in (a, b)]
        return lines[0]["generation"] == lines[1]["generation"] and {line["world_size"] for line in lines} == {2}
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


def test_the_head_is_cut_off(pair, star, slow):
    """Both nodes train on, for longer than a lease, in their generation; the server expels none."""
    timeout_s = 2 * slow
    cluster, a, b = pair(timeout_s)
    before = generation(a)
    star.cut(HEAD)
    for worker in (a, b):
        worker.wait_log(GONE + "; training goes on, reconnecting", 20 * slow)
    step = newest_step(a)  # rank 0 prints the steps
    pass_time(1.5 * timeout_s, slow)
    assert newest_step(a) > step
    star.mend(HEAD)
    for worker in (a, b):
        worker.wait_log(r"the server at \S+ is back", 30 * slow)
    ends_in_one_generation(cluster, a, b, slow)
    assert generation(a) == before
    assert not re.search(r" lost: |excluded|expelled", cluster.server.log()), cluster.server.log_tail()


@pytest.mark.parametrize("lost", [[(B, HEAD)], [(HEAD, B)], [(B, HEAD), (HEAD, B)]],
                         ids=["to-server", "from-server", "both"])
def test_a_node_is_cut_from_the_server(pair, star, slow, lost):
    """In one direction or in both, while its peers reach it: the server says so. When the routes are back it joins
    again."""
    cluster, a, b = pair(2 * slow)
    before = generation(a)
    for sender, receiver in lost:
        star.block(sender, receiver)
    cluster.server.wait_log(r"node b .*lost: silent for \S+ s; peers reach it: cut from the server", 20 * slow)
    b.wait_log(GONE, 20 * slow)
    wait_until("a trains alone", lambda: generation(a) > before and a.outputs.metrics()[-1]["world_size"] == 1,
               20 * slow, cluster.log_tails)
    for sender, receiver in lost:
        star.unblock(sender, receiver)
    b.wait_log("expelled .*joining again as incarnation", 30 * slow)
    ends_in_one_generation(cluster, a, b, slow)
    assert "excluded" not in cluster.server.log()


@pytest.mark.parametrize("lost", [[(A, B)]], ids=["one-way"])
def test_a_node_is_cut_from_its_peers(pair, star, slow, lost):
    """While the server reaches both: it loses none, and after two formations leaves out the one that joined later."""
    cluster, a, b = pair(1 * slow)
    before = generation(a)
    for sender, receiver in lost:
        star.block(sender, receiver)
    cluster.server.wait_log("node b: two formations in a row failed, as peers could not reach it; the server hears it, "
                            "so it is cut from its peers: excluded for", 60 * slow)
    wait_until("a trains alone", lambda: generation(a) > before and a.outputs.metrics()[-1]["world_size"] == 1,
               30 * slow, cluster.log_tails)
    for sender, receiver in lost:
        star.unblock(sender, receiver)
    ends_in_one_generation(cluster, a, b, slow)
    assert not re.search("silent for|control connection broken", cluster.server.log()), cluster.server.log_tail()
    assert not any(re.search(GONE, worker.log()) for worker in (a, b))


def test_a_flapping_link(pair, star, slow):
    """A link that comes and goes, for shorter and longer than a lease."""
    timeout_s = 2 * slow
    cluster, a, b = pair(timeout_s)
    draw = random.Random(20)
    for _ in range(6):
        star.cut(B)
        pass_time(timeout_s * draw.choice([0.1, 0.4, 1.3]), slow)
        star.mend(B)
        pass_time(timeout_s * draw.choice([0.1, 0.3, 0.6]), slow)
    ends_in_one_generation(cluster, a, b, slow)
    assert a.alive() and b.alive()
