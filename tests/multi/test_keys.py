"""Keys of real programs: machines with separate key folders are admitted by tokens, refused, and cut off."""

import json
import os
import re
import stat
import subprocess
import sys
import time

import pytest

from cluster import ROOT, Process, program, wait_until
from keyed import DENIED, ctl, last_line, new_token, rdzv, restart_server, start_server, start_worker

FLOOD = ROOT / "tests" / "accept" / "keyed_flood.py"


def times_read(cluster):
    """How often the server has said that the list of tokens has changed."""
    return cluster.server.log().count("tokens' again: it has changed")


def other_run(cluster, name):
    """Keys of a run with its own folders."""
    return {"run": name, "log.dir": cluster.root / name, "checkpoint.dir": cluster.root / name / "checkpoints"}


@pytest.fixture
def cluster(make_cluster):
    made = make_cluster(sets={"train.steps": 6, "cluster.timeout_s": 0.5})
    start_server(made)
    return made


def test_two_machines_with_one_token(cluster, slow):
    token = new_token(cluster)
    a = start_worker(cluster, "a", token, nnodes=2)
    a.wait_log("waiting for nodes: 1 of 2", 20 * slow)
    b = start_worker(cluster, "b", token, config=False)
    assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}, b.log()
    assert a.outputs.summary()["weights_hash"] == b.outputs.summary()["weights_hash"]
    log = cluster.server.log()
    assert log.count("is admitted by a token, with the right define") == 2
    assert "the run is defined by the machine" in log
    for folder in ("head", "keys-a", "keys-b"):
        for path in [cluster.root / folder, *(cluster.root / folder).iterdir()]:
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    again = start_worker(cluster, "a", None, nnodes=1, sets=other_run(cluster, "again"))  # no token is needed again
    assert again.wait(60 * slow) == 0, again.log()


def test_stranger_is_refused(cluster, slow):
    """A machine that knows the server's key and has no token: one line, exit code 5."""
    ring = cluster.root / "keys-s"
    ring.mkdir(mode=0o700)
    (ring / "server.key").write_text((cluster.root / "head" / "server.key").read_text())
    (ring / "server.key").chmod(0o600)
    worker = start_worker(cluster, "s", None)
    assert worker.wait(30 * slow) == DENIED
    assert "does not admit this machine's key" in last_line(worker) and "--rdzv-token" in last_line(worker)


def test_dpt_ctl_of_an_unknown_machine(cluster):
    """It has no option for a token: its lines name the variable."""
    ring = cluster.root / "keys-o"
    ring.mkdir(mode=0o700)
    (ring / "server.key").write_text((cluster.root / "head" / "server.key").read_text())
    (ring / "server.key").chmod(0o600)
    for token, code, said in ((None, 4, "does not admit this machine's key"),
                              ("hello", 2, "$DPT_RDZV_TOKEN: this is no token"), (new_token(cluster), 0, "")):
        ended, _, err = ctl(cluster, "o", "runs", token=token)
        assert ended == code and said in err, err
        if code != 0:
            assert "$DPT_RDZV_TOKEN" in err and len(err.splitlines()) == 1, err


def test_machine_with_another_server_key_says_so(cluster, slow):
    worker = start_worker(cluster, "s", None)
    worker.wait_log("the server there has another key than this machine's key folder has", 20 * slow)
    assert worker.wait(60 * slow) == DENIED
    # The closing line has the cause, too.
    assert "another key than this machine's key folder has" in last_line(worker), worker.log()
    assert "--rdzv-token" in last_line(worker) and "than before" not in worker.log()


def test_worker_without_keys_at_a_server_with_keys(cluster, slow):
    worker = cluster.start_worker("s", args=["--rdzv-token", "none"])
    assert worker.wait(60 * slow) == DENIED
    assert "the server there has keys. Give the token" in last_line(worker), worker.log()


def test_bad_tokens(cluster, slow):
    token = new_token(cluster, "--token-uses", 1)
    first = start_worker(cluster, "a", token, nnodes=1)
    assert first.wait(60 * slow) == 0, first.log()
    for node, text, code, said in (("b", token, DENIED, "the token has expired, was revoked or is used up"),
                                   ("c", token[:-1], 2, "copy it whole"), ("d", "hello", 2, "this is no token"),
                                   ("e", "@/nonexistent", 2, "the file cannot be read")):
        worker = start_worker(cluster, node, text)
        assert worker.wait(30 * slow) == code, worker.log()
        assert said in last_line(worker), worker.log()
    tokens = cluster.root / "head" / "tokens"
    n_read = times_read(cluster)
    fresh = new_token(cluster)
    wait_until("the server reads the list", lambda: times_read(cluster) > n_read, 10 * slow)
    words = tokens.read_text().splitlines()[-1].split()
    tokens.write_text(tokens.read_text().replace(" ".join(words), " ".join([*words[:3], "1000", words[4]])))
    wait_until("the server reads it again", lambda: times_read(cluster) > n_read + 1, 10 * slow)
    worker = start_worker(cluster, "f", fresh)
    assert worker.wait(30 * slow) == DENIED
    assert "not admitted" not in cluster.server.log()  # no request of it was read
    assert "the token has expired" in last_line(worker), worker.log()


def test_spent_tokens_are_known_after_a_restart(cluster, slow):
    """The answer is that the token has expired or is used up, and not that there is no such token."""
    used, expired = new_token(cluster, "--token-uses", 1), new_token(cluster)
    assert start_worker(cluster, "a", used, nnodes=1).wait(60 * slow) == 0
    tokens = cluster.root / "head" / "tokens"
    words = [line.split() for line in tokens.read_text().splitlines() if line.startswith("token")][-1]
    spent = " ".join([*words[:3], str(int(time.time()) - 9), words[4]])
    tokens.write_text(tokens.read_text().replace(" ".join(words), spent))
    for node, token, said in (("b", used, "which is of a token that is used up (it admits 1 machine)"),
                              ("c", expired, "which is of a token that expired at")):
        cluster.server.kill()
        restart_server(cluster)
        worker = start_worker(cluster, node, token)
        assert worker.wait(30 * slow) == DENIED
        assert "the token has expired, was revoked or is used up" in last_line(worker), worker.log()
        cluster.server.wait_log(re.escape(said), 10 * slow)


def test_token_is_revoked(cluster, slow):
    """Its line is found by the digits that are printed beside it; a server that runs refuses it from then on."""
    folder = cluster.root / "head"
    code, out, err = rdzv("--new-token", "--key-dir", folder)
    digits = re.search(r"begins with 'token (\w{8})'; dpt-rdzv --revoke \1 revokes it", err).group(1)
    assert code == 0 and re.fullmatch(r"dpt1-[\w-]{68}\n", out), out
    lines = (folder / "tokens").read_text().splitlines()
    assert [line for line in lines if line.startswith(f"token {digits}")] == lines[-1:]
    for which in (digits, digits, out.strip()):
        code, said, err = rdzv("--revoke", which, "--key-dir", folder)
        assert code == 0 and f"the token {digits} admits no machine any more" in said, err
    worker = start_worker(cluster, "a", out.strip())
    assert worker.wait(30 * slow) == DENIED
    cluster.server.wait_log("which is of a token that was revoked", 10 * slow)
    code, said, err = rdzv("--revoke", digits[:-1], "--key-dir", folder)
    assert code == 2 and said == "" and f"no token in '{folder}/tokens' has a key with these first 8 digits" in err


def test_many_tokens_stop_no_start(make_cluster):
    """Old tokens that admit nobody leave the list. With as many good ones as may be none is made; a server starts."""
    cluster = make_cluster()
    tokens = cluster.root / "head" / "tokens"
    new_token(cluster)
    tokens.write_text("".join(f"token {i:064x} define 1000 9\n" for i in range(1025)))
    start_server(cluster)
    assert len(tokens.read_text().splitlines()) == 16 + 1
    assert "The token admits 64 more machines" in cluster.server.log()
    cluster.server.kill()
    tokens.write_text("".join(f"token {i:064x} define {int(time.time()) + 9999} 9\n" for i in range(1024)))
    code, out, err = rdzv("--new-token", "--key-dir", cluster.root / "head")
    assert code == 2 and out == "" and len(err.splitlines()) == 1, err
    assert "has 1024 tokens that are still good" in err and "remove lines" in err
    restart_server(cluster)
    assert wait_until("the server prints its text", lambda: "TOKEN: one of those" in cluster.server.log(), 10)


def test_join_only_machine(cluster, slow):
    join = new_token(cluster, "--join-only")
    b = start_worker(cluster, "b", join, nnodes=1)
    assert b.wait(30 * slow) == 2
    assert "may join runs but not define one" in last_line(b)
    a = start_worker(cluster, "a", new_token(cluster), nnodes=2)
    a.wait_log("waiting for nodes: 1 of 2", 20 * slow)
    b = start_worker(cluster, "b", None, config=False)
    assert a.wait(60 * slow) == 0 and b.wait(60 * slow) == 0, b.log()


def test_machine_of_one_run(cluster, slow):
    token = new_token(cluster, "--run", "mine")
    worker = start_worker(cluster, "a", token, nnodes=1)
    assert worker.wait(30 * slow) == 2
    assert "may take part in run 'mine' only" in last_line(worker), worker.log()
    worker = start_worker(cluster, "a", None, nnodes=1, sets=other_run(cluster, "mine"))
    assert worker.wait(60 * slow) == 0, worker.log()


def test_dpt_ctl_of_a_machine_of_one_run(cluster, slow):
    """It sees this run without a name, and no other."""
    (cluster.root / "keys-b").mkdir(mode=0o700)
    code, out, err = ctl(cluster, "b", "runs", "--json", token=new_token(cluster, "--join-only", "--run", "mine"))
    assert (code, json.loads(out)["runs"]) == (0, []), err
    for node, run in (("a", "mine"), ("o", "theirs")):
        worker = start_worker(cluster, node, new_token(cluster), nnodes=2, sets=other_run(cluster, run))
        worker.wait_log("waiting for nodes: 1 of 2", 20 * slow)
    code, out, err = ctl(cluster, "b", "runs", "--json")
    assert [run["run"] for run in json.loads(out)["runs"]] == ["mine"], err
    for words in (["runs"], ["nodes"], ["show"]):
        code, out, err = ctl(cluster, "b", *words)
        assert code == 0 and "mine" in out and "theirs" not in out, err
    for words in (["show", "theirs"], ["nodes", "--run", "theirs"]):
        code, out, err = ctl(cluster, "b", *words)
        assert (code, out) == (4, "") and "may take part in run 'mine' only: name that run, or none" in err, err
        assert "worker" not in err and "--rdzv-id" not in err and len(err.splitlines()) == 1, err


def test_denied_machine_is_cut_off_and_the_other_goes_on(make_cluster, slow):
    cluster = make_cluster(sets={"train.steps": 400, "cluster.timeout_s": 0.5, "cluster.nnodes": "1:2"}, journal=True)
    start_server(cluster)
    token = new_token(cluster)
    a = start_worker(cluster, "a", token)
    a.wait_log("training on 1 rank", 30 * slow)
    b = start_worker(cluster, "b", token)
    cluster.wait_world(2, 60 * slow)
    machines = (cluster.root / "head" / "machines").read_text().splitlines()
    key = (machines[-1].split())[1]
    code, out, err = rdzv("--deny", key[:8], "--key-dir", cluster.root / "head")
    assert code == 0 and "is denied" in out, err
    cluster.server.wait_log("its sender was removed from the list of machines", 20 * slow)
    cluster.wait_world(1, 60 * slow)
    assert a.wait(120 * slow) == 0, a.log()
    # Its loss has the cause, in the log and the history. It is no error and costs no restart.
    assert re.search(r"node b \(host .*\) lost: its key was denied", cluster.server.log()), cluster.server.log()
    assert not re.search("silent for|cut from the server", cluster.server.log()), cluster.server.log()
    assert [event["kind"] for event in cluster.events()].count("node_lost") == 1, cluster.events()
    history = subprocess.run([program("dpt-rdzv"), "history", "--state-dir", cluster.state_dir], env=cluster.env,
                             capture_output=True, text=True, timeout=60, check=True).stdout
    assert "its key was denied" in history and "restart used" not in history, history
    b.wait_log("and this node waits to be let in again, for 6 s in all; then it .*: .* no longer admits "
               "this machine's key", 60 * slow)
    assert b.wait(60 * slow) == DENIED, b.log()
    assert "waits without limit" not in b.log() and "goes on from there" not in b.log(), b.log()
    code, _, err = ctl(cluster, "b", "runs")
    assert code == 4 and "If the server's operator has denied this key, no token helps" in err, err
    assert "no longer admits this machine's key" in last_line(b) and "file 'machines'" in last_line(b)


def test_denied_machine_and_a_restart_of_the_server(make_cluster, slow):
    """The server that could have said why is gone: the next one says that the node did not come back."""
    cluster = make_cluster(sets={"train.steps": 100000, "cluster.timeout_s": 1, "cluster.nnodes": "1:2"}, journal=True)
    start_server(cluster)
    token = new_token(cluster)
    start_worker(cluster, "a", token).wait_log("training on 1 rank", 30 * slow)
    start_worker(cluster, "b", token)
    cluster.wait_world(2, 60 * slow)
    cluster.server.kill()
    machines = (cluster.root / "head" / "machines").read_text().splitlines()
    code, _, err = rdzv("--deny", machines[-1].split()[1][:8], "--key-dir", cluster.root / "head")
    assert code == 0, err
    restart_server(cluster)
    cluster.server.wait_log("node b lost: it did not come back within a lease of the server's restart", 60 * slow)
    cluster.wait_world(1, 60 * slow)
    code, out, err = rdzv("history", "--state-dir", cluster.state_dir)
    assert code == 0 and "it did not come back after the server's restart" in out and "restart used" not in out, out


def test_node_id_of_another_machine(cluster, slow):
    token = new_token(cluster)
    a = start_worker(cluster, "a", token, nnodes=2)
    a.wait_log("waiting for nodes: 1 of 2", 20 * slow)
    env = dict(cluster.env, DPT_KEY_DIR=str(cluster.root / "keys-b"), DPT_RDZV_TOKEN=token)
    argv = cluster.worker_argv("a", nnodes=2, sets={"log.dir": cluster.root / "other"})
    other = Process("other a", argv, cluster.root / "other.log", env)
    assert other.wait(30 * slow) == 2
    assert "node id 'a' of run 'tiny' belongs to the machine with key" in other.log(), other.log()
    a.kill_machine()


@pytest.mark.parametrize("name, mode, said", [
    (".", 0o755, "has mode 0755"), ("machine.key", 0o640, "has mode 0640"), ("server.key", 0o604, "has mode 0604")])
def test_readable_keys_are_refused(tmp_path, name, mode, said):
    folder = tmp_path / "keys"
    code, _, err = rdzv("--new-token", "--key-dir", folder)
    assert code == 0, err
    (folder / "machine.key").touch(0o600)
    os.chmod(folder / name, mode)
    code, _, err = rdzv("--port", 0, "--key-dir", folder)
    assert code == 2 and said in err and "chmod" in err and len(err.splitlines()) == 1, err


def test_open_server_and_worker_without_keys(make_cluster, slow):
    cluster = make_cluster(sets={"train.steps": 6})
    cluster.start_server(args=["--open"])
    keyed = cluster.start_worker("k", sets={"cluster.timeout_s": 0.5})
    keyed.wait_log("the server there has no keys", 20 * slow)
    keyed.kill_machine()
    worker = cluster.start_worker("a", nnodes=1, args=["--rdzv-token", "none"])
    assert worker.wait(60 * slow) == 0, worker.log()


def test_server_changes_its_key_while_a_run_trains(make_cluster, slow):
    """Both nodes connect again with the next key, and no generation ends but for the machine that joins then."""
    cluster = make_cluster(sets={"train.steps": 100000, "cluster.nnodes": "2:3", "cluster.timeout_s": 5 * slow})
    start_server(cluster)
    token = new_token(cluster)
    workers = [start_worker(cluster, node, token) for node in "ab"]
    cluster.wait_world(2, 60 * slow)
    code, out, err = rdzv("--new-key", "--after-s", 1, "--key-dir", cluster.root / "head")
    assert code == 0 and "tells its machines the new key" in out, err
    cluster.server.wait_log("the server has a new key", 30 * slow)
    assert all("changes its key soon" in worker.log() for worker in workers), cluster.log_tails()
    for worker in workers:
        worker.wait_log(r"gen=1: the server at \S+ has its new key", 30 * slow)
    assert start_worker(cluster, "c", new_token(cluster)).alive()
    cluster.wait_world(3, 60 * slow)  # the server hears a and b
    assert {event["kind"] for event in cluster.events()} <= {"start", "joined"}, cluster.events()
    assert not any("is gone" in worker.log() for worker in workers), cluster.log_tails()


def test_no_token_shortly_before_another_key(make_cluster, slow):
    """A token of a key that the server is about to leave would admit nobody: none is made, by the command or at a
    start of the server. Long before the change one is made, and a line says when it ends."""
    cluster = make_cluster()
    folder = cluster.root / "head"
    start_server(cluster)
    printed = cluster.server.log()
    assert f"Another:\n    dpt-rdzv --new-token --key-dir {folder.resolve()}\n" in printed, printed
    code, _, err = rdzv("--new-key", "--after-s", 3600, "--key-dir", folder)
    assert code == 0, err
    code, out, err = rdzv("--new-token", "--key-dir", folder)
    assert code == 0 and out.startswith("dpt1-") and re.search("the server's key changes at .* UTC, and the token "
                                                                "admits nobody from then on", err), err
    n_tokens = len((folder / "tokens").read_text().splitlines())
    for left_s, when in ((100, r"at .* UTC, in \d+ s,"), (-5, "as soon as a server runs,")):
        cluster.server.kill()
        os.utime(folder / "server.key.next", (time.time() + left_s * slow,) * 2)
        code, out, err = rdzv("--new-token", "--key-dir", folder)
        assert (code, out) == (2, ""), err
        assert re.search(f"no token is made: the key '{folder}/server.key.next' takes the place of the server's key "
                         f"{when}", err), err
        restart_server(cluster)
    log = cluster.server.log()
    assert log.count("TOKEN: none is made before the server has its next key") == 2 and log.count("dpt1-") == 2, log
    assert len((folder / "tokens").read_text().splitlines()) == n_tokens
    cluster.server.wait_log("the server has a new key", 30 * slow)
    worker = start_worker(cluster, "a", new_token(cluster), nnodes=1, sets={"train.steps": 6})
    assert worker.wait(60 * slow) == 0, worker.log()


def open_descriptors(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def test_machine_of_another_run_takes_no_place(make_cluster, slow):
    """A server of 300 descriptors: 400 connections of a machine that may only join another run, each with a valid
    message, and with a second machine of that kind twice as many. A node of the run that is killed comes back."""
    cluster = make_cluster(sets={"train.steps": 100000, "cluster.nnodes": "1:2", "cluster.timeout_s": 2 * slow,
                                 "cluster.max_restarts": 1000})
    cluster.start_server(args=["--key-dir", cluster.root / "head"], before=["prlimit", "--nofile=300:300"])
    assert "there is room for 199 nodes" in cluster.server.log() and "ulimit -Hn" in cluster.server.log()
    token = new_token(cluster)
    start_worker(cluster, "a", token)
    b = start_worker(cluster, "b", token)
    cluster.wait_world(2, 60 * slow)
    for stranger in "xy":
        keys = cluster.root / f"keys-{stranger}"
        env = {**cluster.env, "DPT_KEY_DIR": str(keys),
               "DPT_RDZV_TOKEN": new_token(cluster, "--join-only", "--run", "other")}
        subprocess.run([program("dpt-ctl"), "runs", "--rdzv-endpoint", cluster.endpoint()], env=env, check=False,
                       capture_output=True, timeout=60)  # it is admitted
        argv = [sys.executable, FLOOD, cluster.endpoint(), "--key-dir", keys, "--run", "other", "--connections", 400]
        Process(f"flood {stranger}", argv, cluster.root / f"flood-{stranger}.log", cluster.env)
        wait_until("the server is crowded", lambda: open_descriptors(cluster.server) > 200, 30 * slow)
        cluster.server.wait_log("connection.s. closed over which no node of a plan speaks", 30 * slow)
        b.kill_machine()
        cluster.wait_world(1, 30 * slow)
        b = start_worker(cluster, "b", None)
        cluster.wait_world(2, 20 * slow)
        assert "not as dpt-rdzv does" not in b.log()
    assert "run=other" not in cluster.server.log()


def test_keys_survive_a_restart_of_the_server(cluster, slow):
    token = new_token(cluster)
    a = start_worker(cluster, "a", token, nnodes=2)
    a.wait_log("waiting for nodes: 1 of 2", 20 * slow)
    printed = [line for line in cluster.server.log().splitlines() if "--rdzv-token" in line]
    cluster.server.kill()
    restart_server(cluster)
    b = start_worker(cluster, "b", token, nnodes=2)
    assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}, b.log()
    assert printed and wait_until("a token is printed", lambda: "dpt1-" in cluster.server.log(), 10 * slow)
