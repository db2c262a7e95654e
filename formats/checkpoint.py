"""The checkpoint file: how far commit log, queues and index were known to be on disk.

    physic_msg_timestamp i64 | logics_msg_timestamp i64 | index_msg_timestamp i64
    master_flushed_offset i64 | confirm_phy_offset i64 | zeros up to 4096 bytes

4.x knows the first three fields only and leaves the bytes of the others as they are.

Source: StoreCheckpoint; spec 01 section 7.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Literal

from rmqtool.errors import FormatError
from rmqtool.formats import checked
from rmqtool.formats.declare import Layout
from rmqtool.formats.parts import Int64sb, Struct
from rmqtool.lazy_dataclass import dataclass

CHECKPOINT = Layout(
    "checkpoint",
    Struct(
        "physic_msg_timestamp" / Int64sb * "store time of the newest record on disk, ms since 1970",
        "logics_msg_timestamp" / Int64sb * "store time of the newest record with a queue unit, ms since 1970",
        "index_msg_timestamp" / Int64sb * "end_timestamp of the newest full index file, ms since 1970",
        "master_flushed_offset" / Int64sb * "5.x: the master's flushed physical offset, bytes; 4.x: not used",
        "confirm_phy_offset" / Int64sb * "5.x: records below this offset are confirmed; 4.x: not used",
    ),
    "The first 40 of the checkpoint's 4096 bytes; the rest is zero. After an unclean stop, recovery"
    " starts at the newest commit log file whose first record is not newer than min_timestamp.",
)
FILE_SIZE = 4096  # one page, whatever the system's page size
_FIELDS_SIZE_4 = 24
_MARGIN_MS = 3000
assert CHECKPOINT.size == 40


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint's fields, as stored; see `CHECKPOINT` for what they mean."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """Where abnormal recovery starts, ms since 1970. Source: StoreCheckpoint#getMinTimestamp.

        A timestamp near the smallest wraps round, as it does in Java.
        """
        earliest = min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _MARGIN_MS
        return max(earliest if earliest >= -(1 << 63) else earliest + (1 << 64), 0)

    @property
    def min_timestamp_index(self) -> int:
        """The same with messageIndexSafe on. Source: StoreCheckpoint#getMinTimestampIndex."""
        return min(self.min_timestamp, self.index_msg_timestamp)


def decode(data: bytes | memoryview) -> Checkpoint:
    """The checkpoint in the bytes of its file.

    A broker extends a short file with zeros. So does this, if at least the three fields of 4.x are there.

    Raises:
        FormatError: fewer than 24 bytes.
    """
    if len(data) < _FIELDS_SIZE_4:
        raise FormatError(f"{len(data)} bytes are too few for a checkpoint")
    return Checkpoint(*CHECKPOINT.unpack(bytes(data[: CHECKPOINT.size]).ljust(CHECKPOINT.size, b"\0")))


def encode(checkpoint: Checkpoint, fields: Literal[3, 5] = 5) -> bytes:
    """The 4096 bytes of a checkpoint file.

    Args:
        checkpoint: the values.
        fields: 5 writes all of them as 5.x does, 3 leaves zeros for the last two as 4.x does.

    Raises:
        FormatError: a value does not fit its field.
    """
    return checked.pack(CHECKPOINT, *astuple(checkpoint))[: 8 * fields].ljust(FILE_SIZE, b"\0")
