"""Bad input: one clear line (what, where, what to do), its exit code, and no loss."""

import os
import re
import socket
import struct
import subprocess
import time

import pytest

from calm import calm_hash
from cluster import ROOT, TINY, make_text, program


def run_program(name, *args, timeout=60, env=None, cwd=None):
    done = subprocess.run([str(program(name)), *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=timeout, env=env, cwd=cwd)
    return done.returncode, done.stdout, done.stderr


def one_line(text):
    lines = [line for line in text.splitlines() if line.startswith(("dpt-worker: ", "dpt-rdzv: "))]
    assert len(lines) == 1, text
    return lines[0]


@pytest.mark.parametrize("args, said", [
    (["--port", "x"], "--port: expected an integer from 0 to 65535, got 'x'"),
    (["--port", "70000"], "--port: expected an integer from 0 to 65535, got '70000'"),
    (["--bind", "somewhere"], "--bind 'somewhere' is not a numeric IP address, localhost or *"),
    (["--prot", "1"], "unknown option '--prot'"),
    (["29500"], "unexpected argument '29500'"),
    (["--port", "0", "--port-file", "/nonexistent/folder/port"], "/nonexistent/folder"),
    (["--port", "0", "--port-file", "/proc"], "--port-file: "),
    (["--log-level", "loud"], "debug, info, warn, error"),
    (["--open", "--new-token"], "--open means that there are no keys"),
    (["--new-token", "--deny", "x"], "give one of --new-token, --revoke, --new-key and --deny"),
    (["--new-token", "--run", "a/b"], "--run 'a/b' is no name of a run"),
    (["--new-key", "--after-s", "-1"], "--after-s: expected an integer from 0 to 2592000, got '-1'"),
    (["--new-token", "--token-hours", "0"], "--token-hours: expected an integer from 1 to 8784, got '0'"),
    (["--new-token", "--token-uses", "x"], "--token-uses: expected an integer from 1 to 50000, got 'x'"),
    (["--after-s", "5"], "--after-s is the time until a new key is in force: give --new-key, too"),
    (["--token-uses", "2"], "--token-hours and --token-uses are of a token that --new-token makes: give --new-token"),
    (["--port", "0", "--token-hours", "24"], "are of a token that --new-token makes"),
    (["--new-key", "--token-uses", "64"], "are of a token that --new-token makes"),
    (["--deny", "x", "--run", "r"], "--deny takes no --run, because it cuts the machine off from every run"),
    (["--revoke", "x", "--run", "r"], "--revoke takes no --run: a token is revoked for every run"),
    (["--open", "--revoke", "x"], "--open means that there are no keys"),
    (["--open", "--run", "r"], "nobody is bound by --run or --join-only, which are of tokens"),
    (["--open", "--join-only"], "nobody is bound by --run or --join-only, which are of tokens"),
    (["--new-key", "--run", "r"], "--join-only and --run are of a token that is made"),
    (["--deny", "x", "--join-only"], "--join-only and --run are of a token that is made"),
    (["--port", "0", "--bind", "192.0.2.7"], "--bind 192.0.2.7 is no address of this machine: give one that it has"),
    (["--key-dir", "/proc/keys"], "key folder"),
])
def test_server_options(args, said):
    code, _, err = run_program("dpt-rdzv", *args)
    assert code == 2 and said in one_line(err), err


def test_commands_in_a_key_folder_of_no_server(tmp_path):
    """Whoever forgets --key-dir, or is another user than the server, is told which folder was used."""
    folder = tmp_path / "keys"
    code, _, err = run_program("dpt-rdzv", "--new-key", "--key-dir", folder)
    assert code == 2 and f"no server has used the key folder '{folder}' yet" in one_line(err), err
    assert not (folder / "server.key").exists() and not (folder / "server.key.next").exists()
    code, _, err = run_program("dpt-rdzv", "--deny", "nobody", "--key-dir", folder)
    assert code == 2 and f"--deny nobody: no machine in '{folder}/machines' has this name" in one_line(err), err
    for warned in (True, False):  # the first token draws the server's key
        code, out, err = run_program("dpt-rdzv", "--new-token", "--key-dir", folder)
        assert code == 0 and out.startswith("dpt1-"), err
        assert (f"no server has used the key folder '{folder}' yet: the token is for" in err) == warned, err
    for after_s, said in ((0, 5), (4, 5), (6, 6)):  # a running server needs the first 5 s
        code, out, err = run_program("dpt-rdzv", "--new-key", "--after-s", after_s, "--key-dir", folder)
        assert code == 0 and f"has it in {said} s;" in out, err
        (folder / "server.key.next").unlink()
    key = "ab" * 32
    (folder / "machines").write_text(f"define {key} b\njoin {'cd' * 32} b\ndeny {'ef' * 32} c\n")
    (folder / "machines").chmod(0o600)
    for name, said in (("b", f"2 machines in '{folder}/machines' are called so; give the first 8 digits of the key"),
                       ("c", f"it is denied already, in '{folder}/machines'")):
        code, _, err = run_program("dpt-rdzv", "--deny", name, "--key-dir", folder)
        assert code == 2 and said in one_line(err), err
    code, out, err = run_program("dpt-rdzv", "--deny", key[:8], "--key-dir", folder)
    assert code == 0 and f"machine b (key {key[:8]}) is denied" in out, err


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
    assert f"*:{port} is in use" in one_line(err)


@pytest.mark.parametrize("config, path, command", [
    ("digits", "runs/digits/train.bin", "deploy/digits --tables"),
    ("languages", "runs/languages/train.csv", "deploy/languages --tables"),
    ("quickstart", "runs/quickstart/text.txt", "deploy/quickstart"),
    ("cifar10", "data/cifar10/data_batch_*.bin", "deploy/fetch cifar10"),
    ("gpt2-124m", "data/fineweb-10b/fineweb_train_*.bin", "deploy/fetch fineweb-10b"),
    ("yelp", "data/yelp/train.csv", "deploy/fetch yelp"),
])
def test_data_of_our_configs(tmp_path, config, path, command):
    """In a fresh checkout the message about missing data names the program that makes the file."""
    file = ROOT / "configs" / f"{config}.yaml"
    assert path in file.read_text() and command.split()[0] in {
        str(entry.relative_to(ROOT)) for entry in (ROOT / "deploy").iterdir()}
    code, _, err = run_program("dpt-worker", "--nnodes", "1", "--config", file, "--set", "cluster.device=cpu", "--set",
                               "data.tokenizer=bytes", cwd=tmp_path)
    said = one_line(err)
    assert code == 2 and f"'{path}'" in said and f"run `{command}`, which makes " in said, err


def worker(tmp_path, *args, sets=None, config=TINY, timeout=60):
    values = {"data.train": make_text(tmp_path / "text.txt"), "log.dir": tmp_path / "log",
              "checkpoint.dir": tmp_path / "checkpoints", "cluster.timeout_s": 0.3}
    values.update(sets or {})
    argv = ["--config", config] + [a for k, v in values.items() for a in ("--set", f"{k}={v}")]
    env = {k: v for k, v in os.environ.items() if k != "DPT_RDZV_ENDPOINT"}
    return run_program("dpt-worker", *argv, *args, timeout=timeout, env=env)


def test_most_slots_of_a_step(tmp_path):
    """A step with the largest number of micro-batches is accepted; one more is refused."""
    sets = {"model.n_layer": 1, "model.n_embd": 16, "model.n_head": 1, "model.context": 4, "train.seq_len": 4,
            "train.micro_batch": 1, "train.steps": 1, "optimizer.warmup_steps": 0, "cluster.threads": 1,
            "cluster.timeout_s": 30}
    code, _, err = worker(tmp_path, "--nnodes", "1", sets={**sets, "train.global_batch": 4097})
    assert code == 2, err
    assert one_line(err).endswith("4097 slots a step, more than 4096; nearest: a global_batch of 4096, or a "
                                  "micro_batch of 17"), err
    code, _, err = worker(tmp_path, "--nnodes", "1", sets={**sets, "train.global_batch": 4096})
    assert code == 0, err


@pytest.mark.parametrize("args, said", [
    (["--rdvz-endpoint", "h:1"], "did you mean --rdzv-endpoint"),
    (["--rdzv-endpoint", "host"], "--rdzv-endpoint 'host' is not HOST:PORT"),
    (["--rdzv-endpoint", "host:0"], "port of 'host:0': expected an integer from 1 to 65535, got '0'"),
    (["--node-id", "a/b"], "--node-id 'a/b'"),
    (["--node-id", "-"], "--node-id '-'"),
    (["--set", "run=é"], "run: 'é': only letters"),
    (["--set", "train.step=5"], "train.steps"),
    (["--set", "train.steps=many"], "train.steps"),
    (["--allow-change", "train.stepz"], "--allow-change: unknown key 'train.stepz'; did you mean 'train.steps'?"),
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
    """Tokens beyond the vocabulary are refused at the start, though the run would read one only much later."""
    for name, last in ("good", 99), ("other", 50256):
        tokens = [*(i % 99 for i in range(200_000)), last]
        header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
        (tmp_path / f"{name}.bin").write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))
    sets = {"data.kind": "tokens", "data.train": tmp_path / "good.bin", "data.val": tmp_path / "good.bin",
            "train.eval_every": 5, "model.vocab": 256, key: tmp_path / "other.bin"}
    code, _, err = worker(tmp_path, "--nnodes", "1", sets=sets)
    assert code == 2, err
    assert f"{key}: '{tmp_path}/other.bin' has token 50256, model.vocab is 256; set model.vocab: 50257" in one_line(err)


@pytest.mark.parametrize("key", ["data.train", "data.val"])
@pytest.mark.parametrize("name, text, said", [
    ("t.csv", "text,label\na,0\nb,2\n", ":3: label 2 is not among 0 … 1; correct it, or set data.first_label (0)"),
    ("t.csv", "text,label\na,0\n\"two\nlines\"\n", ":3: the row has 1 column, the first one 2; give it the others"),
    ("t.csv", "review,label\na,0\n", ":1: no column is named 'text'; set data.text_column to one of 'review', 'label'"),
    ("t.tsv", "text\tlabel\n\t0\n", ":2: its text is empty; remove the row, or give it one"),
    ("t.jsonl", '{"text": "a", "label": 0}\n{"text": "b"}\n', ":2: it has no member 'label'; give it one"),
])
def test_rows_of_a_table(tmp_path, key, name, text, said):
    (tmp_path / "good.csv").write_text("text,label\na,0\nb,1\n")
    (tmp_path / name).write_text(text)
    sets = {"data.kind": "classification", "model.labels": 2, "data.train": tmp_path / "good.csv",
            "data.val": tmp_path / "good.csv", "train.eval_every": 5, key: tmp_path / name}
    code, _, err = worker(tmp_path, "--nnodes", "1", sets=sets)
    assert code == 2 and f"{key}: {tmp_path / name}{said}" in one_line(err), err


@pytest.mark.parametrize("text, said", [
    (None, "config.yaml"),
    ("", "data.train"),
    ("run: [", "config.yaml"),
    ("train:\n  stepz: 5\n", "config.yaml:2:3"),
    ("model: {name: gpt9}\n", "model.name"),
    ("\0\1\2", "config.yaml"),
    ("\ufeffseed: 1\ntrain:\n  stepz: 5\n", "config.yaml:3:3: unknown key"),
])
def test_config_files(tmp_path, text, said):
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    code, _, err = run_program("dpt-worker", "--config", path)
    assert code == 2 and said in one_line(err), err


@pytest.mark.parametrize("ranks", [1, 2])
def test_fatal_error_is_said_once(tmp_path, slow, ranks):
    """An error with which no rank can start ends the worker within two seconds, with one line. The lease is 27 s, so
    that a wait for it would show."""
    sets = {"cluster.timeout_s": 30, "train.steps": 5}
    code, _, err = worker(tmp_path, "--nnodes", "1", sets=sets)
    assert code == 0, err
    began = time.monotonic()
    code, out, err = worker(tmp_path, "--nnodes", "1", "--nproc-per-node", ranks, sets={**sets, "model.n_embd": 32})
    assert time.monotonic() - began < 2 * slow
    assert code == 2 and "model.n_embd (64, here 32)" in one_line(err), err
    assert (out + err).count("model.n_embd") == 1 and "starting it again" not in err, err
    said = [(tmp_path / "log").glob(f"node-*/rank-{rank}.log") for rank in range(ranks)]
    assert all(any("model.n_embd (64, here 32)" in log.read_text() for log in logs) for logs in said)


def test_too_little_memory(tmp_path, slow):
    """A model that is too large for any machine is refused, and so is an allocation that fails under a shell's
    limit."""
    sets = {"cluster.timeout_s": 30, "checkpoint.dir": "null", "model.n_layer": 96, "model.n_embd": 12288}
    code, _, err = worker(tmp_path, "--nnodes", "1", sets=sets)
    line = one_line(err)
    assert code == 4 and re.search(r"too little memory: a rank needs at least \d{6,} MiB .* and \d+ MiB are available",
                                   line), err
    assert all(key in line for key in ("train.micro_batch (2)", "train.seq_len (32)", "train.activation_checkpointing",
                                       "strategy.name")), line
    if slow > 1:  # a sanitizer needs more address space than any limit leaves
        return
    argv = [program("dpt-worker"), "--config", TINY, "--nnodes", "1", "--set", f"data.train={tmp_path}/text.txt",
            "--set", f"log.dir={tmp_path}/log", "--set", "checkpoint.dir=null", "--set", "model.n_embd=2048"]
    run = subprocess.run(["sh", "-c", 'ulimit -v 1600000 && exec "$@"', "sh", *map(str, argv)], capture_output=True,
                         text=True, timeout=60)
    line = one_line(run.stderr)
    assert run.returncode == 4 and "too little memory: " in line and "ulimit -v" in line, run.stderr


def test_too_little_memory_for_all_ranks(tmp_path):
    """Four ranks fit one by one, but the machine's memory does not suffice for all four: refused."""
    meminfo = {line.split(":")[0]: int(line.split()[1]) << 10 for line in open("/proc/meminfo", encoding="ascii")}
    width, state_bytes = 2048, 16  # of a parameter: weight, gradient, two moments
    layers = meminfo["MemTotal"] // 3 // (12 * width * width * state_bytes)
    if meminfo["MemAvailable"] < 0.45 * meminfo["MemTotal"] or layers < 1:
        pytest.skip("too little of this machine's memory is free for one rank")
    sets = {"checkpoint.dir": "null", "model.n_layer": layers, "model.n_embd": width}
    code, _, err = worker(tmp_path, "--nnodes", "1", "--nproc-per-node", "4", sets=sets)
    line = one_line(err)
    assert code == 4 and re.search(r"too little memory: a rank needs .* and 4 ranks share the \d+ MiB of this machine;",
                                   line), err


def test_more_steps(tmp_path):
    """A finished run continues with the flag that its refusal names."""
    assert worker(tmp_path, "--nnodes", "1", sets={"train.steps": 6})[0] == 0
    code, _, err = worker(tmp_path, "--nnodes", "1", sets={"train.steps": 8})
    assert code == 2
    assert "step 6 of a run of 6 steps, and train.steps is 8 here: give --allow-change train.steps" in one_line(err)
    code, out, _ = worker(tmp_path, "--nnodes", "1", "--allow-change", "train.steps", sets={"train.steps": 8})
    assert code == 0 and "step 8" in out, out


def test_more_epochs(tmp_path):
    """A finished run by epochs continues with the flag that its refusal names; train.steps and train.epochs together
    are refused."""
    epochs = {"train.steps": "auto", "data.train": make_text(tmp_path / "short.txt", 3000), "train.log_every": 100}
    assert worker(tmp_path, "--nnodes", "1", sets={**epochs, "train.epochs": 2})[0] == 0
    code, _, err = worker(tmp_path, "--nnodes", "1", sets={**epochs, "train.epochs": 3})
    assert code == 2
    assert ("step 10 of a run of 2 epochs, and train.epochs is 3 here: give --allow-change train.epochs to "
            "continue to step 15") in one_line(err)
    code, out, err = worker(tmp_path, "--nnodes", "1", "--allow-change", "train.epochs",
                            sets={**epochs, "train.epochs": 3})
    assert code == 0 and re.findall(r"Epoch (\d+)/3 \|", out) == ["3"] and "done: run tiny, step 15" in out, out
    code, out, _ = worker(tmp_path, "--nnodes", "1", "--allow-change", "train.epochs",
                          sets={**epochs, "train.epochs": 3})
    assert code == 0 and "already finished at step 15; for more: --set train.epochs=N" in out, out
    code, _, err = worker(tmp_path, "--nnodes", "1", sets={"train.epochs": 2, "train.steps": 20})
    assert code == 2 and "train.epochs (2) and train.steps (20) both give the length of the run" in one_line(err)


def test_no_checkpoints(tmp_path):
    """checkpoint.dir: null turns checkpoints off, though the config has other keys of the section."""
    code, _, err = worker(tmp_path, "--nnodes", "1", sets={"train.steps": 11, "checkpoint.dir": "null"})
    assert code == 0, err
    assert not (tmp_path / "checkpoints").exists()


def test_byte_order_mark(tmp_path):
    """A config that begins with the byte order mark of UTF-8 is the same config."""
    config = tmp_path / "config.yaml"
    config.write_bytes(b"\xef\xbb\xbf" + TINY.read_bytes())
    code, out, err = worker(tmp_path, "--nnodes", "1", sets={"train.steps": 6}, config=config)
    assert code == 0 and "done: run tiny, step 6, generation 1" in out, err


def test_no_server(tmp_path):
    """Without a server the worker retries until the join deadline, names the place and the flag that changes it, and
    exits with 3."""
    code, out, err = worker(tmp_path, "--rdzv-endpoint", "127.0.0.1:1")
    assert code == 3
    assert "waiting for a server at 127.0.0.1:1 (from --rdzv-endpoint; --rdzv-endpoint HOST:PORT changes it)" in out
    assert "127.0.0.1:1" in one_line(err) and "--rdzv-endpoint" in one_line(err), err


def test_something_else_at_the_port(tmp_path):
    """A port at which another program answers is reported as no server."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, _, err = worker(tmp_path, "--rdzv-endpoint", f"127.0.0.1:{other.getsockname()[1]}")
    assert code == 3, err


def goes_on(cluster, worker, slow):
    """Checks that the refused worker did not disturb the run."""
    cluster.wait_step(cluster.step() + 5, 20 * slow)
    assert {line["generation"] for line in cluster.metrics()} == {1}
    worker.term()
    assert worker.wait(12 * slow) == 0


def test_other_config(make_cluster, slow):
    """A worker with other run-wide keys is refused with their names; the run is not disturbed."""
    cluster = make_cluster(sets={"train.steps": 100000})
    cluster.start_server()
    a = cluster.start_worker("a")
    cluster.wait_step(3, 30 * slow)
    b = cluster.start_worker("b", sets={"optimizer.lr": 0.001, "train.grad_clip": 0.5})
    assert b.wait(20 * slow) == 2
    said = one_line(b.log())
    assert said.startswith("dpt-worker: refused by the server: the config differs from that of run "), said
    assert "optimizer.lr (0.003, here 0.001)" in said and "train.grad_clip" in said, said
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
    """A second process with the id of a living node is refused, with the same folder and with a different one."""
    cluster = make_cluster(sets={"train.steps": 100000})
    cluster.start_server()
    first = cluster.start_worker("a")
    cluster.wait_step(3, 30 * slow)
    second = cluster.start_worker("a")
    assert second.wait(30 * slow) == 2
    assert f"a process of this node id works here already (process {first.pid} on " in one_line(second.log())
    elsewhere = cluster.start_worker("a", sets={"log.dir": cluster.root / "elsewhere"})
    assert elsewhere.wait(30 * slow) == 2
    assert re.search(r"node 'a' of run '\S+' is alive \(at 127\.0\.0\.1, joined \d+ s ago\) and another process: give "
                     r"this one another --node-id, or wait until that node is lost", one_line(elsewhere.log()))
    goes_on(cluster, first, slow)


def test_other_config_of_a_node_id(make_cluster, tmp_path, slow):
    """A refused worker with the id of a living node does not disturb that node: same generation, same weights."""
    sets = {"train.steps": 100000, "checkpoint.every_steps": 0, "cluster.nnodes": 2}
    cluster = make_cluster(sets=sets)
    cluster.start_server()
    workers = [cluster.start_worker(node) for node in ("a", "b")]
    cluster.wait_step(3, 30 * slow)
    other = cluster.start_worker("b", sets={"log.dir": cluster.root / "elsewhere", "optimizer.lr": 0.001})
    assert other.wait(20 * slow) == 2
    assert "optimizer.lr (0.003, here 0.001)" in other.log(), other.log()
    cluster.wait_step(cluster.step() + 5, 20 * slow)
    for worker in workers:
        worker.term()
    assert [worker.wait(20 * slow) for worker in workers] == [0, 0]
    assert {line["generation"] for line in cluster.metrics()} == {1}
    step, found = cluster.newest_checkpoint()
    assert step == cluster.step() and found == calm_hash(tmp_path / "calm", sets, step, 120 * slow)
