"""Frames on a pipe: a mark, a kind, a length, a payload; what does not look like one is told apart from an answer."""

from __future__ import annotations

import struct
from typing import BinaryIO, NamedTuple

__all__ = ["ERROR", "EVENT", "JOB", "REPLY", "STOP", "Frame", "FrameError", "frame", "read_frame"]

JOB, STOP = b"J", b"S"  # to the child: what to do; end soon with what there is
EVENT, REPLY, ERROR = b"E", b"R", b"X"  # from the child: how it goes; the answer; why there is none

_HEADER = struct.Struct(">4scI")
_MARK = b"cpw1"
_MOST = 1 << 28  # bytes of a payload; the largest problem that a solver takes has a few hundred thousand


class FrameError(ValueError):
    """What came through the pipe is no frame."""


class Frame(NamedTuple):
    """One message."""

    kind: bytes
    payload: bytes


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return _HEADER.pack(_MARK, kind, len(payload)) + payload


def read_frame(stream: BinaryIO) -> Frame | None:
    """Return the next frame, or None at the end of the stream.

    Raises
    ------
    FrameError
        When the bytes are no frame, or end within one.
    """
    header = stream.read(_HEADER.size)
    if not header:
        return None
    if len(header) < _HEADER.size:
        raise FrameError(f"{len(header)} bytes that are no frame")
    mark, kind, length = _HEADER.unpack(header)
    if mark != _MARK or length > _MOST:
        raise FrameError(f"{header!r} begins no frame")
    payload = stream.read(length)
    if len(payload) < length:
        raise FrameError(f"a frame ends after {len(payload)} of {length} bytes")
    return Frame(kind, payload)
