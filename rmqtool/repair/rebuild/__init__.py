"""Rebuilds queues and index from the log: errors are found with arrays, and only wrong files are written.

log_view.py     LogView       the log as it will be after planned changes
survey.py       survey        one pass over it: the required and the present content of queues and index
header_corrections.py  misrouted_records: records whose head names another place in the queues
queue_task.py   queue_tasks   which queues are wrong, and what is written for each
database_task.py  database_task  the same for queues in RocksDB: a new database
index_database_task.py  index_database_task  the same for an index in RocksDB
database_files.py  the files of a database that is replaced, and the actions for it
index_task.py   index_task    the file from which the index is wrong
due_times.py    KeptDues      the delivery times of the old queues, which are kept
kept.py         Kept          compact cache of the pass
stage.py        stage         writes both next to the store, with the writers of `append`
config.py       config_actions  topics.json from the log, config files from their .bak
run.py          plan, rebuild_store   the command

The log is the truth; correct files are not touched. Source: spec 02 sections 3, 5, 15.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.errors import FormatError, RefusedError
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, UNIT_SIZE
from rmqtool.formats.index import ENTRY_SIZE, HEADER_SIZE
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.selection import Selection
from rmqtool.repair.plan import Action
from rmqtool.storage.unsupported import INDEX_IN_ROCKSDB, SIDE_FOLDER, queues_part
from rmqtool.write.options import WriteOptions
from rmqtool.write.topics import TopicTable

if TYPE_CHECKING:
    from rmqtool.check.verify.spans import Key
    from rmqtool.log.scan_cache import ScanCache
    from rmqtool.problems import Finding
    from rmqtool.read.store import Store
    from rmqtool.repair.rebuild.database_task import DatabaseTask
    from rmqtool.repair.rebuild.extension_task import ExtensionTask
    from rmqtool.repair.rebuild.header_corrections import MisroutedRecord
    from rmqtool.repair.rebuild.index_database_task import IndexDatabaseTask
    from rmqtool.repair.rebuild.index_task import IndexTask
    from rmqtool.repair.rebuild.queue_task import QueueTask, Shape, Unmended
    from rmqtool.repair.rebuild.survey import Survey
    from rmqtool.storage.broker_conf import BrokerConf
    from rmqtool.storage.layout import StoreLayout
    from rmqtool.storage.source import RateLimiter

__all__ = ["Rebuild", "config", "header_corrections", "plan_rebuild", "run"]

_PAGE = 4096
_FEW = 3  # a new queue with at most this many records is suspicious


@dataclass(frozen=True)
class Rebuild:
    """The changes of queues and index.

    Attributes:
        actions: replace, create and delete, in the order of their paths.
        build: builds the files of replace and create in the given staging folder; the changes of the log
            must be done by then.
        tasks: the queues that are rebuilt.
        index: the task for the index; None: it stays.
        database: the task for queues in RocksDB; None: there are none, or they stay.
        index_database: the task for an index in RocksDB; None: there is none, or it stays.
        unmended: parts that are wrong and stay so, with the reason.
        misrouted: records that name another queue or queue offset than their own; these queues stay.
        renumbered: records that state a wrong queue offset; their unit is written at the correct one.
        warnings: warnings about the result, as texts.
        guessed_sizes: folders in which files get the default size, as no file shows another.
        damage: what is wrong with a DLedger log, and stays.
        log_errors: the damaged places of another log, which stay too: units and entries of their messages do.
        unreadable: the files of the log that could not be read in full; empty if all could.
        deleted: queues without files, of topics missing in topics.json: they are not created.
        beyond: units past the end of the log that the rebuilt queues lack, the last sign of lost messages.
        queue_ends: (first queue offset with a record in the log, end) of all queues, afterwards.
        batch_topics: topics whose queues are batch queues.
        light: the light queues that records of the log name.
        multi_tags: topics whose messages say that their topic has several tags (MULTI_TAG).
        messages: how many the log has, by topic.
        log_end: physical offset after the newest record; -1 if none.
        last_store_timestamp: store time of the newest record, ms; 0 if none.
        index_timestamp: end_timestamp of the newest full index file afterwards, ms; 0 if none.
    """

    actions: tuple[Action, ...]
    build: Callable[[Path], None]
    tasks: tuple[QueueTask, ...] = ()
    index: IndexTask | None = None
    database: DatabaseTask | None = None
    index_database: IndexDatabaseTask | None = None
    unmended: tuple[Unmended, ...] = ()
    misrouted: tuple[MisroutedRecord, ...] = ()
    renumbered: tuple[MisroutedRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    guessed_sizes: tuple[str, ...] = ()
    damage: tuple[Finding, ...] = ()
    log_errors: int = 0
    unreadable: str = ""
    deleted: tuple[Key, ...] = ()
    beyond: int = 0
    queue_ends: dict[Key, tuple[int, int]] = field(default_factory=dict)
    batch_topics: frozenset[str] = frozenset()
    light: frozenset[Key] = frozenset()
    multi_tags: frozenset[str] = frozenset()
    messages: dict[str, int] = field(default_factory=dict)
    log_end: int = -1
    last_store_timestamp: int = 0
    index_timestamp: int = 0

    def check_tools(self) -> None:
        """Raise InputError if a library that `build` needs is not installed."""
        if self.database is not None or self.index_database is not None:
            from rmqtool.storage.rocksdb.writer import library

            library()


def plan_rebuild(
    store: Store,
    *,
    log_actions: Sequence[Action] | None = None,
    selection: Selection | None = None,
    queues: bool = True,
    index: bool = True,
    strays: bool = False,
    sound: ScanCache | None = None,
    jobs: int = 0,
    keep_cache: bool = False,
    limiter: RateLimiter | None = None,
    progress: Callable[[int], None] | None = None,
) -> Rebuild:
    """Find wrong queues and index files, and plan how to rebuild them.

    Nothing is changed. A file is wrong if `verify` reports it, or if it lags behind the log, so that a
    broker's start would still dispatch records into it.

    Args:
        store: the store.
        log_actions: all changes of the commit log, which are applied first. None: the log was not checked for
            damage, so queues that have lost records in it are left to a later recovery.
        selection: topics and queue ids; others stay as they are. A queue of a topic that is missing in
            topics.json is created only if its topic is named here, or a broker would create it.
        queues: whether queues are repaired.
        index: whether the index is repaired; never if broker.conf disables it.
        strays: whether entries that are not files or folders of a queue or index are removed.
        sound: cached scans of log files, from salvage.
        jobs: number of threads; 0 for one per processor.
        keep_cache: leave the read pages in the page cache.
        limiter: limits the read rate.
        progress: called with the bytes of the log just read, from any thread.

    Raises:
        RefusedError: single queues of a database are selected.
        UsageError: sizes that a broker cannot use.
    """
    from rmqtool.repair.rebuild.log_view import LogView
    from rmqtool.repair.rebuild.survey import survey

    selection = selection or Selection()
    options, layout, types = write_options(store), store.layout, _types(store)
    is_whole = _is_whole(layout, selection, queues=queues)
    found = survey(
        LogView(layout, log_actions or ()), options,
        batch_topics=[topic for topic, is_batch in types.items() if is_batch],
        index=index and options.index, crashed=layout.abort is not None or layout.guard is not None,
        sound=sound, jobs=jobs, keep_cache=keep_cache, limiter=limiter, progress=progress,
    )  # fmt: skip
    wrong, deleted = _chosen(found, selection)
    is_final = log_actions is not None
    in_files = wrong if queues and layout.has_queues_in_files else {}
    tasks, of_index, unmended = _tasks(found, in_files, is_final=is_final)
    database = None
    if queues and is_whole:
        committed = _committed(store)
        database, left = _database(found, wrong, deleted, tasks, committed, is_final=is_final)
        unmended += left
    index_database, left = _index_database(found)
    unmended += left
    actions = [*_of_queues(found, tasks), *_of_index(found, of_index)]
    if queues:
        actions += _of_wrong_type(found, types, selection)
        unmended += tuple(_left_of_wrong_type(found, types, selection))
    actions += () if database is None else database.actions()
    actions += () if index_database is None else index_database.actions()
    if found.context.zombies_from is not None or not actions:
        found.queues.kept.drop()
    if strays:
        gone = tuple(f"{action.path}/" for action in actions if action.kind == "delete")
        actions += (stray for stray in _of_strays(store) if not stray.path.startswith(gone))
    return _rebuild(found, actions, tasks, of_index, (database, index_database), unmended, deleted)


def _rebuild(
    found: Survey, actions: Iterable[Action], tasks: tuple[QueueTask, ...], index: IndexTask | None,
    databases: tuple[DatabaseTask | None, IndexDatabaseTask | None], unmended: tuple[Unmended, ...],
    deleted: Iterable[Key],
) -> Rebuild:  # fmt: skip
    """The result of a plan."""
    from rmqtool.repair.rebuild.header_corrections import renumbered_records
    from rmqtool.repair.rebuild.queue_task import queue_ends

    database, index_database = databases
    actions = sorted(actions, key=lambda action: action.path)
    guessed = dict(_guessed_sizes(found.view.layout, actions))
    shapes = _shapes(found.view.layout, tasks, database)
    moved = {key: shape.moved for key, shape in shapes.items()}
    ends = queue_ends(found, shapes)
    if database is not None and not found.view.layout.has_queues_in_files:
        others = dict.fromkeys(ends.keys() - shapes.keys(), 0) | database.kept_ends
        ends |= {key: (end, end) for key, end in others.items()}
    due_times = found.queues.dues.warnings(shapes, found.delay_levels)
    return Rebuild(
        actions=tuple(actions),
        build=_builder(found, tasks, index, databases),
        tasks=tasks,
        index=index,
        database=database,
        index_database=index_database,
        unmended=unmended,
        misrouted=found.misrouted,
        renumbered=tuple(renumbered_records(found.context, moved)),
        warnings=(
            *_warnings(found, tasks),
            *_lost_with_index(found, index_database),
            *_warnings_on_database(database),
            *guessed.values(),
            *due_times,
        ),
        guessed_sizes=tuple(guessed),
        damage=found.damage,
        log_errors=found.log_errors,
        unreadable=found.unreadable,
        deleted=tuple(deleted),
        beyond=_beyond(found, tasks),
        queue_ends=ends,
        batch_topics=found.batch_topics,
        light=frozenset(found.queues.light),
        multi_tags=frozenset(found.queues.multi_tags),
        messages=found.context.topics,
        log_end=found.context.log_end,
        last_store_timestamp=found.context.last_store_timestamp,
        index_timestamp=_index_timestamp(found, index),
    )


def _tasks(
    found: Survey, wrong: dict[Key, list[str]], *, is_final: bool
) -> tuple[tuple[QueueTask, ...], IndexTask | None, tuple[Unmended, ...]]:
    """The tasks for queues and index, and the parts that cannot be repaired."""
    from rmqtool.repair.rebuild.index_task import index_task
    from rmqtool.repair.rebuild.queue_task import QueueTask, Unmended, queue_tasks

    items = list(queue_tasks(found, wrong, is_final=is_final))
    index = index_task(found)
    tasks = tuple(item for item in items if isinstance(item, QueueTask))
    unmended = [item for item in items if isinstance(item, Unmended)]
    reason = _unreadable_log(found)
    if reason is None:
        return tasks, index, tuple(unmended)
    if found.unreadable:
        unmended += (Unmended(task.folder, task.problems, reason, *task.key) for task in tasks)
        tasks = ()
    if index is not None:
        unmended.append(Unmended("index", index.problems, reason))
    return tasks, None, tuple(unmended)


def _database(
    found: Survey,
    wrong: dict[Key, list[str]],
    deleted: Sequence[Key],
    in_files: Sequence[QueueTask],
    committed: Mapping[Key, int],
    *,
    is_final: bool,
) -> tuple[DatabaseTask | None, tuple[Unmended, ...]]:
    """The task for queues in RocksDB, and the reason if they cannot be repaired; nothing without any."""
    from rmqtool.repair.rebuild.database_task import database_task
    from rmqtool.repair.rebuild.queue_task import Unmended

    if queues_part(found.view.layout.not_written) is None:
        return None, ()
    of_queues = {} if found.view.layout.has_queues_in_files else wrong
    # What is written twice changes twice.
    codes = [code for codes in of_queues.values() for code in codes] or (["RD05"] if in_files else [])
    task = database_task(found, codes, deleted, committed, is_final=is_final)
    if task is None or isinstance(task, Unmended):
        return None, () if task is None else (task,)
    reason = _unreadable_log(found)
    return (task, ()) if reason is None else (None, (Unmended("consumequeue", task.problems, reason),))


def _committed(store: Store) -> dict[Key, int]:
    """The largest committed offset of each queue, if nothing else shows where queues in RocksDB ended."""
    from rmqtool.read.consumer_offsets import known_offsets

    layout = store.layout
    if layout.has_queues_in_files or layout.rocksdb is not None:
        return {}
    largest: dict[Key, int] = {}
    for (topic, _), offsets in known_offsets(store)[0].items():
        for queue_id, offset in offsets.items():
            largest[topic, queue_id] = max(largest.get((topic, queue_id), 0), offset)
    return largest


def _index_database(found: Survey) -> tuple[IndexDatabaseTask | None, tuple[Unmended, ...]]:
    """The task for an index in RocksDB, and the reason if it cannot be repaired; nothing without one."""
    from rmqtool.repair.rebuild.index_database_task import index_database_task
    from rmqtool.repair.rebuild.queue_task import Unmended

    task = index_database_task(found)
    if task is None or isinstance(task, Unmended):
        return None, () if task is None else (task,)
    reason = _unreadable_log(found)
    return (task, ()) if reason is None else (None, (Unmended(SIDE_FOLDER, task.problems, reason),))


def _is_whole(layout: StoreLayout, selection: Selection, *, queues: bool) -> bool:
    """Whether all queues are selected. Raises RefusedError for single queues of a database."""
    is_whole = not selection.topics and not selection.queues
    if queues and not is_whole and not layout.has_queues_in_files:
        raise RefusedError(
            "the consume queues are in RocksDB, in one database that is rebuilt as a whole",
            path=layout.root, hint="leave out --topic and --queue",
        )  # fmt: skip
    return is_whole


def _shapes(
    layout: StoreLayout, tasks: Sequence[QueueTask], database: DatabaseTask | None
) -> dict[Key, Shape]:
    """The content of the rebuilt queues; of queues that are written twice, of those in files."""
    shapes = {task.key: task.shape for task in tasks}
    return shapes if database is None or layout.has_queues_in_files else shapes | database.shapes


def _unreadable_log(found: Survey) -> str | None:
    """Why nothing can be built from the log now; None if it can."""
    from rmqtool.repair.rebuild.header_corrections import MISROUTED

    if found.unreadable:
        return f"the commit log cannot be read in full: {found.unreadable}"
    if found.context.zombies_from is not None:
        return found.waits("records of an older log follow the log's end")
    return found.waits(MISROUTED) if found.misrouted else None


def write_options(store: Store) -> WriteOptions:
    """The options for writing the queues and the index of a store. Raises UsageError for impossible sizes.

    Without a broker.conf, light queues are written if a record contains offsets of light queues, because
    only a broker that serves them writes such a record (spec 02 5.3). The delays are those of the survey.
    """
    layout, conf = store.layout, store.layout.broker_conf
    options: dict[str, Any] = {
        "profile": store.profile,
        "commit_log_file_size": layout.commit_log_file_size,
        "consume_queue_file_size": layout.consume_queue_file_size,
        "batch_queue_file_size": layout.batch_queue_file_size,
        "ext_queues": layout.writes_extensions,
        "ext_queue_file_size": layout.ext_queue_file_size,
        "index_slots": layout.index_slots,
        "index_entries": layout.index_entries,
        "multi_dispatch": True,
    }
    if conf is not None:
        options["index"] = conf.flag("messageIndexEnable", default=True)
        if conf.text("enableMultiDispatch") is not None or conf.text("enableLmq") is not None:
            options["multi_dispatch"] = conf.flag("enableMultiDispatch") or conf.flag("enableLmq")
    return WriteOptions(**options)


def _types(store: Store) -> dict[str, bool]:
    """Whether the queues of each topic of topics.json are batch queues.

    It is empty if the file cannot be parsed, or the queues are in RocksDB only.
    """
    root = store.layout.root
    if root is None or not store.layout.has_queues_in_files:
        return {}
    try:
        table = TopicTable.load(root, store.profile)
    except FormatError:
        return {}
    return {topic: table.is_batch(topic) for topic in table.topics}


def _chosen(found: Survey, selection: Selection) -> tuple[dict[Key, list[str]], list[Key]]:
    """(problems of the selected wrong queues, deleted queues that are not created)."""
    from rmqtool.repair.rebuild.queue_task import is_deleted, missing_queues, problems_by_queue

    wrong = problems_by_queue(found, found.findings)
    deleted = []
    for key in missing_queues(found):
        if selection.topics or not is_deleted(found, key):
            wrong.setdefault(key, ["CQ13"])
        else:
            deleted.append(key)
    chosen = {
        key: codes
        for key, codes in wrong.items()
        if selection.matches_topic(key[0]) and (not selection.queues or key[1] in selection.queues)
    }
    return chosen, deleted


def _builder(
    found: Survey, tasks: Sequence[QueueTask], index: IndexTask | None,
    databases: tuple[DatabaseTask | None, IndexDatabaseTask | None],
) -> Callable[[Path], None]:  # fmt: skip
    database, index_database = databases

    def build(staging: Path) -> None:
        from rmqtool.repair.rebuild.stage import stage

        spans = found.queues.spans.queues
        starts = [spans[task.key].first_physical for task in tasks if task.key in spans]
        if index is not None:
            starts.append(index.start)
        if database is not None:
            starts.append(found.context.log_start)
        stage(
            staging, found.options, found.view.layout, tasks, index, start=min(starts, default=found.end),
            end=found.end, batch_topics=found.batch_topics, kept=found.queues.kept, bits=found.queues.bits,
            spans=spans, database=database,
        )  # fmt: skip
        if index_database is not None:
            index_database.build(staging / SIDE_FOLDER, found.view.layout)

    return build


def _warnings(found: Survey, tasks: Sequence[QueueTask]) -> Iterator[str]:
    yield from _gap_warnings(found, tasks)
    for task in tasks:
        queues = found.view.layout.batch_queues if task.is_batch else found.view.layout.consume_queues
        has_others = any(topic == task.key[0] for topic, _ in queues) and task.key not in queues
        if has_others and 0 < task.shape.count <= _FEW and task.key not in found.queues.light:
            yield (
                f"{task.folder} would hold only {task.shape.count} of the log's records, while other queues"
                " of the topic exist: this may be a damaged queue id, which no CRC covers"
            )


def _beyond(found: Survey, tasks: Sequence[QueueTask]) -> int:
    """The units of the rebuilt queues that point past the end of the log."""
    units = {task.key: BATCH_UNIT_SIZE if task.is_batch else UNIT_SIZE for task in tasks}
    beyond = (item for item in found.findings if item.problem.code == "CQ03")
    return sum(
        (item.length or 0) // units[key]
        for item in beyond
        if (key := (item.detail.get("topic"), item.detail.get("queue_id"))) in units
    )


def _lost_with_index(found: Survey, task: IndexDatabaseTask | None) -> Iterator[str]:
    """A warning about what a lost database held besides the index, which is not in the new one."""
    lost = [
        part.what
        for part in found.view.layout.unsupported
        if part.is_lost and part.path.name == SIDE_FOLDER and part.what not in INDEX_IN_ROCKSDB
    ]
    if task is not None and lost:
        yield f"{SIDE_FOLDER} is missing: its {' and '.join(lost)} are lost, only the index is made again"


def _warnings_on_database(task: DatabaseTask | None) -> Iterator[str]:
    """Warnings about queue offsets in RocksDB: without a message, of several messages, without a unit.

    Source: DefaultMessageStore#getMessage, RocksDBConsumeQueue#rollNextFile.
    """
    if task is None:
        return
    for (topic, queue_id), shape in task.shapes.items():
        for gap in shape.gaps:
            yield (
                f"no message of the log has the {gap.stop - gap.first} queue offsets from {gap.first} on of"
                f" {topic}/{queue_id}: a broker with queues in RocksDB sends a consumer that comes to them"
                f" back to the start of the queue, until its group is set to {gap.stop} (rmqtool"
                " reset-offset)"
            )
        if shape.repeats:
            yield (
                f"messages of {topic}/{queue_id} have queue offsets that earlier ones have, at"
                f" {shape.repeats} places: the first message keeps the queue offset, and no consumer gets the"
                " others"
            )
    if task.committed:
        topic, queue_id = task.committed[0]
        yield (
            f"queues without messages in the log, {len(task.committed)}, for example {topic}/{queue_id}: only"
            " committed offsets show where they ended. Their next messages get the largest of these as queue"
            " offsets, so that no group misses one"
        )


def _guessed_sizes(layout: StoreLayout, actions: Sequence[Action]) -> Iterator[tuple[str, str]]:
    """The folders in which files are created although nothing shows their size, each with a warning.

    A configuration that does not set a size says that it is the default, unless files of the store have
    another size than it implies, or it has a value that a broker ignores.
    """
    from rmqtool.storage.layout import SIZES
    from rmqtool.storage.size_settings import own_settings, sizes_of

    own = own_settings(sizes_of(layout))
    conf = layout.broker_conf
    made = {
        action.path.partition("/")[0] for action in actions if action.kind == "create" and not action.database
    }
    shown = [
        what
        for what, attribute in (("log", "commit_log_file_size"), ("queue", "consume_queue_file_size"))
        if layout.origins[attribute] == "detected" and attribute in own
    ]
    for folder, attributes, size in (
        ("consumequeue", ("consume_queue_file_size",), f"{layout.consume_queue_file_size} bytes"),
        ("batchconsumequeue", ("batch_queue_file_size",), f"{layout.batch_queue_file_size} bytes"),
        ("consumequeue_ext", ("ext_queue_file_size",), f"{layout.ext_queue_file_size} bytes"),
        ("index", ("index_slots", "index_entries"),
         f"{layout.index_slots} slots and {layout.index_entries} entries"),
    ):  # fmt: skip
        unset = [SIZES[each][0] for each in attributes if layout.origins[each] == "default"]
        if folder not in made or not unset:
            continue
        ignored = [why for why in map(conf.why_ignored, unset) if why] if conf is not None else []
        if conf is not None and not shown and not ignored:
            continue
        effect = "loads them, but finds no key in them" if folder == "index" else "does not start with them"
        fields = " and ".join(f"sizes.{attribute}.value" for attribute in attributes)
        settings = " and ".join(SIZES[attribute][0] for attribute in attributes)
        text = (
            f"files of {folder} get the default size of {size}, a guess: a broker with another size {effect}."
            f"{_why_wrong(shown, conf, unset, ignored)} Name its broker.conf with --broker-conf, or a file"
            f" with just {settings} (rmqtool info OTHER --json of a broker with the same settings shows them"
            f" as {fields})"
        )
        yield folder, text


def _why_wrong(
    shown: Sequence[str], conf: BrokerConf | None, unset: Sequence[str], ignored: Sequence[str]
) -> str:
    """Sentences, each after a space: what the configuration lacks, and what shows that the default is wrong.

    Args:
        shown: which files of the store do not have the default size.
        conf: the configuration, if one was named.
        unset: the settings that it lacks.
        ignored: where it has them with values that a broker ignores.
    """
    others = " and ".join(shown)
    if conf is None:
        hint = f" The {others} files here do not have the default size, so it is probably wrong."
        return hint if shown else ""
    text = f" {'; '.join(ignored)}." if ignored else ""
    if len(ignored) < len(unset):
        text += f" {conf.path} does not set {' and '.join(unset)}."
    if shown:
        text += (
            f" The {others} files here do not have the default size, and it does not say so: it is probably"
            " not the file of this broker."
        )
    return text


def _gap_warnings(found: Survey, tasks: Sequence[QueueTask]) -> Iterator[str]:
    """Warnings about gaps whose filler does harm: brokers skip later messages in the log's first file.

    A broker reads the filler as an unreadable message at offset 0, and continues in the next file
    (spec 03; CommitLog#getMessage, DefaultMessageStore#getMessage).
    """
    log = found.view.layout.commit_log
    for task in tasks:
        for gap in task.shape.gaps:
            if log and not log[0].file_from_offset and gap.physical_offset < log[0].size:
                yield (
                    f"{task.folder} gets fillers for {gap.stop - gap.first} queue offsets from {gap.first},"
                    " which no message of the log has: while the log starts at 0, a broker that reads them"
                    " skips later messages"
                )


def _of_queues(found: Survey, tasks: Sequence[QueueTask]) -> Iterator[Action]:
    from rmqtool.problems import BY_CODE

    options = found.options
    for task in tasks:
        size = options.batch_queue_file_size if task.is_batch else options.consume_queue_file_size
        unit = BATCH_UNIT_SIZE if task.is_batch else UNIT_SIZE
        count = task.shape.count if task.is_batch else task.shape.end
        names = ", ".join(BY_CODE[code].name for code in task.problems)
        for file in task.files:
            used = min(max(count * unit - file.file_from_offset, 0), size)
            yield Action(
                "create" if file.old is None else "replace",
                f"{task.folder}/{file.file_from_offset:020}", 0, size,
                f"the queue is rebuilt from the log: {names}", task.problems[0],
                {"topic": task.key[0], "queue_id": task.key[1], "units": used // unit, "data_bytes": used},
                mtime_ns=file.mtime_ns if file.old is None else None,
            )  # fmt: skip
        texts = ", ".join(BY_CODE[code].message for code in task.problems)
        for old in task.dropped:
            where = "ends before" if old.file_from_offset >= count * unit else "begins after"
            yield Action(
                "delete", f"{task.folder}/{old.path.name}", 0, old.size,
                f"the queue {where} this file: {texts}", task.problems[0],
                {"topic": task.key[0], "queue_id": task.key[1]},
            )  # fmt: skip
        if task.extension is not None:
            yield from _of_extension(task, task.extension, options.ext_queue_file_size, names)


def _of_extension(task: QueueTask, extension: ExtensionTask, size: int, names: str) -> Iterator[Action]:
    place = {"topic": task.key[0], "queue_id": task.key[1]}
    for file in extension.files:
        yield Action(
            "create" if file.old is None else "replace",
            f"{extension.folder}/{file.file_from_offset:020}", 0, size,
            f"its queue is rebuilt from the log: {names}", task.problems[0],
            {**place, "data_bytes": file.used},
        )  # fmt: skip
    for old in extension.dropped:
        yield Action(
            "delete", f"{extension.folder}/{old.path.name}", 0, old.size,
            "no unit of the queue refers to this extension file", task.problems[0], place,
        )  # fmt: skip


def _of_index(found: Survey, task: IndexTask | None) -> Iterator[Action]:
    from rmqtool.problems import BY_CODE

    if task is None:
        return
    shape, left = found.options.index_shape, task.keys
    names = ", ".join(BY_CODE[code].name for code in task.problems)
    old = {file.path.name: file for file in task.dropped}
    for name in task.names:
        keys = min(left, shape.entries - 1)
        left -= keys
        used = HEADER_SIZE + min(shape.slot_offset(shape.slots), keys * _PAGE) + keys * ENTRY_SIZE
        yield Action(
            "replace" if name in old else "create", f"index/{name}", 0, shape.size,
            f"the index is rebuilt from the log: {names}", task.problems[0],
            {"entries": keys, "data_bytes": min(used, shape.size)},
        )  # fmt: skip
    for name, file in old.items():
        if name not in task.names:
            yield Action(
                "delete", f"index/{name}", 0, file.size,
                f"the index that is rebuilt has no such file: {names}", task.problems[0],
            )  # fmt: skip


def _of_wrong_type(found: Survey, types: Mapping[str, bool], selection: Selection) -> Iterator[Action]:
    """Deletions of queues of the other type, with which 5.x does not start.

    These are the plain queues of batch topics, and folders of batch queues without any file next to plain
    queues. A topic keeps its plain queues if topics.json has it and does not say that it is a batch topic,
    even if a record of the log says so.

    Source: ConsumeQueueStore#queueTypeShouldBe.
    """
    from rmqtool.repair.rebuild.config import can_write_topics

    layout = found.view.layout
    if not layout.has_queues_in_files or not found.options.profile.has_inner_batch:
        return
    is_made, of_batches = can_write_topics(layout), found.batch_topics
    for queues, is_wrong, type_text in (
        (layout.consume_queues, lambda topic: topic in of_batches and types.get(topic, is_made), "batch"),
        (layout.batch_queues, lambda topic: topic not in of_batches and not types.get(topic), "plain"),
    ):
        folders = {topic: queue.folder.parent for (topic, _), queue in queues.items()}
        for topic in sorted(filter(is_wrong, folders)):
            if selection.matches_topic(topic):
                yield Action(
                    "delete", layout.relative(folders[topic]), 0, 0,
                    f"the topic has {type_text} queues, which are in another folder", "CQ18",
                    {"topic": topic},
                )  # fmt: skip


def _left_of_wrong_type(found: Survey, types: Mapping[str, bool], selection: Selection) -> Iterator[Unmended]:
    """The batch queues of topics that are not batch topics by topics.json; recover adds those that it lacks.

    Which of both is right, the folder or the file, nothing shows for sure.
    """
    from rmqtool.repair.rebuild.config import can_write_topics
    from rmqtool.repair.rebuild.queue_task import Unmended

    layout = found.view.layout
    if not found.options.profile.has_inner_batch:
        return
    folders = {topic: queue.folder.parent for (topic, _), queue in layout.batch_queues.items()}
    for topic, folder in sorted(folders.items()):
        if topic not in found.batch_topics or types.get(topic, can_write_topics(layout)):
            continue
        if selection.matches_topic(topic):
            yield Unmended(
                layout.relative(folder), ("CQ18",),
                "by config/topics.json the topic has no batch queues, so a 5.x broker does not start. While"
                f" the broker is stopped, set queue.type of {topic} to BatchCQ there", topic,
            )  # fmt: skip


def _of_strays(store: Store) -> Iterator[Action]:
    layout = store.layout
    queues = (*layout.unit_queues, *layout.ext_queues.values())
    of_queues = [*layout.consume_queue_strays, *layout.batch_queue_strays]
    of_queues += (stray for queue in queues for stray in queue.strays)
    for code, part, strays in (("CQ11", "queue", of_queues), ("IX07", "index", layout.index_strays)):
        for stray in strays:
            size = stray.lstat().st_size if stray.is_file() and not stray.is_symlink() else 0
            yield Action(
                "delete", layout.relative(stray), 0, size, f"it is neither a {part} file nor a folder", code
            )


def _index_timestamp(found: Survey, task: IndexTask | None) -> int:
    """The end_timestamp of the newest full index file afterwards, ms; 0 if none."""
    if found.index is None:
        return 0
    gone = {file.path for file in task.dropped} if task is not None else set()
    places = found.options.index_entries
    full = [file for file in found.index.files if file.stop >= places and file.file.path not in gone]
    return max([file.end_timestamp for file in full] + [task.full_timestamp if task is not None else 0])
