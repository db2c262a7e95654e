"""`rmqtool append`: one message, or many, into a stopped or a new store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from rmqtool.commands import append_options as own
from rmqtool.commands import options
from rmqtool.commands.append_text import COLUMNS, SUMMARY, TABLE_COLUMNS, row_of, transaction_notes
from rmqtool.commands.interrupts import entering, interrupts_held
from rmqtool.errors import EXIT_INPUT, EXIT_OK, IllegalMessageError, UsageError
from rmqtool.output import Output
from rmqtool.terminal import ProgressBar, format_size
from rmqtool.times import parse_time, parse_zone

if TYPE_CHECKING:
    from rmqtool.write.ingest.append import DryRun
    from rmqtool.write.ingest.reader import Input
    from rmqtool.write.ingest.rows import RowError
    from rmqtool.write.put_result import PutResult
    from rmqtool.write.records.message import NewMessage
    from rmqtool.write.store_writer import StoreWriter
    from rmqtool.write.table.appender import TableResult

_Item = TypeVar("_Item")

_LINES = 20  # wrong rows that are told one by one


def append(
    store: options.StoreRoot,
    topic: own.Topic = None,
    queue: own.Queue = None,
    tag: own.Tag = None,
    key: own.Key = None,
    uniq_key: own.UniqKey = None,
    property: own.Property = None,
    body: own.Body = None,
    body_file: own.BodyFile = None,
    flag: own.Flag = None,
    delay_level: own.DelayLevel = None,
    compress: own.Compress = None,
    store_time: own.StoreTime = None,
    born_time: own.BornTime = None,
    store_host: own.StoreHost = None,
    born_host: own.BornHost = None,
    transaction: own.Transaction = None,
    group: own.Group = None,
    commit: own.Commit = None,
    rollback: own.Rollback = None,
    input: own.InputFile = None,
    input_format: own.InputFormat = None,
    on_error: own.OnError = "stop",
    ignore_unknown: own.IgnoreUnknown = False,
    queue_by: own.QueueBy = "round-robin",
    show: own.Show = None,
    create: own.Create = False,
    profile: own.Profile = None,
    commitlog_file_size: own.CommitLogFileSize = None,
    queue_file_size: own.QueueFileSize = None,
    index_slots: own.IndexSlots = None,
    index_entries: own.IndexEntries = None,
    create_topic: options.CreateTopic = False,
    queues: own.Queues = None,
    flush: own.Flush = None,
    reserve: own.Reserve = True,
    property_crc: own.PropertyCrc = False,
    commitlog: options.CommitLogPaths = None,
    read_only_commitlog: options.ReadOnlyCommitLogPaths = None,
    broker_conf: options.BrokerConf = None,
    dry_run: own.DryRunOnly = False,
    format: options.RowFormat = None,
    fields: options.Fields = None,
    tz: options.TimeZone = None,
    quiet: options.Quiet = False,
    progress: options.ShowProgress = None,
) -> int:
    """Append messages to a stopped or new store.

    Appends one message from options, or the rows of --input: JSON lines, CSV, Parquet or Arrow. Stores
    them as a broker would. The store must be stopped and cleanly closed. --create creates a new store.

    \b
    rmqtool append STORE --topic TopicTest --tag A --key order-17 --body hello
    echo hello | rmqtool append STORE --topic TopicTest --body-file -
    rmqtool append STORE --create --create-topic --input messages.parquet
    rmqtool dump OTHER --topic TopicTest | rmqtool append STORE --create-topic --input -
    rmqtool tail OTHER --topic TopicTest --follow | rmqtool append STORE --create-topic --input -

    A row has the columns of a message row; only topic and body are required. tags, keys, uniq_key,
    delay_level and wait may also be given as properties. body is text unless body_encoding names
    another encoding. Message options fill the columns that a row leaves empty. JSON lines from a pipe
    that pauses are stored as soon as they arrive.

    A row with physical_offset, as dump prints it, keeps its times, hosts and properties, and gets a new
    offset. Rows of blanks are skipped; rows of damage are refused. The input does not say which delayed
    messages were delivered, so in a new store all that are due are delivered again. Half messages and op
    records are stored too, and counted on standard error. An op record finishes the half messages at the
    queue offsets that it names. Copy both kinds completely and in order into a new store, or leave both
    out (dump --exclude-topic 'RMQ_SYS_TRANS_*').

    Shows where each message was stored, or totals. A bad row is reported with its number, its column and
    the broker's name for the reason. The rows before it are stored; the rows after it are stored only
    with --on-error skip. In CSV an unclosed quote makes the rest of the file part of one cell: the rows
    before that row are stored, and appending stops there even with --on-error skip.

    Exits with 0 when everything was stored; 2 for a usage error; 3 for a bad row, unreadable input, or
    when the store or the output cannot be written; 4 when refused: the store was not closed cleanly, its
    last log file is damaged, a queue lacks its last unit, an order topic would be spread over more
    queues, or --commit or --rollback names a half message that is already finished; 5 when the store is
    in use.
    """  # noqa: D301  a backspace character keeps the lines as they are
    task = _Task(own.AppendOptions(**locals()))
    if input is None:
        return task.one()
    if dry_run:
        return task.check()
    return task.each() if show == "messages" or transaction else task.all()


class _Task:
    """One run of the command."""

    def __init__(self, asked: own.AppendOptions) -> None:
        self._asked = asked
        self._output = Output(
            format=asked.format, fields=asked.fields, quiet=asked.quiet, progress=asked.progress,
            changes=not asked.dry_run,
        )  # fmt: skip
        self._zone = parse_zone(asked.tz)
        self._now_ms = time.time_ns() // 1_000_000
        self._left_out = 0
        asked.check()

    # what there is to do

    def one(self) -> int:
        """The message of the options, or the end of a transaction."""
        from rmqtool.write.ingest.append import QueueChoice

        asked = self._asked
        ends = asked.commit is not None or asked.rollback is not None
        message = None if ends else self._changed(self._message())
        if asked.dry_run and message is not None:
            checker = self._dry_run()
            checker.put(QueueChoice(checker, asked.queue_by).of_message(message))
            self._sum_up(messages=1, bytes=checker.bytes, dry_run=True)
            return EXIT_OK
        self._output.check_fields(COLUMNS[1:])
        if message is not None:  # checked first: what is refused makes no topic and no store
            checker = self._dry_run()
            checker.put(QueueChoice(checker, asked.queue_by).of_message(message))
        with self._writer() as writer:
            if message is None:
                results = [writer.put(each) for each in self._end_of_transaction(writer)]
            else:
                results = [writer.put(QueueChoice(writer, asked.queue_by).of_message(message))]
            flushed = writer.flush()
        rows = (
            row_of(None, result._replace(flushed=result.physical_offset < flushed), self._zone)
            for result in results
        )
        self._output.write_rows(rows, COLUMNS[1:], TABLE_COLUMNS[1:])
        return EXIT_OK

    def all(self) -> int:
        """The rows of the input, with their sums: also of those stored before an error or an interrupt."""
        from rmqtool.write.ingest.append import InputAppender, QueueChoice

        started = time.monotonic()
        with self._input() as source, ExitStack() as behind, self._writer() as writer:
            source.rules = replace(source.rules, profile=writer.options.profile)
            source.complete = QueueChoice(writer, self._asked.queue_by).of_batch
            appender = InputAppender(writer, source, self._asked.on_error, self._report)
            behind.callback(lambda: self._tell_stored(appender.result(), writer, source, started))
            appender.append()
            writer.flush()
        return self._exit_code()

    def each(self) -> int:
        """The rows of the input, with a row for each."""
        from rmqtool.write.ingest.append import put_each

        asked = self._asked
        counts: Counter[str] = Counter()
        with self._input() as source, self._writer() as writer:
            source.rules = replace(source.rules, profile=writer.options.profile)
            results = put_each(
                writer,
                _uninterrupted(source.messages()),
                asked.queue_by,
                asked.on_error,
                self._report,
                self._changed,
            )
            try:
                self._output.write_rows(self._rows(results, counts), COLUMNS, TABLE_COLUMNS)
            finally:
                self._tell_transactions(counts)
        return self._exit_code()

    def check(self) -> int:
        """The rows of the input, checked."""
        from rmqtool.write.ingest.append import put_each

        asked, count = self._asked, 0
        with self._input() as source:
            checker = self._dry_run()
            source.rules = replace(source.rules, profile=checker.options.profile)
            for _ in put_each(
                checker, source.messages(), asked.queue_by, asked.on_error, self._report, self._changed
            ):
                count += 1
        self._tell_transactions(checker.counts)
        self._sum_up(
            messages=count, bytes=checker.bytes, left_out=self._left_out, blanks=source.empty, dry_run=True
        )
        return self._exit_code()

    # what the options mean

    def _message(self) -> NewMessage:
        from rmqtool.formats.message import RECORD_SIZE_MAX
        from rmqtool.write.ingest.reader import open_input
        from rmqtool.write.records.message import NewMessage

        asked = self._asked
        body = (asked.body or "").encode("utf-8", "surrogateescape")
        if asked.body_file is not None:
            with open_input(asked.body_file) as file:
                body = file.read(RECORD_SIZE_MAX + 1)
            if len(body) > RECORD_SIZE_MAX:
                raise IllegalMessageError(
                    f"--body-file {asked.body_file}: more than {RECORD_SIZE_MAX} bytes",
                    status="MESSAGE_ILLEGAL",
                )
        return NewMessage(
            topic=asked.topic or "",
            body=body,
            tags=asked.tag,
            keys=asked.key or (),
            properties=self._properties(),
            queue_id=asked.queue,
            flag=asked.flag or 0,
            born_timestamp=self._time(asked.born_time),
            born_host=own.host("--born-host", asked.born_host),
            store_timestamp=self._time(asked.store_time),
            delay_level=asked.delay_level or 0,
            uniq_key=asked.uniq_key,
            compression=asked.compress or "none",
        )

    def _properties(self) -> dict[str, str]:
        result: dict[str, str] = {}
        for text in self._asked.property or ():
            name, found, value = text.partition("=")
            if not found or not name or name in result:
                raise UsageError(f"--property {text!r}: it must be NAME=VALUE, each name once")
            result[name] = value
        self._asked.check_properties(result)
        return result

    def _time(self, text: str | None) -> int | None:
        return None if text is None else parse_time(text, self._zone, self._now_ms)

    def _changed(self, message: NewMessage) -> NewMessage:
        """The message, or the first step of a transaction with it where that was asked for."""
        from rmqtool.write.records.transactions import half

        return message if self._asked.group is None else half(message, self._asked.group)

    def _end_of_transaction(self, writer: StoreWriter) -> list[NewMessage]:
        from rmqtool.read.op_records import open_half
        from rmqtool.write.records.transactions import commit, rollback

        asked = self._asked
        offset = asked.commit if asked.commit is not None else asked.rollback
        with writer.read() as opened:
            half = open_half(opened, offset or 0)
        end = commit if asked.commit is not None else rollback
        return end(half, writer.options, self._now_ms)

    @contextmanager
    def _input(self) -> Iterator[Input]:
        """The input, with a progress bar; what is wrong with it shows before the store is touched."""
        from rmqtool.write.ingest.reader import Input, format_of, open_input, size_of
        from rmqtool.write.ingest.rows import RowRules

        asked = self._asked
        assert asked.input is not None
        defaults = {
            "topic": asked.topic, "queue_id": asked.queue, "tags": asked.tag, "keys": asked.key,
            "properties": self._properties() or None, "flag": asked.flag,
            "delay_level": asked.delay_level, "body_compression": asked.compress,
            "born_timestamp_ms": self._time(asked.born_time),
            "store_timestamp_ms": self._time(asked.store_time),
            "born_host": asked.born_host,
        }  # fmt: skip
        own.host("--born-host", asked.born_host)
        rules = RowRules(
            zone=self._zone,
            defaults={name: value for name, value in defaults.items() if value is not None},
            ignore_unknown=asked.ignore_unknown,
        )
        one_by_one = asked.show == "messages" or asked.transaction is not None
        self._output.check_fields(COLUMNS if one_by_one and not asked.dry_run else SUMMARY)
        advanced: list[ProgressBar] = []
        with open_input(asked.input, lambda count: advanced[0].advance(count) if advanced else None) as file:
            with self._output.progress("append", size_of(file)) as bar:
                advanced.append(bar)
                yield Input(
                    file, asked.input_format or format_of(file, asked.input), rules,
                    on_error=asked.on_error, report=self._report,
                )  # fmt: skip

    # the store

    @contextmanager
    def _writer(self) -> Iterator[StoreWriter]:
        """The store, open for writing."""
        from rmqtool.write.store_writer import StoreWriter

        asked = self._asked

        def make() -> StoreWriter:
            if asked.create:
                return StoreWriter.create(
                    asked.store, asked.profile or own.NEWEST, broker_conf=asked.broker_conf,
                    auto_create_queues=asked.new_queues(), **asked.given(),
                )  # fmt: skip
            return StoreWriter.open(
                asked.store, auto_create_queues=asked.new_queues(), **asked.arguments(), **asked.given()
            )

        with entering(make) as writer:
            if not asked.create:
                options.tell_assumed(self._output, writer.options.written_by, "--profile")
            yield writer

    def _dry_run(self) -> DryRun:
        from rmqtool.write.ingest.append import DryRun

        asked = self._asked
        if asked.create:
            return DryRun.create(
                asked.store, asked.profile or own.NEWEST, broker_conf=asked.broker_conf,
                auto_create_queues=asked.new_queues(), **asked.given(),
            )  # fmt: skip
        return DryRun.open(
            asked.store, auto_create_queues=asked.new_queues(), given=asked.given(), **asked.arguments()
        )

    # what is shown

    def _rows(
        self, results: Iterable[tuple[int, PutResult]], counts: Counter[str]
    ) -> Iterator[dict[str, Any]]:
        """The row of each result; `counts` gets the messages by topic."""
        for number, result in results:
            counts[result.topic] += 1
            yield row_of(number, result, self._zone)

    def _tell_transactions(self, counts: Mapping[str, int]) -> None:
        if self._asked.transaction is None:
            for note in transaction_notes(counts):
                self._output.note(f"rmqtool: {note}")

    def _tell_stored(self, result: TableResult, writer: StoreWriter, source: Input, started: float) -> None:
        """The sums of a table; the writer is closed."""
        seconds = max(time.monotonic() - started, 1e-3)
        rate = f"{int(result.rows / seconds)} messages/s, {format_size(int(result.bytes / seconds))}/s"
        size, last = format_size(result.bytes), result.last_physical_offset
        self._output.note(f"rmqtool: {result.rows} messages, {size} in {seconds:.1f} s: {rate}")
        counts: Counter[str] = Counter()
        for (topic, _), (_, count) in result.queues.items():
            counts[topic] += count
        self._tell_transactions(counts)
        self._sum_up(
            messages=result.rows, bytes=result.bytes, left_out=self._left_out, blanks=source.empty,
            topics=len({topic for topic, _ in result.queues}), queues=len(result.queues),
            first_physical_offset=result.first_physical_offset, last_physical_offset=last,
            flushed=last is None or last < writer.log.flushed,
        )  # fmt: skip

    def _sum_up(self, **sums: Any) -> None:
        if self._output.format is None:
            self._output.write_object(sums)
        else:
            self._output.write_rows([sums], SUMMARY, tuple(sums))

    def _report(self, error: RowError) -> None:
        """A row that is left out."""
        self._left_out += 1
        if self._left_out <= _LINES:
            self._output.note(f"rmqtool: skipped: {error.message}")
        elif self._left_out == _LINES + 1:
            self._output.note("rmqtool: more rows are skipped")

    def _exit_code(self) -> int:
        return EXIT_INPUT if self._left_out else EXIT_OK


def _uninterrupted(messages: Iterable[_Item]) -> Iterator[_Item]:
    """The messages; an interrupt while one of them is put waits until the next is asked for."""
    for message in messages:
        with interrupts_held():
            yield message
