"""Writes the messages after the log's new end as rows of JSON, which `append` can read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from rmqtool.message.rows import RowFormat, message_row
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage import durable as disk

_PIECE = 1 << 20


def write_tail(store: Store, ranges: Sequence[tuple[int, int]], backup: Path) -> tuple[Path | None, int]:
    """Write the messages of `ranges` to a new file next to the folder `backup`; (its path, their number).

    Args:
        store: the present store.
        ranges: ranges of the log, half-open physical offsets.
        backup: the folder of the backup, which need not exist yet.

    Raises:
        UnwritableError: the file cannot be written.
        UnreadableError: the log cannot be read.
    """
    if not ranges:
        return None, 0
    path = next(path for path in _names(backup) if not path.exists())
    unfinished = path.with_name(f"{path.name}.unfinished")
    disk.make_folder(path.parent)
    disk.remove(unfinished)
    descriptor, position, messages = disk.create_file(unfinished, 0), 0, 0
    piece = bytearray()
    try:
        for line in _lines(store, ranges):
            piece += line
            messages += 1
            if len(piece) >= _PIECE:
                disk.write(descriptor, piece, position, unfinished)
                position += len(piece)
                piece = bytearray()
        disk.write(descriptor, piece, position, unfinished)
        disk.sync(descriptor, unfinished)
    except BaseException:
        disk.remove(unfinished)
        raise
    finally:
        os.close(descriptor)
    disk.rename(unfinished, path)
    disk.sync_folder(path.parent)
    return path, messages


def _names(backup: Path) -> Iterator[Path]:
    """Candidate names next to the backup: a killed run may have left the first."""
    yield backup.with_name(f"{backup.name}.tail.jsonl")
    for number in count(2):
        yield backup.with_name(f"{backup.name}.tail-{number}.jsonl")


def _lines(store: Store, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    form = RowFormat()
    for start, stop in ranges:
        for stored in store.messages(Selection(from_offset=start, to_offset=stop), damage="skip"):
            row = message_row(stored.message, stored.physical_offset, stored.file, form)
            yield json.dumps(row, ensure_ascii=True).encode("ascii") + b"\n"
