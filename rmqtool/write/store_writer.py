"""A store that is open for writing.

    from rmqtool import NewMessage, StoreWriter

    with StoreWriter.create("/data/store", profile="5.4", auto_create_queues=4) as store:
        result = store.put(NewMessage("TopicTest", b"hello", tags="TagA", keys=["order-1"]))

Queues and index follow the log in the background, as in a broker. The commit log is flushed to the device in
the background (`TimedFlush`), or before a put returns (`group_commit`). A clean close flushes everything and
deletes `abort`. Methods may be called from several threads.

Source: DefaultMessageStore, CommitLog#asyncPutMessage, #asyncPutMessages; spec 01 10, 11, spec 02 6.
CommitLog.FlushRealTimeService, CommitRealTimeService; spec 01 section 11.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Lock, RLock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from rmqtool.errors import RmqtoolError, UnwritableError, UsageError
from rmqtool.formats.message import TRANSACTION_COMMIT
from rmqtool.formats.versions import NEWEST
from rmqtool.read.store import Store
from rmqtool.storage.broker_conf import BrokerConf
from rmqtool.storage.locate import writable
from rmqtool.storage.profile import profile_named
from rmqtool.write import opening
from rmqtool.write.dispatcher import Dispatcher
from rmqtool.write.fast_path import FastPath
from rmqtool.write.group_commit import GroupCommit
from rmqtool.write.log_writer import LogWriter
from rmqtool.write.options import WriteOptions
from rmqtool.write.put_result import PutResult, PutResults
from rmqtool.write.queue_offsets import QueueOffsets
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.prepare import EncodedRecord, pack, prepare, prepare_batch, with_offsets
from rmqtool.write.records.property_map import waits
from rmqtool.write.records.wrong_values import FAILURES, explained, raise_explained
from rmqtool.write.reput import Reput
from rmqtool.write.state import StateFiles, hint_begun, hint_unclean
from rmqtool.write.targets import Targets
from rmqtool.write.topics import TopicTable

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqtool.write.table.appender import TableResult
    from rmqtool.write.table.many import ManyAppender


_PAGE = 4096
_FEW = 64  # messages: fewer are put faster one by one
_MANY = 1 << 12  # that are stored together


class TimedFlush:
    """The background half of an `async` writer: flushes by dirty pages and time, commits the write buffer.

    A failure stops it; the log is marked as failed by then, so the next append raises it.
    """

    def __init__(self, log: LogWriter, options: WriteOptions) -> None:
        self._log = log
        self._options = options
        self._stop = Event()
        self._thread = Thread(target=self._run, name="flush", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; waits for a flush that is under way. Bytes not flushed by then stay so."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        options, log = self._options, self._log
        flushes = options.flush == "async"
        interval_ms = options.flush_interval_ms
        if options.write_buffer:
            interval_ms = min(interval_ms, options.commit_interval_ms)
        thorough_at = flush_at = time.monotonic()
        try:
            while not self._stop.wait(interval_ms / 1000):
                log.commit()
                now = time.monotonic()
                if not flushes or (now - flush_at) * 1000 < options.flush_interval_ms:
                    continue
                flush_at = now
                pages = log.end // _PAGE - log.flushed // _PAGE
                thorough = (now - thorough_at) * 1000 >= options.flush_thorough_interval_ms
                if pages >= options.flush_least_pages or thorough:
                    log.flush()
                    thorough_at = now if thorough else thorough_at
        except UnwritableError:
            return


_open_writers: WeakSet[StoreWriter] = WeakSet()


def _after_fork() -> None:
    """In a child process: its parent's stores are the parent's alone."""
    for writer in _open_writers:
        writer.disown()


os.register_at_fork(after_in_child=_after_fork)


class StoreWriter:
    """A store whose lock this process holds. Made by `create` and `open`."""

    def __init__(self, opened: opening.Opened, *, auto_create_queues: int = 0) -> None:
        """Make a writer of the state that `opening` found.

        Args:
            opened: the store and its lock.
            auto_create_queues: the number of queues of a topic that a put names first; 0: such a put is an
                error [autoCreateTopicEnable, defaultTopicQueueNums].
        """
        self.root: Path = opened.root
        self.options = opened.options
        self.lock = RLock()  # the put lock
        self._lock_file = opened.lock
        self._save_lock = Lock()
        self.is_closed = False
        self.is_broken = False
        self._waits = opened.options.flush == "sync"
        self._state = StateFiles(opened.root, opened.options.profile)
        with ExitStack() as undo:
            undo.callback(opened.lock.release)
            self.topics = TopicTable.load(opened.root, opened.options.profile)
            self._dispatcher = Dispatcher(
                opened.root, opened.options, opened.store.layout,
                start=opened.dispatched, batch_topics=self.topics.is_batch,
            )  # fmt: skip
            self.recent = self._dispatcher.recent
            self.log = LogWriter(opened.folders, opened.store.layout.commit_log, opened.end, opened.options)
            undo.callback(self.log.abandon)
            self.targets = Targets(self.topics, auto_create_queues, self._first_queue)
            self._reput = Reput(
                self._dispatcher, lambda: self.log.committed, save_topics=self.targets.save,
                save=self._save, interval_ms=opened.options.checkpoint_interval_ms,
            )  # fmt: skip
            self._state.mark_open()
            self._found = self._level(opened)
            undo.callback(self._found.close)
            self.offsets = QueueOffsets(self._found)
            undo.pop_all()
        self._fast_path = FastPath(self, self._reput)
        self._many: ManyAppender | None = None
        self._group_commit = GroupCommit(self.append, self._flush_log, opened.options.sync_flush_timeout_ms)
        self._flusher = TimedFlush(self.log, opened.options)
        _open_writers.add(self)
        self._flusher.start()
        self._reput.start()

    def _first_queue(self, topic: str, count: int) -> int:
        return self.offsets.first_of_turns(topic, count)

    def _level(self, opened: opening.Opened) -> Store:
        """The store with its queues level with its log, from where queue offsets go on."""
        if opened.dispatched == opened.end:
            return opened.store
        self._reput.catch_up()
        opened.store.close()
        return Store.open(self.root, commitlog_paths=opened.store.layout.commit_log_folders)

    @classmethod
    def create(
        cls,
        path: Path | str,
        profile: str = NEWEST,
        *,
        broker_conf: Path | str | BrokerConf | None = None,
        auto_create_queues: int = 0,
        **options: Any,
    ) -> StoreWriter:
        """Make a store in a new or empty folder; see `WriteOptions` and, for errors, `opening.create`."""
        root = writable(path)
        with hint_begun(root):
            found = opening.create(root, profile_named(profile), options, broker_conf=broker_conf)
            writer = cls(found, auto_create_queues=auto_create_queues)
            try:
                writer.log.room()  # makes the first file: the next opening finds its size nowhere else
            except BaseException:
                writer.is_broken = True  # `abort` stays
                with suppress(RmqtoolError):
                    writer.close()
                raise
        return writer

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        profile: str | None = None,
        commitlog_paths: Sequence[Path | str] = (),
        read_only_paths: Sequence[Path | str] = (),
        broker_conf: Path | str | BrokerConf | None = None,
        auto_create_queues: int = 0,
        check: Callable[[WriteOptions], None] | None = None,
        **options: Any,
    ) -> StoreWriter:
        """Open a store that was closed cleanly; see `opening.open_existing` for arguments and errors."""
        found = opening.open_existing(
            writable(path), options, profile=profile, commitlog_paths=commitlog_paths,
            read_only_paths=read_only_paths, broker_conf=broker_conf, check=check,
        )  # fmt: skip
        with hint_unclean(found.root):
            return cls(found, auto_create_queues=auto_create_queues)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # putting

    def put(self, message: NewMessage) -> PutResult:
        """Store one message.

        Returns:
            Where it is. It is on the device when the writer is `sync` and the message waits for that.

        Raises:
            IllegalMessageError: a broker would not take it; nothing is stored.
            RefusedError: its topic or queue may not be written.
            UnwritableError: it could not be written; nothing is stored.
        """
        return self._group_commit.put(message) if self._waits and waits(message) else self.append(message)

    def append(self, message: NewMessage) -> PutResult:
        """Store one message as `put` does, but do not wait for the device. Raises as `put`."""
        try:
            result = self._fast_path.put(message)
            if result is None:
                target = self.targets.of(message)
                prepared = prepare(
                    message, self.options, time.time_ns() // 1_000_000, target.queue_id,
                    batch_topic=target.is_batch, topic_flags=target.sys_flag,
                )  # fmt: skip
        except FAILURES as error:
            raise_explained(error, (message,))
            raise
        if result is not None:
            return result
        self.targets.save_made()
        with self.lock:
            try:
                result = self._append(prepared)
            except BaseException as error:
                self.interrupted(error)
                raise
        self._fast_path.learn(message)
        return result

    def put_batch(self, messages: Sequence[NewMessage]) -> PutResult:
        """Store messages of one topic as one group: in one queue and one file, all or none of them.

        Raises: as `put`; UsageError for no messages.
        """
        if not messages:
            raise UsageError("a batch needs a message")
        with explained(messages):
            target = self.targets.of(messages[0])
            group = prepare_batch(
                messages, self.options, time.time_ns() // 1_000_000, target.queue_id,
                batch_topic=target.is_batch, topic_flags=target.sys_flag,
            )  # fmt: skip
        self.targets.save_made()
        with self.lock:
            try:
                result = self._append_group(group)
            except BaseException as error:
                self.interrupted(error)
                raise
        return self._flushed(result) if self._waits and messages[0].wait else result

    def put_many(self, messages: Iterable[NewMessage]) -> Sequence[PutResult]:
        """Store messages one after the other, as a loop of `put` does, several times as fast.

        Returns:
            The result of each message.

        Raises: as `put`, for the first message that cannot be stored. Those before it are stored; the
            `results` of the error are theirs.
        """
        if not isinstance(messages, list | tuple):
            if not isinstance(messages, Iterable):
                raise UsageError(f"the messages must be a list, not {type(messages).__name__}")
            messages = list(messages)
        results = PutResults()
        try:
            for start in range(0, len(messages), _MANY):
                self._put_some(messages[start : start + _MANY], results)
        except RmqtoolError as error:
            error.results = self._flushed_many(messages, results)
            raise
        return self._flushed_many(messages, results)

    def _put_some(self, messages: Sequence[NewMessage], results: PutResults) -> None:
        if len(messages) >= _FEW:
            with self.lock:
                self.check_writable()
                if self._many is None:
                    from rmqtool.write.table.many import ManyAppender

                    self._many = ManyAppender(self)
                if self._many.append(messages, results):
                    return
        for message in messages:  # `append` says what is wrong with which message
            results.add((self.append(message),))

    def _flushed_many(self, messages: Sequence[NewMessage], results: PutResults) -> PutResults:
        """Bring the messages that wait for the device there; their results."""
        awaited = [waits(message) for message in messages[: len(results)]] if self._waits else []
        if not any(awaited):
            return results
        last = max(place for place, waited in enumerate(awaited) if waited)
        return results.flushed(awaited) if self._flushed(results[last]).flushed else results

    def put_table(self, table: pa.Table | pa.RecordBatchReader | Iterable[pa.RecordBatch]) -> TableResult:
        """Store the rows of Arrow tables or batches; see `table.TableAppender` for the columns.

        Raises: as `put`, with the row's number; the rows before it are stored.
        """
        from rmqtool.write.table.appender import TableAppender

        return TableAppender(self).append(table)

    def _append(self, prepared: EncodedRecord) -> PutResult:
        """Append one record. The caller holds the put lock."""
        self.check_writable()
        topic, queue_id, log = prepared.topic, prepared.queue_id, self.log
        counted = not prepared.transaction_type or prepared.transaction_type == TRANSACTION_COMMIT
        queue_offset = self.offsets.next(topic, queue_id) if counted else 0
        if prepared.late is not None:
            light = [self.offsets.next(*queue) for queue in prepared.light_queues]
            prepared = with_offsets(prepared, queue_offset, light)
        size = prepared.size
        physical_offset = log.place(size)
        stored_at = prepared.store_timestamp
        if stored_at is None:
            stored_at = time.time_ns() // 1_000_000
        log.append(pack(prepared, queue_offset, physical_offset, stored_at), physical_offset)
        log.store_timestamp = stored_at
        if counted:
            self.offsets.advance(topic, queue_id, prepared.count)
            for light_queue in prepared.light_queues:
                self.offsets.advance(*light_queue, 1)
        return PutResult(
            physical_offset, queue_offset, size, topic, queue_id, stored_at,
            (physical_offset,), prepared.store_host, False,
        )  # fmt: skip

    def _append_group(self, group: Sequence[EncodedRecord]) -> PutResult:
        """Append records that stay together. The caller holds the put lock."""
        if len(group) == 1:
            return self._append(group[0])
        self.check_writable()
        first = group[0]
        queue_offset = self.offsets.next(first.topic, first.queue_id)
        size = sum(prepared.size for prepared in group)
        start = position = self.log.place(size)
        stored_at = first.store_timestamp
        if stored_at is None:
            stored_at = time.time_ns() // 1_000_000
        records, places = [], []
        number = queue_offset
        for prepared in group:
            takes = not prepared.transaction_type or prepared.transaction_type == TRANSACTION_COMMIT
            own_time = prepared.store_timestamp
            records.append(
                pack(prepared, number if takes else 0, position, stored_at if own_time is None else own_time)
            )
            places.append(position)
            position += prepared.size
            number += prepared.count if takes else 0
        self.log.append(b"".join(records), start)
        self.log.store_timestamp = stored_at
        self.offsets.advance(first.topic, first.queue_id, number - queue_offset)
        return PutResult(
            start, queue_offset, size, first.topic, first.queue_id, stored_at, tuple(places),
            first.store_host, False,
        )  # fmt: skip

    def _flushed(self, result: PutResult) -> PutResult:
        started = time.monotonic()
        self._flush_log(result.physical_offset + result.size)
        late = (time.monotonic() - started) * 1000 > self.options.sync_flush_timeout_ms
        return result if late else result._replace(flushed=True)

    def _flush_log(self, end: int | None = None) -> None:
        """Bring topics and log to the device, up to `end` or all of it. Raises UnwritableError."""
        self.targets.save()
        self.log.flush(end)

    def disown(self) -> None:
        """Mark the store closed without writing; another process owns it now."""
        self.is_closed = True
        self._waits = False  # its threads, which may have been at a flush, are not in a forked child
        self._lock_file.release()  # this process's copy; the other one still holds it

    def interrupted(self, error: BaseException) -> None:
        """Note what ended an append in the middle; the caller holds the put lock.

        An error of rmqtool's leaves everything as it was. After any other (a signal's exception) log and
        queue offsets may not fit together: nothing more is put, and the store is left as after a crash.
        """
        if not isinstance(error, RmqtoolError):
            self.is_broken = True

    def check_writable(self) -> None:
        """Raises UnwritableError after a failure or an interruption, UsageError when closed."""
        if self.is_closed:
            raise UsageError("the store is closed")
        if self.is_broken:
            raise UnwritableError("a put was interrupted in the middle", path=self.root,
                                  hint="close the store: it is left as after a crash")  # fmt: skip
        if self._reput.error is not None:
            raise self._reput.error

    def appended(self, store_timestamp: int) -> None:
        """Note the store time of records that `log` was given by another module, after the append."""
        self.log.store_timestamp = store_timestamp

    # state

    def dispatch(self) -> int:
        """Bring queues and index level with the log; the physical offset reached. Raises UnwritableError."""
        if self.is_closed:
            raise UsageError("the store is closed")
        self.log.commit()
        return self._reput.catch_up().position

    def flush(self) -> int:
        """Bring log, queues, index, topics and checkpoint to the device; the physical offset reached.

        Raises:
            UnwritableError: the device refused.
        """
        self.check_writable()
        self._save()
        return self.log.flushed

    def read(self) -> Store:
        """The store as it is now, queues and index level with the log, opened for reading."""
        self.dispatch()
        return Store.open(self.root, commitlog_paths=self.log.folders)

    def close(self) -> None:
        """Bring everything to the device and close the store cleanly; nothing when it is closed.

        Raises:
            UnwritableError: that failed. The store is closed, but left as after a crash: `abort` stays.
        """
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
        self._flusher.stop()
        self._reput.stop()
        try:
            with hint_unclean(self.root):
                self._save()
                self.log.close()
                if not self.is_broken:
                    self._state.mark_closed()
        except BaseException:
            self.log.abandon()
            raise
        finally:
            self._dispatcher.close()
            self._found.close()
            self._lock_file.release()

    def _save(self) -> None:
        """Topics and data, then queues and index, then the checkpoint."""
        with self._save_lock:
            self.targets.save()
            self.log.flush()
            reached = self._reput.catch_up(sync=True)
            physic = self.log.flushed_timestamp
            # Puts go on meanwhile, so units may be ahead of the log's flush.
            logics = min(reached.store_timestamp, physic or reached.store_timestamp)
            self._state.save_checkpoint(physic, logics, reached.index_timestamp)
