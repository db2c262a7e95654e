"""Predicts the effect of a start of broker 4.9, 5.3 or 5.4 on a store, without changing a byte.

    from rmqtool.read.store import Store
    from rmqtool.broker.predict import predict_all

    with Store.open(path) as store:
        for prediction in predict_all(store):
            print(prediction.row())

The log is scanned once for all brokers. The differences between versions are one table, `rules.RULES`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rmqtool.broker.config import loaded_config
from rmqtool.broker.prediction import IndexPrediction, OffsetBeyond, Prediction, QueuePrediction
from rmqtool.broker.rules import DEFAULT_HEAP_BYTES, StartRules, StartSettings, rules_of
from rmqtool.errors import UnreadableError, UnsupportedStoreError, UsageError
from rmqtool.formats import checkpoint as checkpoint_format
from rmqtool.formats import config_json
from rmqtool.formats.versions import BROKERS, Broker
from rmqtool.read.store import Store
from rmqtool.storage.config_files import TOPICS
from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.open_files import OpenFiles, read_head

if TYPE_CHECKING:
    from rmqtool.broker.load import QueueKey
    from rmqtool.broker.log_scan import Event as LogEvent
    from rmqtool.broker.queue_reader import QueueReader
    from rmqtool.broker.queues import QueueState
    from rmqtool.broker.start import BrokerStart, StartInputs
    from rmqtool.log.scan_cache import ScanCache

__all__ = [
    "BROKERS", "DEFAULT_HEAP_BYTES", "Broker", "IndexPrediction", "OffsetBeyond", "Prediction",
    "QueuePrediction", "StartRules", "StartSettings", "predict", "predict_all", "rules_of",
]  # fmt: skip

NOT_PREDICTED = "its effect on the DLedger log, and on queues and index because of the log, is not predicted"
"""Of a start that does not fail before it reads a DLedger log."""
_PARTS = frozenset({"commitlog", "consumequeue", "batchconsumequeue", "index", "checkpoint"})


def predict(
    store: Store,
    broker: Broker,
    *,
    abort: bool | None = None,
    settings: StartSettings | None = None,
    unreachable: bool = True,
) -> Prediction:
    """Predict the start of one broker; see `predict_all`."""
    return predict_all(store, (broker,), abort=abort, settings=settings, unreachable=unreachable)[0]


def predict_all(
    store: Store,
    brokers: Sequence[str] = BROKERS,
    *,
    abort: bool | None = None,
    settings: StartSettings | None = None,
    keep_cache: bool = False,
    index_slots: bool = False,
    unreachable: bool = True,
    sound: ScanCache | None = None,
    progress: Callable[[int], None] | None = None,
    scan_limit: int | None = None,
) -> list[Prediction]:
    """Predict what the start of each of these brokers would do to the store as it is.

    Of a store with a DLedger log only starts that fail before they read it: see `NOT_PREDICTED`.

    Args:
        store: a store root, opened for reading.
        brokers: 4.9, 5.3, 5.4. Those that do not read queues in RocksDB are left out if the queues are there.
        abort: whether the abort file exists; None: as in the store.
        settings: of the broker; None: from broker.conf, else the defaults.
        keep_cache: leave the read pages in the page cache.
        index_slots: also count the used slots of changed index files; this costs more than everything else.
        unreachable: count the messages of which their queue has no unit afterwards. This scans the whole log;
            without it, only the part that a broker reads is scanned.
        sound: cached scans of log files, from salvage.
        progress: called with the bytes of the log just scanned.
        scan_limit: starts for which more bytes of the log must be scanned are left out (see `log_bytes`);
            None: none is.

    Raises:
        UsageError: a broker that is not modelled, or not a store root.
        UnsupportedStoreError: none of the brokers reads the queues where they are.
        UnreadableError: a file cannot be read.
    """
    from rmqtool.broker import log_scan
    from rmqtool.broker.load import reads_queues
    from rmqtool.broker.start import StartInputs

    layout = store.layout
    if layout.kind != "store" or layout.root is None:
        raise UsageError("a start can be predicted only for a whole store; give its root")
    layout.check_forms(log=True)
    rules = [rules_of(broker) for broker in brokers]
    settings = settings or StartSettings.of(layout.broker_conf)
    readers = [each for each in rules if reads_queues(layout, each, settings)]
    if not readers:
        names = " and ".join(each.profile.name for each in rules)
        raise UnsupportedStoreError(
            f"the consume queues are in RocksDB, where {names} with these settings cannot read them",
            path=layout.root,
        )
    has_abort = layout.abort is not None if abort is None else abort
    for path, reason in layout.unreadable:
        if layout.relative(path).partition("/")[0] in _PARTS or path.parent in layout.commit_log_folders:
            raise UnreadableError(f"cannot read: {reason}", path=path)
    try:
        with OpenFiles() as open_files:
            checkpoint, is_batch_topic = _checkpoint(layout), _batch_topics(layout)
            world = StartInputs(
                layout, open_files, checkpoint, is_batch_topic, has_abort, settings, index_slots, unreachable
            )
            if layout.ledger is not None:
                return _failing(world, readers)
            walk = partial(log_scan.scan, sound=sound, keep_cache=keep_cache, progress=progress)
            return _predict(world, readers, store.profile.searches_min_offset, walk, scan_limit)
    except OSError as error:
        if isinstance(error, UnreadableError):
            raise
        path = error.filename or layout.root
        raise UnreadableError(f"cannot read: {error.strerror}", path=Path(os.fsdecode(path))) from error


def brokers_of(store: Store) -> tuple[Broker, ...]:
    """The brokers that read the queues of the store where they are. Raises UsageError as StartSettings.of."""
    from rmqtool.broker.load import reads_queues

    settings = StartSettings.of(store.layout.broker_conf)
    return tuple(each for each in BROKERS if reads_queues(store.layout, rules_of(each), settings))


def load_failures(store: Store, brokers: Sequence[Broker]) -> dict[Broker, tuple[str, Path | None] | None]:
    """Why load() of each broker fails, and on which path, from names and sizes of files; None if it does not.

    load() may also fail on the content of extension files, which is not read here. Raises as `predict_all`.
    """
    from rmqtool.broker.load import load

    layout = store.layout
    is_batch_topic, settings = _batch_topics(layout), StartSettings.of(layout.broker_conf)
    found = {broker: load(layout, rules_of(broker), is_batch_topic, settings) for broker in brokers}
    return {
        broker: None if loaded.error is None else (loaded.error, loaded.path)
        for broker, loaded in found.items()
    }


def log_bytes(files: Sequence[StoreFile], start: int) -> int:
    """The bytes from the physical offset `start` to the end of a log; of its last file without holes."""
    whole = sum(min(file.size, max(file.end - start, 0)) for file in files[:-1])
    return whole + sum(file.allocated_bytes for file in files[-1:])


def _predict(
    world: StartInputs,
    rules: Sequence[StartRules],
    searches: bool,
    walk: Callable[..., Iterator[tuple[int, LogEvent]]],
    scan_limit: int | None,
) -> list[Prediction]:
    from rmqtool.broker.prediction import prediction_of
    from rmqtool.broker.queue_reader import QueueReader
    from rmqtool.broker.start import BrokerStart

    starts = [BrokerStart(world, each) for each in rules]
    running = [start for start in starts if start.runs]
    reader = QueueReader(world.open_files)
    plain, batch = _recovered(reader, running, world.layout)
    before = _spans(reader, [*plain.values(), *batch.values()], world.layout, searches)
    database = world.layout.rocksdb
    spans = {} if database is None else {key: (each.first, each.end) for key, each in database.queues.items()}
    in_database = {(key, False): span for key, span in spans.items()}
    if world.in_rocksdb:
        before |= in_database
    for start in running:
        start.prepare(plain, batch)
    if scan_limit is not None:
        starts = [start for start in starts if not start.runs or _scan_bytes(start) <= scan_limit]
    running = [start for start in starts if start.runs]
    _scan(running, world.settings, walk)
    for start in running:
        start.finish(reader)
    return [prediction_of(start, before, in_database) for start in starts]


def _scan_bytes(start: BrokerStart) -> int:
    """How much of the log is scanned for a start: to its end, as for all others, which begin elsewhere."""
    log = start.loaded.log
    if not log:
        return 0
    begin = log[0 if start.world.unreachable else start.first].file_from_offset
    if start.rules.dispatches_at_start:  # 4.x dispatches once more, from the end of the queues
        begin = min(begin, max(start.queue_end, 0))
    return log_bytes(log, begin)


def _failing(world: StartInputs, rules: Sequence[StartRules]) -> list[Prediction]:
    """The starts that fail because of the configuration or the files next to the log."""
    from rmqtool.broker.prediction import prediction_of
    from rmqtool.broker.start import BrokerStart

    found = []
    for start in (BrokerStart(world, each) for each in rules):
        start.loaded.recovers = start.runs and not any(each.ends for each in start.unread_config)
        if not start.runs:
            found.append(prediction_of(start, {}, {}))
    return found


def _recovered(
    reader: QueueReader, starts: Sequence[BrokerStart], layout: StoreLayout
) -> tuple[dict[QueueKey, QueueState], dict[QueueKey, QueueState]]:
    """The plain and the batch queues after recovery, which is the same for all brokers."""
    plain: dict[QueueKey, QueueState] = {}
    batch: dict[QueueKey, QueueState] = {}
    for start in starts:
        if not plain:
            for key, files in start.loaded.queues.items():
                size = layout.consume_queue_file_size
                plain[key] = reader.recovered(key, files, is_batch=False, file_size=size)
        if not batch:
            for key, files in start.loaded.batch_queues.items():
                size = layout.batch_queue_file_size
                batch[key] = reader.recovered(key, files, is_batch=True, file_size=size)
    return plain, batch


def _spans(
    reader: QueueReader, states: Sequence[QueueState], layout: StoreLayout, searches: bool
) -> dict[tuple[QueueKey, bool], tuple[int, int]]:
    """(min, max) of the queues as they are now, by queue and whether it is a batch queue."""
    from rmqtool.broker.queue_reader import StartError

    minimum = layout.commit_log[0].file_from_offset if layout.commit_log else -1
    spans = {}
    for state in states:
        now = state.copy()
        try:
            reader.correct_min(now, minimum, searches=searches)
        except StartError:
            pass  # an empty last file: the minimum is unknown, and stays 0
        low, high = now.span()
        key = state.topic, state.queue_id
        spans[key, state.is_batch] = low, max([high, *(reader.end_of(now, file) for file in state.deleted)])
    return spans


def _scan(
    starts: Sequence[BrokerStart],
    settings: StartSettings,
    walk: Callable[..., Iterator[tuple[int, LogEvent]]],
) -> None:
    """Scan the log once, from the first file that any start scans."""
    from rmqtool.broker.log_scan import ahead

    log = starts[0].loaded.log if starts else ()
    if not log:
        return
    first = 0 if starts[0].world.unreachable else min(start.first for start in starts)
    leaders: list[BrokerStart] = []
    led: list[tuple[BrokerStart, BrokerStart]] = []
    for start in starts:
        leader = next((other for other in leaders if start.scans_like(other)), None)
        if leader is None:
            leaders.append(start)
        else:
            leader.lead(start)
            led.append((start, leader))
    for number, event in ahead(walk(log[first:], settings)):
        for start in leaders:
            start.take(first + number, event)
    for start, leader in led:
        start.follow(leader)


def _checkpoint(layout: StoreLayout) -> checkpoint_format.Checkpoint:
    """The checkpoint, padded with zeros: a broker creates a missing one and extends a short one."""
    if layout.checkpoint is None:
        return checkpoint_format.Checkpoint()
    head = read_head(layout.checkpoint, checkpoint_format.CHECKPOINT.size) or b""
    return checkpoint_format.decode(head.ljust(checkpoint_format.CHECKPOINT.size, b"\0"))


def _batch_topics(layout: StoreLayout) -> Callable[[str], bool]:
    """Whether topics.json, or its .bak, gives a topic queue.type=BatchCQ."""
    configs = config_json.topics(loaded_config(layout, TOPICS).document)
    batch = frozenset(name for name, config in configs.items() if config.is_batch)
    return batch.__contains__
