"""A client of dpt's rendezvous protocol, as docs/protocol.md says how to write one. Standard library only.

    spec = run_spec(min_nodes=2, max_nodes=2)
    with Node(("127.0.0.1", 29500), "my-run", "a", spec) as a, Node(…, "b", spec) as b:
        follow([a, b], until=lambda: a.runs() and b.runs(), timeout=10)
        print(a.plan.world_size, a.rank())

The messages and their numbers come from rendezvous/proto/dpt.proto. ZeroMQ's framing (ZMTP 3.0, no keys) and protobuf's
encoding are written out here; a program for daily use would take libzmq and protobuf instead. Each Node has one rank,
which computes nothing: it quiesces, connects to nobody, and is ready at once.
"""

import os
import re
import select
import socket
import struct
import time
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "rendezvous" / "proto"
VERSION = int(re.search(r"DPT_PROTO_VERSION = (\d+)", (PROTO / "message.h").read_text())[1])
ENDS = ("SERVER_DONE", "SERVER_FAILED", "SERVER_EXPELLED", "SERVER_REFUSED", "SERVER_RELEASED")


# ---------------------------------------------------------------- protobuf

class Schema:
    """Messages and enums of a .proto file: messages[NAME] = {field: (number, type, repeated)}, enums[NAME] = {name:
    number}."""

    def __init__(self, path):
        text = re.sub(r"//[^\n]*", "", path.read_text())
        self.enums = {name: {key: int(number) for key, number in re.findall(r"(\w+)\s*=\s*(\d+)\s*;", body)}
                      for name, body in re.findall(r"enum\s+(\w+)\s*{([^}]*)}", text)}
        self.messages = {name: {field: (int(number), kind, bool(repeated)) for repeated, kind, field, number in
                                re.findall(r"(repeated\s+)?(\w+)\s+(\w+)\s*=\s*(\d+)\s*;", body)}
                         for name, body in re.findall(r"message\s+(\w+)\s*{([^}]*)}", text)}

    def default(self, kind):
        if kind in self.enums:
            return next(name for name, number in self.enums[kind].items() if number == 0)
        return {"string": "", "bytes": b"", "bool": False, "float": 0.0, "double": 0.0}.get(
            kind, None if kind in self.messages else 0)

    def encode(self, name, values):
        """`values`: a dict. A field that is absent, None or 0 is not written, as in proto3."""
        parts = []
        unknown = set(values) - set(self.messages[name])
        if unknown:
            raise KeyError(f"{name} has no field {sorted(unknown)}")
        for field, (number, kind, repeated) in self.messages[name].items():
            value = values.get(field)
            for each in value or [] if repeated else [value]:
                if each is not None and (repeated or each != self.default(kind)):
                    parts.append(self._encode_field(number, kind, each))
        return b"".join(parts)

    def _encode_field(self, number, kind, value):
        if kind in ("string", "bytes") or kind in self.messages:
            data = (self.encode(kind, value) if kind in self.messages
                    else value.encode() if kind == "string" else value)
            return varint(number << 3 | 2) + varint(len(data)) + data
        if kind in ("float", "double"):
            wire, form = (5, "<f") if kind == "float" else (1, "<d")
            return varint(number << 3 | wire) + struct.pack(form, value)
        if kind in self.enums:
            value = self.enums[kind][value]
        if kind in ("sint32", "sint64"):  # 0, -1, 1, -2, ... are 0, 1, 2, 3, ...
            value = 2 * value if value >= 0 else -2 * value - 1
        return varint(number << 3) + varint(int(value) & (1 << 64) - 1)

    def decode(self, name, data):
        """An object with all fields of the message; unknown fields are skipped."""
        fields = self.messages[name]
        by_number = {number: (field, kind, repeated) for field, (number, kind, repeated) in fields.items()}
        found = SimpleNamespace(**{field: [] if repeated else self.default(kind)
                                   for field, (_, kind, repeated) in fields.items()})
        at = 0
        while at < len(data):
            tag, at = read_varint(data, at)
            value, at = read_wire_value(data, at, tag & 7)
            if tag >> 3 not in by_number:
                continue
            field, kind, repeated = by_number[tag >> 3]
            value = self._value(kind, value)
            if repeated:
                getattr(found, field).append(value)
            else:
                setattr(found, field, value)
        return found

    def _value(self, kind, value):
        if kind in self.messages:
            return self.decode(kind, value)
        if kind in self.enums:
            return next(name for name, number in self.enums[kind].items() if number == value)
        if kind == "string":
            return value.decode()
        if kind == "bool":
            return bool(value)
        if kind in ("float", "double"):
            return struct.unpack("<f" if kind == "float" else "<d", value)[0]
        if kind in ("sint32", "sint64"):
            return -(value >> 1) - 1 if value & 1 else value >> 1
        return value - (1 << 64) if kind in ("int32", "int64") and value >> 63 else value


def varint(value):
    out = bytearray()
    while value > 0x7f:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def read_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7f) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def read_wire_value(data, at, wire):
    if wire == 0:
        return read_varint(data, at)
    if wire == 2:
        length, at = read_varint(data, at)
    else:
        length = {5: 4, 1: 8}[wire]
    return data[at:at + length], at + length


SCHEMA = Schema(PROTO / "dpt.proto")


# ---------------------------------------------------------------- ZeroMQ

class Dealer:
    """A ZeroMQ DEALER without keys on one TCP connection."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.socket.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
        ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
        self._send_frame(0x04, ready)
        self.socket.settimeout(10)
        while len(self.buffer) < 64:  # the greeting of the server
            self._fill()
        self.buffer = self.buffer[64:]
        self.socket.setblocking(False)

    def fileno(self):
        return self.socket.fileno()

    def close(self):
        self.socket.close()

    def send(self, data):
        self._send_frame(0x00, data)

    def _send_frame(self, flags, data):
        head = struct.pack(">BB", flags, len(data)) if len(data) < 256 else struct.pack(">BQ", flags | 0x02, len(data))
        self.socket.setblocking(True)
        self.socket.sendall(head + data)
        self.socket.setblocking(False)

    def _fill(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self.buffer += data

    def receive(self):
        """The messages that have arrived."""
        try:
            while True:
                self._fill()
        except BlockingIOError:
            pass
        messages = []
        while (frame := self._next_frame()) is not None:
            flags, data = frame
            if flags & 0x04 and data.startswith(b"\x04PING"):
                self._send_frame(0x04, b"\x04PONG" + data[7:])  # after the time to live: the context
            elif not flags & 0x04:
                messages.append(data)
        return messages

    def _next_frame(self):
        if len(self.buffer) < 2:
            return None
        long = self.buffer[0] & 0x02
        if len(self.buffer) < 9 and long:
            return None
        head, length = (9, struct.unpack(">Q", self.buffer[1:9])[0]) if long else (2, self.buffer[1])
        if len(self.buffer) < head + length:
            return None
        frame = self.buffer[0], self.buffer[head:head + length]
        self.buffer = self.buffer[head + length:]
        return frame


# ---------------------------------------------------------------- a node

def run_spec(**changes):
    """What the server must know of the run; equal on all nodes."""
    spec = {"min_nodes": 1, "max_nodes": 8, "timeout_ms": 2000, "max_restarts": 10, "max_world": 8,
            "config_digest": "protocol", "config_yaml": "run: protocol\n", "user": "protocol"}
    return {**spec, **changes}


class Node:
    """One node with one rank. `state` is what it sends; `orders` are the phases that it was told, each once."""

    def __init__(self, address, run, node, spec, secret=None, incarnation=1, **state):
        self.address, self.run, self.node, self.spec = address, run, node, spec
        self.incarnation, self.epoch, self.generation, self.counter = incarnation, 0, 0, 0
        self.its_counter, self.seen, self.plan, self.config, self.orders = 0, 0, None, None, []
        self.message, self.spec_counter, self.spec_known, self.joined = None, 0, False, False
        timeout_ms = (spec or {}).get("timeout_ms", 2000)
        self.heartbeat_s = min(max(timeout_ms // 50, 10), 200) / 1000
        self.state = {"version": VERSION, "software": "protocol_client", "secret": secret or os.urandom(16),
                      "fingerprint": "none", "host": f"host-{node}", "host_name": node, **state}
        self.rank_state = {"spawn": 1, "phase": "RANK_STANDBY", "shm_addr": f"shm-{node}", "tcp_addr": "127.0.0.1:9",
                           "step_applied": -1, "outcome_step": -1, "checkpoint_step": -1, "suspect": -1,
                           "grant_step": -1, "plan_rank": -1}
        self.dealer, self.beat_at = None, 0.0
        self.connect()

    def connect(self):
        """Makes the connection, or a new one with the same state."""
        self.close()
        self.dealer, self.beat_at = Dealer(self.address), 0.0

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.close()

    def close(self):
        if self.dealer is not None:
            self.dealer.close()
        self.dealer = None

    # -- sending

    def send(self, **changes):
        """Sends the whole state. `changes`: fields of this one message."""
        self.counter += 1
        values = {"stamp": {"epoch": self.epoch, "run": self.run, "generation": self.generation, "node": self.node,
                            "incarnation": self.incarnation},
                  "counter": self.counter, **self.state}
        if self.spec is not None:
            values["ranks"] = [self.rank_state] if self.joined else []
            if not self.spec_known:
                values["spec"], self.spec_counter = self.spec, self.spec_counter or self.counter
        if self.plan is not None:
            values["plan_digest"], values["plan_world"] = self.plan.digest, self.plan.world_size
        self.dealer.send(SCHEMA.encode("AgentState", {**values, **changes}))
        self.beat_at = time.monotonic() + self.heartbeat_s

    def set_rank(self, **changes):
        """Changes what the rank reports, and sends it."""
        self.rank_state.update(changes)
        self.send()

    # -- receiving

    def receive(self):
        for data in self.dealer.receive():
            self.take(SCHEMA.decode("ServerState", data))

    def take(self, message):
        """The rules of docs/protocol.md, "What a client does with a message"."""
        stamp = message.stamp
        if (stamp.run, stamp.node, stamp.incarnation) != (self.run, self.node, self.incarnation):
            return
        if message.version != VERSION:
            self.note(message, f"version {message.version}")
            return
        if message.counter_seen == 0:
            self.take_as_stranger(message)
            return
        if stamp.epoch == self.epoch and message.counter <= self.its_counter:
            return
        if stamp.epoch != self.epoch and self.epoch != 0 and message.counter_seen <= self.seen:
            return  # of an earlier server
        self.epoch, self.its_counter = stamp.epoch, message.counter
        self.seen = max(self.seen, message.counter_seen)
        self.spec_known = self.spec_known or message.counter_seen >= self.spec_counter > 0
        if message.heartbeat_ms > 0:
            self.heartbeat_s = message.heartbeat_ms / 1000
        self.note(message, message.phase)
        if not self.joined:  # now the rank process starts
            self.joined = True
            self.send()
        self.take_order(message)

    def take_as_stranger(self, message):
        if message.phase in ENDS:
            self.note(message, message.phase)
        elif self.spec is None:
            self.config = message.spec
        elif self.spec_known:  # the server has started anew and knows nothing
            self.spec_counter, self.spec_known = 0, False
            self.send()

    def note(self, message, order):
        self.message = message
        if self.orders[-1:] != [order]:
            self.orders.append(order)

    def take_order(self, message):
        generation = message.stamp.generation
        if message.phase == "SERVER_PREPARE" and generation > self.generation:
            self.generation = generation
            self.plan = self.plan if message.soft else None
            self.set_rank(phase="RANK_QUIESCED", generation=generation)
        elif message.phase == "SERVER_PLAN" and message.plan is not None and self.has_quiesced(message.plan.generation):
            self.plan = message.plan
            self.set_rank(phase="RANK_READY", plan_rank=self.rank(), step_applied=self.plan.resume_step,
                          failed_generation=0, suspect=-1, text="")
        elif (message.phase in ("SERVER_RUNNING", "SERVER_DRAINING") and generation == self.generation
              and self.rank_state["phase"] == "RANK_READY"):
            self.set_rank(phase="RANK_RUNNING", ran_generation=generation)

    # -- questions

    def has_quiesced(self, generation):
        return self.rank_state["phase"] == "RANK_QUIESCED" and generation == self.generation

    def rank(self):
        """The rank of this node's process in its plan; -1: none."""
        own = [each.rank for each in self.plan.ranks if each.local_rank == 0] if self.plan else []
        return own[0] if own else -1

    def runs(self, generation=1):
        return self.rank_state["phase"] == "RANK_RUNNING" and self.generation >= generation

    def was_told(self, order):
        return order in self.orders


def follow(nodes, until, timeout):
    """Sends every node's state each heartbeat and takes what the server says, until a condition is true."""
    deadline = time.monotonic() + timeout
    while not until():
        now = time.monotonic()
        if now >= deadline:
            told = {node.node: (node.orders, node.message and node.message.text) for node in nodes}
            raise TimeoutError(f"not within {timeout} s; the nodes were told {told}")
        for node in nodes:
            if node.beat_at <= now:
                node.send()
        wait = min(min(node.beat_at for node in nodes), deadline) - time.monotonic()
        by_dealer = {node.dealer: node for node in nodes}
        for dealer in select.select(list(by_dealer), [], [], max(wait, 0))[0]:
            by_dealer[dealer].receive()
