"""Control connections that break over a healthy data plane, and nodes that die behind them."""

import math
import os
import re
import signal
import socket
import threading

import pytest

from cluster import wait_until

TIMEOUT_S = 30  # a lease of 27 s: what is found before shows by something else
TRIES, AT_ONCE_MS = 3, 100  # deaths of a kind, and how soon the quickest of them is found
LOST = r"node b \(host [^)]+\) lost: control and data connections broken"


class Proxy:
    """Passes TCP connections on to a server; `cut` ends them all and refuses new ones until `mend`."""

    def __init__(self, server_port):
        self.server_port, self.port, self.sockets, self.listener = server_port, 0, [], None
        self.mend()

    def mend(self):
        self.listener = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def cut(self):
        self._end([self.listener, *self.sockets])
        self.sockets = []

    @staticmethod
    def _end(sockets):
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)  # wakes who waits in it
            except OSError:
                pass
            each.close()

    def _accept(self, listener):
        while True:
            try:
                client = listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                return
            self.sockets += [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        self._end([source, target])


@pytest.fixture
def pair(make_cluster, slow):
    """A cluster of two nodes that train, the second behind a proxy: (cluster, proxy, a, b)."""
    cluster = make_cluster(sets={"train.steps": 100_000, "cluster.timeout_s": TIMEOUT_S})
    cluster.start_server()
    proxy = Proxy(cluster.port)
    a, b = cluster.start_worker("a"), cluster.start_worker("b", endpoint=f"127.0.0.1:{proxy.port}")
    cluster.wait_world(2, 30 * slow)
    yield cluster, proxy, a, b
    proxy.cut()


def break_control(cluster, proxy, slow):
    """Cuts the control connection and waits until the server reports it; the server waits for a grace period first."""
    proxy.cut()
    cluster.server.wait_log("node b: control connection broken; lost when", 10 * slow)


def test_a_broken_control_connection_costs_nothing(pair, slow):
    """A node trains on without its control connection and keeps its place, processes and generation."""
    cluster, proxy, a, b = pair
    pids, generation = (a.rank_pids(), b.rank_pids()), cluster.metrics()[-1]["generation"]
    break_control(cluster, proxy, slow)
    cluster.wait_step(cluster.step() + 5, 10 * slow)
    proxy.mend()
    cluster.server.wait_log("node b: control connection is back", 20 * slow)
    cluster.wait_step(cluster.step() + 5, 10 * slow)
    assert (a.rank_pids(), b.rank_pids()) == pids
    assert cluster.metrics()[-1]["generation"] == generation
    assert "lost:" not in cluster.server.log() and "expelled" not in b.log()
    a.term()
    b.term()
    assert cluster.wait_done(15 * slow) == {"a": 0, "b": 0}


def test_a_node_dies_while_its_control_connection_is_broken(pair, slow):
    """A node without a control connection dies: its peers report it at once, long before its lease ends."""
    cluster, proxy, a, b = pair
    break_control(cluster, proxy, slow)
    b.kill_machine()
    cluster.wait_world(1, 10 * slow)
    assert re.search(LOST, cluster.server.log())
    a.term()
    assert a.wait(12 * slow) == 0


def test_an_agent_dies_alone(pair, slow):
    """The ranks of a killed agent end with it, which ends their data connections."""
    cluster, _, a, b = pair
    os.kill(b.pid, signal.SIGKILL)
    cluster.wait_world(1, 10 * slow)
    assert re.search(LOST, cluster.server.log())
    wait_until("its ranks are gone", lambda: not b.rank_pids(), 10 * slow)
    a.term()
    assert a.wait(12 * slow) == 0


def test_deaths_are_found_at_once(make_cluster, slow):
    """The server notices a dead rank and a dead machine within milliseconds of the last message, with a lease of 1.8 s.
    The quickest of a few tries counts, because other programs may delay one."""
    cluster = make_cluster(sets={"train.steps": 100_000, "cluster.timeout_s": 2 * slow})
    cluster.start_server()
    a, b = cluster.start_worker("a"), cluster.start_worker("b")
    cluster.wait_world(2, 30 * slow)
    found = {"rank_lost": [], "node_lost": []}
    for kind, times in found.items():
        for _ in range(TRIES):
            if min(times, default=math.inf) < AT_ONCE_MS * slow:
                break
            before = cluster.metrics()[-1]["generation"]
            if kind == "rank_lost":
                os.kill(b.rank_pids()[0], signal.SIGKILL)
            else:
                b.kill_machine()
                cluster.wait_world(1, 30 * slow)
                b = cluster.start_worker("b")
            wait_until("world 2 again", lambda n=before: cluster.metrics()[-1]["world_size"] == 2
                       and cluster.metrics()[-1]["generation"] > n, 30 * slow, cluster.log_tails)
            times += [e["detect_ms"] for e in cluster.events() if e["generation"] > before and e["kind"] == kind]
    print(found)
    assert all(min(times, default=math.inf) < AT_ONCE_MS * slow for times in found.values()), found
    a.term()
    assert a.wait(12 * slow) == 0
