"""docs/protocol.md: a client that follows the page joins a run of a real dpt-rdzv, and the page names what the messages
have. The client is tests/protocol_client.py."""

import os
import re
import time
from pathlib import Path

import pytest

from cluster import wait_until
from protocol_client import SCHEMA, VERSION, Node, follow, run_spec

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text()
RUN, SOON_S = "protocol", 20


@pytest.fixture
def server(make_cluster):
    cluster = make_cluster()
    cluster.start_server(args=["--open"])
    return cluster


@pytest.fixture
def start(server):
    """start(NAME, spec, …): a node of the run, whose connection closes at the end."""
    nodes = []

    def start_node(name, spec, **options):
        nodes.append(Node(("127.0.0.1", server.port), RUN, name, spec, **options))
        return nodes[-1]

    yield start_node
    for node in nodes:
        node.close()


def run_pair(start, slow, **spec):
    """Nodes a and b that run in generation 1."""
    pair = [start(name, run_spec(max_nodes=2, **spec)) for name in "ab"]
    follow(pair, lambda: all(node.runs() for node in pair), SOON_S * slow)
    return pair


def told_end(node, slow, order):
    follow([node], lambda: node.was_told(order), SOON_S * slow)
    return node.message.text


# ---------------------------------------------------------------- courses

def test_two_nodes_train_to_the_end(start, slow):
    """WAITING, PREPARE, report, PLAN, READY, RUNNING, FINISHED, DONE."""
    pair = run_pair(start, slow, min_nodes=2)
    for node in pair:
        order = [each for each in node.orders if each != "SERVER_SETTLING"]
        assert order in (["SERVER_WAITING", "SERVER_PREPARE", "SERVER_PLAN", "SERVER_RUNNING"],
                         ["SERVER_PREPARE", "SERVER_PLAN", "SERVER_RUNNING"])
        plan = node.plan
        assert (plan.generation, plan.world_size, plan.n_nodes, plan.n_hosts) == (1, 2, 2, 2)
        assert (plan.resume_step, plan.load_checkpoint, plan.from_seed, plan.handover_ranks) == (0, -1, True, 0)
        assert (plan.cause_kind, len(plan.nonce)) == ("start", 16)
        assert [each.rank for each in plan.ranks] == [0, 1] == sorted(each.position for each in plan.ranks)
        own = plan.ranks[node.rank()]
        assert (own.shm_addr, own.spawn) == (f"shm-{node.node}", 1)
        assert [each.shm_addr for each in plan.ranks if each.local_rank < 0] == [""]
    assert {node.rank() for node in pair} == {0, 1}
    assert len({(node.plan.digest, node.plan.nonce, node.epoch) for node in pair}) == 1
    for node in pair:
        node.set_rank(phase="RANK_FINISHED", step_applied=3)
    follow(pair, lambda: all(node.was_told("SERVER_DONE") for node in pair), SOON_S * slow)


def test_a_node_that_dies_is_lost_by_two_signs(start, slow):
    """Its connection is broken, and a peer reports that its data connection has ended."""
    a, b = run_pair(start, slow, timeout_ms=30_000)
    b.close()
    a.set_rank(failed_generation=1, suspect=b.rank(), text="connection with rank 1 ended")
    follow([a], lambda: a.runs(2), SOON_S * slow)
    assert (a.plan.world_size, a.rank(), a.plan.cause_kind) == (1, 0, "node_lost")
    assert a.plan.cause.endswith("lost: control and data connections broken"), a.plan.cause


def test_a_silent_node_is_expelled_and_joins_again(start, slow):
    """The lease finds it. As the others went on, it comes back as a new incarnation, at a step boundary."""
    a, b = run_pair(start, slow, timeout_ms=int(600 * slow))
    follow([a], lambda: a.runs(2), SOON_S * slow)
    assert (a.plan.world_size, a.plan.cause_kind) == (1, "node_lost") and "silent for" in a.plan.cause
    b.send()
    assert told_end(b, slow, "SERVER_EXPELLED") == "this incarnation was lost"
    again = start("b", run_spec(max_nodes=2, timeout_ms=int(600 * slow)), secret=b.state["secret"], incarnation=2)
    follow([a, again], lambda: a.runs(3) and again.runs(3), SOON_S * slow)
    assert again.plan.world_size == 2 and a.plan.cause_kind == "joined"
    assert a.rank() == 0


def test_a_repeated_or_late_message_changes_nothing(start, slow):
    a, b = run_pair(start, slow)
    dead = {**b.rank_state, "phase": "RANK_DEAD", "text": "killed by signal 9"}
    for counter in (b.counter, b.counter - 1, 1):
        b.send(counter=counter, ranks=[dead])
    b.counter += 1  # send() has counted three messages; the server has taken none of them
    b.send()
    follow([a, b], lambda: b.message.counter_seen == b.counter, SOON_S * slow)
    assert b.message.phase == "SERVER_RUNNING" and b.generation == 1
    b.send(ranks=[dead])
    follow([a], lambda: a.runs(2), SOON_S * slow)
    assert a.plan.cause == f"rank {1 - a.rank()} (node b, host b) died: signal 9" or "died: signal 9" in a.plan.cause


def test_a_restarted_server_adopts_the_generation(server, start, slow):
    """Every rank of the plan is back and runs: the new server takes the generation over, with a new epoch."""
    pair = run_pair(start, slow, min_nodes=2)
    epoch = pair[0].epoch
    server.server.kill()
    server.restart_server(args=["--open"])
    for node in pair:
        node.connect()
    follow(pair, lambda: all(node.epoch != epoch and node.message.phase == "SERVER_RUNNING" for node in pair),
           SOON_S * slow)
    assert {node.generation for node in pair} == {1} and pair[0].epoch == pair[1].epoch
    server.server.wait_log("adopted generation 1 of an earlier server, world 2", SOON_S * slow)


def test_a_node_leaves(start, slow):
    """A node that leaves stays until the generation without it runs; then it is released."""
    a, b = run_pair(start, slow)
    b.state["leaving"] = True
    b.send()
    follow([a, b], lambda: b.was_told("SERVER_RELEASED") and a.runs(2), SOON_S * slow)
    assert a.plan.world_size == 1 and a.plan.cause_kind == "left"


# ---------------------------------------------------------------- joining

def test_a_node_without_a_config_gets_that_of_the_run(start, slow):
    a = start("a", run_spec(min_nodes=2))
    follow([a], lambda: a.joined, SOON_S * slow)
    b = start("b", None)
    follow([a, b], lambda: b.config is not None, SOON_S * slow)
    assert (b.config.config_yaml, b.config.min_nodes) == ("run: protocol\n", 2)


@pytest.mark.parametrize("changes, says", [
    ({"spec": {"config_digest": "other"}}, "the config differs from that of run 'protocol'"),
    ({"spec": {"user": "other"}}, "run 'protocol' belongs to user 'protocol', not to 'other'"),
    ({"state": {"fingerprint": "other"}}, "this node has other devices or libraries (other) than the run (none)"),
    ({"state": {"secret": bytes(16)}}, "it sends no secret of its node"),
    ({"node": "a"}, "node 'a' of run 'protocol' is alive (at 127.0.0.1, joined 0 s ago) and another process"),
])
def test_refusals(start, slow, changes, says):
    a = start("a", run_spec())
    follow([a], lambda: a.rank_state["phase"] == "RANK_RUNNING", SOON_S * slow)
    other = start(changes.get("node", "b"), {**run_spec(), **changes.get("spec", {})})
    other.state.update(changes.get("state", {}))
    text = told_end(other, slow, "SERVER_REFUSED")
    assert re.sub(r"joined \d+ s ago", "joined 0 s ago", text).startswith(says), text


def test_another_version(start, slow):
    """Of a message of another version only version, software, stamp and text are read."""
    node = start("a", run_spec(), version=VERSION + 1, software="later 9.9")
    node.send()
    wait_until("an answer", lambda: (node.receive(), node.message)[1] or node.orders, SOON_S * slow)
    assert node.message.phase == "SERVER_REFUSED"
    assert str(VERSION + 1) in node.message.text and str(VERSION) in node.message.text


def test_another_process_gets_the_id_of_a_lost_node(start, slow):
    a, b = run_pair(start, slow, timeout_ms=int(600 * slow))
    b.close()
    other = start("b", run_spec(max_nodes=2, timeout_ms=int(600 * slow)), secret=os.urandom(16))
    began = time.monotonic()
    follow([a, other], lambda: a.runs(2) and other.runs(2) and a.plan.world_size == 2, SOON_S * slow)
    assert time.monotonic() - began > 0.3 * slow  # not before the lease of the lost node ended


# ---------------------------------------------------------------- the page

def test_the_page_has_the_version():
    assert re.search(rf"version {VERSION}\b", PAGE)


@pytest.mark.parametrize("enum", ["ServerPhase", "RankPhase", "RankCommand"])
def test_the_page_names_every_state(enum):
    missing = [name for name in SCHEMA.enums[enum] if not re.search(rf"`{name}`|\b{name.split('_', 1)[1]}\b", PAGE)]
    assert not missing


def test_the_page_names_fields_that_exist():
    named = re.findall(r"`(\w+)\.(\w+)`", PAGE)
    assert len(named) >= 20
    wrong = [f"{message}.{field}" for message, field in named
             if message in SCHEMA.messages and field not in SCHEMA.messages[message]]
    assert not wrong


def test_the_page_has_every_field_of_the_conversation():
    """The tables list each field of the messages between node and server."""
    tables = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in PAGE.splitlines()
                                               if line.startswith("| `"))))
    for message in ("Stamp", "AgentState", "RankState", "ServerState", "Plan", "PlanRank", "RunSpec"):
        missing = sorted(set(SCHEMA.messages[message]) - tables)
        assert not missing, f"{message}: {missing}"
