"""The predicted effect of a start on a store, for people and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.broker.config import UnreadConfig, loaded_config
from rmqtool.formats import config_json
from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.layout import StoreLayout, can_be_folder

if TYPE_CHECKING:
    from rmqtool.broker.dispatch import Folder
    from rmqtool.broker.load import QueueKey
    from rmqtool.broker.queues import QueueState
    from rmqtool.broker.start import BrokerStart

    Spans = Mapping[tuple[QueueKey, bool], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class QueuePrediction:
    """One queue: [min, max) before and after, in queue offsets; before is None for a queue that is created.

    `cut_to` is the new end if that is lower. `shifted` is whether units are at another place than their queue
    offset. `log_min` and `log_max` are the half-open range of queue offsets in the log, None if there are
    none; `unreachable` counts those that the queue does not serve, and `former` those of them that belong to
    a deleted queue of its name: no repair makes a consumer receive them. `lost` is whether the log holds
    messages of the queue but the broker has no such queue, or an empty one, so that the next message gets
    queue offset 0. The last five are set only if `predict_all` counts unreachable messages.
    """

    topic: str
    queue_id: int
    min_before: int | None
    max_before: int | None
    min_after: int
    max_after: int
    files_deleted: tuple[str, ...] = ()
    shifted: bool = False
    lost: bool = False
    log_min: int | None = None
    log_max: int | None = None
    unreachable: int = 0
    former: int = 0

    @property
    def cut_to(self) -> int | None:
        """Its end afterwards if that is lower than before, else None."""
        return self.max_after if self.max_before is not None and self.max_after < self.max_before else None

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "topic": self.topic, "queue_id": self.queue_id, "min_before": self.min_before,
            "max_before": self.max_before, "min_after": self.min_after, "max_after": self.max_after,
            "cut_to": self.cut_to, "files_deleted": list(self.files_deleted), "shifted": self.shifted,
            "lost": self.lost, "log_min": self.log_min, "log_max": self.log_max,
            "messages_unreachable": self.unreachable, "messages_hidden": self.unreachable - self.former,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class IndexPrediction:
    """An index file afterwards.

    `name` is None for a file that is created, whose name will be the time; `hash_slot_count` is None if it
    changes and was not requested.
    """

    name: str | None
    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    hash_slot_count: int | None
    index_count: int


@dataclass(frozen=True, slots=True)
class OffsetBeyond:
    """A group's offset that is after the end of its queue after the start."""

    group: str
    topic: str
    queue_id: int
    offset: int
    queue_end: int

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {"group": self.group, "topic": self.topic, "queue_id": self.queue_id,
                "offset": self.offset, "queue_end": self.queue_end}  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """The effect of a start of one broker; offsets are physical, times ms since 1970.

    Attributes:
        broker: its version.
        abort: whether it is a start after a crash.
        loads: whether load() succeeds. The other fields are also set if load() fails late.
        load_error: why it fails.
        load_path: the file or folder on which it fails.
        unread_config: parts of the configuration that the broker cannot read. Where one ends it, the broker
            does not start, whatever load() does.
        hangs: start() never returns (4.x, at a gap of the log).
        hangs_at: the physical offset where it hangs.
        crashes: the process ends with an OutOfMemoryError (4.x).
        claimed_bytes: the value of a damaged size field, if 4.x allocates it and it is more than 64 MiB; else
            None.
        heap_bytes: the assumed heap (-Xmx).
        start_file: file_from_offset of the first scanned file; None if no file is scanned.
        end_offset: where the log ends for the broker afterwards.
        min_offset: where it begins; -1 without files.
        ends_with_blank: the log's last file is full, and its blank will be overwritten.
        log_files_deleted: names relative to the store root, as all names here.
        empty_files_deleted: those of them without data: the file that a broker allocates in advance.
        bytes_abandoned: from `end_offset` to the end of the last data in the log.
        messages_abandoned: number of sound records after `end_offset`.
        topics_abandoned: their number by topic.
        first_abandoned_timestamp, last_abandoned_timestamp: their smallest and largest store time.
        queues: every queue of the broker afterwards, and queues that it lacks although the log holds messages
            of them (among the `lost` ones).
        messages_unreachable: messages in the log whose queue offset is outside of their queue afterwards, so
            none of its consumers receives them; a wrong unit in another queue may refer to them. None if not
            requested. Sound records after `end_offset` are not included.
        second_queues: of queues that are written twice: those on the side from which clients are not served;
            empty otherwise. All other fields say what clients can get; only `units_added` counts both sides.
        loaded_spans: (min, max) of every queue after load(), before start() (4.x differs).
        index_files_deleted: index files that are deleted.
        index: the index files afterwards.
        dispatched_again: number of records passed to dispatch.
        units_added: units that dispatch adds to queues.
        keys_added: entries that dispatch adds to the index.
        never_dispatched: records in the scanned part of the log, after the end of their queue, that get no
            unit.
        consumer_offsets_beyond: offsets of groups that are after their queue's end afterwards.
        files_deleted, files_made, files_changed: of log, queues and index; a file that is deleted and created
            again with the same content is in none. New index files have no name yet: see `index`.
        notes: remarks for people.
    """

    broker: str
    abort: bool
    loads: bool
    load_error: str | None
    load_path: str | None
    unread_config: tuple[UnreadConfig, ...]
    hangs: bool
    hangs_at: int | None
    crashes: bool
    claimed_bytes: int | None
    heap_bytes: int
    start_file: int | None
    end_offset: int
    min_offset: int
    ends_with_blank: bool
    log_files_deleted: tuple[str, ...]
    empty_files_deleted: tuple[str, ...]
    bytes_abandoned: int
    messages_abandoned: int
    topics_abandoned: Mapping[str, int]
    first_abandoned_timestamp: int | None
    last_abandoned_timestamp: int | None
    queues: Mapping[tuple[str, int], QueuePrediction]
    second_queues: Mapping[tuple[str, int], QueuePrediction]
    loaded_spans: Mapping[tuple[str, int], tuple[int, int]]
    index_files_deleted: tuple[str, ...]
    index: tuple[IndexPrediction, ...]
    dispatched_again: int
    units_added: int
    keys_added: int
    never_dispatched: int
    messages_unreachable: int | None
    consumer_offsets_beyond: tuple[OffsetBeyond, ...]
    files_deleted: tuple[str, ...]
    files_made: tuple[str, ...]
    files_changed: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def messages_hidden(self) -> int | None:
        """The unreachable messages without those of deleted queues, which are so before the start too."""
        if self.messages_unreachable is None:
            return None
        return self.messages_unreachable - sum(queue.former for queue in self.queues.values())

    @property
    def queues_lost(self) -> int:
        """The number of queues that are empty or missing afterwards although the log holds their messages."""
        return sum(queue.lost for queue in self.queues.values())

    @property
    def config_that_ends(self) -> UnreadConfig | None:
        """The part of the configuration on which the broker ends; None if it does not end before load()."""
        return next((each for each in self.unread_config if each.ends), None)

    def row(self) -> dict[str, Any]:
        """As JSON."""
        names = (
            "broker", "abort", "loads", "load_error", "load_path", "hangs", "hangs_at", "crashes",
            "claimed_bytes", "heap_bytes",
            "start_file", "end_offset", "min_offset", "bytes_abandoned", "messages_abandoned",
            "dispatched_again", "units_added", "keys_added", "never_dispatched",
            "queues_lost", "messages_unreachable", "messages_hidden",
        )  # fmt: skip
        row: dict[str, Any] = {name: getattr(self, name) for name in names}
        row["first_abandoned_timestamp_ms"] = self.first_abandoned_timestamp
        row["last_abandoned_timestamp_ms"] = self.last_abandoned_timestamp
        row["topics_abandoned"] = dict(self.topics_abandoned)
        row["unread_config"] = [each.row() for each in self.unread_config]
        for name in ("log_files_deleted", "empty_files_deleted", "index_files_deleted",
                     "files_deleted", "files_made", "files_changed", "notes"):  # fmt: skip
            row[name] = list(getattr(self, name))
        row["queues"] = [queue.row() for queue in self.queues.values()]
        row["second_queues"] = [queue.row() for queue in self.second_queues.values()]
        row["consumer_offsets_beyond"] = [offset.row() for offset in self.consumer_offsets_beyond]
        return row


def prediction_of(start: BrokerStart, before: Spans, in_database: Spans) -> Prediction:
    """The result of a finished start.

    Args:
        start: the start.
        before: (min, max) of the queues as they are now, by queue and whether it is a batch queue.
        in_database: the same of the database, if the queues are written twice.
    """
    world, rules = start.world, start.rules
    name = world.layout.relative
    end = start.end if start.end is not None else 0
    served, second = start.folders(served=True), start.folders(served=False)
    others = in_database
    if start.combines and world.settings.serves_from_rocksdb:
        before, others = in_database, before
    queues = _queues(start, before, served)
    gone, made, changed = _files(start)
    abandoned = start.abandoned
    dispatch = start.dispatch
    folders = list(dispatch.folders()) if dispatch is not None else []
    ran = start.runs
    written = {start.loaded.log[number].path for number in abandoned.files}
    return Prediction(
        broker=rules.profile.name,
        abort=world.abort,
        loads=start.error is None,
        load_error=start.error,
        load_path=name(start.error_path) if start.error_path is not None else None,
        unread_config=start.unread_config,
        hangs=start.hangs,
        hangs_at=start.hangs_at,
        crashes=start.crashes,
        claimed_bytes=start.claimed_bytes,
        heap_bytes=world.settings.heap_bytes,
        start_file=start.loaded.log[start.first].file_from_offset if ran and start.loaded.log else None,
        end_offset=start.max_offset if ran and not start.crashes else end,
        min_offset=start.loaded.log[0].file_from_offset if start.crashes else start.min_offset,
        ends_with_blank=start.ends_with_blank,
        log_files_deleted=tuple(name(file.path) for file in start.deleted),
        empty_files_deleted=tuple(name(file.path) for file in start.deleted if file.path not in written),
        bytes_abandoned=max(abandoned.end - end, 0) if ran else 0,
        messages_abandoned=abandoned.records,
        topics_abandoned=dict(sorted(abandoned.topics.items())),
        first_abandoned_timestamp=abandoned.first_timestamp,
        last_abandoned_timestamp=abandoned.last_timestamp,
        queues=queues,
        second_queues=_queues(start, others, second),
        loaded_spans=start.loaded_spans,
        index_files_deleted=tuple(name(file.path) for file in start.index_deleted),
        index=_index(start),
        dispatched_again=dispatch.records if dispatch is not None else 0,
        units_added=sum(folder.admitted for folder in folders),
        keys_added=start.index.keys if start.index is not None else 0,
        never_dispatched=sum(folder.refused for folder in served) + start.passed_over,
        messages_unreachable=sum(each.unreachable for each in queues.values()) if world.unreachable else None,
        consumer_offsets_beyond=_beyond(world.layout, queues) if start.error is None else (),
        files_deleted=tuple(sorted(gone)),
        files_made=tuple(sorted(made)),
        files_changed=tuple(sorted(changed)),
        notes=tuple(_notes(start, queues)),
    )


def _index(start: BrokerStart) -> tuple[IndexPrediction, ...]:
    """The index files afterwards."""
    files = start.index.files if start.index is not None else []
    return tuple(
        IndexPrediction(
            file.path.name if file.path is not None else None,
            *file.header[:4],
            file.header.hash_slot_count if file.slots_counted else None,
            file.header.index_count,
        )  # fmt: skip
        for file in files
    )


def _queues(start: BrokerStart, before: Spans, folders: Sequence[Folder]) -> dict[QueueKey, QueuePrediction]:
    """All queues of these folders with the offsets that the log holds, and queues that only the log knows."""
    name = start.world.layout.relative
    found = {
        key: _queue(state, before.get((key, state.is_batch)), key in folder.shifted, name)
        for folder in folders
        for key, state in folder.states.items()
    }
    for folder in folders if not start.crashes else ():
        for key, held in folder.held.queues(start.world.topics.names):
            if key not in found and not (can_be_folder(key[0]) or start.world.in_rocksdb):
                continue  # such a queue never exists
            queue = found.get(key) or QueuePrediction(*key, None, None, 0, 0)
            low, high = held.span
            state = folder.states.get(key)
            served = [] if state is None else state.served
            found[key] = replace(
                queue, lost=queue.max_after <= 0, log_min=low, log_max=high,
                unreachable=queue.unreachable + held.outside(served),
                former=queue.former + held.former.outside(served),
            )  # fmt: skip
    return dict(sorted(found.items()))


def _queue(
    state: QueueState, before: tuple[int, int] | None, shifted: bool, name: Callable[[Path], str]
) -> QueuePrediction:
    low, high = state.span()
    before = getattr(state, "now", None) or before
    return QueuePrediction(
        state.topic,
        state.queue_id,
        before[0] if before is not None else None,
        before[1] if before is not None else None,
        low,
        high,
        tuple(name(file.path) for file in state.deleted if file.file_from_offset not in state.made),
        shifted,
    )


def _files(start: BrokerStart) -> tuple[set[str], set[str], set[str]]:
    """Files that are deleted, made and changed, by name."""
    name = start.world.layout.relative
    gone = {name(path) for path in start.loaded.deleted}
    gone |= {name(file.path) for file in (*start.deleted, *start.index_deleted)}
    made: set[str] = set()
    changed: set[str] = set()
    for folder in start.dispatch.folders() if start.dispatch is not None else ():
        for key, state in folder.states.items():
            deleted = {file.file_from_offset for file in state.deleted}
            gone |= {name(file.path) for file in state.deleted if file.file_from_offset not in state.made}
            made |= {folder.name_of(key, offset) for offset in state.made - deleted}
        for key, offset in folder.changed:
            changed.add(folder.name_of(key, offset))
    if start.extensions is not None:
        of_extensions = start.extensions.files(name)
        gone, made, changed = (a | b for a, b in zip((gone, made, changed), of_extensions, strict=True))
    if start.index is not None:
        changed |= {
            name(file.path) for file in start.index.files if file.path is not None and file.has_changed
        }
    again = gone & made  # an empty file: deleted at load, and made with its full size
    return gone - again, made - again, (changed - made - gone) | again


def _beyond(
    layout: StoreLayout, queues: Mapping[tuple[str, int], QueuePrediction]
) -> tuple[OffsetBeyond, ...]:
    """Consumer offsets after the end of their queue; those of missing queues are left out."""
    offsets = config_json.consumer_offsets(loaded_config(layout, "consumerOffset.json").document)
    return tuple(
        OffsetBeyond(group, topic, queue_id, offset, queues[topic, queue_id].max_after)
        for (topic, group), by_queue in sorted(offsets.items())
        for queue_id, offset in sorted(by_queue.items())
        if (topic, queue_id) in queues and offset > queues[topic, queue_id].max_after
    )


def _notes(start: BrokerStart, queues: Mapping[QueueKey, QueuePrediction]) -> list[str]:
    """Remarks about slaves and for operators. Source: spec 02 12.2, 15.1 C7, C17, 15.2 Q5."""
    notes = []
    if start.error is None and any(queue.unreachable > queue.former for queue in queues.values()):
        notes.append(
            "unreachable messages stay in the log until they expire, but their queue has no unit of them: its"
            " consumers never receive them, and no later start repairs this"
        )
    if start.error is None and any(queue.lost for queue in queues.values()):
        notes.append(
            "a lost queue starts again at queue offset 0: groups that had consumed more of it receive nothing"
            " until it is as long as before"
        )
    if start.error is None and (start.world.in_rocksdb or start.combines) and start.loaded.log:
        notes += [*_notes_on_rocksdb(start), *_notes_on_ends(start, queues)]
    if start.error is None and not start.loaded.log:
        notes += _notes_on_kept_ends(start)
    if not start.rules.has_batch_queues and start.world.layout.batch_queues:
        notes.append(
            "this version does not support the queues of batchconsumequeue: it loses them and their messages"
        )
    if start.abandoned.records and start.runs and not start.crashes:
        notes.append(
            f"a slave that holds bytes after {start.end} is then ahead: these bytes keep differing, and"
            " nothing reports it; queue offsets are reused"
        )
    if start.ends_with_blank:
        notes.append(
            "the last file is full: its blank is overwritten, and a slave that has the blank differs from"
            " that offset on"
        )
    if start.hangs:
        notes.append(
            f"start() waits forever: dispatch does not get past {start.hangs_at}, because the log does not"
            " continue there or overlapping files lead back to it"
        )
    if start.dispatch is not None and start.dispatch.has_light:
        if start.world.settings.dispatches_light is None:
            notes.append(
                "light queues get units as from a broker with enableMultiDispatch set: --broker-conf settles"
                " whether it is"
            )
    notes += (f"{each.reason}: the broker starts without it" for each in start.unread_config if not each.ends)
    if start.crashes:
        notes.append("checkCRCOnRecover does not help: the size is allocated before anything is compared")
    return notes


def _named(keys: Iterable[QueueKey]) -> str:
    """How many queues, and the first of them; empty without any."""
    found = sorted(keys)
    return f", {len(found)}, for example {found[0][0]}/{found[0][1]}" if found else ""


def _notes_on_rocksdb(start: BrokerStart) -> Iterator[str]:
    """Records that a start does not dispatch although their unit is missing. Source: spec 06 2.6, 2.7."""
    if start.initialized:
        yield (
            f"queues in RocksDB that end elsewhere than in files, {start.initialized}, get the ends of the"
            " files and lose their older units. A broker that serves clients from RocksDB"
            " (combineCQPreferCQType) then has only newer messages"
        )
    parted = _named(start.parted)
    if parted:
        yield (
            f"RocksDB gives the queue offsets; queues that end elsewhere in files{parted}: their next"
            " messages get no unit in files, or one at another place"
        )
    assert start.dispatch is not None
    unread = {
        (str(each.path), each.physical_offset)
        for folder in start.dispatch.folders()
        for each in folder.unread
    }
    if unread:
        path, offset = min(unread, key=str)
        places = "a block" if len(unread) == 1 else f"{len(unread)} blocks"
        yield (
            f"{places} of the units in RocksDB cannot be read, the first in"
            f" {start.world.layout.relative(Path(path))} at {offset}: RocksDB notices it only when it reads"
            " them, so the broker starts, and does not serve the units there"
        )
    noted, first = start.queue_end, start.loaded.log[start.first].file_from_offset
    if max(noted, 0) < first and start.combines:
        yield (
            f"a side ends at {max(noted, 0)}, but the log is read from {first} on: records between them get"
            " no unit there"
        )
    elif noted < first and not start.combines:
        most = start.world.settings.files_back
        yield (
            f"the noted end of dispatch is {noted}, and at most {most} files are read: records before {first}"
            " get no unit"
        )
    if not start.world.abort and start.not_after_noted:
        yield (
            f"after a clean stop only records after the noted end of dispatch, {noted}, are dispatched: the"
            " record there gets no unit" + (" on a side that lacks it" if start.combines else "")
        )


def _notes_on_kept_ends(start: BrokerStart) -> Iterator[str]:
    """Queues in RocksDB of a store without log files. Source: RocksDBConsumeQueueStore#destroy."""
    assert start.dispatch is not None
    kept = _named(
        key
        for folder in start.dispatch.folders()
        for key, state in folder.states.items()
        if getattr(state, "top", 0)
    )
    if kept:
        yield (
            f"queues in RocksDB that lose all units{kept}: their next messages get the queue offsets after"
            " the old ends, which the broker has in memory. If it stops before such a message arrives, the"
            " queue begins at 0, and groups that had consumed more receive nothing until it is as long as"
            " before"
        )


def _notes_on_ends(start: BrokerStart, queues: Mapping[QueueKey, QueuePrediction]) -> Iterator[str]:
    """Queues in RocksDB that consumers, or next messages, do not find as units and log say.

    A broker sends a consumer that asks for a missing unit to RocksDBConsumeQueue#rollNextFile, which is 0.
    Source: DefaultMessageStore#getMessage, RocksDBConsumeQueue#assignQueueOffset.
    """
    assert start.dispatch is not None
    served = start.folders(served=True)
    with_gaps = _named(key for each in served for key, state in each.states.items() if len(state.served) > 1)
    if with_gaps:
        yield (
            f"queues in RocksDB that lack units between others{with_gaps}: a consumer that comes to such a"
            " gap begins again at the start of the queue, and never passes it"
        )
    stale = _named(key for each in served for key in each.stale)
    if stale:
        yield (
            f"queues in RocksDB that keep units of lost records{stale}: their consumers get the bytes that"
            " new messages put there"
        )
    used = _named(
        key
        for key, each in queues.items()
        if 0 < each.max_after < (0 if each.log_max is None else each.log_max)
    )
    settings = start.world.settings
    assigns = not start.combines or settings.serves_from_rocksdb == settings.assigns_from_rocksdb
    if used and assigns:  # else another side gives the queue offsets than serves
        yield f"queues whose next messages get queue offsets that messages in the log have{used}"
    racing = _named(key for each in start.dispatch.folders() for key in each.racing)
    if racing:
        yield (
            f"queues in RocksDB that may keep the ends of lost records{racing}: that depends on which thread"
            " of the broker is faster"
        )
