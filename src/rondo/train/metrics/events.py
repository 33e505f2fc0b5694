"""TensorBoard event files, written without TensorBoard: scalars only, which need two message types of protobuf.

A file is a list of records: the length, its checksum, the event, its checksum. An event is a message with a time, a
step and a summary, which is a list of tags with a value each.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

POLYNOMIAL = 0x82F63B78
VERSION = b"brain.Event:2"


class EventFile:
    """One file for each process of a job. It invalidates entries of earlier files from its own first step on: those
    steps are repeated.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{now:.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("xb")
        self._begun = False
        self._write(_event(now, file_version=VERSION))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = time.time()
        if not self._begun:
            self._write(_event(now, step, session_start=True))
            self._begun = True
        self._write(_event(now, step, values=values))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))


def _event(
    now: float,
    step: int = 0,
    *,
    file_version: bytes = b"",
    values: Mapping[str, float] | None = None,
    session_start: bool = False,
) -> bytes:
    event = b"\x09" + struct.pack("<d", now) + b"\x10" + _varint(step)
    if file_version:
        event += _bytes(3, file_version)
    if values:
        scalars = ((tag.encode(), struct.pack("<f", value)) for tag, value in values.items())
        event += _bytes(5, b"".join(_bytes(1, _bytes(1, tag) + b"\x15" + value) for tag, value in scalars))
    if session_start:
        event += _bytes(7, b"\x08\x01")
    return event


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _checksum(data: bytes) -> bytes:
    """Masked CRC, rotated and shifted, because a plain CRC is weak for data that contains checksums."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]
