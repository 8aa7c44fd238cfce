"""Bad input: one clear line that says what, where and what to do; the exit code; nothing lost."""

import os
import re
import socket
import struct
import subprocess

import pytest

from cluster import TINY, make_text, program


def run_program(name, *args, timeout=60, env=None, cwd=None):
    done = subprocess.run([str(program(name)), *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=timeout, env=env, cwd=cwd)
    return done.returncode, done.stdout, done.stderr


def one_line(text):
    lines = [line for line in text.splitlines() if line.startswith(("dpt-worker: ", "dpt-rdzv: "))]
    assert len(lines) == 1, text
    return lines[0]


@pytest.mark.parametrize("args, said", [
    (["--port", "x"], "--port 'x' is not a number of 0 … 65535"),
    (["--port", "70000"], "--port '70000'"),
    (["--bind", "0.0.0.0"], "--insecure"),
    (["--bind", "somewhere"], "--bind 'somewhere' is not a numeric IP address, localhost or *"),
    (["--prot", "1"], "'--prot'"),
    (["29500"], "unexpected argument '29500'"),
    (["--port", "0", "--port-file", "/nonexistent/folder/port"], "/nonexistent/folder"),
    (["--port", "0", "--port-file", "/proc"], "--port-file: "),
    (["--log-level", "loud"], "debug, info, warn, error"),
])
def test_server_options(args, said):
    code, _, err = run_program("dpt-rdzv", *args)
    assert code == 2 and said in one_line(err), err


def test_help_and_version():
    for name in ("dpt-rdzv", "dpt-worker"):
        code, out, _ = run_program(name, "--help")
        assert code == 0 and out.startswith(f"usage: {name}")
        code, out, _ = run_program(name, "--version")
        assert code == 0 and re.fullmatch(rf"{name} \d+\.\d+\.\d+\n", out)


def test_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run_program("dpt-rdzv", "--port", port)
    assert code == 2
    assert f"127.0.0.1:{port} is in use" in one_line(err)


def worker(tmp_path, *args, sets=None, config=TINY, timeout=60):
    values = {"data.train": make_text(tmp_path / "text.txt"), "log.dir": tmp_path / "log",
              "checkpoint.dir": tmp_path / "checkpoints", "cluster.timeout_s": 0.3}
    values.update(sets or {})
    argv = ["--config", config] + [a for k, v in values.items() for a in ("--set", f"{k}={v}")]
    env = {k: v for k, v in os.environ.items() if k != "DPT_RDZV_ENDPOINT"}
    return run_program("dpt-worker", *argv, *args, timeout=timeout, env=env)


@pytest.mark.parametrize("args, said", [
    (["--rdvz-endpoint", "h:1"], "did you mean --rdzv-endpoint"),
    (["--rdzv-endpoint", "host"], "--rdzv-endpoint 'host' is not HOST:PORT"),
    (["--rdzv-endpoint", "host:0"], "port must be 1 … 65535"),
    (["--node-id", "a/b"], "--node-id 'a/b'"),
    (["--node-id", "-"], "--node-id '-'"),
    (["--set", "run=é"], "run: 'é': only letters"),
    (["--set", "train.step=5"], "train.steps"),
    (["--set", "train.steps=many"], "train.steps"),
    (["--nnodes", "4:2"], "cluster.nnodes"),
    (["--nproc-per-node", "0"], "cluster.gpus_per_node"),
    (["--set", "data.train=/nonexistent/text.txt"], "/nonexistent/text.txt"),
    (["--set", "data.train=/proc"], "'/proc'"),
    (["--config", "/proc"], "'/proc'"),
    (["--set", "log.dir=/proc/nowhere"], "--set log.dir=PATH"),
    (["--set", "log.dir=/dev/null/x"], "log.dir: create folder '/dev/null': Not a directory; give another with"),
    (["--set", "checkpoint.dir=/dev/null/x"], "checkpoint.dir: create folder '/dev/null': Not a directory"),
    (["--set", "checkpoint.dir=/sys/x"], "--set checkpoint.dir=PATH"),
    (["--set", "cluster.interface=nowhere0"], "nowhere0"),
])
def test_worker_options(tmp_path, args, said):
    code, _, err = worker(tmp_path, *args)
    assert code == 2 and said in one_line(err), err


@pytest.mark.parametrize("key", ["data.train", "data.val"])
def test_tokens_of_another_vocabulary(tmp_path, key):
    """Said at the start, though the run would meet the token only much later."""
    for name, last in ("good", 99), ("other", 50256):
        tokens = [*(i % 99 for i in range(200_000)), last]
        header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
        (tmp_path / f"{name}.bin").write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))
    sets = {"data.kind": "tokens", "data.train": tmp_path / "good.bin", "data.val": tmp_path / "good.bin",
            "train.eval_every": 5, "model.vocab": 256, key: tmp_path / "other.bin"}
    code, _, err = worker(tmp_path, "--nnodes", "1", sets=sets)
    assert code == 2, err
    assert f"{key}: '{tmp_path}/other.bin' has token 50256, model.vocab is 256; set model.vocab: 50257" in one_line(err)


@pytest.mark.parametrize("text, said", [
    (None, "config.yaml"),
    ("", "data.train"),
    ("run: [", "config.yaml"),
    ("train:\n  stepz: 5\n", "config.yaml:2:3"),
    ("model: {name: gpt9}\n", "model.name"),
    ("\0\1\2", "config.yaml"),
])
def test_config_files(tmp_path, text, said):
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    code, _, err = run_program("dpt-worker", "--config", path)
    assert code == 2 and said in one_line(err), err


def test_no_server(tmp_path):
    """Tries until the join deadline, says where and which flag changes it, exits 3."""
    code, out, err = worker(tmp_path, "--rdzv-endpoint", "127.0.0.1:1")
    assert code == 3
    assert "waiting for a server at 127.0.0.1:1 (from --rdzv-endpoint; --rdzv-endpoint HOST:PORT changes it)" in out
    assert "127.0.0.1:1" in one_line(err) and "--rdzv-endpoint" in one_line(err), err


def test_something_else_at_the_port(tmp_path):
    """A port where somebody answers who is not dpt-rdzv is no server."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, _, err = worker(tmp_path, "--rdzv-endpoint", f"127.0.0.1:{other.getsockname()[1]}")
    assert code == 3, err


def goes_on(cluster, worker, slow):
    """The run has not noticed the one that was refused."""
    cluster.wait_step(cluster.step() + 5, 20 * slow)
    assert {line["generation"] for line in cluster.metrics()} == {1}
    worker.term()
    assert worker.wait(12 * slow) == 0


def test_other_config(make_cluster, slow):
    """A worker that differs in run-wide keys is refused with their names; the run does not notice."""
    cluster = make_cluster(sets={"train.steps": 100000})
    cluster.start_server()
    a = cluster.start_worker("a")
    cluster.wait_step(3, 30 * slow)
    b = cluster.start_worker("b", sets={"optimizer.lr": 0.001, "train.grad_clip": 0.5})
    assert b.wait(20 * slow) == 2
    assert "optimizer.lr (0.003, here 0.001)" in b.log() and "train.grad_clip" in b.log(), b.log()
    goes_on(cluster, a, slow)


def test_other_data(make_cluster, tmp_path, slow):
    cluster = make_cluster(sets={"train.steps": 100000})
    cluster.start_server()
    a = cluster.start_worker("a")
    cluster.wait_step(3, 30 * slow)
    b = cluster.start_worker("b", sets={"data.train": make_text(tmp_path / "other.txt", seed=2)})
    assert b.wait(20 * slow) == 2
    assert "data" in one_line(b.log()), b.log()
    goes_on(cluster, a, slow)


def test_same_node_id_twice(make_cluster, slow):
    """Two workers of one node id: the newer one has the place, the older one is out and ends; training goes on."""
    cluster = make_cluster(sets={"train.steps": 100000})
    cluster.start_server()
    other = cluster.start_worker("other")
    first = cluster.start_worker("a")
    cluster.wait_world(2, 30 * slow)
    second = cluster.start_worker("a")
    assert first.wait(30 * slow) == 75
    assert "dpt-worker: " in first.log()
    cluster.wait_world(2, 20 * slow)
    assert second.alive() and other.alive()
