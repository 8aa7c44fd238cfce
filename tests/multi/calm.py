"""Helper runs of the stories: undisturbed runs to compare with, and a run that loses its server near its end. They do
not depend on the speed of the machine."""

from cluster import Cluster, ClusterError, checkpoint_hash, wait_until


def calm_hash(root, sets, step, timeout):
    """The weights hash after `step` of an undisturbed run of one rank with these keys. The run ends at that step."""
    with Cluster(root, sets=dict(sets, **{"checkpoint.every_steps": step})) as calm:
        worker = calm.start_worker("calm", nnodes=1, endpoint=False)
        folder = worker.checkpoint_dir / f"step-{step:08}"
        wait_until(f"checkpoint of step {step} of the undisturbed run", lambda: folder.exists() or not worker.alive(),
                   timeout, worker.log_tail)
        worker.kill_machine()
        return checkpoint_hash(folder)


def last_step_without_server(make_cluster, sets, slow, tries=(300, 1200, 4800)):
    """A run of one node whose server is killed before the run's last step; the node makes this step without a server.
    Returns (cluster, worker, steps). If the run ends before the kill, it is repeated with more steps."""
    for steps in tries:
        cluster = make_cluster(f"steps-{steps}", sets=dict(sets, **{"train.steps": steps, "train.log_every": 1,
                                                                    "checkpoint.every_steps": 0}))
        cluster.start_server()
        worker = cluster.start_worker("a", nnodes=1)
        cluster.wait_step(1, 30 * slow)
        cluster.server.kill()
        wait_until(f"step {steps}", lambda: f"step {steps}/{steps}" in worker.log() or not worker.alive(), 120 * slow,
                   worker.log_tail)
        if worker.alive() and not cluster.checkpoints():
            return cluster, worker, steps
    raise ClusterError(f"{tries[-1]} steps are made in the time that a signal takes\n" + worker.log_tail())
