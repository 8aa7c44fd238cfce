"""Simulated hosts: network namespaces with wires between them, whose rate can be limited. Needs root, ip(8) and, for
limits, tc(8) with tbf."""

import os
import shutil
import subprocess
import uuid
from contextlib import contextmanager
from pathlib import Path

from cluster import ClusterError, Process, Worker, program, wait_until

NET = "192.0.2."  # TEST-NET-1, reserved for documentation
NET6 = "2001:db8::"  # likewise
BURST_BYTES, QUEUE_MS = 256 << 10, 400  # of a limit: a few of the kernel's largest packets


class Unavailable(Exception):
    """This machine cannot make namespaces, wires or limits; the text says why."""


def ip(*args):
    return subprocess.run(["ip", *args], capture_output=True, text=True)


def must(*args):
    """Runs ip(8), for commands that cannot fail once namespaces and wires exist."""
    done = ip(*args)
    if done.returncode != 0:
        raise ClusterError(f"ip {args}: {done.stderr}")


class Wire:
    """Two hosts and a wire between them. `names` are their namespaces, with the addresses NET1 and NET2; `ends` are the
    ends of wires as (namespace, device). Leaving the `with` block removes them."""

    def __init__(self, count=2):
        mark = uuid.uuid4().hex[:6]
        self.names = [f"dpt-{mark}-{i}" for i in range(1, count + 1)]
        self.devices = [f"dpt{mark}{i}" for i in range(1, count + 1)]
        self.ends = list(zip(self.names, self.devices))

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
        for name in dict.fromkeys(name for name, _ in self.ends):
            ip("netns", "del", name)

    def _make(self):
        self._add_namespaces()
        self._add_wire(*self.ends)
        self._add_addresses()

    def _add_namespaces(self):
        for name in dict.fromkeys(name for name, _ in self.ends):
            done = ip("netns", "add", name)
            if done.returncode != 0:
                raise Unavailable(f"no network namespaces here: {done.stderr.strip()}")

    def _add_wire(self, a, b):
        done = ip("link", "add", a[1], "netns", a[0], "type", "veth", "peer", "name", b[1], "netns", b[0])
        if done.returncode != 0:
            raise Unavailable(f"no wires between namespaces here: {done.stderr.strip()}")

    def _add_addresses(self):
        for i, (name, device) in enumerate(zip(self.names, self.devices), start=1):
            must("-n", name, "addr", "add", f"{NET}{i}/24", "dev", device)
            must("-n", name, "link", "set", device, "up")
            must("-n", name, "link", "set", "lo", "up")
            must("-n", name, "route", "add", "default", "dev", device)

    def bound_windows(self, window_bytes):
        """No TCP connection that is made from now on has more than `window_bytes` in flight. An acknowledgement travels
        with the data of its direction, so with large windows it waits in the queue of a limited wire, and the other
        direction stands still meanwhile."""
        for name in dict.fromkeys(name for name, _ in self.ends):
            for which in ("rmem", "wmem"):
                must("netns", "exec", name, "sysctl", "-qw", f"net.ipv4.tcp_{which}=4096 {window_bytes} {window_bytes}")

    def block(self, sender, receiver):
        """From now on the packets that host `sender` sends to host `receiver` (numbers from 1) are lost."""
        must("-n", self.names[sender - 1], "route", "add", "blackhole", f"{NET}{receiver}/32")

    def unblock(self, sender, receiver):
        must("-n", self.names[sender - 1], "route", "del", "blackhole", f"{NET}{receiver}/32")

    def limit(self, mbit, ends=None, burst_bytes=BURST_BYTES):
        """Limits each wire to `mbit` Mbit/s in each direction from now on. `ends`: only what these ends send. A packet
        that would wait for more than QUEUE_MS is dropped. After a pause `burst_bytes` pass without a limit."""
        if shutil.which("tc") is None:
            raise Unavailable("needs tc(8)")
        for name, device in ends or self.ends:
            done = ip("netns", "exec", name, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate",
                      f"{mbit}mbit", "burst", str(burst_bytes), "latency", f"{QUEUE_MS}ms")
            if done.returncode != 0:
                raise Unavailable(f"no token bucket filter here: {done.stderr.strip()}")


class Wire6(Wire):
    """As Wire, with the addresses NET6 1 and NET6 2, and no IPv4 address but those of loopback."""

    def _add_addresses(self):
        for i, (name, device) in enumerate(zip(self.names, self.devices), start=1):
            done = ip("-n", name, "addr", "add", f"{NET6}{i}/64", "dev", device, "nodad")
            if done.returncode != 0:
                raise Unavailable(f"no IPv6 here: {done.stderr.strip()}")
            must("-n", name, "link", "set", device, "up")
            must("-n", name, "link", "set", "lo", "up")


class Star(Wire):
    """`count` hosts with the addresses NET1, NET2, …; a wire connects each to a switch in a separate namespace."""

    def __init__(self, count):
        super().__init__(count)
        switch = self.names[0][:-1] + "switch"
        self.ports = [(switch, f"{device}s") for device in self.devices]
        self.ends += self.ports

    def _make(self):
        self._add_namespaces()
        switch = self.ports[0][0]
        done = ip("-n", switch, "link", "add", "switch", "type", "bridge")
        if done.returncode != 0:
            raise Unavailable(f"no bridges here: {done.stderr.strip()}")
        must("-n", switch, "link", "set", "switch", "up")
        for end, port in zip(self.ends, self.ports):
            self._add_wire(end, port)
            must("-n", switch, "link", "set", port[1], "master", "switch", "up")
        self._add_addresses()


    def cut(self, host):
        """Takes the link of host `host` (from 1) away: no packet comes or goes, and no connection ends."""
        must("-n", self.ports[host - 1][0], "link", "set", self.ports[host - 1][1], "down")

    def mend(self, host):
        must("-n", self.ports[host - 1][0], "link", "set", self.ports[host - 1][1], "up")


@contextmanager
def names_in(host, files):
    """`files` are seen in place of the machine's files of these names in /etc, by programs that are started in
    namespace `host`; ip-netns(8) does so."""
    folder = Path("/etc/netns") / host
    folder.mkdir(parents=True)
    try:
        for name, text in files.items():
            (folder / name).write_text(text)
        yield
    finally:
        shutil.rmtree(folder)


def start_server(cluster, host, timeout, *args):
    """Starts the cluster's server in the namespace `host`; returns its port."""
    port_file = cluster.root / "port"
    cluster.server = Process("dpt-rdzv", ["ip", "netns", "exec", host, program("dpt-rdzv"), "--port", 0, "--port-file",
                                          port_file, *args], cluster.root / "rdzv.log", cluster.env)
    text = wait_until("the server listens", lambda: port_file.exists() and port_file.read_text(), timeout,
                      cluster.server.log_tail)
    return int(text)


def start_worker(cluster, host, node, endpoint, **options):
    """Starts a worker of the cluster in the namespace `host` (options: Cluster.worker_argv)."""
    argv = ["ip", "netns", "exec", host] + cluster.worker_argv(node, endpoint=endpoint, **options)
    log_dir, checkpoint_dir = cluster.dirs(node)
    worker = Worker(node, argv, cluster.root / f"worker-{node}.log", log_dir, checkpoint_dir, cluster.env)
    cluster.workers.append(worker)
    return worker
