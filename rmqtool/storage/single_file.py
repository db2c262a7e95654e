"""The kind of a single file (commit log, consume queue, index), by its folder or its first bytes."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Literal

from rmqtool.errors import NotAStoreError, UnreadableError
from rmqtool.formats import ledger, message
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, UNIT_SIZE, decode_batch_units, decode_units
from rmqtool.formats.index import HEADER, HEADER_SIZE, Header
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern
from rmqtool.storage.open_files import reading

ROOT_HINT = "give the folder that holds commitlog/ and consumequeue/ (storePathRootDir)"
# The names of the parts for `dump --what`, by folder or file in the store root.
_WHAT = {
    "commitlog": "commitlog", "consumequeue": "consumequeue", "batchconsumequeue": "consumequeue",
    "index": "index", "config": "config", "checkpoint": "checkpoint", "epochFileCheckpoint": "epoch",
    "timerlog": "timer", "timerwheel": "timer", "compaction": "compaction",
}  # fmt: skip

FileKind = Literal["commitlog", "consumequeue", "batchconsumequeue", "index"]

_QUEUE_ID = pattern(r"0|-?[1-9][0-9]{0,9}")
_MAGIC = pattern(b"|".join(re.escape(magic.to_bytes(4, signed=True)) for magic in message.VERSION_BY_MAGIC))
_HEAD_SIZE = 4096
_FRAGMENT_HEAD_SIZE = 8 << 20
# 2010 and 2200: plausible store times; only used to guess the kind of files with foreign names.
_OLDEST_TIME_MS, _NEWEST_TIME_MS = 1_262_304_000_000, 7_258_118_400_000


@dataclass(frozen=True, slots=True)
class SingleFile:
    """A file taken out of a store: its kind, and what its name and folders show.

    `entry_header` is 48 for a file of a DLedger log, whose kind is `commitlog`.
    """

    kind: FileKind
    size: int
    file_from_offset: int
    topic: str
    queue_id: int
    entry_header: int = 0


def offset_of_name(name: str) -> int | None:
    """The offset that a mapped file's name stands for; None if it is not such a name.

    Source: UtilAll#offset2FileName (20 decimal digits).
    """
    if len(name) != 20 or not (name.isascii() and name.isdigit()):
        return None
    offset = int(name)
    return offset if offset < 1 << 63 else None


def is_index_name(name: str) -> bool:
    """Whether `name` is an index file's: the local time of its creation in 17 digits."""
    return len(name) == 17 and name.isascii() and name.isdigit()


def queue_id_of_name(name: str) -> int | None:
    """The queue id that a queue folder's name stands for; None if a broker would skip the folder.

    A damaged record may have a negative queue id: brokers create its folder, and load it.
    """
    if not _QUEUE_ID.fullmatch(name) or not -1 << 31 <= int(name) < 1 << 31:
        return None
    return int(name)


def root_hint(path: Path) -> str | None:
    """A hint for the user if `path` is a part of a store by its name; None otherwise."""
    place = path.absolute()
    for part in (place, *place.parents[:3]):
        what, root = _WHAT.get(part.name), part.parent
        if what is not None and ((root / "commitlog").is_dir() or (root / "consumequeue").is_dir()):
            return f"give the store root {root}; dump it with --what {what}"
    return None


def recognise(path: Path) -> SingleFile:
    """Find the kind of the file `path`.

    Raises:
        NotAStoreError: not a commit log, consume queue or index file.
        UnreadableError: it cannot be read.
    """
    try:
        with reading(path) as file:
            size = file.size
            head = file.read(0, _HEAD_SIZE)
            kind, offset = _kind_by_folder(path), None
            # Of files with foreign names; a checkpoint's times look like those of an index header.
            if kind is None and path.name not in _WHAT:
                if not _is_log(head):
                    offset = _offset_of_fragment(file.read(0, _FRAGMENT_HEAD_SIZE))
                kind = _kind_by_content(path.name, head, size) if offset is None else "commitlog"
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error
    if kind is None:
        raise NotAStoreError(
            "neither a message store nor a commit log, consume queue or index file",
            path=path,
            hint=root_hint(path) or ROOT_HINT,
        )
    has_entries = kind == "commitlog" and _has_entries(path, head)
    offset = offset_of_name(path.name) if offset is None else offset
    if offset is None:
        offset = _stored_offset(head, has_entries) if kind == "commitlog" else 0
    topic, queue_id = "", 0
    if kind in ("consumequeue", "batchconsumequeue"):
        found = queue_id_of_name(path.absolute().parent.name)
        if found is not None:
            topic, queue_id = path.absolute().parent.parent.name, found
    entry_header = ledger.HEADER_SIZE if has_entries else 0
    return SingleFile(kind, size, offset, topic, queue_id, entry_header)


def _has_entries(path: Path, head: bytes) -> bool:
    """Whether a commit log file is one of a DLedger log."""
    if _is_entry(head):
        return True
    folders = [parent.name for parent in path.absolute().parents]
    return folders[0] == "data" and folders[1].startswith("dledger-")


def _is_entry(head: bytes) -> bool:
    """Whether a DLedger entry with a record begins here."""
    if len(head) < ledger.HEADER_SIZE + message.BLANK_SIZE:
        return False
    magic, size, *_, length = ledger.HEADER.unpack(head)
    total, record_magic = message.BLANK.unpack(head, ledger.HEADER_SIZE)
    is_record = record_magic in message.VERSION_BY_MAGIC
    return magic == ledger.MAGIC and is_record and size == ledger.HEADER_SIZE + length and length == total


def _kind_by_folder(path: Path) -> FileKind | None:
    folders = [parent.name for parent in path.absolute().parents]
    if is_index_name(path.name) and folders[:1] == ["index"]:
        return "index"
    if offset_of_name(path.name) is None:
        return None
    if folders[:1] == ["commitlog"] or (folders[0] == "data" and folders[1].startswith("dledger-")):
        return "commitlog"
    if len(folders) > 2 and queue_id_of_name(folders[0]) is not None:
        if folders[2] == "consumequeue":
            return "consumequeue"
        if folders[2] == "batchconsumequeue":
            return "batchconsumequeue"
    return None


def _is_log(head: bytes) -> bool:
    """Whether a record, a blank or a DLedger entry begins here."""
    magic = int.from_bytes(head[4:8], signed=True)
    is_known = magic in (*message.VERSION_BY_MAGIC, message.BLANK_MAGIC)
    return (len(head) >= message.BLANK_SIZE and is_known) or _is_entry(head)


def _offset_of_fragment(data: bytes) -> int | None:
    """The physical offset of a part of a commit log file, as fsck leaves them, by the records in it.

    It may begin inside a record. Of the records, two neighbours have to agree; None if there are none.
    """
    found: dict[int, int] = {}
    stored = message.PHYSICAL_OFFSET_OFFSET
    for match in _MAGIC.finditer(data):
        start = match.start() - 4
        if start >= 0:
            found[start] = int.from_bytes(data[start + stored : start + stored + 8], signed=True) - start
    for start, offset in found.items():
        if offset >= 0 and found.get(start + int.from_bytes(data[start : start + 4])) == offset:
            return offset
    return None


def _kind_by_content(name: str, head: bytes, size: int) -> FileKind | None:
    if _is_log(head):
        return "commitlog"
    if len(head) > HEADER_SIZE and (is_index_name(name) or _is_index_header(head)):
        return "index"
    if len(head) >= BATCH_UNIT_SIZE and size % BATCH_UNIT_SIZE == 0 and _is_batch_unit(head):
        return "batchconsumequeue"
    if len(head) >= UNIT_SIZE and size % UNIT_SIZE == 0 and _is_unit(head):
        return "consumequeue"
    return None


def _is_index_header(head: bytes) -> bool:
    header = Header(*HEADER.unpack(head))
    return _OLDEST_TIME_MS < header.begin_timestamp <= header.end_timestamp < _NEWEST_TIME_MS


def _is_unit(head: bytes) -> bool:
    """Whether there is a unit, and the next one, if any, names a record at or after the first one's."""
    first, *following = islice(decode_units(head), 2)
    if not first.is_present or first.size < message.MIN_RECORD_SIZE:
        return False
    return all(unit.physical_offset >= first.physical_offset or not unit.is_present for unit in following)


def _is_batch_unit(head: bytes) -> bool:
    unit = next(decode_batch_units(head))
    return unit.is_present and _OLDEST_TIME_MS < unit.store_timestamp < _NEWEST_TIME_MS


def _stored_offset(head: bytes, has_entries: bool) -> int:
    """The physical offset that the start of an unnamed commit log file claims to have."""
    if has_entries:
        position = ledger.HEADER.offsets["position"]
        return max(int.from_bytes(head[position : position + 8], signed=True), 0)
    position = message.PHYSICAL_OFFSET_OFFSET
    magic = int.from_bytes(head[4:8], signed=True)
    if magic not in message.VERSION_BY_MAGIC or len(head) < position + 8:
        return 0
    return max(int.from_bytes(head[position : position + 8], signed=True), 0)
