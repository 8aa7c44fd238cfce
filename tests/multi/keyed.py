"""Real programs with separate key folders: that of the server is ROOT/head, that of node N is ROOT/keys-N."""

import subprocess

from cluster import bin_dir, program

DENIED = 5  # exit code of dpt-worker


def rdzv(*args):
    done = subprocess.run([program("dpt-rdzv"), *map(str, args)], capture_output=True, text=True, timeout=60,
                          check=False)
    return done.returncode, done.stdout, done.stderr


def new_token(cluster, *args):
    code, out, err = rdzv("--new-token", "--key-dir", cluster.root / "head", *args)
    assert code == 0 and out.startswith("dpt1-"), err
    return out.strip()


def start_server(cluster, **options):
    cluster.start_server(args=["--key-dir", cluster.root / "head"], **options)


def restart_server(cluster, **options):
    cluster.restart_server(args=["--key-dir", cluster.root / "head"], **options)


def start_worker(cluster, node, token, env=None, **options):
    """A worker of a machine with a separate key folder."""
    env = {"DPT_KEY_DIR": str(cluster.root / f"keys-{node}"), **({"DPT_RDZV_TOKEN": token} if token else {}),
           **(env or {})}
    return cluster.start_worker(node, env=env, **options)


def ctl(cluster, node, *args, token=None):
    """dpt-ctl on the machine of a node: its exit code, output and complaints."""
    env = {**cluster.env, "DPT_KEY_DIR": str(cluster.root / f"keys-{node}"),
           **({"DPT_RDZV_TOKEN": token} if token else {})}
    done = subprocess.run([program("dpt-ctl"), *args, "--rdzv-endpoint", cluster.endpoint()], env=env,
                          capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def last_line(worker):
    lines = [line for line in worker.log().splitlines() if line.startswith("dpt-worker: ")]
    assert len(lines) == 1, worker.log()
    return lines[0]


def clock(seconds):
    """Environment of a program whose clock is ahead by as many seconds."""
    library = bin_dir().parent / "tests" / "libdpt_tests_clock.so"
    assert library.exists(), f"{library} is not built"
    return {"LD_PRELOAD": str(library), "DPT_TEST_CLOCK_S": str(seconds), "ASAN_OPTIONS": "verify_asan_link_order=0"}
