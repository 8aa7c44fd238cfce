"""dpt-doctor beside a run with a stopped rank, and on links whose rate is limited. Links need root, ip(8) and tc(8):
otherwise those tests are skipped."""

import pytest

from cluster import Process, program, wait_until
from doctor import doctor, stop_a_rank, texts
from netns import NET, Star, Unavailable, Wire, ip

LIMIT_MBIT = 80  # below what two loaded cores send


def test_stopped_rank_and_the_all_reduce_of_others_are_named(make_cluster, slow):
    stop_a_rank(make_cluster, slow, {})


class Listening:
    """A dpt-doctor that listens in each of these namespaces, at NET1, NET2, …"""

    def __init__(self, folder, hosts, slow):
        self.slow = slow
        self.nodes = [(host, folder / f"{host}.port") for host in hosts]
        self.processes = [Process("dpt-doctor", ["ip", "netns", "exec", host, program("dpt-doctor"), "net", "--listen",
                                                 0, "--for", 300, "--port-file", port_file], folder / f"{host}.log")
                          for host, port_file in self.nodes]

    def __enter__(self):
        ports = [wait_until("the node listens", lambda: file.exists() and file.read_text(), 20 * self.slow)
                 for _, file in self.nodes]
        self.peers = ",".join(f"{NET}{i}:{int(port)}" for i, port in enumerate(ports, start=1))
        return self

    def __exit__(self, kind, value, trace):
        for process in self.processes:
            process.kill()


def gigabytes(result):
    return {(pair["from"], pair["to"]): pair["gb_per_s"] for pair in result["pairs"] if "gb_per_s" in pair}


def test_limited_link_has_its_rate_and_is_an_outlier(tmp_path, slow):
    """Of three hosts at a switch, the third sends at a limited rate. The matrix has this rate within 10 % (40 % under
    sanitizers, beside other tests); the node and the asymmetry are named."""
    try:
        with Star(3) as star:
            star.limit(LIMIT_MBIT, star.ends[2:3])
            with Listening(tmp_path, star.names, slow) as nodes:
                code, result = doctor("net", "--peers", nodes.peers, "--ms", 1500, host=star.names[0],
                                      timeout=120 * slow)
    except Unavailable as reason:
        pytest.skip(str(reason))
    rates, limit = gigabytes(result), LIMIT_MBIT / 8e3
    assert code == 0 and set(rates) == {(i, k) for i in range(3) for k in range(3) if i != k}, result
    for to in (0, 1):
        assert abs(rates[2, to] / limit - 1) <= 0.10 * slow, (rates, limit)
    for pair in set(rates) - {(2, 0), (2, 1)}:
        assert rates[pair] > 3 * limit, (pair, rates)
    assert any(f"{NET}3" in text and "sends to all others" in text for text in texts(result, "slow node")), result
    assert len([text for text in texts(result, "asymmetry") if f"{NET}3" in text]) == 2, result
    assert f"{NET}3" in texts(result, "slowest")[0], result


def test_cut_wire_is_a_failed_link_of_a_named_node(tmp_path, slow):
    """A host whose wire is down answers nothing: its pairs fail within the deadline, and the exit code says so."""
    try:
        with Wire() as wire:
            with Listening(tmp_path, wire.names, slow) as nodes:
                code, _ = doctor("net", "--peers", nodes.peers, "--ms", 100, host=wire.names[0], timeout=60 * slow)
                assert code == 0
                assert ip("-n", wire.names[1], "link", "set", wire.devices[1], "down").returncode == 0
                code, result = doctor("net", "--peers", nodes.peers, "--ms", 100, "--timeout-ms", 500,
                                      host=wire.names[0], timeout=60 * slow)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert code == 1 and not gigabytes(result), result
    assert all(f"{NET}2" in pair["error"] for pair in result["pairs"]), result
    assert len(texts(result, "no answer")) == 1 and not texts(result, "no link"), result
