"""`rmqtool append`: one message, or many, into a stopped or a new store."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqtool.commands import changes, options
from rmqtool.commands.groups import Before, Given, Group, Only, with_groups
from rmqtool.commands.interrupts import entering, uninterrupted
from rmqtool.commands.verdicts import of_transactions
from rmqtool.errors import (
    EXIT_INPUT,
    EXIT_OK,
    IllegalMessageError,
    NotAStoreError,
    RefusedError,
    RmqtoolError,
    UnwritableError,
    UsageError,
)
from rmqtool.formats.versions import METAVAR, NEWEST, Broker
from rmqtool.sizes import QUEUE_ID_MAX
from rmqtool.terminal import ProgressBar, counted, format_size
from rmqtool.times import parse_time

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.write.ingest.append import DryRun
    from rmqtool.write.ingest.reader import Input, Look
    from rmqtool.write.ingest.rows import RowError
    from rmqtool.write.options import WriteOptions
    from rmqtool.write.put_result import PutResult
    from rmqtool.write.records.message import NewMessage
    from rmqtool.write.store_writer import StoreWriter
    from rmqtool.write.table.appender import TableResult

_LINES = 20  # invalid rows that are reported one by one
_DEFAULT_QUEUES = 4
COLUMNS = (
    "row", "physical_offset", "queue_offset", "size", "topic", "queue_id", "store_timestamp_ms", "store_time",
    "offset_msg_id", "flushed",
)  # fmt: skip
TABLE_COLUMNS = ("row", "topic", "queue_id", "queue_offset", "physical_offset", "offset_msg_id", "flushed")
SUMMARY = (
    "messages", "bytes", "left_out", "left_out_fillers", "blanks", "topics", "queues",
    "first_physical_offset", "last_physical_offset", "flushed", "dry_run",
)  # fmt: skip


def _input_path(text: str) -> Path:
    """Return the path of --input. Raises UsageError for a URL of another place."""
    from rmqtool.storage.remote_url import is_url, local_path

    local = local_path(text)
    if local is None and is_url(text):
        raise UsageError(f"--input: {text} is not on this machine", hint="--input - reads from a pipe")
    return Path(local or text)


class AppendOptions(Group):
    """Options of the messages, and of the store that they are appended to."""

    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="Topic of the message, and of input rows without one."),
    ] = None
    queue: Annotated[
        int | None,
        typer.Option(
            "--queue",
            metavar="N",
            min=0,
            max=QUEUE_ID_MAX,
            help="Queue of the message. Default: chosen by --queue-by.",
        ),
    ] = None
    tag: Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Tag of the message.")] = None
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="Key of the message (repeatable).")
    ] = None
    uniq_key: Annotated[
        str | None,
        typer.Option("--uniq-key", metavar="ID", help="Unique key of the message. Default: generated."),
    ] = None
    property: Annotated[
        list[str] | None,
        typer.Option(
            "--property", metavar="NAME=VALUE", help="Application property of the message (repeatable)."
        ),
    ] = None
    body: Annotated[
        str | None, typer.Option("--body", metavar="TEXT", help="Body of the message, stored as UTF-8.")
    ] = None
    body_file: Annotated[
        Path | None,
        typer.Option(
            "--body-file",
            metavar="FILE|-",
            help="Read the body from this file, byte for byte; -: standard input.",
        ),
    ] = None
    flag: Annotated[
        int | None, typer.Option("--flag", metavar="N", help="Application flag of the message.")
    ] = None
    delay_level: Annotated[
        int | None,
        typer.Option(
            "--delay-level", metavar="N", min=0, help="Delay the message: level 1 is 1 s, level 18 is 2 h."
        ),
    ] = None
    compress: Annotated[
        Literal["none", "zlib", "lz4", "zstd"] | None,
        typer.Option(
            "--compress",
            metavar="none|zlib|lz4|zstd",
            help="Compress bodies of at least 4096 bytes, as a client does. Default: none.",
        ),
    ] = None
    store_time: Annotated[
        str | None,
        typer.Option("--store-time", metavar="TIME", help="Store time of the message. Default: now."),
    ] = None
    born_time: Annotated[
        str | None,
        typer.Option("--born-time", metavar="TIME", help="Born time of the message. Default: now."),
    ] = None
    store_host: Annotated[
        str | None,
        typer.Option(
            "--store-host",
            metavar="IP:PORT",
            help="Address of the broker. Default: that of the newest record.",
        ),
    ] = None
    born_host: Annotated[
        str | None,
        typer.Option(
            "--born-host", metavar="IP:PORT", help="Address of the producer. Default: the broker's."
        ),
    ] = None
    transaction: Annotated[
        Literal["half"] | None,
        typer.Option(
            "--transaction", metavar="half", help="Store half messages for --group to commit or roll back."
        ),
    ] = None
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="Producer group of the transaction.")
    ] = None
    commit: Annotated[
        int | None,
        typer.Option(
            "--commit", metavar="OFFSET", min=0, help="Commit the half message at this physical offset."
        ),
    ] = None
    rollback: Annotated[
        int | None,
        typer.Option(
            "--rollback", metavar="OFFSET", min=0, help="Roll back the half message at this physical offset."
        ),
    ] = None
    input: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE|-",
            parser=_input_path,
            help="Append the rows of this file; -: standard input.",
        ),
    ] = None
    input_format: Annotated[
        Literal["jsonl", "csv", "parquet", "arrow"] | None,
        typer.Option(
            "--input-format",
            metavar="jsonl|csv|parquet|arrow",
            help="Format of --input. Default: detected from its name or its first bytes.",
        ),
    ] = None
    on_error: Annotated[
        Literal["stop", "skip"],
        typer.Option("--on-error", metavar="stop|skip", help="On a bad row: stop, or skip it."),
    ] = "stop"
    skip_rows: Annotated[
        int,
        typer.Option(
            "--skip-rows",
            metavar="N",
            min=0,
            help="Skip rows 1 to N of the input, to continue after the bad row N. Rows have the numbers that"
            " error messages show: the line in JSON lines; in CSV the header is row 1.",
        ),
    ] = 0
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Ignore unknown columns; by default they are an error.")
    ] = False
    queue_by: Annotated[
        Literal["round-robin", "key-hash", "column"],
        typer.Option(
            "--queue-by",
            metavar="round-robin|key-hash|column",
            help="Choose the queue of a message that names none. round-robin: the queue after that"
            " of the topic's newest message. key-hash: by the Java hash of the first key."
            " column: only from the column queue_id; refuse a message without it.",
        ),
    ] = "round-robin"
    show: Annotated[
        Literal["messages", "summary"] | None,
        typer.Option(
            "--show",
            metavar="messages|summary",
            help="Show a row for each message, or totals. Default: totals with --input.",
        ),
    ] = None
    create: Annotated[
        bool,
        typer.Option(
            "--create", help="Create the store in a new or empty folder, and the topics of the input."
        ),
    ] = False
    profile: Annotated[
        Broker | None,
        typer.Option(
            "--profile",
            metavar=METAVAR,
            help=f"Broker version to write for. Default: that of the store, or {NEWEST}.",
        ),
    ] = None
    commitlog_file_size: Annotated[
        int | None,
        typer.Option(
            "--commitlog-file-size",
            metavar="SIZE",
            parser=options.parse_size,
            help="With --create: size of a commit log file. Default: from --broker-conf, or 1G.",
        ),
    ] = None
    queue_file_size: Annotated[
        int | None,
        typer.Option(
            "--queue-file-size",
            metavar="SIZE",
            parser=options.parse_size,
            help="With --create: size of a consume queue file, a multiple of 20. Default: from"
            " --broker-conf, or 6000000.",
        ),
    ] = None
    index_slots: Annotated[
        int | None,
        typer.Option(
            "--index-slots",
            metavar="N",
            min=1,
            help="With --create: hash slots of an index file. Default: from --broker-conf, or 5000000.",
        ),
    ] = None
    index_entries: Annotated[
        int | None,
        typer.Option(
            "--index-entries",
            metavar="N",
            min=2,
            help="With --create: capacity of an index file in entries. Default: from --broker-conf, or"
            " 20000000.",
        ),
    ] = None
    create_topic: options.CreateTopic = False
    queues: Annotated[
        int | None,
        typer.Option(
            "--queues",
            metavar="N",
            min=1,
            max=QUEUE_ID_MAX,
            help="Queues of a topic that is created. Default: 4.",
        ),
    ] = None
    flush: Annotated[
        Literal["async", "sync"] | None,
        typer.Option(
            "--flush",
            metavar="async|sync",
            help="sync: flush each message to the device before storing the next one. async: flush"
            " in the background, and everything at the end. Default: from --broker-conf, or"
            " async.",
        ),
    ] = None
    reserve: Annotated[bool | None, options.reserve_option("--reserve, but --no-reserve with --create")] = (
        None
    )
    property_crc: Annotated[
        bool,
        typer.Option(
            "--property-crc",
            help="End each record with a CRC over the whole record, as 5.x can. Default: as in the store.",
        ),
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything and write nothing."),
        Before("format"),
    ] = False

    def check(self, store: options.StoreRootOptions) -> None:
        """Raise UsageError for options that do not go together."""
        given = [
            name
            for name in ("body", "body_file", "input", "commit", "rollback")
            if getattr(self, name) is not None
        ]
        if len(given) != 1:
            what = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(
                f"{what} exclude each other" if given else "there is nothing to append",
                hint="give one of --body, --body-file, --input, --commit, --rollback",
            )
        if given[0].startswith("body") and self.topic is None:
            raise UsageError("the message has no topic", hint="--topic names it")
        if given[0].startswith("body") and self.queue_by == "column" and self.queue is None:
            raise UsageError("--queue-by column: the message names no queue", hint="--queue names it")
        if given[0] in ("commit", "rollback") and self.dry_run:
            raise UsageError("--dry-run is for messages, not for --commit and --rollback")
        if (self.transaction is None) != (self.group is None):
            raise UsageError("--transaction and --group go together")
        if self.skip_rows and self.input is None:
            raise UsageError("--skip-rows needs --input")
        if self.input is not None and self.uniq_key is not None:
            raise UsageError("--uniq-key is for one message", hint="rows have a column uniq_key")
        if self.queues is not None and not self._creates_topics():
            raise UsageError("--queues needs --create-topic")
        sizes = (self.commitlog_file_size, self.queue_file_size, self.index_slots, self.index_entries)
        if not self.create and any(size is not None for size in sizes):
            raise UsageError("file sizes need --create; an existing store keeps its sizes")
        if not self.create and not os.path.lexists(store.store):
            raise NotAStoreError("no such folder", path=store.store, hint="--create makes a new store there")
        if self.create and (store.commitlog or store.read_only_commitlog):
            name = "--commitlog" if store.commitlog else "--read-only-commitlog"
            raise UsageError(f"{name} is for an existing store; a new store contains its log")
        from rmqtool.storage.listing import Listing
        from rmqtool.storage.roots import is_store
        from rmqtool.write.state import hint_on_store

        if self.create and is_store(store.store, Listing()):
            raise RefusedError("is already a store", path=store.store, hint=hint_on_store(store.store))

    def check_properties(self, given: dict[str, str]) -> None:
        """Raise UsageError where --property contradicts the option that sets this property."""
        from rmqtool.formats import properties
        from rmqtool.write.ingest.rows import disagree, own_value, split_keys

        for name, option, value in (
            (properties.TAGS, "--tag", self.tag),
            (properties.KEYS, "--key", self.key),
            (properties.UNIQ_KEY, "--uniq-key", self.uniq_key),
            (properties.DELAY, "--delay-level", self.delay_level),
        ):
            if value is None or name not in given:
                continue
            if (split_keys(value) if isinstance(value, list) else value) != own_value(name, given[name]):
                shown = " ".join(value) if isinstance(value, list) else value
                raise UsageError(f"{option} {disagree(name, shown, given[name])}")

    def new_queues(self) -> int:
        """Return the number of queues for a topic that the store lacks; 0: such a topic is an error."""
        return (self.queues or _DEFAULT_QUEUES) if self._creates_topics() else 0

    def _creates_topics(self) -> bool:
        """Whether a topic that the store lacks is created; a new store has none."""
        return self.create or self.create_topic

    def given(self) -> dict[str, Any]:
        """Return the options of the store by the names of `WriteOptions`."""
        found: dict[str, Any] = {
            "commit_log_file_size": self.commitlog_file_size, "consume_queue_file_size": self.queue_file_size,
            "index_slots": self.index_slots, "index_entries": self.index_entries, "flush": self.flush,
            "store_host": options.host("--store-host", self.store_host),
            "property_crc": self.property_crc or None,
        }  # fmt: skip
        return {
            "reserve": not self.create if self.reserve is None else self.reserve,
            **{name: value for name, value in found.items() if value is not None},
        }


@with_groups
def append(
    *,
    store: options.StoreRootOptions,
    shown: Annotated[options.RowOutput, Only("format json fields tz quiet progress")],
    own: Annotated[AppendOptions, Before("commitlog")],
    given: Given,
) -> int:
    """Append messages to a stopped or new store.

    Appends one message from options, or the rows of --input: JSON lines, CSV, Parquet or Arrow. Stores
    them as a broker would. The store must be stopped and cleanly closed. --create creates a new store.

    A row has the columns of a message row; only topic and body are required. tags, keys, uniq_key,
    delay_level and wait may also be given as properties. body is text unless body_encoding names
    another encoding. Message options fill the columns that a row leaves empty. JSON lines from a pipe
    that pauses are stored as soon as they arrive.

    A row with physical_offset, as dump prints it, keeps its times, hosts and properties, and gets a
    new offset. Rows of blanks are skipped; rows of damaged messages are refused. Of the rows with
    physical_offset, the first 16 are looked up in the index; a note says if the store already has some.
    Fillers, with which recover keeps the queue offsets of lost messages, are left out and counted
    (left_out_fillers), except those of half messages and op records, which need their queue offsets. The
    input does not state which delayed messages were already delivered: in a new store all delayed messages
    that are due are delivered again. Half messages and op records are stored too; standard error shows
    their number. An op record finishes the half messages at the queue offsets that it names. Copy both
    kinds completely and in order into a new store, or leave both out (dump --exclude-topic
    'RMQ_SYS_TRANS_*').

    Shows where each message was stored, or totals. A bad row is reported with its number, its column and
    the broker's name for the reason. The rows before it are stored; the rows after it are stored only
    with --on-error skip. --skip-rows continues after the rows that are stored, once the bad row is
    corrected. In CSV an unclosed quote makes the rest of the file part of one cell: the rows before that
    row are stored, and appending stops there even with --on-error skip.

    --create reads the first rows of the input (some thousands) before it creates the store. It creates
    none if one of them is bad, if a broker would refuse the first message, or if no message can be
    stored. It does not allocate the space of the log file unless --reserve is given.

    Exits with 0 when everything was stored; 2 for a usage error; 3 for a bad row, unreadable input,
    --create with an input without a message, or when the store or the output cannot be written; 4 when
    refused: the store was not closed cleanly, its last log file is damaged, a queue lacks its last unit, an
    order topic would be spread over more queues, or --commit or --rollback names a half message that is
    already finished; 5 when the store is in use.
    """
    task = _Task(store, own, shown, given)
    if own.input is None:
        return task.one()
    if own.dry_run:
        return task.check()
    return task.each() if own.show == "messages" or own.transaction else task.all()


class _Task:
    """One run of the command."""

    def __init__(
        self, store: options.StoreRootOptions, own: AppendOptions, shown: options.OutputOptions, given: Given
    ) -> None:
        self._store = store
        self._given = given
        self._options = own
        self._output = shown.writer(changes=not own.dry_run)
        self._zone, self._now_ms = shown.zone, time.time_ns() // 1_000_000
        self._left_out = 0
        self._last_row: Callable[[], int | None] = lambda: None  # of those stored; None: none was tried
        own.check(store)

    # Actions

    def one(self) -> int:
        """Append the message of the options, or the end of a transaction; return the exit code."""
        from rmqtool.write.ingest.append import QueueChoice

        chosen = self._options
        ends = chosen.commit is not None or chosen.rollback is not None
        message = None if ends else self._changed(self._message())
        if chosen.dry_run and message is not None:
            checker = self._dry_run()
            self._check(message, checker)
            self._sum_up(messages=1, bytes=checker.bytes, dry_run=True)
            return EXIT_OK
        self._output.check_fields(COLUMNS[1:])
        with self._writer(message) as writer:
            if message is None:
                results = [writer.put(each) for each in self._end_of_transaction(writer)]
            else:
                results = [writer.put(QueueChoice(writer, chosen.queue_by).of_message(message))]
            flushed = writer.flush()
        rows = (
            result._replace(flushed=result.physical_offset < flushed).row(self._zone) for result in results
        )
        self._output.write_rows(rows, COLUMNS[1:], TABLE_COLUMNS[1:])
        return EXIT_OK

    def all(self) -> int:
        """Append the rows of the input and show the sums, even after an error or an interrupt."""
        from rmqtool.write.ingest.append import InputAppender, QueueChoice

        started = time.monotonic()
        with self._input() as source, ExitStack() as afterwards, self._appending(source) as writer:
            source.complete = QueueChoice(writer, self._options.queue_by).of_batch
            look = self._look(writer.read)
            appender = InputAppender(writer, source, self._options.on_error, self._report, look)
            self._last_row = appender.last_row
            afterwards.callback(lambda: self._report_totals(appender.result(), writer, source, started))
            appender.append()
            writer.flush()
        return self._exit_code()

    def each(self) -> int:
        """Append the rows of the input; show a row for each."""
        from rmqtool.write.ingest.append import put_each

        chosen = self._options
        counts: Counter[str] = Counter()
        with self._input() as source, self._appending(source) as writer:
            messages = uninterrupted(source.messages(self._look(writer.read)))
            results = put_each(
                writer, messages, chosen.queue_by, chosen.on_error, self._report, self._changed
            )
            try:
                self._output.write_rows(self._rows(results, counts), COLUMNS, TABLE_COLUMNS)
            finally:
                self._note_stored(counts, source)
        return self._exit_code()

    def check(self) -> int:
        """Check the rows of the input; store nothing."""
        from rmqtool.write.ingest.append import put_each

        chosen = self._options
        with self._input() as source:
            checker = self._dry_run()
            source.rules = replace(source.rules, profile=checker.options.profile)
            messages = source.messages(self._look(lambda: self._store.open(quiet=True)))
            rows = put_each(checker, messages, chosen.queue_by, chosen.on_error, self._report, self._changed)
            count = sum(1 for _ in rows)
        if chosen.create and not count:
            raise source.without_message(self._left_out)
        self._note_stored(checker.counts, source)
        self._sum_up(
            messages=count, bytes=checker.bytes, left_out=self._left_out, left_out_fillers=source.fillers,
            blanks=source.empty, dry_run=True,
        )  # fmt: skip
        return self._exit_code()

    # what the options mean

    def _message(self) -> NewMessage:
        from rmqtool.formats.message import RECORD_SIZE_MAX
        from rmqtool.write.ingest.reader import open_input
        from rmqtool.write.records.message import NewMessage

        chosen = self._options
        body = (chosen.body or "").encode("utf-8", "surrogateescape")
        if chosen.body_file is not None:
            with open_input(chosen.body_file) as file:
                body = file.read(RECORD_SIZE_MAX + 1)
            if not body:
                self._output.note("rmqtool: the body is empty")
            if len(body) > RECORD_SIZE_MAX:
                raise IllegalMessageError(
                    f"--body-file {chosen.body_file}: more than {RECORD_SIZE_MAX} bytes",
                    status="MESSAGE_ILLEGAL",
                )
        return NewMessage(
            topic=chosen.topic or "",
            body=body,
            tags=chosen.tag,
            keys=chosen.key or (),
            properties=self._properties(),
            queue_id=chosen.queue,
            flag=chosen.flag or 0,
            born_timestamp=self._time(chosen.born_time),
            born_host=options.host("--born-host", chosen.born_host),
            store_timestamp=self._time(chosen.store_time),
            delay_level=chosen.delay_level or 0,
            uniq_key=chosen.uniq_key,
            compression=chosen.compress or "none",
        )

    def _properties(self) -> dict[str, str]:
        result: dict[str, str] = {}
        for text in self._options.property or ():
            name, found, value = text.partition("=")
            if not found or not name or name in result:
                raise UsageError(f"--property {text!r}: it must be NAME=VALUE, each name once")
            result[name] = value
        self._options.check_properties(result)
        return result

    def _time(self, text: str | None) -> int | None:
        return None if text is None else parse_time(text, self._zone, self._now_ms)

    def _changed(self, message: NewMessage) -> NewMessage:
        """Return the message, or its half message if a producer group is given."""
        from rmqtool.write.records.transactions import half

        return message if self._options.group is None else half(message, self._options.group)

    def _end_of_transaction(self, writer: StoreWriter) -> list[NewMessage]:
        from rmqtool.read.op_records import open_half
        from rmqtool.write.records.transactions import commit, rollback

        chosen = self._options
        offset = chosen.commit if chosen.commit is not None else chosen.rollback
        with writer.read() as opened:
            half = open_half(opened, offset or 0)
        end = commit if chosen.commit is not None else rollback
        return end(half, writer.options, self._now_ms)

    @contextmanager
    def _input(self) -> Iterator[Input]:
        """Open the input, with a progress bar; its errors are raised before the store is touched."""
        from rmqtool.write.ingest.reader import Input, format_of, open_input, size_of
        from rmqtool.write.ingest.rows import RowRules

        chosen = self._options
        assert chosen.input is not None
        defaults = {
            "topic": chosen.topic, "queue_id": chosen.queue, "tags": chosen.tag, "keys": chosen.key,
            "properties": self._properties() or None, "flag": chosen.flag,
            "delay_level": chosen.delay_level, "body_compression": chosen.compress,
            "born_timestamp_ms": self._time(chosen.born_time),
            "store_timestamp_ms": self._time(chosen.store_time),
            "born_host": chosen.born_host,
        }  # fmt: skip
        options.host("--born-host", chosen.born_host)
        rules = RowRules(
            zone=self._zone,
            defaults={name: value for name, value in defaults.items() if value is not None},
            ignore_unknown=chosen.ignore_unknown,
        )
        one_by_one = chosen.show == "messages" or chosen.transaction is not None
        self._output.check_fields(COLUMNS if one_by_one and not chosen.dry_run else SUMMARY)
        advanced: list[ProgressBar] = []
        with open_input(chosen.input, lambda count: advanced[0].advance(count) if advanced else None) as file:
            with self._output.progress("append", size_of(file)) as bar:
                advanced.append(bar)
                yield Input(
                    file, chosen.input_format or format_of(file, chosen.input), rules,
                    on_error=chosen.on_error, report=self._report, skip_rows=chosen.skip_rows,
                )  # fmt: skip

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Add to an error, and to an interrupt, how to continue after the rows that are stored."""
        from rmqtool.write.ingest.rows import RowError
        from rmqtool.write.state import begun

        try:
            yield
        except (RmqtoolError, KeyboardInterrupt) as error:
            last, of_row = self._last_row(), error.row if isinstance(error, RowError) else None
            if last or (of_row is not None and self._options.skip_rows):
                rows, then, more = f"the rows up to number {last} are", "; then ", ""
                if of_row is not None:
                    rows, last, then = "the rows before it are", of_row - 1, "; "
                    more = ", and --on-error skip as well to leave it out"
                more = f", without --create{more}" if self._options.create else more
                rest = f"{rows} stored; continue with --skip-rows {last}{more}"
                if isinstance(error, KeyboardInterrupt):
                    error.add_note(rest)
                else:
                    error.hint = rest if error.hint is None else f"{error.hint}{then}{rest}"
            elif last == 0 and self._options.create and isinstance(error, UnwritableError):
                error.hint = begun(self._store.store)
            raise

    # the store

    @contextmanager
    def _appending(self, source: Input) -> Iterator[StoreWriter]:
        """The writer for an input; a new store is made only for a message that can be stored."""
        chosen = self._options
        if chosen.create:
            self._dry_run().look(source, chosen.queue_by, chosen.on_error, self._report, self._changed)
        with self._going_on(), self._writer() as writer:
            if not chosen.create:
                source.rules = replace(source.rules, profile=writer.options.profile)
            yield writer

    @contextmanager
    def _writer(self, message: NewMessage | None = None) -> Iterator[StoreWriter]:
        """Open or create the store for writing.

        `message` is checked first: a message that is refused does not create a topic or a store.
        """
        from rmqtool.write.ingest.append import DryRun
        from rmqtool.write.store_writer import StoreWriter

        chosen = self._options
        if chosen.create and message is not None:
            self._check(message, self._dry_run())

        def check(settings: WriteOptions) -> None:
            if message is not None:
                checker = DryRun(self._store.store, settings, auto_create_queues=chosen.new_queues())
                self._check(message, checker)

        def make() -> StoreWriter:
            if chosen.create:
                return StoreWriter.create(
                    self._store.store, chosen.profile or NEWEST, broker_conf=self._store.broker_conf,
                    auto_create_queues=chosen.new_queues(), **chosen.given(),
                )  # fmt: skip
            return StoreWriter.open(
                self._store.store, profile=chosen.profile, auto_create_queues=chosen.new_queues(),
                check=None if message is None else check, **self._store.arguments(), **chosen.given(),
            )  # fmt: skip

        noting_end_of_undo = changes.end_of_undo(self._output, self._store.store)
        with entering(make) as writer, noting_end_of_undo(writer):
            if not chosen.create:
                options.note_assumed_version(self._output, writer.options.written_by, "--profile")
            yield writer

    def _check(self, message: NewMessage, checker: DryRun) -> None:
        from rmqtool.write.ingest.append import QueueChoice

        checker.put(QueueChoice(checker, self._options.queue_by).of_message(message))

    def _dry_run(self) -> DryRun:
        from rmqtool.write.ingest.append import DryRun

        chosen = self._options
        if chosen.create:
            return DryRun.create(
                self._store.store, chosen.profile or NEWEST, broker_conf=self._store.broker_conf,
                auto_create_queues=chosen.new_queues(), **chosen.given(),
            )  # fmt: skip
        return DryRun.open(
            self._store.store, profile=chosen.profile, auto_create_queues=chosen.new_queues(),
            given=chosen.given(), **self._store.arguments(),
        )  # fmt: skip

    # Output

    def _rows(
        self, results: Iterable[tuple[int, PutResult]], counts: Counter[str]
    ) -> Iterator[dict[str, Any]]:
        """Yield the row of each result; count the messages by topic in `counts`."""
        last = 0
        self._last_row = lambda: last
        for number, result in results:
            last = number
            counts[result.topic] += 1
            yield {"row": number, **result.row(self._zone)}

    def _look(self, open_store: Callable[[], Store]) -> Look | None:
        """Return what notes that the store already has the first rows; None for a new store."""
        from rmqtool.write.ingest.append import KnownRows

        if self._options.create:
            return None
        line = None if self._options.dry_run else self._store.command("stats", "--duplicates")
        return KnownRows(open_store, lambda text: self._output.note(f"rmqtool: {text}"), line).look

    def _note_stored(self, counts: Counter[str], source: Input) -> None:
        """Note the half messages and op records that are stored, by topic, and the fillers left out."""
        for text in () if self._options.transaction is not None else of_transactions(counts):
            self._output.note(f"rmqtool: {text}")
        if source.fillers:
            from rmqtool.commands.finding_report import fillers_text

            self._output.note(f"rmqtool: left out: {fillers_text(source.fillers)}")

    def _report_totals(self, result: TableResult, writer: StoreWriter, source: Input, started: float) -> None:
        """Show the sums of the input; the writer is closed."""
        seconds = time.monotonic() - started
        size, last = format_size(result.bytes), result.last_physical_offset
        rate = ""  # of a short run it says nothing
        if seconds >= 1 and result.rows >= seconds:
            rate = f": {int(result.rows / seconds)} messages/s, {format_size(int(result.bytes / seconds))}/s"
        self._output.note(f"rmqtool: {counted(result.rows, 'message')}, {size} in {seconds:.1f} s{rate}")
        counts: Counter[str] = Counter()
        for (topic, _), (_, count) in result.queues.items():
            counts[topic] += count
        self._note_stored(counts, source)
        self._sum_up(
            messages=result.rows, bytes=result.bytes, left_out=self._left_out,
            left_out_fillers=source.fillers, blanks=source.empty,
            topics=len({topic for topic, _ in result.queues}), queues=len(result.queues),
            first_physical_offset=result.first_physical_offset, last_physical_offset=last,
            flushed=last is None or last < writer.log.flushed,
        )  # fmt: skip

    def _sum_up(self, **sums: Any) -> None:
        if self._output.shows_text:
            self._output.write_object(sums)
        else:
            self._output.write_rows([sums], SUMMARY, tuple(sums))
        if self._options.dry_run:
            piped = Path("-") in (self._options.input, self._options.body_file)
            line = "the same line without --dry-run" if piped else self._given.line(without=("dry_run",))
            self._output.note(f"rmqtool: nothing was stored; to store the messages: {line}")

    def _report(self, error: RowError) -> None:
        """Report a row that is left out."""
        self._left_out += 1
        if self._left_out <= _LINES:
            self._output.note(f"rmqtool: skipped: {error.message}")
        elif self._left_out == _LINES + 1:
            self._output.note("rmqtool: more rows are skipped")

    def _exit_code(self) -> int:
        return EXIT_INPUT if self._left_out else EXIT_OK
