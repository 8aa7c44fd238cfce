#!/usr/bin/python3
"""Connects to a rendezvous server again and again, as a stranger would:

    flood.py HOST:PORT --rate 1000 --run NAME --seconds 20 [--keys]

Of the connections a quarter each: closes at once; sends bytes that are not ZeroMQ's; stays silent after ZeroMQ's
handshake; sends, after it, a message that names the run and a node of its own, with another config. For a server with
keys the last two send a HELLO of CURVE (ZeroMQ RFC 26) with a drawn key, which the server has to try to open. Each is
closed by a reset after a second, so no port stays in use. Prints each second, as a line of JSON, how many connections
were made and failed so far, and in how many seconds. Standard library only."""

import argparse
import collections
import json
import os
import socket
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from protocol_client import SCHEMA, VERSION, run_spec  # noqa: E402

KEPT_S, TICK_S, PRINT_S = 1.0, 0.01, 1.0
HELLO_BYTES = 200


def greeting(mechanism):
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


READY = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
HANDSHAKE = greeting(b"NULL") + struct.pack(">BB", 0x04, len(READY)) + READY


def message(run, number):
    """A framed AgentState of a node that has no right to join."""
    data = SCHEMA.encode("AgentState", {
        "version": VERSION, "software": "flood", "counter": 1, "secret": number.to_bytes(16, "little"),
        "fingerprint": "none", "host": "flood", "host_name": "flood", "spec": run_spec(config_digest="of a stranger"),
        "stamp": {"run": run, "node": f"stranger-{number}", "incarnation": 1}})
    return struct.pack(">BQ", 0x02, len(data)) + data


def curve_hello():
    """A HELLO whose key, nonce and box are drawn."""
    start = b"\x05HELLO" + b"\x01\x00" + bytes(72)
    return struct.pack(">BB", 0x04, HELLO_BYTES) + start + os.urandom(HELLO_BYTES - len(start))


def say(run, number, keys):
    """What connection `number` sends."""
    kind = number % 4
    if kind == 0:
        return b""
    if kind == 1:
        return b"GET / HTTP/1.1\r\n\r\n" * 8
    if keys:
        return greeting(b"CURVE") + curve_hello()
    return HANDSHAKE + (message(run, number) if kind == 3 else b"")


def connect(address, data):
    """A connection that has sent the data, or None."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.settimeout(KEPT_S)
    try:
        made.connect(address)
        if data:
            made.sendall(data)
    except OSError:  # the server refuses it, or has closed it already: counted
        made.close()
        return None
    return made


def flood(address, run, rate, seconds, keys):
    kept, made, failed = collections.deque(), 0, 0
    began = printed = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        if now >= printed + PRINT_S:
            printed = now
            print(json.dumps({"made": made, "failed": failed, "seconds": now - began}), flush=True)
        while kept and kept[0][0] <= now:
            kept.popleft()[1].close()
        due = int((now - began) * rate) - made - failed
        for _ in range(min(due, 100)):
            each = connect(address, say(run, made + failed + 1, keys))
            failed += each is None
            made += each is not None
            if each is not None:
                kept.append((now + ((made + failed) % 4 > 0) * KEPT_S, each))
        time.sleep(TICK_S)  # tidy: pause of a bounded poll
    for _, each in kept:
        each.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("endpoint")
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--run", default="flooded")
    parser.add_argument("--keys", action="store_true")
    options = parser.parse_args()
    host, port = options.endpoint.rsplit(":", 1)
    flood((host, int(port)), options.run, options.rate, options.seconds, options.keys)


if __name__ == "__main__":
    main()
