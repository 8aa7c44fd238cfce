"""The health check of a machine at the start of a worker: refused if products are wrong, else admitted with figures."""

import json
import os
import re

from test_refused import one_line, run_program

SOON_S = 30


def test_wrong_products_are_refused_and_remembered(make_cluster, slow):
    """A machine with a faulty core takes no part, though it comes first. A sound one trains; the journal has both."""
    cluster = make_cluster(sets={"train.steps": 100_000, "checkpoint.every_steps": 0, "cluster.nnodes": "1:2"},
                           journal=True)
    cluster.start_server()
    core = min(os.sched_getaffinity(0))
    bad = cluster.start_worker("bad", env={"DPT_TEST_WRONG_PRODUCT": str(core)})
    assert bad.wait(SOON_S * slow) == 2, bad.log_tail()
    assert re.fullmatch(
        rf"dpt-worker: refused by the server: the health check of this machine has failed: core {core} computes wrong "
        r"values of a matrix product, so its results cannot be trusted; take the machine out of use, or keep "
        r"dpt-worker off that core \(taskset\)", one_line(bad.log())), bad.log()
    cluster.server.wait_log(rf"node bad \(host .*\) refused: its health check has failed: core {core} ", SOON_S * slow)

    good = cluster.start_worker("good")
    unchecked = cluster.start_worker("unchecked", sets={"cluster.health_check": "false"},
                                     env={"DPT_TEST_WRONG_PRODUCT": str(core)})
    cluster.wait_step(3, 60 * slow)
    cluster.server.wait_log("node unchecked joined", SOON_S * slow)
    code, out, err = run_program("dpt-ctl", "--rdzv-endpoint", cluster.endpoint(), "nodes", "--json")
    assert code == 0, err
    health = {node["node"]: node["health"] for node in json.loads(out)["nodes"]}
    assert set(health) == {"good", "unchecked"} and health["unchecked"] is None, health
    assert health["good"]["cores"] == len(os.sched_getaffinity(0)), health
    assert health["good"]["mflops"] > 0 and health["good"]["memory_bytes"] > 0, health
    assert 0 < health["good"]["check_us"] < 5_000_000 * slow, health

    code, out, err = run_program("dpt-rdzv", "history", "--state-dir", cluster.state_dir, "--json")
    assert code == 0, err
    history = json.loads(out)
    refusal, = history["unhealthy"]
    run, = history["runs"]
    assert (refusal["node"], refusal["run"]) == ("bad", run["run"]) and f"core {core} " in refusal["fault"], refusal
    joined = {node["node"]: node["health"] for node in run["nodes"]}
    assert joined == {"good": health["good"], "unchecked": None}, joined
    code, out, err = run_program("dpt-rdzv", "history", "--state-dir", cluster.state_dir)
    assert code == 0 and re.search(rf"nodes refused by their health check\n +\S+ +node bad \(host .*\) of run "
                                   rf"{run['run']}: core {core} computes", out), (out, err)
    for worker in (good, unchecked):
        worker.term()
    assert [worker.wait(60 * slow) for worker in (good, unchecked)] == [0, 0], cluster.log_tails()
