"""The tasks of a rebuild for wrong queues: the content that each of them should have.

A queue's numbers are the queue offsets in its records: unit k stands at byte k * 20 (spec 02 15.4). So

    the queue was created again       records before the last restart at 0 have no unit
    one record is off, the next right  its unit gets the number that the record should have
    numbers are left out               fillers keep the place; with damage between, the log must be repaired
                                       first, unless no unit of the queue is left at all
    a record is misrouted              the log must be repaired first
    numbers repeat                     the first record keeps the number; a queue that has files is left
                                       alone, but not one of a database, which is built as a whole

Units of expired records precede that of the first record which the log still has. Missing ones are replaced
by fillers, so that the numbering continues. Source: spec 02 sections 5.3, 7.4, 15.2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from typing import NamedTuple

import numpy as np

from rmqtool.check.verify.spans import RANGES_MAX, Key, Span
from rmqtool.check.verify.unit_check import Units
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, UNIT_SIZE
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.system_topics import is_system_topic
from rmqtool.problems import Finding
from rmqtool.queue.units import present, unit_array
from rmqtool.repair.rebuild.extension_task import ExtensionTask, extension_task
from rmqtool.repair.rebuild.header_corrections import MISROUTED
from rmqtool.repair.rebuild.survey import WHOLE_QUEUE, Survey
from rmqtool.storage.layout import QueueFiles, StoreFile, can_be_folder
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.ranges import merged, overlaps

_GAP_MAX = 1 << 20  # units that fillers may stand for, in one queue
_LAST_UNIT = ((1 << 63) - 1) // UNIT_SIZE


class Gap(NamedTuple):
    """Slots [first, stop) without a record: the record at `physical_offset` has number `stop`."""

    physical_offset: int
    first: int
    stop: int


@dataclass
class Shape:
    """The content that a queue should have by its records: units [first, end), those of `gaps` fillers.

    `from_offset`: records before this physical offset belong to an earlier queue of this name. `moved` are
    records, by physical offset, whose unit has another number than they say. `lost` says that a gap
    lies over damage, `repeats` counts places where numbers come again.
    """

    first: int = 0
    end: int = 0
    count: int = 0
    from_offset: int = -1
    gaps: list[Gap] = field(default_factory=list)
    moved: dict[int, int] = field(default_factory=dict)
    lost: bool = False
    repeats: int = 0
    too_many: bool = False


@dataclass(frozen=True)
class WantedFile:
    """One queue file that is to be made: its start, and its mtime where it replaces none, ns or None."""

    file_from_offset: int
    old: StoreFile | None
    mtime_ns: int | None


@dataclass(frozen=True)
class QueueTask:
    """One queue that is rebuilt.

    Attributes:
        key: topic and queue id.
        is_batch: whether it is a batch queue.
        folder: relative to the store root.
        problems: codes of what is wrong with it now.
        shape: what it should hold.
        head: the file that holds units of expired records below the first one, None without.
        head_units: how many units from its beginning stand for expired records.
        files: what is made.
        dropped: files that have no place in it.
        extension: what becomes of its extension files; None where it has and gets none.
    """

    key: Key
    is_batch: bool
    folder: str
    problems: tuple[str, ...]
    shape: Shape
    head: StoreFile | None
    head_units: int
    files: tuple[WantedFile, ...]
    dropped: tuple[StoreFile, ...]
    extension: ExtensionTask | None = None


@dataclass(frozen=True)
class Unmended:
    """A file or folder that stays wrong, and why."""

    path: str
    problems: tuple[str, ...]
    reason: str
    topic: str | None = None
    queue_id: int | None = None


def shape_of(survey: Survey, span: Span) -> Shape:
    """Return the content that the records of one queue require.

    For a batch queue only `count` and `end` are valid.
    """
    context, zombies = survey.context, survey.context.zombies_from
    shape = Shape(span.first, span.next, span.count, too_many=len(span.breaks) >= RANGES_MAX)
    if span.is_batch:
        return shape
    top, breaks = -1, span.breaks
    place = 0
    while place < len(breaks):
        item = breaks[place]
        place += 1
        if zombies is not None and item.physical_offset >= zombies:
            shape.end = max(top, item.expected)
            return shape
        if place < len(breaks) and item.is_alone(breaks[place]):
            shape.moved[item.physical_offset] = item.expected
            place += 1
            continue
        top = max(top, item.expected)
        if item.queue_offset == 0:
            shape = Shape(0, span.next, span.count, item.physical_offset, too_many=shape.too_many)
            top = -1
        elif item.queue_offset > top:
            shape.gaps.append(Gap(item.physical_offset, top, item.queue_offset))
            shape.lost = shape.lost or overlaps(context.bad, item.after, item.physical_offset)
            top = item.queue_offset
        else:
            shape.repeats += 1
    shape.end = max(top, span.next)
    return shape


def problems_by_queue(survey: Survey, findings: Collection[Finding]) -> dict[Key, list[str]]:
    """The codes of findings on queues, each once; strays among topics and in topics belong to none.

    A plain queue of a batch topic is another one than the batch queue of that number, which is rebuilt.
    """
    layout = survey.view.layout
    by_folder = {layout.relative(queue.folder): queue.key for queue in layout.unit_queues}
    by_folder |= {
        layout.relative(queue.folder): key
        for key, queue in layout.ext_queues.items()
        if key in layout.consume_queues  # a broker never opens those of another
    }
    found: dict[Key, list[str]] = {}
    for item in findings:
        if not item.problem.code.startswith("CQ") or item.problem.code == "CQ11":
            continue
        if "topic" in item.detail:
            key = (item.detail["topic"], item.detail["queue_id"])
        else:
            folder = item.path if item.path in by_folder else item.path.rpartition("/")[0]
            if folder not in by_folder:
                continue
            key = by_folder[folder]
        if key[0] in survey.batch_topics and item.path.startswith("consumequeue/"):
            continue
        codes = found.setdefault(key, [])
        if item.problem.code not in codes:
            codes.append(item.problem.code)
    return found


def missing_queues(survey: Survey) -> list[Key]:
    """Queues whose records are in the log, and that have no files of their topic's type."""
    layout, of_batches = survey.view.layout, survey.batch_topics
    return [
        key
        for key in sorted(survey.queues.spans.queues)
        if key not in (layout.batch_queues if key[0] in of_batches else layout.consume_queues)
    ]


def is_deleted(survey: Survey, key: Key) -> bool:
    """Whether the queue's topic was deleted: topics.json can be read and lacks it, and it has no queues.

    A broker knows its own topics and light queues without it, and makes the queues of all records that its
    start after a crash dispatches; a topic that was made just before the crash may not have been saved.
    """
    if not survey.context.is_deleted(key[0]) or key in survey.queues.light or is_system_topic(key[0]):
        return False
    start = survey.dispatched_from
    return start is None or survey.queues.spans.queues[key].end <= start


def queue_tasks(
    survey: Survey, wrong: dict[Key, list[str]], *, is_final: bool
) -> Iterator[QueueTask | Unmended]:
    """Yield the tasks for the queues `wrong`, by their key; `is_final`: damage in the log stays."""
    layout, batch_topics = survey.view.layout, survey.batch_topics
    for key in sorted(wrong):
        span = survey.queues.spans.queues.get(key)
        is_batch = key[0] in batch_topics
        queues, part = (layout.batch_queues, "batchconsumequeue") if is_batch else (
            layout.consume_queues, "consumequeue")  # fmt: skip
        old = queues.get(key)
        folder = f"{part}/{key[0]}/{key[1]}" if old is None else layout.relative(old.folder)
        codes = tuple(wrong[key])
        shape = Shape() if span is None else shape_of(survey, span)
        reason = _refusal_of_files(key, old) or refusal(survey, key, shape, old, is_final=is_final)
        if reason is None:
            yield _task(survey, key, folder, codes, shape, old, is_batch)
        else:
            yield Unmended(folder, codes, reason, *key)


def _refusal_of_files(key: Key, old: QueueFiles | None) -> str | None:
    """Why a queue cannot be kept in files; None if it can."""
    if not can_be_folder(key[0]):
        return "no folder can be called as its topic is"
    if old is not None and old.folder.name != str(key[1]):
        return "its folder is not called as a broker would call it"
    return None


def refusal(
    survey: Survey, key: Key, shape: Shape, old: QueueFiles | None, *, is_final: bool, is_alone: bool = True
) -> str | None:
    """Why a queue cannot be rebuilt; None if it can. `is_alone`: the others can be without it."""
    if any(key in (record.said.key, record.own.key) for record in survey.misrouted):
        return survey.waits(MISROUTED)
    has_files = old is not None and bool(old.files)
    units = survey.units.units.get(key)
    if shape.too_many:
        return "its records' queue offsets jump too often"
    if sum(gap.stop - gap.first for gap in shape.gaps) > _GAP_MAX:
        return "its records' queue offsets leave out too many numbers"
    if shape.count and not 0 <= shape.first <= shape.end <= _LAST_UNIT:
        return "its records' queue offsets are not unit numbers"
    if has_files and shape.lost and not is_final:
        return survey.waits("records of it are lost in damage of the log")
    if has_files and shape.repeats and is_alone:
        return f"its records' queue offsets repeat, at {shape.repeats} places"
    if not has_files or units is None:
        return None
    if not shape.count and units.unread:
        return "it cannot be read, and the log has no record of it any more"
    if survey.context.bad and units.last >= shape.end and shape.count and not is_final:
        return survey.waits("units point into damage of the log")
    return None


def _task(
    survey: Survey, key: Key, folder: str, codes: tuple[str, ...], shape: Shape, old: QueueFiles | None,
    is_batch: bool,
) -> QueueTask:  # fmt: skip
    options = survey.options
    size = options.batch_queue_file_size if is_batch else options.consume_queue_file_size
    unit = BATCH_UNIT_SIZE if is_batch else UNIT_SIZE
    files_now = () if old is None else old.files
    existing = {file.file_from_offset: file for file in files_now if _is_named_right(file)}
    head, head_units = None, 0
    if is_batch:
        first, end = 0, shape.count
        if not shape.count:
            head, head_units, shape.first = _expired_batches(survey, existing)
            shape.end = shape.first
            first = end = head.file_from_offset // unit + head_units if head is not None else 0
    else:
        units = survey.units.units.get(key)
        if not shape.count and units is not None:
            shape.first = shape.end = expired_end(units)
        first, end = shape.first, shape.end
        head_units = first % (size // unit)
        head = existing.get((first - head_units) * unit) if head_units else None
    if end == first and head is not None:  # nothing but expired records: the file is made for them
        first -= 1
    starts = range(first * unit // size * size, end * unit, size)
    numbers = {start: WHOLE_QUEUE if is_batch else start // size for start in starts}
    files = tuple(
        WantedFile(start, existing.get(start), _mtime(survey, key, number))
        for start, number in numbers.items()
    )
    stays = {*numbers}
    if not is_batch or not shape.count:
        stays.update(_expired_files(survey, key, existing, starts.start, size))
    dropped = tuple(
        file for file in files_now if file.file_from_offset not in stays or not _is_named_right(file)
    )
    extension = None if is_batch else extension_task(
        survey.view.layout, key, range(shape.first, shape.end),
        [range(gap.first, gap.stop) for gap in shape.gaps], shape.moved, survey.queues.bits,
        options.ext_queue_file_size, writes=options.ext_queues and key not in survey.queues.light,
    )  # fmt: skip
    return QueueTask(key, is_batch, folder, codes, shape, head, head_units, files, dropped, extension)


def _expired_batches(survey: Survey, existing: dict[int, StoreFile]) -> tuple[StoreFile | None, int, int]:
    """(file, units, queue offset): where the units of expired records end in a batch queue.

    The file holds the last of them, so that many of its units are theirs; the offset is the one after them.
    """
    start = survey.context.log_start
    with OpenFiles() as files:
        for _, file in sorted(existing.items(), reverse=True):
            data = files.read(file.path, 0, file.size)
            units = unit_array(data, BATCH_UNIT_SIZE)
            expired = np.flatnonzero(present(units) & (units["physical_offset"] < start))
            if len(expired):
                last = units[expired[-1]]
                return file, int(expired[-1]) + 1, int(last["base_offset"]) + int(last["batch_size"])
    return None, 0, 0


def _is_named_right(file: StoreFile) -> bool:
    """Whether a queue file has the name that a broker gives it."""
    return file.path.name == f"{file.file_from_offset:020}"


def _mtime(survey: Survey, key: Key, number: int) -> int | None:
    """The store time of the newest record of a queue file, ns, by which 4.x looks files up."""
    time_ms = survey.queues.times.get((key, number), 0)
    return time_ms * 1_000_000 if time_ms > 0 else None


def expired_end(units: Units) -> int:
    """Return the number after the last unit of an expired record, in a queue without records in the log."""
    end = units.last + 1
    before = {run.last + 1: run.first for run in units.unclaimed} | {
        stop: first for first, stop in units.gaps
    }
    while end in before and before[end] < end:
        end = before[end]
    return end


def _expired_files(
    survey: Survey, key: Key, existing: dict[int, StoreFile], start: int, size: int
) -> Iterator[int]:
    """The starts of the files before byte `start` of a queue that hold units of expired records only."""
    units = survey.units.units.get(key, Units())
    loose = [(run.first, run.last + 1) for run in units.unclaimed]
    is_batch = key[0] in survey.batch_topics  # whose units have no slots
    bad = [] if is_batch else merged([*units.gaps, *units.unread, *loose])
    while start >= size and start - size in existing and existing[start - size].size == size:
        start -= size
        if overlaps(bad, start // UNIT_SIZE, (start + size) // UNIT_SIZE):
            return
        yield start


def queue_ends(survey: Survey, made: Mapping[Key, Shape]) -> dict[Key, tuple[int, int]]:
    """(first queue offset that the log has a record for, end) of every queue; `made` are rebuilt."""
    spans, units = survey.queues.spans.queues, survey.units.units
    ends: dict[Key, tuple[int, int]] = {}
    for key in sorted({*spans, *units}):
        shape = shape_of(survey, spans[key]) if key in spans else None
        if key in made:
            shape = made[key]
            ends[key] = (shape.first, shape.end)
        elif key in units:
            end = max(units[key].last + 1, survey.context.noted_end(key))
            ends[key] = (end if shape is None or not shape.count else min(shape.first, end), end)
    return ends
