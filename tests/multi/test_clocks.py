"""Servers whose clock is far off: what becomes of their tokens when it is right, and what they say."""

import re
import time

import pytest
from keyed import DENIED, clock, last_line, new_token, restart_server, start_server, start_worker

DAY_S = 24 * 3600
TEN_YEARS_S = 3653 * DAY_S
MINUTE = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"


def date(shift_s):
    return time.strftime("%Y-%m", time.gmtime(time.time() + shift_s))


def printed_token(cluster):
    """The token on the screen of the newest server, and the day until which it is good."""
    log = cluster.server.log()
    return re.findall(r"--rdzv-token (dpt1-\S+) ", log)[-1], re.findall(r"until (\d{4}-\d\d)-", log)[-1]


def warnings(cluster):
    return [line for line in cluster.server.log().splitlines() if re.match(r"\S+Z W dpt-rdzv: ", line)]


def refuse(cluster, node, token, slow):
    """The line with which the worker ends, and that of the server."""
    worker = start_worker(cluster, node, token)
    assert worker.wait(30 * slow) == DENIED, worker.log()
    refused = [line for line in warnings(cluster) if "refused" in line]
    return last_line(worker), refused[-1]


def admit(cluster, node, token, slow, **options):
    worker = start_worker(cluster, node, token, nnodes=1, **options)
    assert worker.wait(60 * slow) == 0, worker.log()


@pytest.fixture
def cluster(make_cluster):
    return make_cluster(sets={"train.steps": 6, "cluster.timeout_s": 0.5})


def test_token_of_a_clock_that_was_ahead(cluster, slow):
    """It would be good for ten years: it admits nobody, another one is printed, and each line names both times."""
    start_server(cluster, env=clock(TEN_YEARS_S))
    token, until = printed_token(cluster)
    assert until == date(TEN_YEARS_S + DAY_S)
    cluster.server.kill()
    restart_server(cluster)
    other, until = printed_token(cluster)
    assert other != token and until == date(DAY_S)
    said, = warnings(cluster)
    assert re.search(rf"head/tokens': 1 token\(s\) expire later than .*the last at {date(TEN_YEARS_S + DAY_S)}-.* and "
                     rf"this machine's clock says {date(0)}-.*remove their lines", said), said
    worker, server = refuse(cluster, "a", token, slow)
    assert re.search(rf"the token has expired, .*by that server's clock .*it is {MINUTE} here", worker), worker
    assert re.search(rf"a token that expires at {date(TEN_YEARS_S + DAY_S)}-.*, later than .*clock says {date(0)}-.*: "
                     "set the clock if it is wrong", server), server
    admit(cluster, "a", other, slow)


@pytest.mark.parametrize("behind_s", [2 * DAY_S, 20000 * DAY_S])  # the latter as of a machine without a battery
def test_token_of_a_clock_that_was_behind(cluster, slow, behind_s):
    start_server(cluster, env=clock(-behind_s))
    token, _ = printed_token(cluster)
    admit(cluster, "a", token, slow)  # as long as the clock is wrong it is good
    cluster.server.kill()
    restart_server(cluster)
    other, until = printed_token(cluster)
    assert other != token and until == date(DAY_S)
    worker, server = refuse(cluster, "b", token, slow)
    assert re.search("the token has expired, .*a clock that is wrong there, or was when the token was made", worker)
    assert re.search(rf"of a token that expired at {date(DAY_S - behind_s)}-.*clock says {date(0)}-.*: set the clock "
                     "if it is wrong or was wrong when the token was made", server), server
    admit(cluster, "b", other, slow)


@pytest.mark.parametrize("ahead_s, says", [
    (20 * DAY_S, "of a token that expired at"), (-20000 * DAY_S, "of a token that expires at .*, later than")])
def test_clock_that_is_wrong_now(cluster, slow, ahead_s, says):
    """The token is good again when the clock is right."""
    token = new_token(cluster)
    start_server(cluster, env=clock(ahead_s))
    worker, server = refuse(cluster, "a", token, slow)
    assert "by that server's clock" in worker
    assert re.search(rf"{says}.*this machine's clock says {date(ahead_s)}-.*: set the clock if it is wrong", server)
    cluster.server.kill()
    restart_server(cluster)
    admit(cluster, "a", token, slow)


def test_clock_of_a_worker_does_not_count(cluster, slow):
    start_server(cluster)
    admit(cluster, "a", new_token(cluster), slow, env=clock(TEN_YEARS_S))


def test_clock_behind_the_journal(make_cluster, slow):
    """A server whose clock is behind that of its predecessor says so in one line, and serves."""
    cluster = make_cluster(sets={"train.steps": 6}, journal=True)
    start_server(cluster)
    admit(cluster, "a", new_token(cluster), slow)
    for behind_s in (0, 1800, 2 * DAY_S):
        cluster.server.kill()
        cluster.server.log_path.unlink()
        restart_server(cluster, env=clock(-behind_s))
        said = [line for line in warnings(cluster) if "journal" in line]
        assert len(said) == (behind_s > 3600), said
    assert re.search(rf"clock says {date(-behind_s)}-.*, 4[78] h \d+ min before the newest record \({date(0)}-.*\) of "
                     rf"the journal in '{re.escape(str(cluster.state_dir))}': .*make another token", said[0]), said
    admit(cluster, "b", new_token(cluster), slow, sets={"run": "next"})
