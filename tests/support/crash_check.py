"""What a store must be after a crash: all that was acknowledged, nothing invented, known damage only."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmqtool.check.verify import verify
from rmqtool.errors import NotAStoreError
from rmqtool.formats import checkpoint, index, properties
from rmqtool.log.events import Blank, CorruptRange, StoredMessage, TrailingZeros
from rmqtool.problems import Finding
from rmqtool.read.store import Store
from rmqtool.write.store_writer import StoreWriter
from tests.support.crash_child import BATCH_MAX, Rows, Stored, message, number_of
from tests.support.records import is_filler
from tests.support.recover_checks import recovered, write_sizes
from tests.support.trees import copy_tree

# What a killed process explains, and why. A broker's next start mends all of it, or has done the same.
KILLED = {
    "CL01": "the record that was being written",
    "CL23": "the next log file was made and had no size yet",
    "CL24": "the next log file is made ahead",
    "CQ01": "queues are written behind the log",
    "CQ09": "the next queue file was made and had no size yet",
    "CQ12": "a queue file is made before its first unit is written",
    "IX01": "entries and slots of the newest index file are written before its header",
    "IX02": "entries and slots of the newest index file are written before its header",
    "IX04": "the last entry of the newest index file was being written",
    "IX06": "the next index file was made and had no size yet",
    "IX08": "the index is written behind the log",
    "IX09": "the index is newer than the checkpoint: a start makes it anew",
    "CP01": "a store gets its checkpoint with the first flush",
    "CP02": "the checkpoint was being made",
    "CP04": "the store was open",
    "CF03": "topics.json is written behind the topic's first message",
    "CF06": "the store was being made",
    "CF07": "the store was being made",
    "CF12": "topics.json and queues are written behind the topic's first message",
    "CF08": "the store was being made: its topics.json is not there either",
}


# What a power loss explains besides. A start cuts queues at the first empty unit, and dispatches again
# from a file that is older than the checkpoint; `_check_units` proves that this mends all of them.
POWER_LOST = {
    **KILLED,
    "CL02": "a page of the log was not written, a later one was",
    "CL03": "a page of a body was not written",
    "CL04": "a page with the head of a record was not written",
    "CL05": "a page with the head of a record was not written",
    "CL08": "a page of the log was not written, a later one was",
    "CL10": "a page in front of the blank was not written",
    "CL11": "the page with the blank was not written",
    "CL13": "a page with the end of a record was not written, a later one was",
    "CL17": "a page with the head of a record was not written",
    "CL20": "the entry of a log file that nothing flushed lies in was lost",
    "CQ02": "the record was in a page that was not written",
    "CQ03": "the log lost more than the queue",
    "CQ05": "a page of the queue was not written",
    "CQ08": "a page of the queue was not written, a later one was",
    "CQ10": "the entry of a queue file was lost",
    "CQ13": "the folder of the queue was lost",
    "CQ14": "the log lost the record, not the unit",
    "IX03": "its index file is newer than the checkpoint: a start makes it anew",
    "IX10": "the index is newer than the checkpoint: a start makes it anew",
}

SOUND: dict[str, str] = {}
# What stays when the damage of a power loss is mended: its body is right, so the message is kept.
MENDED = {"CL13": POWER_LOST["CL13"]}

OF_KEYS = ("IX03", "IX10")
OF_INDEX = ("IX01", "IX02", "IX06")


@dataclass
class Told:
    """What the process has said before it ended."""

    wanted: set[int] = field(default_factory=set)
    stored: list[Stored] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)
    flushed: int = 0
    closed: bool = False  # that was the last thing said
    failed: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Iterable[Sequence[Any]]) -> Told:
        """From the rows of `crash_child`."""
        told = cls()
        for kind, *values in rows:
            told.closed = kind == "closed"
            if kind == "want":
                told.wanted.update(values[0])
            elif kind == "stored":
                stored = Stored(*values)
                told.stored.append(stored)
                if stored.flushed:
                    told.flushed = max(told.flushed, stored.physical_offset + stored.size)
            elif kind == "flushed":
                told.flushed = max(told.flushed, values[0])
            elif kind == "rows":
                told.rows.append(Rows(*values))
            elif kind == "closed":
                ends = [stored.physical_offset + stored.size for stored in told.stored]
                told.flushed = max([*ends, *(rows.last + 1 for rows in told.rows)], default=0)
            elif kind == "failed":
                told.failed = values
        return told


def check_store(root: Path, told: Told, *, sure: int | None = None, known: dict[str, str] = KILLED) -> None:
    """Judge the store at `root` by what was told.

    Args:
        root: the store root.
        told: what the process has said.
        sure: physical offset up to which acknowledged messages must be there; None: all of them.
        known: codes of the findings that are explained.
    """
    expected = [one for one in told.stored if sure is None or one.physical_offset + one.size <= sure]
    try:
        store = Store.open(root)
    except NotAStoreError:
        assert not expected and not told.flushed, "the store is gone"
        return
    with store:
        found = _messages(store, told, max((one.physical_offset + one.size for one in expected), default=0))
        for one in expected:
            stored = found.get(one.number)
            assert stored is not None, f"lost: {one}"
            record = stored.message
            assert (stored.physical_offset, record.total_size, record.topic, record.queue_id) == (
                one.physical_offset, one.size, one.topic, one.queue_id), one  # fmt: skip
            assert record.queue_offset == one.queue_offset, one
        for rows in told.rows:
            if sure is None or rows.flushed or rows.last < sure:
                places = [found[number].physical_offset for number in rows.numbers if number in found]
                assert len(places) == len(rows.numbers), f"lost: {rows}"
                assert (places[0], places[-1], places) == (rows.first, rows.last, sorted(places)), rows
        findings = list(verify(store, jobs=1))
        _check_units(store, found.values())
    dropped = _made_anew(store)
    for item in findings:
        assert item.problem.code in known or item.problem.severity == "note", item.row()
        assert item.problem.code != "CL13" or _is_unsure(item, sure), item.row()
        assert item.problem.code not in OF_INDEX or item.path in dropped, item.row()
        if item.problem.code in OF_KEYS:
            lost = store.find(item.detail["first_record"])
            assert lost is not None, item.row()
            assert lost.message.store_timestamp >= read_checkpoint(store).index_msg_timestamp, item.row()
        if known is KILLED and item.problem.code in OF_INDEX:
            assert item.path == dropped[-1], item.row()
    if store.layout.abort is None:
        assert only_notes(findings, but=MENDED if known is MENDED else {}), [item.row() for item in findings]


def check_mended(
    root: Path, told: Told, options: dict[str, Any], *, sure: int | None = None, known: dict[str, str] = SOUND
) -> None:
    """`recover` makes the store sound, with all that was acknowledged; the next writer goes on.

    Args:
        root: the store root; a copy is mended.
        told: what the process has said.
        options: of the writer.
        sure: as for `check_store`.
        known: codes of the findings that may stay.
    """
    if not root.exists():
        assert not told.flushed, "the store is gone"
        return
    mended = copy_tree(root, root.parent / "mended")
    try:
        recovered(mended, yes=True, conf=write_sizes(root.parent / "broker.conf", options))
    except NotAStoreError:
        assert not told.flushed, "the store is gone"
        return
    check_store(mended, told, sure=sure, known=known)
    with StoreWriter.open(mended, **options) as writer:
        writer.put(message(999))
    with Store.open(mended) as store:
        findings = list(verify(store, jobs=1))
    assert only_notes(findings, but=known), [item.row() for item in findings]


def only_notes(findings: Iterable[Finding], *, but: Container[str] = ()) -> bool:
    """Whether nothing needs a look, except for findings of the kinds `but`."""
    return all(item.problem.severity == "note" or item.problem.code in but for item in findings)


def codes(root: Path) -> set[tuple[str, int | None]]:
    """What `verify` finds, with its places in the log."""
    with Store.open(root) as store:
        return {(item.problem.code, item.physical_offset) for item in verify(store, jobs=1)}


def _is_unsure(item: Finding, sure: int | None) -> bool:
    """Whether a finding on the log lies where the power loss may have left anything."""
    return sure is not None and item.physical_offset is not None and item.physical_offset >= sure


def _messages(store: Store, told: Told, sure: int) -> dict[int, StoredMessage]:
    """The messages of the log by number; the log must be whole below `sure`."""
    found: dict[int, StoredMessage] = {}
    next_offset = 0
    for event in store.events():
        if isinstance(event, CorruptRange | TrailingZeros):
            assert event.physical_offset >= sure, event
            next_offset = event.physical_offset + event.length
            continue
        assert event.physical_offset == next_offset or event.physical_offset >= sure, event
        if isinstance(event, Blank):
            next_offset = event.physical_offset + event.size
            continue
        next_offset = event.end
        record = event.message
        if is_filler(record):
            assert event.physical_offset >= sure, event
            continue
        number = number_of(record.body)
        if event.status and event.physical_offset >= sure:
            continue  # torn
        assert event.status == 0, event
        assert number in told.wanted, f"invented: {record}"
        assert number not in found, f"twice: {record}"
        wanted, stored = message(number), properties.decode(record.properties_bytes)
        if event.physical_offset >= sure and record.properties_bytes.endswith(b"\0"):
            continue  # torn within its properties, over which no CRC goes
        assert (stored["TAGS"], stored["KEYS"]) == (wanted.tags, wanted.keys[0])
        # A batch has one store time, that of its first message.
        times = {message(number - back).store_timestamp for back in range(BATCH_MAX)}
        assert record.store_timestamp in times or None in times
        found[number] = event
    return found


def _check_units(store: Store, found: Iterable[StoredMessage]) -> None:
    """A queue offset is given once; units of records that no start dispatches again are all there."""
    taken: set[tuple[str, int, int]] = set()
    start = recovery_start(store)
    for stored in found:
        record = stored.message
        place = (record.topic, record.queue_id, record.queue_offset)
        assert place not in taken, f"queue offset given twice: {place}"
        taken.add(place)
        if stored.physical_offset >= start:
            continue
        queue = store.queues.get(place[:2])
        unit = queue.unit(record.queue_offset) if queue is not None else None
        assert unit is not None, f"no start makes this unit: {place} {stored.physical_offset} < {start}"
        assert (unit.physical_offset, unit.size) == (stored.physical_offset, record.total_size)


def _made_anew(store: Store) -> list[str]:
    """Index files that the next start of a broker deletes or begins anew, by name; spec 02 3.4."""
    layout, names = store.layout, []
    for file in layout.index_files:
        data = file.path.read_bytes()[: index.HEADER_SIZE].ljust(index.HEADER_SIZE, b"\0")
        header = index.decode_header(data)
        # One whose newest record is split between it and the full file before goes on with that record.
        if header.index_count <= 1 or header.end_timestamp >= read_checkpoint(store).index_msg_timestamp:
            names.append(layout.relative(file.path))
    return names if layout.abort is not None else []


def read_checkpoint(store: Store) -> checkpoint.Checkpoint:
    """What a start reads; all zero where there is none."""
    path = store.layout.checkpoint
    data = path.read_bytes() if path is not None else b""
    return checkpoint.decode(data.ljust(checkpoint.FILE_SIZE, b"\0"))


def recovery_start(store: Store) -> int:
    """The physical offset from which the next start dispatches all records again; spec 02 2 and 3.1."""
    layout = store.layout
    if layout.abort is None:
        return store.end_offset()
    values = read_checkpoint(store)
    for file in reversed(layout.commit_log):
        first = store.find(file.file_from_offset)
        if first is not None and 0 < first.message.store_timestamp <= values.min_timestamp:
            return file.file_from_offset
    return 0
