"""The server's port, which is closed and opened again when its key changes. Hosts are network namespaces; needs root
and ip(8), else skipped."""

import subprocess
import sys
import time

import pytest

from cluster import Process, program
from netns import NET, Unavailable, Wire, ip, must, start_server, start_worker

OF_AN_ADDRESS = 64  # connections without a message that the server holds for an address (docs/security.md)
HANDSHAKE_S = 10  # then it closes them anyway
SILENT = """
import socket, sys
address, count = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
silent = [socket.create_connection(address) for _ in range(count)]
print("open", flush=True)
for each in silent:
    try:
        while each.recv(4096):
            pass
    except ConnectionResetError:
        pass
print("closed", flush=True)
"""


@pytest.fixture
def wire():
    try:
        with Wire() as network:
            yield network
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def cluster(make_cluster):
    made = make_cluster(sets={"train.steps": 6})
    made.env["DPT_KEY_DIR"] = str(made.root / "head")
    return made


def change_key(cluster):
    done = subprocess.run([program("dpt-rdzv"), "--new-key", "--after-s", "0"], env=cluster.env, capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_silent_connections_count_no_more_after_a_change_of_the_key(cluster, wire, slow):
    """A stranger has as many connections without a message as its address may have when the server's key changes. They
    end with the port, which libzmq does not report. A machine at this address is served then."""
    port = start_server(cluster, wire.names[0], 10 * slow)
    change_key(cluster)
    began = time.monotonic()
    # A connection of another address has the lowest descriptor, which is free afterwards: the machine gets it, and
    # replaces none that still counts.
    for host, count in zip(wire.names, (1, OF_AN_ADDRESS)):
        argv = ["ip", "netns", "exec", host, sys.executable, "-c", SILENT, f"{NET}1", port, count]
        strangers = Process("strangers", argv, cluster.root / f"strangers-{count}.log", cluster.env)
        strangers.wait_log("open", 10 * slow)
    cluster.server.wait_log("the server has a new key", 30 * slow)
    assert strangers.wait(30 * slow) == 0, strangers.log()
    if time.monotonic() - began > HANDSHAKE_S:
        pytest.skip("this machine is too slow: the handshakes ended before the key changed")
    worker = start_worker(cluster, wire.names[1], "b", f"{NET}1:{port}", nnodes=1)
    assert worker.wait(60 * slow) == 0, worker.log_tail() + cluster.server.log_tail()


def test_address_that_is_gone_after_a_change_of_the_key_is_said(cluster, wire, slow):
    """Two servers with one key folder. One goes on at its other address, the other one had no other and ends."""
    host, device = wire.ends[0]
    other = Process("other dpt-rdzv", ["ip", "netns", "exec", host, program("dpt-rdzv"), "--port", 0, "--bind",
                                       f"{NET}1"], cluster.root / "other.log", cluster.env)
    port = start_server(cluster, host, 10 * slow, "--bind", "localhost")
    other.wait_log(f"{NET}1:", 10 * slow)
    if ip("-n", host, "addr", "del", "::1/128", "dev", "lo").returncode != 0:
        pytest.skip("no IPv6 here")
    must("-n", host, "addr", "del", f"{NET}1/24", "dev", device)
    change_key(cluster)
    said = r"cannot listen on \S+ again: Cannot assign requested address\. .*: make it available, then start dpt-rdzv"
    cluster.server.wait_log(said.replace(r"\S+", rf"\[::1\]:{port}"), 40 * slow)
    assert other.wait(40 * slow) == 2, other.log()
    line = other.log().splitlines()[-1]
    assert line.startswith("dpt-rdzv: ") and f"cannot listen on {NET}1:" in line, line
    worker = start_worker(cluster, host, "a", f"127.0.0.1:{port}", nnodes=1)
    assert worker.wait(60 * slow) == 0, worker.log_tail() + cluster.server.log_tail()
    assert cluster.server.alive()
