"""Salvage under random damage, several kinds at once, of stores with every kind of record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmqtool.formats import message
from rmqtool.formats.message import Message
from rmqtool.log.events import StoredMessage
from rmqtool.log.python_scan import walk_reference
from rmqtool.read.store import Store
from rmqtool.repair.salvage import Salvaged, salvage
from rmqtool.storage.source import BytesSource
from rmqtool.write.store_writer import StoreWriter
from tests.support.damage import LOG, QUEUES, apply_edits, describe, random_edits
from tests.support.mend import mend
from tests.support.records import is_filler
from tests.support.sweep import IS_WHOLE
from tests.support.trees import copy_tree, unchanged
from tests.unit.repair.test_salvage import LEFT, log_codes
from tests.unit.write.test_written_kinds import Written, fill

pytestmark = pytest.mark.sweep

FILE_SIZE = 16 << 10
CASES = [("4.9", False), ("5.4", False), ("5.4", True)]


class Base(NamedTuple):
    """A store with all kinds of records, and these by their offsets, as bytes."""

    root: Path
    records: dict[int, bytes]
    has_property_crc: bool


def records_of(root: Path) -> dict[int, bytes]:
    """Whatever the walk takes for a record in a sound log."""
    found = {}
    for path in sorted((root / "commitlog").glob("[0-9]*")):
        start = int(path.name)
        for event in walk_reference(BytesSource(path.read_bytes()), file_from_offset=start):
            if isinstance(event, StoredMessage):
                found[event.physical_offset] = message.encode(event.message)
    return found


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    """One store for each of CASES."""
    made = []
    for profile, property_crc in CASES:
        root = tmp_path_factory.mktemp("base") / "store"
        with StoreWriter.create(
            root, profile, auto_create_queues=2, commit_log_file_size=FILE_SIZE, consume_queue_file_size=100,
            batch_queue_file_size=2 * 46, index_slots=20, index_entries=80, multi_dispatch=True,
            property_crc=property_crc,
        ) as writer:  # fmt: skip
            fill(writer, Written(root, profile, property_crc, writer.options))
        made.append(Base(root, records_of(root), property_crc))
    return made


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    """New folders, one per example."""

    def numbered() -> Iterator[Path]:
        number = 0
        while True:
            number += 1
            yield tmp_path / str(number)

    return numbered()


def plan(root: Path) -> Salvaged:
    with unchanged(root), Store.open(root, file_sizes={"commit_log_file_size": FILE_SIZE}) as store:
        return salvage(store, jobs=1)


def at(log: dict[int, bytes], offset: int, size: int) -> bytes:
    base = offset - offset % FILE_SIZE
    return log.get(base, b"")[offset - base : offset - base + size]


def files_of(root: Path) -> dict[int, bytes]:
    """The log's files of the right names and of the full size: a short one has zeros behind its end."""
    names = (path for path in (root / "commitlog").iterdir() if path.name.isdigit() and path.is_file())
    return {
        int(path.name): path.read_bytes()[:FILE_SIZE].ljust(FILE_SIZE, b"\0")
        for path in names
        if len(path.name) == 20
    }


@settings(max_examples=150 if IS_WHOLE else 15)
@example(seed=317_062, which=2, with_queues=False)  # a record without its last bytes begins a file
@given(seed=st.integers(0, 1 << 32), which=st.sampled_from(range(len(CASES))), with_queues=st.booleans())
def test_what_is_sound_is_kept(
    seed: int, which: int, with_queues: bool, bases: list[Base], folders: Iterator[Path]
) -> None:
    base, root = bases[which], next(folders)
    copy_tree(base.root, root)
    edits = random_edits(root, seed, parts=(*LOG, *QUEUES) if with_queues else LOG, most=4)
    apply_edits(root, edits)
    damaged = files_of(root)
    result = plan(root)
    mend(root, result.actions)
    after = files_of(root)
    check(base, damaged, after, result, describe(edits))
    assert log_codes(root) <= LEFT, describe(edits)
    again = plan(root)
    assert again.actions == (), describe(edits)
    assert (again.end, again.kept) == (result.end, result.kept + result.fillers), describe(edits)


def check(
    base: Base, damaged: dict[int, bytes], after: dict[int, bytes], result: Salvaged, says: str
) -> None:
    """Sound records are kept, lost ones are told, nothing is invented."""
    told = [(lost.physical_offset, lost.physical_offset + lost.size) for lost in result.lost]
    named = {(lost.topic, lost.queue_id, lost.queue_offset) for lost in result.lost}
    taken = {lost.physical_offset for lost in result.lost if lost.fate == "taken"}
    first = min(after, default=0)
    for offset, data in base.records.items():
        is_sound = at(damaged, offset, len(data)) == data
        is_kept = at(after, offset, len(data)) == data
        if is_sound and offset not in taken:
            assert is_kept, (says, offset)
        elif not is_kept and first <= offset < result.end:
            record = message.decode(data)
            is_told = any(low <= offset < high for low, high in told)
            is_told |= (record.topic, record.queue_id, record.queue_offset) in named
            assert is_told or at(after, offset, len(data)) == at(damaged, offset, len(data)), (says, offset)
    fillers = 0
    for start, content in after.items():
        for event in walk_reference(BytesSource(content), file_from_offset=start):
            if isinstance(event, StoredMessage):
                fillers += check_record(event.physical_offset, event.message, damaged, base, says)
    assert fillers == result.fillers, says


def check_record(offset: int, record: Message, damaged: dict[int, bytes], base: Base, says: str) -> bool:
    """A record of the mended log was there before, or is a filler, which is what is returned."""
    assert record.physical_offset == offset, says
    data = message.encode(record)
    if data == at(damaged, offset, len(data)):
        return False
    assert is_filler(record), (says, offset)
    assert record.store_timestamp > 0, says
    return True
