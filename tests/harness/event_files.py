# SPDX-License-Identifier: Apache-2.0
"""Reads the files that `--logdir` writes, without TensorBoard. The checksums are computed bit by bit."""
import struct
from pathlib import Path


def _crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def _masked(data):
    crc = _crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(data):
    """The messages of the whole records."""
    at = 0
    while len(data) - at >= 12:
        size, crc = struct.unpack_from("<QI", data, at)
        assert crc == _masked(data[at:at + 8]), f"checksum of the length at byte {at}"
        if len(data) - at < size + 16:
            return
        message = data[at + 12:at + 12 + size]
        assert struct.unpack_from("<I", data, at + 12 + size)[0] == _masked(message), f"checksum at byte {at}"
        yield message
        at += size + 16


def _varint(data, at):
    number = shift = 0
    while True:
        number |= (data[at] & 0x7f) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return number, at


def _fields(data):
    """Yields (field, value) of a message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
        else:
            size, at = {1: (8, at), 5: (4, at)}[key & 7] if key & 7 != 2 else _varint(data, at)
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def _event(message):
    """(step, version, starts, {tag: value}) of a message Event."""
    fields = dict(_fields(message))
    scalars = {}
    for _, value in _fields(fields.get(5, b"")):
        scalar = dict(_fields(value))
        scalars[scalar[1].decode()] = struct.unpack("<f", scalar[2])[0]
    return fields[2], fields.get(3), fields.get(7) == b"\x08\x01", scalars


def files(directory):
    return sorted(Path(directory).glob("events.out.tfevents.*"))


def curves(directory, fast=False):
    """{tag: [(step, value), ...]} as TensorBoard shows them, file after file. For its reader of Python a start removes
    the points of its step and of later ones. `fast`: the other reader takes no notice of a start; there, each point
    removes those of its step and of later ones from its curve."""
    found = {}
    for path in files(directory):
        events = [_event(message) for message in records(path.read_bytes())]
        assert events[0][1] == b"brain.Event:2" and not any(version for _, version, _, _ in events[1:]), path
        for step, _, starts, scalars in events:
            if starts and not fast:
                found = {tag: [point for point in points if point[0] < step] for tag, points in found.items()}
            for tag, value in scalars.items():
                if fast:
                    found[tag] = [point for point in found.get(tag, []) if point[0] < step]
                found.setdefault(tag, []).append((step, value))
    return found
