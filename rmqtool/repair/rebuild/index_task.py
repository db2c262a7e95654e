"""Finds the first wrong index file, and plans the files from there on.

An index file cannot be repaired in its middle, and every file continues where the previous one is full. So
all files before the first wrong one stay, and the rest is rebuilt from the record with which the last of
them ends. The number of new files is known in advance: entry 0 is never used, and a file is created when
the previous one has no room for a record's keys (spec 02 5.5).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from rmqtool.formats.index import Shape
from rmqtool.index.index_file import entries_of_newest, open_index_file
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.dispatch import KIND_TAG
from rmqtool.repair.rebuild.survey import Survey, SurveyedIndex, Window
from rmqtool.storage.layout import IndexFilePath
from rmqtool.storage.open_files import OpenFiles

if TYPE_CHECKING:
    import numpy as np

_WRONG = frozenset({"IX01", "IX02", "IX03", "IX04", "IX06", "IX11"})


@dataclass(frozen=True)
class IndexTask:
    """The rebuild of the index from one file on.

    Attributes:
        kept: the files before, which stay.
        dropped: the present files that are deleted or replaced, in order.
        names: the names of the new files, in order; reused names first.
        start: physical offset of the first record that may have keys in them.
        problems: codes of the present problems.
        keys: number of new entries.
        full_timestamp: end_timestamp, ms, of the newest full new file; 0 if none.
    """

    kept: tuple[IndexFilePath, ...]
    dropped: tuple[IndexFilePath, ...]
    names: tuple[str, ...]
    start: int
    problems: tuple[str, ...]
    keys: int
    full_timestamp: int


def index_task(survey: Survey) -> IndexTask | None:
    """The task for the index; None if it is correct."""
    index, layout = survey.index, survey.view.layout
    if index is None:
        return None
    first, problems = _first_wrong(survey, index)
    if first is None:
        return None
    full = {file.file.path: file for file in index.files if file.stop >= layout.index_entries}
    while first and layout.index_files[first - 1].path not in full:
        first -= 1
    kept, dropped = layout.index_files[:first], layout.index_files[first:]
    shape = survey.options.index_shape
    windows = [window for window in index.windows if window.start < survey.end]
    start, keys = 0, sum(window.keys for window in windows)
    if kept:
        start = full[kept[-1].path].last
        later = [window for window in windows if window.start > start]
        crossing = [window for window in windows if window.start <= start <= window.last]
        keys = sum(window.keys for window in later)
        if crossing:  # otherwise the record of the newest entries has expired, and its keys were not counted
            of_newest = 0
            for offsets, _ in chain.from_iterable(_keys_in(survey, window) for window in crossing):
                keys += int((offsets > start).sum())
                of_newest += int((offsets == start).sum())
            with OpenFiles() as files:
                of_shape = Shape(layout.index_slots, layout.index_entries)
                newest_first = (open_index_file(files, file, of_shape) for file in reversed(kept))
                # A record that has lost its last bytes has fewer keys than it has entries.
                keys += max(of_newest - entries_of_newest(newest_first, start), 0)
    count = _file_count(windows, keys, shape, has_records=bool(windows))
    names = _names(survey, kept, dropped, count, windows)
    full_files = keys // (shape.entries - 1)
    timestamp = 0
    if full_files:
        timestamp = _timestamp_of_key(survey, windows, start, keys, full_files * (shape.entries - 1))
    return IndexTask(kept, dropped, names, start, problems, keys, timestamp)


def _first_wrong(survey: Survey, index: SurveyedIndex) -> tuple[int | None, tuple[str, ...]]:
    """(number of the first wrong file, codes); the number of all files if only more are needed."""
    layout = survey.view.layout
    numbers = {layout.relative(file.path): number for number, file in enumerate(layout.index_files)}
    found = [item for item in survey.findings if item.problem.code in _WRONG]
    wrong = [numbers.get(item.path, 0) for item in found]
    codes = list(dict.fromkeys(item.problem.code for item in found))
    usable = {layout.relative(file.file.path): file for file in index.files}
    if not layout.index_files and layout.may_index_in_rocksdb:
        return None, ()  # verify misses no file either
    first = index.first_missing if usable else next((w.start for w in index.windows if w.keys), -1)
    if first >= 0:
        codes.append("IX10")
        if not usable or first <= index.start:
            wrong.append(0)
        else:
            number = max(numbers[name] for name in usable)
            last = usable[layout.relative(layout.index_files[number].path)]
            wrong.append(number + (last.stop >= layout.index_entries))
    return min(wrong, default=None), tuple(codes)


def _file_count(windows: Collection[Window], keys: int, shape: Shape, *, has_records: bool) -> int:
    """The number of files for `keys` keys; a broker creates the first one even for a record without keys."""
    if not has_records:
        return 0
    full, rest = divmod(keys, shape.entries - 1)
    if rest or not full:
        return full + 1
    last_key = max(window.last_key for window in windows)
    return full + (max(window.last for window in windows) > last_key)


def _keys_in(survey: Survey, window: Window) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(physical offsets, store timestamps) of the record of each key in one part of the log, in order."""
    from rmqtool.log.dispatch import dispatch_columns
    from rmqtool.log.frames import Frames, walk

    source = survey.context.open(window.path)
    try:
        start, base = window.start, window.file_from_offset
        for event in walk(source, file_from_offset=base, start=start - base, stop=window.last + 1 - base,
                          crc=False, entry_header=window.entry_header):  # fmt: skip
            if isinstance(event, Frames):
                keys = dispatch_columns(event).keys
                if not survey.options.profile.indexes_tags:
                    keys = keys[keys["kind"] != KIND_TAG]
                rows = event.rows[keys["row"]]
                yield rows["physical_offset"].copy(), rows["store_timestamp"].copy()
    finally:
        source.close()


def _timestamp_of_key(survey: Survey, windows: Collection[Window], start: int, keys: int, number: int) -> int:
    """The store timestamp, ms, of the `number`-th (from 1) of the last `keys` keys of the log."""
    left = keys - number  # keys after it
    for window in sorted(windows, key=lambda item: -item.start):
        if left >= window.keys:
            left -= window.keys
            continue
        times = [part.tolist() for _, part in _keys_in(survey, window)]
        return int(list(chain.from_iterable(times))[-1 - left])
    return 0


def _names(
    survey: Survey, kept: Collection[IndexFilePath], dropped: Collection[IndexFilePath], count: int,
    windows: Collection[Window],
) -> tuple[str, ...]:  # fmt: skip
    """Names for `count` files, reproducible: those of the files that they replace, then later ones."""
    names = [file.path.name for file in dropped][:count]
    newest = names[-1] if names else list(kept)[-1].path.name if kept else ""
    if not newest and windows:
        newest = _time_name(survey, windows)
        names.append(newest)
    while len(names) < count:
        newest = f"{int(newest) + 1:017}"
        names.append(newest)
    return tuple(names[:count])


def _time_name(survey: Survey, windows: Collection[Window]) -> str:
    """The name of an index file created at the store time of the first record, or the first with a key.

    The first is a filler where the repaired log begins with a hole.

    Source: UtilAll#timeMillisToHumanString.
    """
    ordered = sorted(windows, key=lambda window: window.start)
    found = survey.store.find(ordered[0].start)
    if found is not None:
        time_ms = found.message.store_timestamp
    else:
        times = (each for window in ordered for _, part in _keys_in(survey, window) for each in part[:1])
        time_ms = int(next(times, 0))
    if not 0 <= time_ms < 253_370_764_800_000:  # year 9999
        time_ms = 0
    return time.strftime("%Y%m%d%H%M%S", time.localtime(time_ms // 1000)) + f"{time_ms % 1000:03}"
