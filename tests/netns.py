"""Two hosts, played by two network namespaces with a wire between them, whose rate can be limited. Needs root, ip(8)
and, for limits, tc(8) with tbf."""

import os
import shutil
import subprocess
import uuid

from cluster import ClusterError, Process, Worker, program, wait_until

NET = "192.0.2."  # TEST-NET-1: nobody's
BURST_BYTES, QUEUE_MS = 256 << 10, 400  # of a limit: some packets as large as the kernel makes them


class Unavailable(Exception):
    """No namespaces, wires or limits here; the text says why."""


def ip(*args):
    return subprocess.run(["ip", *args], capture_output=True, text=True)


class Wire:
    """`names` are the namespaces, at NET1 and NET2. Leaving the `with` block takes them away."""

    def __init__(self):
        mark = uuid.uuid4().hex[:6]
        self.names = [f"dpt-{mark}-{i}" for i in (1, 2)]
        self.ends = [f"dpt{mark}{i}" for i in (1, 2)]

    def __enter__(self):
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise Unavailable("needs root and ip(8)")
        try:
            self._make()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind, value, trace):
        for name in self.names:
            ip("netns", "del", name)

    def _make(self):
        for name in self.names:
            done = ip("netns", "add", name)
            if done.returncode != 0:
                raise Unavailable(f"no network namespaces here: {done.stderr.strip()}")
        done = ip("link", "add", self.ends[0], "type", "veth", "peer", "name", self.ends[1])
        if done.returncode != 0:
            raise Unavailable(f"no wires between namespaces here: {done.stderr.strip()}")
        for i, (name, end) in enumerate(zip(self.names, self.ends), start=1):
            for args in (["link", "set", end, "netns", name], ["-n", name, "addr", "add", f"{NET}{i}/24", "dev", end],
                         ["-n", name, "link", "set", end, "up"], ["-n", name, "link", "set", "lo", "up"],
                         ["-n", name, "route", "add", "default", "dev", end]):
                done = ip(*args)
                if done.returncode != 0:
                    raise ClusterError(f"ip {args}: {done.stderr}")

    def limit(self, mbit):
        """Each direction carries so many Mbit/s from now on."""
        if shutil.which("tc") is None:
            raise Unavailable("needs tc(8)")
        for name, end in zip(self.names, self.ends):
            done = ip("netns", "exec", name, "tc", "qdisc", "replace", "dev", end, "root", "tbf", "rate", f"{mbit}mbit",
                      "burst", str(BURST_BYTES), "latency", f"{QUEUE_MS}ms")
            if done.returncode != 0:
                raise Unavailable(f"no token bucket filter here: {done.stderr.strip()}")


def start_server(cluster, host, timeout, *args):
    """The cluster's server, in the namespace `host`; returns its port."""
    port_file = cluster.root / "port"
    cluster.server = Process("dpt-rdzv", ["ip", "netns", "exec", host, program("dpt-rdzv"), "--port", 0, "--port-file",
                                          port_file, *args], cluster.root / "rdzv.log", cluster.env)
    text = wait_until("the server listens", lambda: port_file.exists() and port_file.read_text(), timeout,
                      cluster.server.log_tail)
    return int(text)


def start_worker(cluster, host, node, endpoint, **options):
    """A worker of the cluster in the namespace `host` (options: Cluster.worker_argv)."""
    argv = ["ip", "netns", "exec", host] + cluster.worker_argv(node, endpoint=endpoint, **options)
    log_dir, checkpoint_dir = cluster.dirs(node)
    worker = Worker(node, argv, cluster.root / f"worker-{node}.log", log_dir, checkpoint_dir, cluster.env)
    cluster.workers.append(worker)
    return worker
