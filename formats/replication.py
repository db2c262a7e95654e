"""What a master and its slave say to each other on the HA port: classic mode, and controller mode of 5.x.

The slave connects. In classic mode it sends reports, 8 bytes each, and the master sends frames: a head and
bytes of the commit log as they lie in its files. In controller mode the slave says first who it is, the
master answers with its epochs, and reports and frames have a state in front. A frame without bytes is a
heartbeat. A frame never crosses the end of a file; it begins and ends anywhere in records.

Source: HAService, HAConnection, DefaultHAService, DefaultHAConnection, DefaultHAClient; AutoSwitchHAClient,
AutoSwitchHAConnection; spec 04 3, 5, 9.
"""

from __future__ import annotations

from typing import NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats.declare import Layout
from rmqtool.formats.epoch import Entry
from rmqtool.formats.parts import Int16sb, Int32sb, Int64sb, Struct

Data = bytes | bytearray | memoryview

REPORT = Layout(
    "HA report",
    Struct("max_offset" / Int64sb * "the slave holds the log before this physical offset"),
    "Slave to master, classic mode. The first report is also the request: the master sends from there.",
)
FRAME = Layout(
    "HA frame",
    Struct(
        "physical_offset" / Int64sb * "of the first byte of the body",
        "body_size" / Int32sb * "bytes of the commit log that follow; 0: a heartbeat",
    ),
    "Master to slave, classic mode.",
)
HANDSHAKE = Layout(
    "HA handshake",
    Struct(
        "state" / Int32sb * "1",
        "from_last_file" / Int16sb * "1: an empty slave starts with the last file of the master",
        "is_learner" / Int16sb * "1: the slave never becomes a member of the sync-state set",
        "broker_id" / Int64sb * "the id that the controller gave to the slave",
    ),
    "Slave to master, controller mode: the first message.",
)
HANDSHAKE_ANSWER = Layout(
    "HA handshake answer",
    Struct(
        "state" / Int32sb * "1",
        "body_size" / Int32sb * "bytes of the epochs that follow, 12 each",
        "max_offset" / Int64sb * "the end of the master's log",
        "epoch" / Int32sb * "the newest epoch; -1: none",
    ),
    "Master to slave, controller mode: the answer to a handshake.",
)
EPOCH = Layout(
    "HA epoch",
    Struct("epoch" / Int32sb * "its number", "start_offset" / Int64sb * "physical offset of its first byte"),
    "One epoch of the answer to a handshake; they rise.",
)
TRANSFER_REPORT = Layout(
    "HA transfer report",
    Struct(
        "state" / Int32sb * "2",
        "max_offset" / Int64sb * "the slave holds the log before this physical offset",
    ),
    "Slave to master, controller mode. The first one is the request; 0 asks for the whole log.",
)
TRANSFER_FRAME = Layout(
    "HA transfer frame",
    Struct(
        "state" / Int32sb * "2",
        "body_size" / Int32sb * "bytes of the commit log that follow; 0: a heartbeat",
        "physical_offset" / Int64sb * "of the first byte of the body",
        "epoch" / Int32sb * "the epoch of the bytes; before a boundary already the next one",
        "epoch_start" / Int64sb * "physical offset where this epoch starts",
        "confirm_offset" / Int64sb * "records before this physical offset are confirmed by the master",
    ),
    "Master to slave, controller mode.",
)
STATE_HANDSHAKE, STATE_TRANSFER = 1, 2

BODY_MAX = (4 << 20) - FRAME.size
"""Bytes of a body at most: a broker's slave reads frames into 4 MiB, and can take no larger one."""
EPOCHS_MAX = 1000
"""A master has a buffer for so many epochs."""


class Frame(NamedTuple):
    """The head of a frame in either mode; `epoch` is None in classic mode."""

    physical_offset: int
    body_size: int
    epoch: Entry | None = None
    confirm_offset: int = -1


def decode_frame(data: Data, offset: int = 0) -> Frame:
    """The head of a classic frame at `offset` of `data`, which holds all of it.

    Raises:
        FormatError: no master sends such a frame, or not all of it is there.
    """
    _must_hold(data, offset, FRAME)
    physical_offset, body_size = FRAME.unpack(data, offset)
    return _checked(Frame(physical_offset, body_size), BODY_MAX)


def decode_transfer_frame(data: Data, offset: int = 0) -> Frame:
    """The same in controller mode. Raises FormatError."""
    _must_hold(data, offset, TRANSFER_FRAME)
    state, body_size, physical_offset, epoch, start, confirm = TRANSFER_FRAME.unpack(data, offset)
    if state != STATE_TRANSFER:
        raise FormatError(f"a frame of state {state}, where {STATE_TRANSFER} is expected")
    frame = Frame(physical_offset, body_size, Entry(epoch, start), confirm)
    return _checked(frame, BODY_MAX + FRAME.size - TRANSFER_FRAME.size)


def decode_answer(data: Data) -> tuple[int, int]:
    """(bytes of epochs that follow, the master's max offset) of an answer to a handshake.

    Raises:
        FormatError: no master answers so.
    """
    _must_hold(data, 0, HANDSHAKE_ANSWER)
    state, body_size, max_offset, _ = HANDSHAKE_ANSWER.unpack(data)
    if state != STATE_HANDSHAKE:
        raise FormatError(f"an answer of state {state}, where {STATE_HANDSHAKE} is expected")
    if body_size % EPOCH.size or not 0 <= body_size <= EPOCHS_MAX * EPOCH.size or max_offset < 0:
        raise FormatError(f"{body_size} bytes of epochs and a log that ends at {max_offset}")
    return body_size, max_offset


def decode_epochs(data: Data) -> list[Entry]:
    """The epochs of an answer to a handshake."""
    return [Entry(*EPOCH.unpack(data, place)) for place in range(0, len(data), EPOCH.size)]


def encode_answer(epochs: list[Entry], max_offset: int) -> bytes:
    """The answer to a handshake."""
    body = b"".join(EPOCH.pack(*entry) for entry in epochs)
    last = epochs[-1].epoch if epochs else -1
    return HANDSHAKE_ANSWER.pack(STATE_HANDSHAKE, len(body), max_offset, last) + body


def _must_hold(data: Data, offset: int, layout: Layout) -> None:
    if len(data) - offset < layout.size:
        raise FormatError(f"{layout.size} bytes needed, {max(len(data) - offset, 0)} found")


def _checked(frame: Frame, body_max: int) -> Frame:
    if not 0 <= frame.body_size <= body_max:
        raise FormatError(f"a frame of {frame.body_size} bytes; a master sends at most {body_max}")
    if frame.physical_offset < 0:
        raise FormatError(f"a frame at the physical offset {frame.physical_offset}")
    return frame
