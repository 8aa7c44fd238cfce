"""dpt-doctor as people use it: this machine, another machine's files, NCCL's log, links on localhost, wrong input.
Argument: dpt-doctor."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DOCTOR = sys.argv[1]
SLOW = float(os.environ.get("DPT_TEST_SLOW", "1"))


def run(*flags, timeout=60):
    return subprocess.run([DOCTOR, *map(str, flags)], capture_output=True, text=True, timeout=timeout * SLOW)


def refused(*flags, why):
    done = run(*flags)
    assert done.returncode == 2 and why in done.stderr and done.stdout == "", (flags, done)
    assert done.stderr.count("\n") == 1, done.stderr


class Node:
    """A dpt-doctor that listens on localhost."""

    def __init__(self, folder, name):
        self.port_file = folder / f"{name}.port"
        self.process = subprocess.Popen([DOCTOR, "net", "--listen", "0", "--bind", "127.0.0.1", "--for", "120",
                                         "--port-file", str(self.port_file)], stdout=subprocess.DEVNULL)
        until = time.monotonic() + 20 * SLOW
        while not self.port_file.exists() and time.monotonic() < until:
            time.sleep(0.01)  # tidy: pause of a bounded poll
        self.endpoint = f"127.0.0.1:{int(self.port_file.read_text())}"

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.process.terminate()
        assert self.process.wait(20 * SLOW) == 0


# This machine.
done = run()
assert done.returncode == 0 and done.stderr == "", done
for word in ("machine", "cpu", "instructions", "memory", "/dev/shm", "ulimit -n", "clock source", "network", "lo"):
    assert word in done.stdout, (word, done.stdout)
document = json.loads(run("--json", "-").stdout)
assert {"gpus", "network", "nccl", "findings"} <= set(document), document
assert {line["level"] for line in document["findings"]} <= {"info", "ok", "warn"}
assert "lo" in [nic["name"] for nic in document["network"]["interfaces"]]
assert document["nccl"] is None

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)

    # The address of dpt-worker: by an interface, by a route, and why. No server needs to run.
    done = run("--interface", "lo")
    assert "peers connect to 127.0.0.1 (lo): cluster.interface names" in done.stdout, done.stdout
    done = run("--server", "127.0.0.1:1")
    assert "no server answers at its address for others" in done.stdout, done.stdout
    done = run("--interface", "nowhere0")
    assert done.returncode == 1 and "'nowhere0' is not an interface with an address" in done.stdout, done

    # A copy of another machine's files: one GPU, no interfaces.
    gpu = folder / "root/sys/devices/pci0000:16/0000:17:00.0"
    gpu.mkdir(parents=True)
    for file, text in (("vendor", "0x10de"), ("class", "0x030200"), ("numa_node", "1")):
        (gpu / file).write_text(text + "\n")
    links = folder / "root/sys/bus/pci/devices"
    links.mkdir(parents=True)
    (links / "0000:17:00.0").symlink_to(gpu)
    done = run("--root", folder / "root", "--json", folder / "out.json")
    assert done.returncode == 0 and "GPU0" in done.stdout and "bus 0000:17:00.0, NUMA node 1" in done.stdout, done
    written = json.loads((folder / "out.json").read_text())
    assert written["gpus"][0]["numa"] == 1 and written["gpus"][0]["to"] == [{"link": "X", "peer_access": "itself"}]
    assert written["network"] == {"interfaces": [], "rdma": []}

    # NCCL's log.
    log = folder / "nccl.log"
    log.write_text("h:1:2 [0] NCCL INFO NET/IB : No device found.\nh:1:2 [0] NCCL INFO Using network Socket\n"
                   "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"
                   "h:1:2 [0] NCCL INFO 4096 Bytes -> Algo 1 proto 0 time 7.500000\n"
                   "h:1:2 [0] NCCL INFO   Algorithm   |  Ring |\n"
                   "h:1:2 [0] NCCL INFO   Protocol    |   LL | LL128 | Simple |\n"
                   "h:1:2 [0] NCCL INFO     AllReduce |     6.6/   4.7 |     0.0/   0.0 |     0.0/   0.0 |\n")
    done = run("--nccl-log", log)
    assert done.returncode == 0 and "no InfiniBand or RoCE device" in done.stdout, done
    assert "Ring LL" in done.stdout and "7.5  least predicted time\n" in done.stdout, done
    document = json.loads(run("--nccl-log", log, "--json", "-").stdout)
    assert document["nccl"]["connections"] == [{"from": 0, "to": 1, "via": "NET/Socket/0", "channels": 1}]
    tuning = document["nccl"]["tuning"]
    assert [(one["bytes"], one["predicted_us"]) for one in tuning["choices"]] == [(4096, 7.5)]
    assert [len(table["times"]) for table in tuning["tables"]] == [1]
    for file in (folder / "absent.log", folder, folder / "out.json"):
        done = run("--nccl-log", file)
        assert done.returncode == 1 and "--nccl-log" in done.stderr and done.stdout == "", done

    # Three nodes on localhost. Their order is not fixed, so only the form is checked here.
    with Node(folder, "a") as a, Node(folder, "b") as b, Node(folder, "c") as c:
        peers = ",".join(node.endpoint for node in (a, b, c))
        done = run("net", "--peers", peers, "--ms", "100", "--mib", "64", "--json", folder / "net.json")
        assert done.returncode == 0, done
        assert "bandwidth in GB/s" in done.stdout and "round trip" in done.stdout and "slowest" in done.stdout
        net = json.loads((folder / "net.json").read_text())
        pairs = {(pair["from"], pair["to"]): pair for pair in net["pairs"]}
        assert set(pairs) == {(i, k) for i in range(3) for k in range(3) if i != k}
        for pair in pairs.values():
            assert pair["gb_per_s"] > 0.001 and 0 < pair["rtt_us"] <= pair["rtt_p99_us"], pair

        # A dead node is named, the others are measured. The port is this socket's, which accepts nothing.
        with socket.socket() as dead:
            dead.bind(("127.0.0.1", 0))
            closed = f"127.0.0.1:{dead.getsockname()[1]}"
            done = run("net", "--peers", f"{a.endpoint},{closed},{b.endpoint}", "--ms", "100", "--timeout-ms", "500",
                       "--json", folder / "dead.json")
            assert done.returncode == 1 and done.stdout.count(f"{closed} refuses: nothing listens there") == 1, done
            net = json.loads((folder / "dead.json").read_text())
            assert len([pair for pair in net["pairs"] if "error" in pair]) == 4
            assert len([pair for pair in net["pairs"] if "gb_per_s" in pair]) == 2

            # A node that is connected but does not answer.
            dead.listen(8)
            began = time.monotonic()
            done = run("net", "--peers", f"{a.endpoint},{closed}", "--timeout-ms", "300")
            assert done.returncode == 1 and "no answer in time" in done.stdout, done
            assert time.monotonic() - began < 10 * SLOW

        # A port scanner does not disturb a node.
        port = int(a.endpoint.split(":")[1])
        with socket.create_connection(("127.0.0.1", port)) as scanner:
            scanner.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert scanner.recv(100).startswith(b"fail ")
        socket.create_connection(("127.0.0.1", port)).close()
        assert run("net", "--peers", f"{a.endpoint},{b.endpoint}", "--ms", "100").returncode == 0

    # A port in use, and a folder that is absent.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        done = run("net", "--listen", taken.getsockname()[1], "--bind", "127.0.0.1", "--for", "1")
        assert done.returncode == 1 and "in use" in done.stderr, done
    done = run("--json", folder / "no/such/file")
    assert done.returncode == 1 and "--json" in done.stderr, done

    # No server.
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        port = dead.getsockname()[1]
        done = run("net", "--rdzv-endpoint", f"127.0.0.1:{port}", "--timeout-ms", "500")
        assert done.returncode == 1 and f"no answer of a server at 127.0.0.1:{port}" in done.stderr, done
        done = run("hang", "--server", f"127.0.0.1:{port}", "--timeout-ms", "1500", "--seconds", "0")
        assert done.returncode == 1 and f"no answer of a server at 127.0.0.1:{port}" in done.stderr, done
        assert "refuses" in done.stderr, done.stderr

# The log folder of a run: steps every 2 s until now, or until a minute ago; lines that are none; the end.
def metrics(newest, lines=20):
    return "".join(json.dumps({"step": i, "loss": 1.5, "generation": 2, "time": newest - 2 * (lines - i)}) + "\n"
                   for i in range(1, lines + 1))


with tempfile.TemporaryDirectory() as name:
    folder, now = Path(name), time.time()
    (folder / "metrics.jsonl").write_text("torn {\n" + metrics(now))
    done = run("hang", "--log", folder)
    assert done.returncode == 0 and "newest step" in done.stdout and "20 (generation 2)" in done.stdout, done
    evaluation = json.dumps({"step": 20, "val_loss": 2.0, "time": 1}) + "\n"
    (folder / "metrics.jsonl").write_text(metrics(now - 60) + evaluation + '{"step": 2')
    (folder / "events.jsonl").write_text(json.dumps({"kind": "node_lost", "cause": "node b", "time": now - 90}) + "\n")
    done = run("hang", "--log", folder, "--json", folder / "out.json")
    assert done.returncode == 1 and "FAIL" in done.stdout and "every 2.00 s" in done.stdout, done
    assert "node_lost: node b, 9" in done.stdout, done
    written = json.loads((folder / "out.json").read_text())
    assert written["hangs"] and 59 < written["age_s"] < 90 and abs(written["interval_s"] - 2) < 0.01
    # Long logs are read from their end.
    (folder / "metrics.jsonl").write_text(metrics(now - 60, lines=20000))
    assert json.loads(run("hang", "--log", folder, "--json", "-").stdout)["step"] == 20000
    (folder / "summary.json").write_text(json.dumps({"time": now - 59}))
    done = run("hang", "--log", folder)
    assert done.returncode == 0 and "the run has ended" in done.stdout, done
    (folder / "metrics.jsonl").write_text("nothing\n")
    done = run("hang", "--log", folder)
    assert done.returncode == 1 and "no line of a step" in done.stderr, done
    done = run("hang", "--log", folder / "none")
    assert done.returncode == 1 and "metrics.jsonl" in done.stderr, done

# A listener ends by itself; with --until-eof also when its standard input does, whatever comes before.
assert run("net", "--listen", "0", "--bind", "127.0.0.1", "--for", "1").returncode == 0
with subprocess.Popen([DOCTOR, "net", "--listen", "0", "--bind", "127.0.0.1", "--until-eof"], stdin=subprocess.PIPE,
                      stdout=subprocess.PIPE, text=True) as listener:
    assert listener.stdout.readline().startswith("dpt-doctor listens on port ")
    listener.stdin.write("word\n")
    listener.stdin.flush()
    assert run("net", "--peers", "127.0.0.1:1,127.0.0.1:2", "--timeout-ms", "100").returncode == 1
    assert listener.poll() is None
    listener.stdin.close()
    assert listener.wait(20 * SLOW) == 0

# Wrong input.
refused("nett", why="expected net, hang or an option, got 'nett'")
refused("--what", why="unknown option '--what'")
refused("--server", "nowhere", why="--server")
refused("net", why="net needs --rdzv-endpoint HOST:PORT, --listen PORT or --peers LIST")
refused("net", "--listen", "0", "--peers", "a:1,b:1", why="not several")
refused("net", "--rdzv-endpoint", "a:1", "--peers", "a:1,b:1", why="not several")
refused("net", "--rdzv-endpoint", "nowhere", why="--rdzv-endpoint")
refused("net", "--peers", "a:1,b:1", "--shell", "ssh", why="belong to --rdzv-endpoint")
refused("net", "--listen", "0", "--run", "x", why="belong to --rdzv-endpoint")
refused("net", "--rdzv-endpoint", "a:1", "--shell", "", why="--shell: expected a command")
refused("net", "--rdzv-endpoint", "a:1", "--shell", "ssh", "--port", "1", why="--port does not go with --shell")
refused("net", "--rdzv-endpoint", "a:1", "--until-eof", why="belong to --listen")
refused("net", "--rdzv-endpoint", "127.0.0.1:1", "--run", "a b", why="a run and a node are named by")
refused("net", "--listen", "70000", why="--listen")
refused("net", "--listen", "0", "--json", "-", why="--json belongs to --peers")
refused("net", "--peers", "a:1", why="at least two nodes")
refused("net", "--peers", "a:1,b", why="--peers")
refused("net", "--peers", "a:1,a:1", why="listed twice")
refused("net", "--peers", ",".join(f"h{i}:1" for i in range(65)), why="more than 64 nodes")
refused("net", "--peers", "a:1,b:1", "--bind", "::1", why="belong to --listen")
refused("net", "--peers", "a:1,b:1", "--ms", "5", why="--ms")
refused("net", "--interface", "lo", why="unknown option '--interface'")
refused("hang", why="hang needs --server HOST:PORT or --log DIR")
refused("hang", "--server", "127.0.0.1:1", "--log", ".", why="not both")
refused("hang", "--server", "127.0.0.1:1", "--run", "a b", why="--run 'a b'")
refused("hang", "--server", "127.0.0.1:1", "--run", "x" * 900, why="--run 'xxx")
refused("hang", "--server", "127.0.0.1:1", "--seconds", "-1", why="--seconds")
refused("x" * 9000, why="expected net")
assert run("--help").stdout.startswith("usage: dpt-doctor") and run("--version").stdout.startswith("dpt-doctor ")
assert run("net", "--help").returncode == 0
