#!/usr/bin/python3
"""Connects to a rendezvous server again and again with the keys of an admitted machine:

    keyed_flood.py HOST:PORT --key-dir DIR --run NAME --connections 400
    keyed_flood.py HOST:PORT --key-dir DIR --run NAME --rate 1000 --seconds 20
    keyed_flood.py HOST:PORT --key-dir DIR --run NAME --rate 1000 --messages

Each connection has the whole handshake of CURVE and sends one valid message, which names the run and a node of its own.
With --connections all are opened at once, and stay; what the server closes is opened again. With --rate each is closed
after half a second. With --messages the rate is that of messages over two standing connections: in turn a question for
the status, and a node of its own whose health check has failed. Prints each second, as a line of JSON, how many
connections were opened so far and in how many seconds, how many of them were closed, and how many of these the server
had answered; with --messages the same of messages.
Standard library and libzmq."""

import argparse
import collections
import ctypes
import json
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from protocol_client import SCHEMA, VERSION, run_spec  # noqa: E402

KEPT_S, TICK_S, PRINT_S = 0.5, 0.01, 1.0
MAX_SOCKETS, DEALER, RECONNECT_IVL, LINGER, DONTWAIT = 2, 5, 18, 17, 1
CURVE_PUBLICKEY, CURVE_SECRETKEY, CURVE_SERVERKEY = 48, 49, 50
SOCKETS, TEXT_BYTES = 20000, 41

zmq = ctypes.CDLL("libzmq.so.5", use_errno=True)
zmq.zmq_ctx_new.restype = zmq.zmq_socket.restype = zmq.zmq_z85_encode.restype = ctypes.c_void_p
zmq.zmq_socket.argtypes = [ctypes.c_void_p, ctypes.c_int]
zmq.zmq_ctx_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
zmq.zmq_setsockopt.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
zmq.zmq_connect.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
zmq.zmq_send.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
zmq.zmq_recv.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
zmq.zmq_close.argtypes = [ctypes.c_void_p]


def key_of(path):
    """The first key in a file of a key folder, as libzmq's text."""
    text = ctypes.create_string_buffer(TEXT_BYTES)
    zmq.zmq_z85_encode(text, bytes.fromhex(re.search(r"[0-9a-f]{64}", path.read_text())[0]), ctypes.c_size_t(32))
    return text.value


class Machine:
    """Connections with the keys of a folder."""

    def __init__(self, folder, endpoint, run):
        self.context, self.endpoint, self.run, self.opened = zmq.zmq_ctx_new(), f"tcp://{endpoint}".encode(), run, 0
        self.closed = self.answered = 0
        zmq.zmq_ctx_set(self.context, MAX_SOCKETS, SOCKETS)
        secret, public = key_of(folder / "machine.key"), ctypes.create_string_buffer(TEXT_BYTES)
        zmq.zmq_curve_public(public, secret)
        self.keys = {CURVE_SERVERKEY: key_of(folder / "servers"), CURVE_PUBLICKEY: public.value,
                     CURVE_SECRETKEY: secret}

    def message(self, **more):
        number = self.opened
        return SCHEMA.encode("AgentState", {
            **more, "version": VERSION, "software": "flood", "counter": 1, "secret": number.to_bytes(16, "little"),
            "fingerprint": "none", "host": "flood", "host_name": "flood", "spec": run_spec(),
            "stamp": {"run": self.run, "node": f"guest-{number}", "incarnation": 1}})

    def open(self, again):
        """A socket that connects and has a message to send. `again`: it connects again when it is closed."""
        self.opened += 1
        made = zmq.zmq_socket(self.context, DEALER)
        if made is None:
            raise OSError(ctypes.get_errno(), "no more sockets")
        for option, value in ((LINGER, 0), (RECONNECT_IVL, 100 if again else -1)):
            zmq.zmq_setsockopt(made, option, value.to_bytes(4, "little", signed=True), 4)
        for option, text in self.keys.items():
            zmq.zmq_setsockopt(made, option, text, len(text))
        zmq.zmq_connect(made, self.endpoint)
        data = self.message()
        zmq.zmq_send(made, data, len(data), DONTWAIT)
        return made

    def send(self, made):
        """The next message over a standing connection, and the answers that have come."""
        self.opened += 1
        kind = {"asks_status": True} if self.opened % 2 else {"health": {"fault": "it is one of a flood"}}
        data = self.message(**kind)
        zmq.zmq_send(made, data, len(data), DONTWAIT)
        while zmq.zmq_recv(made, None, 0, DONTWAIT) >= 0:
            self.answered += 1

    def close(self, made):
        self.closed += 1
        self.answered += zmq.zmq_recv(made, None, 0, DONTWAIT) >= 0
        zmq.zmq_close(made)


def flood(machine, connections, rate, seconds, messages):
    standing = [machine.open(again=True) for _ in range(2)] if messages else []
    kept, began = collections.deque(), time.monotonic()
    printed = began
    while (now := time.monotonic()) < began + seconds:
        if now >= printed + PRINT_S:
            printed = now
            print(json.dumps({"made": machine.opened, "failed": 0, "closed": machine.closed,
                              "answered": machine.answered, "seconds": now - began}), flush=True)
        while not connections and kept and kept[0][0] <= now:
            machine.close(kept.popleft()[1])
        due = connections - machine.opened if connections else int((now - began) * rate) - machine.opened
        for i in range(min(due, 100)):
            if standing:
                machine.send(standing[i % len(standing)])
                continue
            kept.append((now + KEPT_S, machine.open(again=connections > 0)))
        time.sleep(TICK_S)  # tidy: pause of a bounded poll


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("endpoint")
    parser.add_argument("--key-dir", type=Path, required=True)
    parser.add_argument("--run", default="flooded")
    parser.add_argument("--connections", type=int, default=0)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10 ** 6)
    parser.add_argument("--messages", action="store_true")
    options = parser.parse_args()
    flood(Machine(options.key_dir, options.endpoint, options.run), options.connections, options.rate, options.seconds,
          options.messages)


if __name__ == "__main__":
    main()
