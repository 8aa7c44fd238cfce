#!/usr/bin/python3
"""dpt's rendezvous server beside PyTorch's TCPStore, with the same number of clients on this machine.

    peer_rdzv.py DPT_BENCH [--nodes 64] [--ranks-per-node 8] [--clients 2] [--seconds 5] [--json FILE]

First dpt-bench rdzv runs twice: with keys, and without, as the store has none. Then one process has the TCPStore's
server, and as many client processes as dpt-bench's have a connection (a TCPStore) for each node. Phases of the store,
all nodes at once:

- cold connect: each node makes its connection. It registers nothing yet: a node of dpt does so in this phase.
- formation: each node adds one to a counter and sets its address; the last one sets a key; each node waits for the key
  and reads the addresses of all nodes in one call. A c10d rendezvous must do at least this; torchrun's does more.
- start: both phases, at whose end each node knows all nodes. Compare this sum: the two phases of the store and of dpt
  divide the same work differently.
- answer: one get of a key, node by node.

The store has no leases: nothing in it finds a lost node, so it has no such phase. A client process asks its nodes'
questions in turn, as the store's calls block. The store looks up the name of each peer's address, ::ffff:127.0.0.1. A
name server that does not know it costs up to 5 s per lookup, so the store and its clients see an /etc/hosts that has
it, in a mount namespace (as another user than root: a user namespace, too). PyTorch is that of $DPT_TORCH_PYTHON, else
of python3; without it the exit code is 77.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN_TIMEOUT_S = 600

SERVER = """
import resource, sys, time
import torch.distributed as dist
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
port = int(sys.argv[1])
store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
print("listening", flush=True)
for line in sys.stdin:
    status = open("/proc/self/status").read()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    print(time.process_time(), peak, flush=True)
"""

CLIENT = """
import json, resource, sys, time
from datetime import timedelta
import torch.distributed as dist
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
port, first, count, nodes = map(int, sys.argv[1:])
limit = timedelta(seconds=300)

def begin():
    print("ready", flush=True)
    return float(sys.stdin.readline())

def since(start):
    return (time.monotonic() - start) * 1e3

start = begin()
stores, connect, formation, answer = [], [], [], []
for node in range(count):
    stores.append(dist.TCPStore("127.0.0.1", port, is_master=False, timeout=limit, wait_for_workers=False))
    connect.append(since(start))
start = begin()
for node, store in enumerate(stores):
    store.set(f"addr/{first + node}", f"10.0.{node >> 8}.{node & 255}:20000")
    if store.add("here", 1) == nodes:
        store.set("go", "1")
names = [f"addr/{node}" for node in range(nodes)]
for store in stores:
    store.wait(["go"], limit)
    assert len(store.multi_get(names)) == nodes
    formation.append(since(start))
begin()
for store in stores:
    at = time.monotonic()
    store.get("go")
    answer.append(since(at))
print(json.dumps({"cold connect": connect, "formation": formation, "answer": answer}), flush=True)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write_hosts(path):
    """/etc/hosts and a name for the address that a server on all addresses sees of a client on this machine."""
    path.write_text(Path("/etc/hosts").read_text() + "\n::ffff:127.0.0.1 localhost\n")
    return path


def start(python, hosts, code, *args):
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    script = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
    return subprocess.Popen([*unshare, "sh", "-c", script, "sh", hosts, python, "-c", code, *map(str, args)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def read_line(process, what):
    line = process.stdout.readline()
    if not line:
        sys.exit(f"TCPStore: {what} ended with code {process.wait()}")
    return line


def figures_of(times):
    times = sorted(times)
    return {"p50": statistics.median_low(times), "p99": times[-(-len(times) * 99 // 100) - 1], "max": times[-1]}


def ask_server(server):
    server.stdin.write("\n")
    server.stdin.flush()
    cpu_s, peak = read_line(server, "the server").split()
    return float(cpu_s), int(peak)


def run_store(python, hosts, options):
    """{phase: times, ms}, the server's CPU time by phase, its peak memory."""
    port, cpu = free_port(), {}
    server = start(python, hosts, SERVER, port)
    read_line(server, "the server")
    bounds = [options.nodes * i // options.clients for i in range(options.clients + 1)]
    clients = [start(python, hosts, CLIENT, port, a, b - a, options.nodes) for a, b in zip(bounds, bounds[1:])]
    try:
        for phase in ("cold connect", "formation", "answer"):
            for client in clients:
                read_line(client, "a client")
            before = ask_server(server)[0]
            now = f"{time.monotonic()}\n"
            for client in clients:
                client.stdin.write(now)
                client.stdin.flush()
            # The next line of each client comes at the phase's end; it is read at the top, or is the result.
            if phase == "answer":
                answers = [json.loads(read_line(client, "a client")) for client in clients]
            cpu[phase] = before
        cpu_end, peak = ask_server(server)
    finally:
        for process in (*clients, server):
            process.kill()
            process.wait()
    times = {phase: figures_of([ms for each in answers for ms in each[phase]]) for phase in cpu}
    starts = [*cpu.values(), cpu_end]
    return times, {phase: 1e3 * (b - a) for phase, a, b in zip(cpu, starts, starts[1:])}, peak


def run_dpt(options, *more):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        argv = [*more, "--nodes", options.nodes, "--ranks-per-node", options.ranks_per_node, "--clients",
                options.clients, "--seconds", options.seconds, "--json", out]
        subprocess.run([options.program, "rdzv", *map(str, argv)], check=True, timeout=RUN_TIMEOUT_S)
        return json.loads(out.read_text())


def print_row(name, side, times, cpu_ms):
    print(f"{name:<14} {side:<16} {times['p50']:>9.3f} {times['p99']:>9.3f} {times['max']:>9.3f} {cpu_ms:>10}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    python = os.environ.get("DPT_TORCH_PYTHON", "python3")
    probe = [python, "-c", "import torch.distributed as d; d.TCPStore"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        print(f"{python} has no PyTorch with a TCPStore (DPT_TORCH_PYTHON names another)")
        sys.exit(77)
    sides = {"dpt-rdzv": run_dpt(options), "dpt-rdzv --open": run_dpt(options, "--open")}
    with tempfile.TemporaryDirectory() as folder:
        store, store_cpu, store_peak = run_store(python, write_hosts(Path(folder) / "hosts"), options)
    print(f"\n{options.nodes} nodes; times in ms; CPU time of the server in ms\n"
          f"{'phase':<14} {'server':<16} {'p50':>9} {'p99':>9} {'max':>9} {'CPU':>10}")
    for i, name in enumerate(("cold connect", "formation")):
        for side, figures in sides.items():
            print_row(name, side, figures["phases"][i]["ms"], f"{figures['phases'][i]['server_cpu_ms']:.1f}")
        print_row(name, "TCPStore", store[name], f"{store_cpu[name]:.1f}")
    for side, figures in sides.items():
        print(f"{'start':<14} {side:<16} {sum(each['server_cpu_ms'] for each in figures['phases'][:2]):>40.1f}")
    print(f"{'start':<14} {'TCPStore':<16} {store_cpu['cold connect'] + store_cpu['formation']:>40.1f}")
    for side, figures in sides.items():
        print_row("answer", side, figures["steady"]["answer_ms"], "")
    print_row("answer", "TCPStore", store["answer"], f"{store_cpu['answer']:.1f}")
    peaks = [f"{side} {figures['server_peak_bytes'] / 2**20:.1f} MiB" for side, figures in sides.items()]
    print(f"memory of the server at most: {', '.join(peaks)}, TCPStore with Python and PyTorch "
          f"{store_peak / 2**20:.1f} MiB")
    if options.json:
        store_figures = {"ms": store, "server_cpu_ms": store_cpu, "peak_bytes": store_peak}
        Path(options.json).write_text(json.dumps({"keys": sides["dpt-rdzv"], "open": sides["dpt-rdzv --open"],
                                                  "store": store_figures}, indent=2))


if __name__ == "__main__":
    main()
