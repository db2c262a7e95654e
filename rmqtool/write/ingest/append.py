"""Append an input of many messages to a store: as batches, one by one with results, or only check it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from rmqtool.errors import (
    IllegalMessageError,
    InputError,
    RefusedError,
    RmqtoolError,
    StoreInUseError,
    UnwritableError,
)
from rmqtool.formats import properties
from rmqtool.formats.index import key_text
from rmqtool.formats.java import index_key_hash
from rmqtool.formats.message import BLANK_SIZE
from rmqtool.index.index_file import open_index_files
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.profile import profile_named
from rmqtool.write import opening
from rmqtool.write.ingest.reader import Input, Look, OnError, row_error
from rmqtool.write.ingest.rows import RowError
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.prepare import prepare
from rmqtool.write.targets import Targets
from rmqtool.write.topics import TopicTable

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqtool.log.events import StoredMessage
    from rmqtool.read.store import Store
    from rmqtool.write.store_writer import StoreWriter
    from rmqtool.write.table.appender import TableResult
    from rmqtool.write.table.schema import WrongRowError

QueueBy = Literal["round-robin", "key-hash", "column"]
Change = Callable[[NewMessage], NewMessage]
Result = TypeVar("Result", covariant=True)


class Putter(Protocol[Result]):
    """A store's writer, or what stands in for one."""

    @property
    def topics(self) -> TopicTable:
        """The store's topics."""

    @property
    def targets(self) -> Targets:
        """The targets of messages."""

    def put(self, message: NewMessage) -> Result:
        """Store one message."""


class QueueChoice:
    """Chooses queues for new messages that name none; leaves round robin to the writer."""

    def __init__(self, writer: Putter[object], how: QueueBy) -> None:
        self._writer = writer
        self._how = how

    def of_message(self, message: NewMessage) -> NewMessage:
        """The message with its queue.

        Raises:
            IllegalMessageError, RefusedError: no queue can be chosen for it.
        """
        if self._how == "round-robin" or message.queue_id is not None:
            return message
        if isinstance(message.properties, bytes):
            return message
        key = next(iter(message.keys), None)
        return replace(message, queue_id=self._choose(message.topic, key))

    def of_batch(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, RmqtoolError]]:
        """A batch of `table.schema` with the queues of its messages; which rows get none and why."""
        import pyarrow as pa

        if self._how == "round-robin":
            return batch, {}
        columns: dict[str, list[Any]] = {
            name: batch.column(name).to_pylist() if name in batch.schema.names else [None] * len(batch)
            for name in ("queue_id", "keys")
        }  # fmt: skip
        wrong: dict[int, RmqtoolError] = {}
        queue_ids = columns["queue_id"]
        topics = batch.column("topic").to_pylist()
        stored = _valid(batch, "properties_bytes")
        for row, (topic, keys) in enumerate(zip(topics, columns["keys"], strict=True)):
            if queue_ids[row] is None and not stored[row]:
                try:
                    queue_ids[row] = self._choose(topic, (keys or "").partition(" ")[0] or None)
                except IllegalMessageError as error:
                    wrong[row] = error
        place = batch.schema.get_field_index("queue_id")
        if place >= 0:
            batch = batch.remove_column(place)
        return batch.append_column("queue_id", pa.array(queue_ids, pa.int32())), wrong

    def _choose(self, topic: str, key: str | None) -> int:
        if self._how == "column":
            raise IllegalMessageError(
                "it has none, and --queue-by column needs one", status="INVALID_PARAMETER", column="queue_id"
            )
        if self._writer.topics.config_of(topic) is None:
            self._writer.targets.plain_queues(topic)  # makes it, where topics may be made
        return self._writer.topics.choose_queue(topic, "key-hash", key)


class InputAppender:
    """Stores all rows of an input, fast; what was stored so far is in `result()`, also after an error."""

    def __init__(
        self,
        writer: StoreWriter,
        source: Input,
        on_error: OnError,
        report: Callable[[RowError], None],
        look: Look | None = None,
    ) -> None:
        """Prepare for `append`.

        Args:
            writer: of the store.
            source: the input, with the same `on_error` and `report`; `QueueChoice.of_batch` completes it.
            on_error: what a row that the store does not take does.
            report: called for every row left out.
            look: called with each batch before any of it is stored, as `KnownRows.look`.
        """
        from rmqtool.write.table.appender import TableAppender

        self._writer = writer
        self._look = look
        self._source = source
        self._appender = TableAppender(
            writer, on_error=on_error, report=lambda error: report(self._found(error))
        )

    def append(self) -> None:
        """Store them.

        Raises:
            RowError: a row that cannot be stored; the rows before it are.
            InputError: the input cannot be read, or what `look` reads.
            UnwritableError: the store cannot be written.
        """
        from rmqtool.write.table.schema import WrongRowError

        try:
            self._appender.append(self._looked_at(self._source.batches()))
        except WrongRowError as error:
            raise self._found(error) from error

    def result(self) -> TableResult:
        """Return the counts of what was stored so far."""
        return self._appender.result()

    def last_row(self) -> int:
        """Return the number of the last row that was stored or left out; 0 before the first."""
        done = self.result()
        count = done.rows + done.skipped
        return self._source.number_of(count - 1) if count else 0

    def _looked_at(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self._look is not None:
                self._look(batch)
            yield batch

    def _found(self, error: WrongRowError) -> RowError:
        return row_error(error.reason, self._source.number_of(error.row), error.column)


class KnownRows:
    """Looks up the first rows of an input in the store, as an input may be appended twice by mistake."""

    def __init__(
        self, open_store: Callable[[], Store], note: Callable[[str], None], shown_by: str | None
    ) -> None:
        """Prepare for `look`.

        Args:
            open_store: opens it for reading, as it is before the input is appended.
            note: called with a sentence if the store already has some of the messages.
            shown_by: a command line that shows which messages are stored twice; None: the input is only
                checked, not stored.
        """
        self._open_store = open_store
        self._note = note
        self._shown_by = shown_by
        self._is_done = False

    def look(self, batch: pa.RecordBatch) -> None:
        """Look up the first rows of the first batch; those after it are ignored.

        Args:
            batch: of `table.schema`.

        Raises:
            InputError: the index or the log cannot be read.
        """
        if self._is_done:
            return
        self._is_done = True
        first = batch.slice(0, _LOOKED_UP)
        if any(_valid(first, "properties_bytes")):
            with self._open_store() as store:
                looked_up, places = stored_already(store, first)
            if places:
                self._note(self._text(looked_up, places))

    def _text(self, looked_up: int, places: list[int]) -> str:
        what, where = f"{len(places)} of the first {looked_up} messages", f"the first at {places[0]}"
        if looked_up == 1:
            what, where = "the first message", f"at {places[0]}"
        they, are = ("it", "is") if len(places) == 1 else ("they", "are")
        then = f"{they} {are} stored again: {self._shown_by}"
        if self._shown_by is None:
            then = f"{they} would be stored again"
        return f"the store already has {what} of the input, by unique key ({where}); {then}"


_LOOKED_UP = 16
"""First rows of an input that are looked up: enough to notice a second run, at a few reads of the index."""


_OF_A_NAME = ("topic", "properties_bytes", "reconsume_times")


def stored_already(store: Store, batch: pa.RecordBatch) -> tuple[int, list[int]]:
    """Which rows of a batch, taken over from another store, the store has, as far as its index files say.

    A message is recognised by its topic, its unique key and its number of deliveries, as `diff` does.

    Args:
        store: opened for reading.
        batch: of `table.schema`; rows without `properties_bytes` are new messages, and are not looked up.

    Returns:
        The number of rows with a unique key, and the physical offsets of those messages that the store has.
    """
    looked_up, places = 0, []
    with OpenFiles() as files:
        views = open_index_files(store.layout, files)
        for row in batch.select([name for name in _OF_A_NAME if name in batch.schema.names]).to_pylist():
            data = row.get("properties_bytes")
            key = None if data is None else properties.decode(data).get(properties.UNIQ_KEY)
            if key is None:
                continue
            looked_up += 1
            wanted = row["topic"], key, row.get("reconsume_times") or 0
            key_hash = index_key_hash(key_text(row["topic"], key))
            offsets = (each for view in views for each in view.offsets(key_hash, lambda *why: None))
            place = next((each for each in offsets if _name(store.find(each)) == wanted), None)
            if place is not None:
                places.append(place)
    return looked_up, places


def _name(stored: StoredMessage | None) -> tuple[str, str | None, int] | None:
    if stored is None:
        return None
    found = stored.message
    key = properties.decode(found.properties_bytes).get(properties.UNIQ_KEY)
    return found.topic, key, found.reconsume_times


def put_each(
    writer: Putter[Result],
    messages: Iterable[tuple[int, NewMessage]],
    queue_by: QueueBy,
    on_error: OnError,
    report: Callable[[RowError], None],
    change: Change = lambda message: message,
) -> Iterator[tuple[int, Result]]:
    """Store messages one by one: (row number, result) of each.

    Raises:
        RowError: a row that cannot be stored; the rows before it are.
        UnwritableError: the store cannot be written.
    """  # fmt: skip
    queues = QueueChoice(writer, queue_by)
    for number, message in messages:
        try:
            result = writer.put(queues.of_message(change(message)))
        except (UnwritableError, StoreInUseError):
            raise
        except RmqtoolError as error:
            wrong = row_error(error, number, error.column)
            if on_error == "stop":
                raise wrong from error
            report(wrong)
            continue
        yield number, result


def _valid(batch: pa.RecordBatch, name: str) -> list[bool]:
    if name not in batch.schema.names:
        return [False] * len(batch)
    valid: list[bool] = batch.column(name).is_valid().to_pylist()
    return valid


class DryRun:
    """Stands in for a `StoreWriter`: takes messages, checks them and forgets them.

    Attributes:
        options: how the store would be written.
        topics, targets: its topics, with those that would be made.
        bytes: of the records that would be stored.
        counts: of these, by topic as stored.
    """

    def __init__(self, root: Path, options: WriteOptions, *, auto_create_queues: int = 0) -> None:
        self.options = options
        self.topics = TopicTable.load(root, options.profile)
        self.targets = Targets(self.topics, auto_create_queues)
        self.bytes = 0
        self.counts: Counter[str] = Counter()

    @classmethod
    def create(
        cls,
        path: Path,
        profile: str,
        *,
        broker_conf: Path | None = None,
        auto_create_queues: int = 0,
        **options: Any,
    ) -> DryRun:
        """As `StoreWriter.create`. Raises as that does."""
        found = opening.examine_new(path, profile_named(profile), options, broker_conf=broker_conf)
        return cls(path, found, auto_create_queues=auto_create_queues)

    @classmethod
    def open(
        cls, path: Path, *, auto_create_queues: int = 0, given: dict[str, Any], **arguments: Any
    ) -> DryRun:
        """As `StoreWriter.open`; `given` are the options by name. Raises as that does."""
        found = opening.examine(path, given, **arguments)
        return cls(path, found, auto_create_queues=auto_create_queues)

    def look(
        self,
        source: Input,
        queue_by: QueueBy,
        on_error: OnError,
        report: Callable[[RowError], None],
        change: Change,
    ) -> None:
        """Check an input up to the first message that can be stored, before a store is made for it.

        Args:
            source: the input, with the same `on_error` and `report`; gets the rules of the store.
            queue_by: how a message that names no queue gets one.
            on_error: what a row that cannot be stored does.
            report: called for every row left out.
            change: makes of a message the one to store.

        Raises:
            RowError: a row that cannot be stored, as `put_each` and `Input.look` raise it.
            InputError: the input cannot be read, or has no message that can be stored.
        """

        def takes(number: int, message: NewMessage) -> bool:
            return any(True for _ in put_each(self, [(number, message)], queue_by, on_error, report, change))

        source.rules = replace(source.rules, profile=self.options.profile)
        try:
            source.look(takes)
        except InputError as error:
            nothing = "nothing was stored, and no store was created"
            error.hint = nothing if error.hint is None else f"{error.hint}; {nothing}"
            raise

    def put(self, message: NewMessage) -> None:
        """Check one message.

        Raises:
            IllegalMessageError: a broker would not take it.
            RefusedError: its topic or queue may not be written, or no file can hold it.
        """
        target = self.targets.of(message)
        prepared = prepare(
            message, self.options, time.time_ns() // 1_000_000, target.queue_id,
            batch_topic=target.is_batch, topic_flags=target.sys_flag,
        )  # fmt: skip
        limit = self.options.commit_log_file_size
        if prepared.size + BLANK_SIZE > limit:
            raise RefusedError(
                f"{prepared.size} bytes do not fit into a commit log file of {limit}", column="body"
            )
        self.bytes += prepared.size
        self.counts[prepared.topic] += 1
