"""Mode `broker`: the log ends where a broker's start would end it, and later bytes cannot reappear.

A broker lowers positions and deletes later files, but leaves the bytes after the new end. A record that is
exactly at the new end after the next crash would be valid again. Here these bytes become zeros.

Source: MappedFileQueue#truncateDirtyFiles; spec 02 sections 2, 3 and C14.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from rmqtool.broker.prediction import Prediction
from rmqtool.errors import RefusedError
from rmqtool.log.events import StoredMessage
from rmqtool.problems import Finding, Problem
from rmqtool.read.log_items import log_items, record_findings
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.repair.plan import Action
from rmqtool.storage.layout import StoreFile

_BLOCK = 1 << 20


def broker_actions(store: Store, found: Prediction) -> Iterator[Action]:
    """The changes of the commit log's files that a start makes.

    Raises:
        RefusedError: the start would fail or hang.
        UnreadableError: the log cannot be read.
    """
    ending = found.config_that_ends
    if ending is not None:
        raise RefusedError(
            f"a start of {found.broker} would fail: {ending.reason}",
            path=ending.path,
            hint=f"rmqtool problems {ending.problem} says how to repair it",
        )
    if not (found.loads or found.crashes) and found.load_path is None:  # settings may be the cause, or queues
        raise RefusedError(
            f"a start of {found.broker} would fail: {found.load_error}",
            hint="--mode best shows whether a repair helps",
        )
    if not found.loads or found.hangs or found.crashes:
        how = "hang" if found.hangs else "run out of memory" if found.crashes else "not load the store"
        raise RefusedError(
            f"a start of {found.broker} would {how}: it has no outcome",
            path=found.load_path,
            hint="--mode best repairs the store",
        )
    gone = frozenset(found.log_files_deleted)
    for file in store.layout.commit_log:
        name = store.layout.relative(file.path)
        if name in gone:
            reason = f"a start of {found.broker} deletes it: the log ends at {found.end_offset}"
            yield Action("delete", name, 0, file.size, reason, None, {"end": found.end_offset})
        elif file.file_from_offset <= found.end_offset < file.end and not found.ends_with_blank:
            yield from _cut(store, file, name, found)


def without_files(store: Store, names: Collection[str]) -> Store:
    """The store without these files of its log."""
    layout = store.layout
    log = (file for file in layout.commit_log if layout.relative(file.path) not in names)
    return Store(replace(layout, commit_log=tuple(log)))


def _cut(store: Store, file: StoreFile, name: str, found: Prediction) -> Iterator[Action]:
    """Zeros from the log's end to the last nonzero byte, if there is one."""
    start = found.end_offset - file.file_from_offset
    stop = _data_end(file, start)
    if stop > start:
        damage = _damage_at(store, found.end_offset)
        why = f" because of {damage.code}, {damage.message}" if damage is not None else ""
        reason = (
            f"a start of {found.broker} ends the log at {found.end_offset}{why}; later bytes must not"
            " reappear"
        )
        code = None if damage is None else damage.code
        yield Action("cut", name, start, stop - start, reason, code, {"end": found.end_offset})


def _damage_at(store: Store, offset: int) -> Problem | None:
    """The problem of the record or the bytes at an offset of the log; None if none is known."""
    for item in log_items(store, Selection(from_offset=offset, to_offset=offset + 1)):
        findings = [item] if isinstance(item, Finding) else []
        if isinstance(item, StoredMessage):
            findings = list(record_findings(item, []))
        if findings:
            return findings[0].problem
    return None


def _data_end(file: StoreFile, start: int) -> int:
    """The position after the last nonzero byte of a file from `start` on; `start` if there is none."""
    import numpy as np

    from rmqtool.storage.source import open_source

    source, end = open_source(file.path), start
    try:
        position = source.data_from(start)
        while position < source.size:
            block = np.frombuffer(source.read(position, _BLOCK), np.uint8)
            found = np.flatnonzero(block)
            if len(found):
                end = position + int(found[-1]) + 1
            position = source.data_from(position + len(block)) if len(block) else source.size
    finally:
        source.close()
    return end
