"""A worker that reaches no server says what is wrong, where, and what to do; the server prints how it is reached."""

import re
import socket
import time

import pytest

from cluster import Outputs, Process, program, wait_until
from netns import NET, Unavailable, Wire, ip, start_server

NAMED_S, NAME_TRIES = 1, 3
SOON_S = 10  # the reason is there within a second or three on an idle machine
REASON = r"waiting for a server at {} \(from --rdzv-endpoint; .*\) for at most \d+ s: "


@pytest.fixture
def hosts():
    """Names of two namespaces, at NET1 and NET2, and the device of the first one."""
    try:
        with Wire() as wire:
            yield wire
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_port_refuses(make_cluster, slow):
    """A port that refuses is named within seconds; the worker retries until the join time, and its last line repeats
    the cause."""
    cluster = make_cluster(sets={"cluster.timeout_s": 0.5})
    with socket.socket() as held:  # bound and not listening: nobody else takes the port
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        worker = cluster.start_worker("a", endpoint=f"127.0.0.1:{port}")
        worker.wait_log(REASON.format(rf"127\.0\.0\.1:{port}") + rf"port {port} of 127\.0\.0\.1 refuses: nothing "
                        rf"listens there\. Start dpt-rdzv --port {port} on this host", SOON_S * slow)
        assert worker.alive()
        assert worker.wait(30 * slow) == 3
    last = rf"^dpt-worker: .*; tried 127\.0\.0\.1:{port} \(from --rdzv-endpoint\): port {port} of"
    assert re.search(last, worker.log(), re.M), worker.log()


def test_server_that_comes_late_is_found(make_cluster, slow):
    """A server that starts after the worker has reported its absence is found."""
    cluster = make_cluster(sets={"train.steps": 6})
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        worker = cluster.start_worker("a", endpoint=f"127.0.0.1:{port}", nnodes=1)
        worker.wait_log("refuses", SOON_S * slow)
    cluster.start_server(port=port)
    assert worker.wait(60 * slow) == 0


def test_name_without_address(make_cluster, slow):
    """A name without an address is named within a second of the start, and so is a name server that does not answer.
    The quickest of some tries counts, because other programs may delay one."""
    said = re.compile(REASON.format(r"no-such-host\.invalid:29500") +
                      r"the name 'no-such-host\.invalid' (has no address \(.+\)\. Check the name, or give the host's "
                      r"address|is still being looked up; no name server answers\. Give the host's address instead)\n")
    times = []
    while len(times) < NAME_TRIES and min(times, default=NAMED_S * slow) >= NAMED_S * slow:
        cluster = make_cluster(f"try-{len(times)}")
        began = time.monotonic()
        worker = cluster.start_worker("a", endpoint="no-such-host.invalid:29500")
        wait_until("the name is named", lambda w=worker: said.search(w.log()), SOON_S * slow, worker.log_tail)
        times.append(time.monotonic() - began)
        worker.kill_machine()
    print(times)
    assert min(times) < NAMED_S * slow, times


def test_other_program_listens(make_cluster, slow):
    cluster = make_cluster()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(16)
        port = other.getsockname()[1]
        worker = cluster.start_worker("a", endpoint=f"127.0.0.1:{port}")
        worker.wait_log(f"port {port} of 127.0.0.1 answers, but not as dpt-rdzv does", SOON_S * slow)


def test_host_does_not_answer(make_cluster, hosts, slow):
    """A host that is in the neighbour table but does not exist: packets go out, and no answer comes."""
    name, device = hosts.ends[0]
    done = ip("-n", name, "neigh", "add", f"{NET}77", "lladdr", "02:00:00:00:00:77", "dev", device, "nud", "permanent")
    if done.returncode != 0:
        pytest.skip(f"no neighbour entries here: {done.stderr.strip()}")
    cluster = make_cluster()
    argv = ["ip", "netns", "exec", name] + cluster.worker_argv("a", endpoint=f"{NET}77:29500")
    worker = Process("worker a", argv, cluster.root / "worker-a.log", cluster.env)
    worker.wait_log(f"{NET}77 does not answer. The host is down, or a firewall drops port 29500", SOON_S * slow)
    worker.kill()


def test_server_on_localhost_is_told_apart(make_cluster, hosts, slow):
    """The host answers and its port refuses, because the server is bound to localhost."""
    cluster = make_cluster()
    port = start_server(cluster, hosts.names[0], 10 * slow, "--bind", "localhost")
    argv = ["ip", "netns", "exec", hosts.names[1]] + cluster.worker_argv("b", endpoint=f"{NET}1:{port}")
    worker = Process("worker b", argv, cluster.root / "worker-b.log", cluster.env)
    worker.wait_log(f"port {port} of {NET}1 refuses: no server runs there, or it listens on another address only. "
                    f"Start dpt-rdzv --port {port} there", SOON_S * slow)
    worker.kill()


def test_what_the_server_prints_is_what_works(make_cluster, hosts, slow):
    """The two command lines that the server prints work on the machines they are for, which have other keys than the
    server's; the second takes the config of the run that it names."""
    cluster = make_cluster(sets={"train.steps": 6})
    start_server(cluster, hosts.names[0], 10 * slow)
    cluster.server.wait_log("on the other", SOON_S * slow)
    screen = cluster.server.log()
    lines = [line.split("#")[0].split() for line in screen.splitlines() if line.strip().startswith("dpt-worker")]
    assert len(lines) == 2 and f"{NET}1:{cluster_port(screen)}" in lines[0], screen
    workers = []
    for node, host, line in zip("ab", hosts.names, lines):
        own = [f"{key}={value}" for key, value in zip(("log.dir", "checkpoint.dir"), cluster.dirs(node))]
        shared = [f"{key}={value}" for key, value in cluster.sets.items()] if "FILE" in line else []
        sets = [word for pair in own + shared for word in ("--set", pair)]
        given = {"FILE": str(cluster.config), "RUN": "tiny"}
        argv = [program("dpt-worker"), *(given.get(word, word) for word in line[1:]), *sets]
        workers.append(Process(node, ["ip", "netns", "exec", host, *argv], cluster.root / f"worker-{node}.log",
                               dict(cluster.env, DPT_KEY_DIR=str(cluster.root / f"keys-{node}"))))
        if node == "a":
            workers[0].wait_log("waiting for nodes: 1 of 2", 20 * slow)
    assert [w.wait(60 * slow) for w in workers] == [0, 0], workers[1].log()
    assert "training on 2 ranks" in workers[1].log()


def test_two_commands_and_nothing_else(make_cluster, hosts, slow):
    """A server on the head and the same command without a config on two machines train the built-in demo. Sanitizer
    builds make fewer steps."""
    cluster = make_cluster()
    steps, shorter = (100, []) if slow == 1 else (10, ["--set", "train.steps=10", "--set", "optimizer.warmup_steps=1"])
    in_host = [["ip", "netns", "exec", name] for name in hosts.names]
    argv = [*in_host[0], program("dpt-rdzv"), "--port", 29500, "--state-dir", cluster.root / "state"]
    server = Process("dpt-rdzv", argv, cluster.root / "rdzv.log", cluster.env)
    server.wait_log(r"listening on \*:29500", SOON_S * slow)
    workers = []
    for node, prefix in zip("ab", in_host):
        folder = cluster.root / node
        folder.mkdir()
        argv = [*prefix, program("dpt-worker"), "--nnodes", 2, "--rdzv-endpoint", f"{NET}1:29500", *shorter]
        workers.append(Process(node, argv, cluster.root / f"worker-{node}.log", cluster.env, cwd=folder))
    assert [worker.wait(120 * slow) for worker in workers] == [0, 0], workers[1].log_tail()
    summaries = [Outputs(cluster.root / node / "runs" / "demo").summary() for node in "ab"]
    assert {(s["run"], s["steps"], s["world_size"]) for s in summaries} == {("demo", steps, 2)}
    assert len({s["weights_hash"] for s in summaries}) == 1
    assert all("training on 2 ranks" in w.log() and f"done: run demo, step {steps}" in w.log() for w in workers)
    assert f"none at {NET}1:29500: running the built-in demo" in workers[0].log() + workers[1].log()
    server.term()
    assert server.wait(10 * slow) == 0


def cluster_port(screen):
    return int(re.search(r"listening on \*:(\d+)", screen)[1])


def test_server_prints_its_token(make_cluster):
    cluster = make_cluster()
    cluster.start_server(args=["--bind", "*"])
    screen = cluster.server.log()
    assert f"listening on *:{cluster.port} with keys" in screen
    lines = (r"--nnodes 2 --rdzv-endpoint \S+ --rdzv-token dpt1-\S{68} --config FILE ",
             r"--rdzv-endpoint \S+ --rdzv-token dpt1-\S{68} --rdzv-id RUN ")  # which takes --nnodes from the run
    assert [len(re.findall("dpt-worker " + line, screen)) for line in lines] == [1, 1], screen
    lines = screen.splitlines()
    assert len(lines) <= 20, screen
    prose = [line for line in lines if not re.search("dpt-worker|--new-token|journal is in", line)]
    assert all(len(line) <= 120 for line in prose), screen


def test_open_server_warns(tmp_path, slow):
    argv = [program("dpt-rdzv"), "--port", 0, "--bind", "127.0.0.1", "--open", "--state-dir", tmp_path / "journal"]
    server = Process("dpt-rdzv", argv, tmp_path / "server.log")
    server.wait_log("listening on 127.0.0.1", 10 * slow)
    assert server.log().startswith("WARNING: no keys (--open): any process that reaches the port can join")
    assert "the journal is in" in server.log()
    server.term()
    assert server.wait(10 * slow) == 0


def test_worker_without_config_takes_the_only_run(make_cluster, slow):
    """A worker without a config and a run's name joins the server's only run, not the demo."""
    cluster = make_cluster(sets={"train.steps": 6})
    cluster.start_server()
    a = cluster.start_worker("a", nnodes=2)
    a.wait_log("waiting for nodes: 1 of 2", 20 * slow)
    b = cluster.start_worker("b", config=False)
    assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}, b.log()
    assert f"no config given: taking part in run 'tiny', the one at {cluster.endpoint()}" in b.log()
    assert a.outputs.summary()["weights_hash"] == b.outputs.summary()["weights_hash"]
