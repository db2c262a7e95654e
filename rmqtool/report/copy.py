"""A subset of a store as a new store: the engine of `rmqtool copy`.

The new store is built under another name, and renamed when it is complete. A record keeps its content: times,
hosts, flags, the stored body, the property string. Its physical offset and its queue offset are new; queue
offsets count from 0 in every queue without gaps.

Topics that a broker creates itself are left out unless they are named: their messages belong to a state
(which delayed messages were delivered, which transactions are open) that a copy lacks. Half messages and
ops are never copied: an op names its half message by queue offset, and the copy has new queue offsets.
`%RETRY%` and `%DLQ%` topics hold messages of users and are copied.

Fillers of `recover` are left out: they keep the queue offsets of lost messages, and a copy has new ones.

Records of the log become rows that `put_table` stores unchanged.

Source: DefaultMessageStore's own append; see `write`.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.check.verify import AtStake, damaged_ranges, messages_at_stake
from rmqtool.errors import (
    FormatError,
    IllegalMessageError,
    InputError,
    RefusedError,
    RmqtoolError,
    UnreadableError,
    UsageError,
)
from rmqtool.findings import Progress, Report
from rmqtool.formats import config_json, properties
from rmqtool.formats.config_json import TopicConfig
from rmqtool.formats.message import BLANK_SIZE, MIN_RECORD_SIZE, RECORD_SIZE_MAX
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.damage import CODE_BY_STATUS
from rmqtool.log.events import PROPERTIES_UNSOUND, PROPERTY_CRC_BAD
from rmqtool.log.fillers import filler_places
from rmqtool.log.frames import Frames
from rmqtool.log.properties import read_pairs, status_of_ends
from rmqtool.log.string_ranges import Ranges, bodies, gather, hosts
from rmqtool.message.system_topics import (
    BUILT_IN_PREFIX,
    BUILT_IN_TOPICS,
    DISCARDED_TOPIC,
    HALF_TOPICS,
    OP_TOPICS,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_system_topic,
)
from rmqtool.problems import Finding, finding
from rmqtool.read.consumer_offsets import consumer_offsets
from rmqtool.read.delay_levels import DelayLevels, delay_levels
from rmqtool.read.known_topics import topic_names
from rmqtool.read.messages import frame_batches
from rmqtool.read.reading import FrameBatch
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.stats import pending
from rmqtool.report.stats.dimensions import Codes
from rmqtool.report.stats.scanner import scan
from rmqtool.report.stats.transactions import Transactions
from rmqtool.storage import durable as disk
from rmqtool.storage import lock
from rmqtool.storage.buffers import Array
from rmqtool.storage.config_files import DELAY_OFFSETS, FOLDER, TOPICS, read_config
from rmqtool.storage.layout import DEFAULT_COMMIT_LOG_FILE_SIZE
from rmqtool.storage.output_guard import keep_out
from rmqtool.storage.prefetch import ahead
from rmqtool.storage.profile import Profile, profile_named
from rmqtool.storage.ranges import merged, overlaps
from rmqtool.write.opening import examine_new
from rmqtool.write.records.deferred_offsets import LMQ_PREFIX
from rmqtool.write.records.record_parts import topic_parts
from rmqtool.write.store_writer import StoreWriter
from rmqtool.write.table.appender import TableAppender, WrongRowError

_NUMBERS = {
    "queue_id": pa.int32(), "flag": pa.int32(), "sys_flag": pa.int32(), "reconsume_times": pa.int32(),
    "prepared_transaction_offset": pa.int64(),
}  # fmt: skip


class RecordRows:
    """Converts batches of records to rows.

    Attributes:
        left_out: number of selected records that are damaged, by topic.
        fillers: number of selected fillers, which are left out too.
    """

    def __init__(self, choice: TopicChoice, report: Report) -> None:
        self.left_out: Counter[str] = Counter()
        self.fillers = 0
        self._choice = choice
        self._report = report

    def batch(self, found: FrameBatch) -> pa.RecordBatch:
        """The selected records that are sound, with the columns of `put_table`, without fillers.

        Damaged records are left out, because they would look sound in the copy; the scan has reported them.
        """
        frames, choice = found.frames, self._choice
        names = [topic.decode("utf-8", "replace") for topic in frames.topics]
        takes = np.array([*map(choice.takes, names), False])
        chosen = found.mask & takes[frames.rows["topic_id"]]
        fillers = filler_places(frames, chosen)
        chosen[fillers] = False
        self.fillers += len(fillers)
        at_ends = status_of_ends(frames)
        crc_bad = (at_ends & PROPERTY_CRC_BAD) != 0
        self._report_rows(found, chosen & crc_bad, PROPERTY_CRC_BAD)
        sound = chosen & (frames.rows["status"] == 0) & ~crc_bad
        self._report_unsound(found, sound, at_ends)
        ids, counts = np.unique(frames.rows["topic_id"][chosen & ~sound], return_counts=True)
        for topic_id, count in zip(ids.tolist(), counts.tolist(), strict=True):
            self.left_out[names[topic_id]] += count
        places = np.flatnonzero(sound)
        rows = frames.rows[places]
        columns: dict[str, Any] = {name: pa.array(rows[name], kind) for name, kind in _NUMBERS.items()}
        new_names = pa.array([choice.name_of(name) for name in names], pa.string())
        columns["topic"] = pa.DictionaryArray.from_arrays(pa.array(rows["topic_id"]), new_names)
        for which in ("born", "store"):
            columns[f"{which}_timestamp_ms"] = pa.array(rows[f"{which}_timestamp"], pa.int64())
            columns[f"{which}_host"] = _bytes(hosts(frames, born=which == "born"), places)
        columns["body"] = _bytes(bodies(frames), places)
        columns["properties_bytes"] = self._properties(frames, places)
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def _report_rows(self, found: FrameBatch, which: Array, status: int) -> None:
        code = CODE_BY_STATUS[status]
        for row in found.frames.rows[which]:
            self._report(finding(code, found.file, int(row["physical_offset"]), int(row["size"])))

    def _report_unsound(self, found: FrameBatch, mask: Array, at_ends: Array) -> None:
        """Report properties that cannot be read in full; they are copied unchanged, damage included."""
        places = np.flatnonzero(mask)
        bad = (at_ends[places] & PROPERTIES_UNSOUND) != 0
        bad |= ~read_pairs(found.frames.at(places)).sound
        self._report_rows(found, places[bad], PROPERTIES_UNSOUND)

    def _properties(self, frames: Frames, places: Array) -> pa.Array:
        lengths = np.maximum(frames.rows["properties_length"], 0).astype(np.int32)
        strings = _bytes(Ranges(frames.data, frames.properties_starts(), lengths), places)
        changed = np.zeros(len(strings), np.bool_)
        for pattern in self._choice.patterns:
            changed |= pc.match_substring(strings, pattern).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(changed)
        if not len(rows):
            return strings
        values = [self._choice.renamed_properties(each) for each in strings.take(pa.array(rows)).to_pylist()]
        return pc.replace_with_mask(strings, pa.array(changed), pa.array(values, pa.binary()))


def _bytes(ranges: Ranges, places: Array) -> pa.Array:
    """A copy of the bytes of the rows at `places`."""
    starts = np.ascontiguousarray(ranges.starts[places])
    found = gather(Ranges(ranges.data, starts, np.ascontiguousarray(ranges.lengths[places])))
    buffers = [None, pa.py_buffer(found.offsets), pa.py_buffer(found.data)]
    return pa.Array.from_buffers(pa.binary(), len(places), buffers)


NEVER = frozenset({*HALF_TOPICS, *OP_TOPICS, DISCARDED_TOPIC})
_NAMING = ("RETRY_TOPIC", properties.REAL_TOPIC, "DLQ_ORIGIN_TOPIC")
"""Properties whose value is a topic: their value is renamed too."""


@dataclass(frozen=True)
class TopicChoice:
    """The topics of a copy.

    Attributes:
        selection: which messages; topics that are not copied are excluded.
        named: system topics that the selection names.
        renames: new names by old ones.
    """

    selection: Selection
    named: frozenset[str]
    renames: Mapping[str, str]

    @classmethod
    def of(cls, selection: Selection, renames: Mapping[str, str], profile: Profile) -> TopicChoice:
        """The choice for a selection and renames.

        Raises:
            RefusedError: the selection names half messages or ops.
            UsageError: an invalid new name, or a system topic as old or new name.
        """
        named = frozenset(topic for topic in selection.topics if is_system_topic(topic))
        if named & NEVER:
            raise RefusedError(
                f"{min(named & NEVER)} is not copied: its records name others by offset",
                hint="export keeps them as they are; recover, rebuild and append work on the store itself",
            )
        for old, new in renames.items():
            try:
                topic_parts(new, profile)
            except IllegalMessageError as error:
                raise UsageError(f"{old}={new}: {error.message}") from error
            if is_system_topic(new) or is_system_topic(old):
                raise UsageError(f"{old}={new}: a topic of the broker's own keeps its name")
        excluded = {*selection.exclude_topics, *(BUILT_IN_TOPICS - named)}
        if not any(topic.startswith(BUILT_IN_PREFIX) for topic in named):
            excluded.add(f"{BUILT_IN_PREFIX}*")
        return cls(replace(selection, exclude_topics=excluded), named, dict(renames))

    def takes(self, topic: str) -> bool:
        """Whether messages of a topic are copied."""
        return not is_system_topic(topic) or topic in self.named

    def name_of(self, topic: str) -> str:
        """The name of a topic in the copy."""
        return self.renames.get(topic, topic)

    def configs(self, store: Store, report: Report) -> dict[str, TopicConfig]:
        """The configuration of the copy's topics, by their new names.

        If two topics become one, the configuration with more write queues is used. Topics without messages
        are included: only topic names of the selection count. Reports a topics.json that cannot be read.
        """
        found: dict[str, TopicConfig] = {}
        for topic, config in topics_of(store, report).items():
            if not self.takes(topic) or not self.selection.matches_topic(topic):
                continue
            name = self.name_of(topic)
            other = found.get(name)
            if other is None or other.write_queue_nums < config.write_queue_nums:
                found[name] = replace(config, name=name)
        return {name: config for name, config in found.items() if not is_system_topic(name)}

    def renamed_properties(self, data: bytes) -> bytes:
        """A property string with the topics in its properties renamed."""
        pairs = data.split(properties.VALUE_END.encode())
        for place, pair in enumerate(pairs):
            name, found, value = pair.partition(properties.NAME_END.encode())
            if found and name.decode("latin-1") in _NAMING:
                new = self.renames.get(value.decode("utf-8", "replace"))
                if new is not None:
                    pairs[place] = name + found + new.encode()
        return properties.VALUE_END.encode().join(pairs)

    @property
    def patterns(self) -> Collection[bytes]:
        """Every property string that `renamed_properties` changes contains one of these."""
        end = properties.NAME_END
        return [f"{name}{end}{old}".encode() for name in _NAMING for old in self.renames]


def topics_of(store: Store, report: Report) -> dict[str, TopicConfig]:
    """The topics of a store's topics.json; none if it cannot be read, which is reported."""
    folder, reason = store.layout.config_folder, None
    if folder is not None:
        try:
            loaded = read_config(folder, TOPICS)
            if loaded.source != "none":
                return config_json.topics(loaded.document)
            reason = loaded.file_error
        except (FormatError, UnreadableError) as error:
            reason = error.message
    if reason is not None:
        report(finding("CF02", f"{FOLDER}/{TOPICS}", reason=reason))
    return {}


PART = ".rmqtool-part"
_BATCHES_AHEAD = 4


@dataclass
class CopyResult:
    """The result of a copy.

    Attributes:
        messages: records copied.
        bytes: their bytes in the new log, without blanks.
        topics: topics of the new store, with their numbers of records.
        queues: number of queues with messages.
        damaged_topics: records left out because they are not sound, and messages of which no record is left,
            by topic; the empty name is for damaged ranges whose messages no queue names, each counts once.
        refused: records left out because every broker would reject them.
        fillers: fillers of `recover` that were left out.
        profile: version of the new store.
        system_topics: records left out because their topic is the broker's own and was not named, by topic.
        doubts: warnings about delivery times of delayed messages that are not certain.
        made: whether a store was created: not if a selection matched nothing, or all records were refused.
    """

    messages: int = 0
    bytes: int = 0
    topics: dict[str, int] = field(default_factory=dict)
    queues: int = 0
    damaged_topics: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    fillers: int = 0
    profile: str = ""
    system_topics: dict[str, int] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    made: bool = True

    @property
    def damaged(self) -> int:
        """All selected records that were not copied because they are not sound, or not there any more."""
        return sum(self.damaged_topics.values())

    @property
    def left_out(self) -> int:
        """All selected records that were not copied."""
        return self.damaged + self.refused + self.fillers + sum(self.system_topics.values())


def copy(
    store: Store,
    output: Path,
    selection: Selection,
    report: Report,
    progress: Progress | None = None,
    *,
    renames: Mapping[str, str] | None = None,
    profile: str | None = None,
    options: Mapping[str, Any] | None = None,
    refused: Callable[[WrongRowError], None] = lambda error: None,
) -> CopyResult:
    """Write the selected messages as a new store.

    Args:
        store: the old store, only read; it may be in use.
        output: the new store's root, a folder that is missing or empty.
        selection: which messages; system topics are copied only if named.
        report: called for each damaged place; records that are not sound are left out.
        progress: called with the bytes of the log just read.
        renames: new names by old ones; two topics may become one.
        profile: version of the new store; None: that of the old one.
        options: of the new store (`WriteOptions`); by default its file sizes are those of the old one.
        refused: called for each record that every broker would reject; these are left out.

    Raises:
        RefusedError: something exists at `output`, or the selection names messages that cannot be copied.
        UsageError: an invalid new name or size.
        UnwritableError: it cannot be written; nothing is left.
    """
    store.layout.check_forms(log=True)
    profile = profile or store.profile.name
    choice = TopicChoice.of(selection, renames or {}, profile_named(profile))
    levels = delay_levels(store)
    given = {**_sizes(store), "delays_ms": levels.delays_ms, **(options or {})}
    limit = given["commit_log_file_size"] - MIN_RECORD_SIZE - BLANK_SIZE
    given["max_message_size"] = max(min(limit, RECORD_SIZE_MAX >> 1), 0)
    examine_new(output, profile_named(profile), given)
    part = _part_of(store, output)
    try:
        result = _fill(store, part, choice, profile, given, levels, report, progress, refused)
        result.system_topics = _system_topics(store, selection, choice)
        if not result.messages and (result.refused or selection != Selection()):
            shutil.rmtree(part)
            return replace(result, made=False)
        disk.rename(part, output.absolute())
    except BaseException as error:
        with suppress(OSError):
            shutil.rmtree(part)
        if isinstance(error, RmqtoolError):
            if os.path.lexists(part):
                error.hint = f"what was copied could not be removed: delete {part}"
            elif str(part) in (error.hint or ""):  # it names the writer's remains, which are gone
                error.hint = None
        raise
    disk.sync_folder(part.parent)
    return result


def _system_topics(store: Store, selection: Selection, choice: TopicChoice) -> dict[str, int]:
    """The selected records of topics that are not copied, by topic."""
    if selection.topics:
        known = BUILT_IN_TOPICS | topic_names(store.layout)
        wanted = {topic for topic in known if is_system_topic(topic) and selection.matches_topic(topic)}
    else:
        wanted = {*BUILT_IN_TOPICS, f"{BUILT_IN_PREFIX}*"}
    counts: dict[str, int] = {}
    if not wanted - choice.named:
        return counts
    chosen = replace(selection, topics=wanted - choice.named, limit=None)
    for frames, mask, _ in frame_batches(store, chosen, crc=False):
        numbers = np.bincount(frames.rows["topic_id"][mask], minlength=len(frames.topics))
        for topic, count in zip(frames.topics, numbers.tolist(), strict=False):
            name = topic.decode("utf-8", "replace")
            if count and not choice.takes(name):
                counts[name] = counts.get(name, 0) + count
    return counts


@dataclass(frozen=True)
class Waits:
    """Messages that wait inside the broker and are in no topic of a copy.

    Attributes:
        kind: `delayed`, `timer`, `pop` (records of POP in the timer), or `half` (of open transactions).
        messages: how many of the whole store; if not `exact`, how many at most of those selected.
        exact: whether it is known which of them were delivered.
    """

    kind: str
    messages: int
    exact: bool = True


def still_waiting(store: Store, left_out: Mapping[str, int]) -> list[Waits]:
    """What waits in a store whose own topics are not copied.

    Args:
        store: opened for reading.
        left_out: how many selected records of these topics are not copied (`CopyResult.system_topics`).

    Raises:
        UnreadableError: the log cannot be read.
    """
    found: list[Waits] = []
    for topic, kinds, search in (
        (SCHEDULE_TOPIC, (pending.DELAYED,), pending.delayed),
        (TIMER_TOPIC, (pending.TIMER, pending.POP), pending.timers),
    ):
        if topic not in left_out:
            continue
        try:
            waiting = list(search(store)) if _has_units(store, topic, left_out[topic]) else None
        except InputError:  # of what shows how far they were delivered; `verify` reports it
            waiting = None
        if waiting is None:
            found.append(Waits(kinds[0], left_out[topic], exact=False))
            continue
        counts = {kind: sum(len(each.due) for each in waiting if each.kind == kind) for kind in kinds}
        found += [Waits(kind, count) for kind, count in counts.items() if count]
    if left_out.keys() & set(HALF_TOPICS):
        halves = Transactions()
        scan(store, Selection(topics={*HALF_TOPICS, *OP_TOPICS}), [halves], Codes(), crc=False)
        try:
            offsets = consumer_offsets(store)
        except RmqtoolError:  # the progress of checks is unknown: those that were given up count too
            offsets = {}
        count = next(row["count"] for row in halves.rows(offsets, 0, None) if row["state"] == "open")
        found += [Waits("half", count)] if count else []
    return found


def _has_units(store: Store, topic: str, records: int) -> bool:
    """Whether the queues of a topic name as many records as were found. Raises UnreadableError."""
    if store.layout.kind != "store":
        return False
    queues = [(key, queue) for key, queue in store.queues.items() if key[0] == topic]
    return sum(queue.max_offset() - store.first_live(*key) for key, queue in queues) >= records


def _part_of(store: Store, output: Path) -> Path:
    """The folder in which the new store is built. Raises RefusedError."""
    output = output.absolute()
    keep_out(store.layout, output, "the copy", location=store.location.path)
    part = output.with_name(f"{output.name}{PART}")
    if part.exists():
        if lock.holder(part / "lock").is_held:
            raise RefusedError("another process is writing this copy", path=part, hint="wait until it ends")
        raise RefusedError("an unfinished copy exists", path=part, hint=f"delete {part}")
    return part


def _sizes(store: Store) -> dict[str, Any]:
    """The file sizes of the old store, and whether it has light queues.

    The logs of queues are not in files of a commit log: the copy gets a broker's default size.
    """
    layout = store.layout
    has_log = layout.queue_logs is None
    return {
        "commit_log_file_size": layout.commit_log_file_size if has_log else DEFAULT_COMMIT_LOG_FILE_SIZE,
        "consume_queue_file_size": layout.consume_queue_file_size,
        "batch_queue_file_size": layout.batch_queue_file_size,
        "ext_queues": layout.writes_extensions,
        "ext_queue_file_size": layout.ext_queue_file_size,
        "index_slots": layout.index_slots,
        "index_entries": layout.index_entries,
        "multi_dispatch": any(topic.startswith(LMQ_PREFIX) for topic, _ in layout.consume_queues),
    }


def _fill(
    store: Store,
    part: Path,
    choice: TopicChoice,
    profile: str,
    given: dict[str, Any],
    levels: DelayLevels,
    report: Report,
    progress: Progress | None,
    refused: Callable[[WrongRowError], None],
) -> CopyResult:
    rows, damage = RecordRows(choice, report), _Damage(report)

    def batches() -> Iterator[pa.RecordBatch]:
        for found in frame_batches(store, choice.selection, report=damage.report, progress=progress):
            batch = rows.batch(found)
            if len(batch):
                yield batch

    with StoreWriter.create(part, profile, auto_create_queues=1, **given) as writer:
        for config in choice.configs(store, report).values():
            # topics.json may list dead letter topics whose names are too long for a message.
            with suppress(IllegalMessageError):
                writer.topics.adopt(config)
        appender = TableAppender(writer, on_error="skip", report=refused)
        done = appender.append(ahead(batches(), _BATCHES_AHEAD))
        topics: dict[str, int] = dict.fromkeys(writer.topics.topics, 0)
        for (topic, queue_id), (_, count) in done.queues.items():
            topics[topic] = topics.get(topic, 0) + count
            if topic in writer.topics.topics:
                writer.topics.grow(topic, queue_id + 1)
    if topics.get(SCHEDULE_TOPIC):
        # With the file, none would count as delivered; recover makes it from the log.
        disk.remove(part / FOLDER / DELAY_OFFSETS)
    delayed = sorted((queue, count) for (topic, queue), (_, count) in done.queues.items()
                     if topic == SCHEDULE_TOPIC)  # fmt: skip
    doubts = (levels.doubt(queue_id + 1, count) for queue_id, count in delayed)
    lost = rows.left_out + damage.lost(store, choice)
    return CopyResult(
        done.rows, done.bytes, topics, len(done.queues), dict(lost), done.skipped, rows.fillers, profile,
        doubts=tuple(filter(None, doubts)),
    )  # fmt: skip


class _Damage:
    """Passes on what a scan reports, and keeps the ranges in which no record is left."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._ranges: dict[tuple[int, int], None] = {}

    def report(self, item: Finding) -> None:
        """Report a damaged place."""
        self._report(item)
        if item.problem.code not in CODE_BY_STATUS.values():  # RecordRows counts these
            self._ranges |= dict.fromkeys(damaged_ranges([item]))

    def lost(self, store: Store, choice: TopicChoice) -> Counter[str]:
        """The chosen messages of these ranges by topic; a range that no queue leads to counts as ""."""
        found = (messages_at_stake(store, list(self._ranges)) or []) if self._ranges else []
        named = merged((each.physical_offset, each.physical_offset + each.size) for each in found)
        counts = Counter({"": sum(not overlaps(named, *each) for each in self._ranges)})
        for message in found:
            is_gone = store.find(message.physical_offset) is None
            if is_gone and choice.takes(message.topic) and _matches(choice.selection, message):
                counts[message.topic] += message.messages
        return +counts


def _matches(selection: Selection, message: AtStake) -> bool:
    """Whether a message of which only the unit is left is selected, as far as that says."""
    return (
        selection.matches_topic(message.topic)
        and selection.matches_offset(message.physical_offset)
        and (not selection.queues or message.queue_id in selection.queues)
    )
