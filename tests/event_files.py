"""Reads TensorBoard event files with the standard library only: frames, checksums, and the fields that dpt writes.

What counts of several files is what TensorBoard's reader in Python has: files in the order of their names, and a START
drops the values of its step and of later steps.
"""

import struct
from pathlib import Path

START = 1
FIELDS = {"train/loss": "loss", "train/learning_rate": "lr", "train/grad_norm": "grad_norm",
          "speed/tokens_per_s": "tokens_per_s", "speed/step_ms": "step_ms", "speed/sent_bytes": "sent_bytes",
          "memory/allocated_bytes": "memory_bytes", "cluster/world_size": "world_size",
          "cluster/generation": "generation"}


def crc32c_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = crc32c_table()


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """(number, value) of each field of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            size, form = {1: (8, "<d"), 5: (4, "<f")}[kind]
            value, at = struct.unpack(form, data[at:at + size])[0], at + size
        yield key >> 3, value


def messages(path):
    data, at = Path(path).read_bytes(), 0
    while at < len(data):
        head = data[at:at + 8]
        (size,) = struct.unpack("<Q", head)
        body = data[at + 12:at + 12 + size]
        crcs = struct.unpack("<I", data[at + 8:at + 12]) + struct.unpack("<I", data[at + 12 + size:at + 16 + size])
        assert crcs == (masked_crc(head), masked_crc(body)), f"{path}: checksum at byte {at}"
        message = dict(fields(body))
        yield message | {"values": [dict(fields(value)) for _, value in fields(message.get(5, b""))]}
        at += 16 + size


def files(folder):
    return sorted(Path(folder).glob("events.out.tfevents.*"))


def read(folder):
    """{tag: [(step, value, wall time), …]} of all event files of a folder, as a reader has them."""
    points = {}
    for path in files(folder):
        for i, message in enumerate(messages(path)):
            step, time = message.get(2, 0), message[1]
            if i == 0:
                assert message[3] == b"brain.Event:2", path
            if dict(fields(message.get(7, b""))).get(1) == START:
                points = {tag: [p for p in found if p[0] < step] for tag, found in points.items()}
            for value in message["values"]:
                points.setdefault(value[1].decode(), []).append((step, value[2], time))
    return points


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def newest_lines(outputs):
    """The lines of metrics.jsonl that count: a step that was computed again replaces its step and later ones."""
    lines = []
    for line in outputs.metrics():
        lines = [earlier for earlier in lines if earlier["step"] < line["step"]] + [line]
    return lines


def check_equal(outputs, found):
    """Checks that the values of event files, as read() returns them, are those of the lines of metrics.jsonl that
    count, each once and in order."""
    lines = newest_lines(outputs)
    steps = [line["step"] for line in lines]
    assert steps == list(range(1, len(steps) + 1))
    for tag, field in FIELDS.items():
        known = [line for line in lines if line["step_ms"] > 0 or not tag.startswith("speed/")]
        expected = [(line["step"], float32(line[field])) for line in known]
        assert [(step, value) for step, value, _ in found[tag]] == expected, tag
    assert [time for _, _, time in found["train/loss"]] == [line["time"] for line in lines]
    validations = {line["step"]: float32(line["val_loss"]) for line in outputs.evaluations()}
    assert [(step, value) for step, value, _ in found.get("eval/loss", [])] == sorted(validations.items())
