"""`rmqtool lookup`: messages of a store by key, id, tag, offset or time.

The text names the reason of a scan, and the places that were searched without a result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqtool.commands import options
from rmqtool.commands.groups import Group, Only, with_groups
from rmqtool.commands.lookup_text import (
    PLACES_SHOWN,
    Filled,
    damaged_texts,
    dead_texts,
    groups_of_lost_texts,
    in_words,
    index_texts,
    missing_text,
    nothing_text,
    queue_texts,
    scan_text,
    shortened,
    unseen_text,
    with_hash,
)
from rmqtool.commands.verdicts import (
    is_unreached,
    of_topics_without_groups,
    of_trace,
    what_states_mean,
)
from rmqtool.errors import (
    EXIT_FINDINGS,
    EXIT_OK,
    FormatError,
    UsageError,
    worst_exit_code,
)
from rmqtool.formats.versions import METAVAR
from rmqtool.message.cells import TextColumns, TextLines
from rmqtool.output import Output
from rmqtool.storage.next_command import command_on
from rmqtool.terminal import counted
from rmqtool.times import parse_time

if TYPE_CHECKING:
    from datetime import tzinfo

    from rmqtool.findings import Progress
    from rmqtool.log.events import StoredMessage
    from rmqtool.message.rows import Row, RowFormat
    from rmqtool.read.coverage import Gap
    from rmqtool.read.hits import Hit, NamesLeft, SearchReport
    from rmqtool.read.lookup_request import Request
    from rmqtool.read.selection import Selection
    from rmqtool.read.store import Store
    from rmqtool.terminal import ProgressBar


Max = Annotated[
    int | None,
    typer.Option(
        "--max",
        metavar="N",
        min=0,
        max=options.COUNT_MAX,
        help="Find at most this many messages: the first ones in the log.",
    ),
]
Scan = Annotated[
    Literal["auto", "always", "never"],
    typer.Option(
        "--scan",
        metavar="auto|always|never",
        help="When to scan the log. auto: the parts that the index or the queue does not cover, and for keys"
        " that were not found the whole log; if something is still not found, a log of up to 4 GiB is also"
        " searched for fillers of recover. always: the whole log. never: not at all; gaps are reported.",
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Show the search path instead of messages: index files, slots, chains, gaps."
    ),
]
Trace = Annotated[
    bool,
    typer.Option(
        "--trace",
        help="Show the history of each message, not its content: delays, retries, dead letter queue,"
        " transaction, consumer groups, trace records.",
    ),
]


class LookupOptions(Group):
    """Arguments and options that say what to look up."""

    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VALUE]...",
            help="Find messages with this message id, unique key or key. The field matched names the one that"
            " fits.",
        ),
    ] = None
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="KEY", help="Find messages with this key or unique key (repeatable)."),
    ] = None
    keys_from: Annotated[
        str | None,
        typer.Option(
            "--keys-from", metavar="FILE|-", help="Read keys from a file or standard input, one per line."
        ),
    ] = None
    uniq_key: Annotated[
        list[str] | None,
        typer.Option("--uniq-key", metavar="KEY", help="Find messages with this unique key (repeatable)."),
    ] = None
    tag: Annotated[
        list[str] | None,
        typer.Option(
            "--tag",
            metavar="TAG",
            help="Find messages with this tag; with a key, only messages that also have it (repeatable).",
        ),
    ] = None
    msg_id: Annotated[
        list[str] | None,
        typer.Option(
            "--msg-id",
            metavar="ID",
            help="Find the message with this id: an offset message id (the host in it is ignored), or a"
            " unique key (repeatable).",
        ),
    ] = None
    offset: Annotated[
        list[int] | None,
        typer.Option(
            "--offset", metavar="N", min=0, help="Find the message at this physical offset (repeatable)."
        ),
    ] = None
    queue_offset: Annotated[
        list[int] | None,
        typer.Option(
            "--queue-offset",
            metavar="N",
            min=0,
            help="Find the message at this offset of one queue, named by --topic and --queue (repeatable).",
        ),
    ] = None
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="TIME",
            help="Find the queue offset for this time in each queue of --topic: the broker's answer and the"
            " exact one.",
        ),
    ] = None
    bound: Annotated[
        Literal["lower", "upper"],
        typer.Option(
            "--bound",
            metavar="lower|upper",
            help="With --time: find the first message at or after it (lower), or the last at or before it"
            " (upper). If there is none, exact_offset is the end of the queue (lower) or null (upper).",
        ),
    ] = "lower"
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker",
            metavar=METAVAR,
            parser=options.parse_broker,
            help="With --time: answer as this broker version. Default: the version that used the store last.",
        ),
    ] = None
    grep: Annotated[
        str | None,
        typer.Option(
            "--grep",
            metavar="PATTERN",
            help="With a key, id, tag or offset: include only messages whose body, once decompressed, matches"
            " this Python regular expression anywhere; (?i) at its start ignores case. To search all bodies,"
            " use rmqtool dump --grep.",
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the search terms by kind. Reads the keys of --keys-from; raises as `options.keys_from`."""
        has_keys = self.key or self.keys_from is not None
        keys = [*(self.key or ()), *(options.keys_from(self.keys_from) if self.keys_from is not None else ())]
        return {
            "any": self.values, "key": keys if has_keys else None, "uniq_key": self.uniq_key,
            "msg_id": self.msg_id, "offset": self.offset, "queue_offset": self.queue_offset,
            "time": self.time, "tag": self.tag,
        }  # fmt: skip


@with_groups
def lookup(
    *,
    store: options.StoreOptions,
    sought: LookupOptions,
    selected: Annotated[options.SelectionOptions, Only("topic queue since until")],
    max_: Max = None,
    scan: Scan = "auto",
    explain: Explain = False,
    trace: Trace = False,
    shown: options.OutputOptions,
) -> int:
    """Find messages by key, id, tag, offset or time.

    VALUE can be a message id, a unique key or a key. If it is an offset message id, rmqtool reads the record
    at that offset. Otherwise, or if no record is there, it looks for messages with this unique key or key.

    Finds keys through the index, in all topics or those of --topic, and shows all messages that have
    them. found_by says how each message was found. An index entry holds only a hash, so every message
    is checked by its own keys. rmqtool also scans the parts of the log that the index does not cover,
    because index files are missing, damaged, deleted or incomplete. It scans the whole
    log for keys that it has not found, because indexing may have been switched off for a time, which an index
    file does not show. With --scan never such gaps are reported but not searched.

    The search for a key stops at the first source that yields a match. To also find copies in deleted
    topics or in ranges covered by a damaged index, use --scan always.

    Messages inside batch records (BatchCQ), which brokers do not index, are searched too, unless --scan
    is never. The row is that of the record, and its field inside shows the matching messages. A record
    that matches by its own key and by a key of a message inside it gives two rows.

    If a queue lacks the unit of a queue offset (its files may be missing, damaged, or lag behind the
    log), rmqtool scans the log. With --scan never the gap is only reported.

    --time shows two queue offsets: the broker's answer (5.x uses the times of messages, 4.x those of
    its queue files) and the exact one.

    Exits with 0 when everything was found; 1 when something was not found, and for damage in a message
    that was found; 2 for a usage error; 3 when something could not be read or is stored in a form
    rmqtool cannot read; 70 for a bug in rmqtool; 130 when interrupted.
    """
    selection = (selected := selected.but(limit=max_, grep=sought.grep)).selection(shown.tz)
    writer = shown.writer(grep=selection.grep)
    given = sought.given()
    kind = _kind(
        given, store, selected.words(), shown.words({"tz"}), is_from_file=sought.keys_from is not None
    )
    if explain and kind not in ("any", "key", "uniq_key", "tag"):
        raise UsageError("--explain works only for a VALUE, --key, --uniq-key or --tag")
    for name, is_given in (("--explain", explain), ("--trace", trace), ("--time", kind == "time")):
        if is_given:
            shown.only_rows(name)
    if explain and trace:
        raise UsageError("--explain and --trace exclude each other")
    if kind != "time" and (sought.bound != "lower" or sought.broker is not None):
        raise UsageError("--bound and --broker need --time")
    with store.open(quiet=shown.quiet) as opened:
        task = _Task(opened, writer, shown.zone, store.command)
        if kind == "time":
            if selection.grep is not None:
                raise UsageError("--grep is for messages, not for --time")
            if sought.broker is None:
                options.note_assumed_version(writer, opened.written_by, "--broker")
            return task.times(sought, selection)
        request = _request(kind, given, selection, sought.tag, scan)
        if explain:
            return task.explain(request)
        form = shown.row_format(opened, writer.fields)
        return task.messages(request, form, trace=trace)


def _kind(
    given: Mapping[str, object], store: options.StoreOptions, narrowed: Sequence[str], zone: Sequence[str],
    *, is_from_file: bool,
) -> str:  # fmt: skip
    """Return the one requested kind of look-up; tags next to another kind only narrow it.

    `narrowed` and `zone` are the words of the options that select messages, and of the zone of their times,
    for a line that shows these messages. `is_from_file` is whether keys are those of --keys-from.
    """
    kinds = [name for name, value in given.items() if value is not None and value != [] and name != "tag"]
    if len(kinds) > 1:
        of_file = {"key": "--keys-from"} if is_from_file else {}
        names = " and ".join(of_file.get(each, _spelled(each)) for each in kinds)
        raise UsageError(f"{names} exclude each other", hint="look up one kind of thing at a time")
    if not kinds and not given["tag"]:
        ways = (
            "give a message id or key after STORE, or --key, --uniq-key, --tag, --msg-id, --offset,"
            f" --queue-offset or --time; {store.command('dump', '-n', '5')} shows keys"
        )
        error = UsageError("nothing to look up", hint=ways)
        if narrowed:
            what = "search bodies" if "--grep" in narrowed else "show all these messages"
            error.hint = f"to {what}: {store.command('dump', *narrowed, *zone)}"
            history = store.command("lookup", "--offset", "OFFSET", "--trace")
            error.lines = [f"then, for the history of one by its physical_offset: {history}"]
        raise error
    return kinds[0] if kinds else "tag"


def _spelled(kind: str) -> str:
    """Return the argument or option of a kind of look-up, as the user types it."""
    return "VALUE" if kind == "any" else f"--{kind.replace('_', '-')}"


def _request(
    kind: str, given: Mapping[str, object], selection: Selection, tag: list[str] | None,
    scan: Literal["auto", "always", "never"],
) -> Request:  # fmt: skip
    from rmqtool.read.lookup_request import Request

    values = given[kind]
    assert isinstance(values, list)
    values = list(dict.fromkeys(values))
    if "" in values:
        raise UsageError(f"{_spelled(kind)} is empty", hint="no message has an empty value")
    if kind != "tag" and tag:
        selection = replace(selection, tags=tag)
    if kind == "queue_offset" and not (_is_one_name(selection.topics) and len(selection.queues) == 1):
        raise UsageError(
            "--queue-offset needs one --topic and one --queue", hint="a queue offset belongs to one queue"
        )
    if kind in ("offset", "queue_offset"):
        return Request(kind, offsets=tuple(values), selection=selection, scan=scan)  # type: ignore[arg-type]
    return Request(kind, names=tuple(values), selection=selection, scan=scan)  # type: ignore[arg-type]


def _is_one_name(topics: object) -> bool:
    from rmqtool.read.selection import is_glob

    names = list(topics)  # type: ignore[call-overload]
    return len(names) == 1 and not is_glob(names[0])


class _Task:
    """One run of the command over an open store."""

    def __init__(
        self, store: Store, writer: Output, zone: tzinfo | None, command: Callable[..., str]
    ) -> None:
        self.store = store
        self.writer = writer
        self.zone = zone
        self.command = command  # a command line on this store
        self._has_fillers = False

    def times(self, sought: LookupOptions, selection: Selection) -> int:
        """Carry out --time: show one row for each queue."""
        from time import time_ns

        from rmqtool.read.time_rows import TIME_FIELDS, TIME_TABLE, time_rows

        assert sought.time is not None
        wanted = parse_time(sought.time, self.zone, time_ns() // 1_000_000)
        if not selection.topics:
            raise UsageError("--time needs a --topic", hint="--topic '*' selects all topics")
        rows = time_rows(self.store, selection, wanted, sought.bound, sought.broker, self.zone)
        count = self.writer.write_rows(rows, TIME_FIELDS, TIME_TABLE)
        code = EXIT_OK if count else self._nothing(selection, "no queue matches")
        return worst_exit_code(code, self._unread(queues=selection))

    def explain(self, request: Request) -> int:
        """Carry out --explain: show the search through the index."""
        from rmqtool.read.lookup_explain import FIELDS, TABLE_FIELDS, explain_rows

        kind = "key" if request.kind == "any" else request.kind
        assert kind in ("key", "uniq_key", "tag")
        rows = list(explain_rows(self.store, request.names, request.selection, kind, self.zone))
        is_short = self.writer.chosen_format == "table" and not request.selection.topics
        shown = list(with_hash(rows)) if is_short else rows
        self.writer.write_rows(shown, FIELDS, TABLE_FIELDS)
        if len(shown) < len(rows):
            left_out = {row["topic"] for row in rows if row.get("topic")}
            left_out -= {row["topic"] for row in shown if row.get("topic")}
            self.writer.note(
                f"rmqtool: {counted(len(left_out), 'topic')} without an entry of this hash"
                f" {'is' if len(left_out) == 1 else 'are'} not shown; --topic shows the search in one"
            )
        if any(row["step"] == "entry" and row["result"] == "found" for row in rows):
            return EXIT_OK
        text = "the index has no such message; without --explain rmqtool also searches what it lacks"
        code = self._nothing(request.selection, text)
        return worst_exit_code(code, self._unread())

    def messages(self, request: Request, form: RowFormat, *, trace: bool) -> int:
        """Show the messages, or with `trace` their traces."""
        try:
            return self._messages(request, form, trace=trace)
        except FormatError as error:
            if request.kind == "queue_offset" and error.hint is None:
                error.hint = _LOST_HINT
                if error.physical_offset is not None:
                    words = ("dump", "--explain", str(error.physical_offset))
                    explain = command_on(self.store.layout, *words)
                    error.lines = [f"what can be read of it: {explain}"]
            if trace:
                self._note_lost(groups_of_lost_texts(self.store, request))
            raise

    def _messages(self, request: Request, form: RowFormat, *, trace: bool) -> int:
        from rmqtool.read.hits import SearchReport
        from rmqtool.read.lookup_request import FIELDS, table_fields, typed_values

        looked = SearchReport()
        seen = _Damage(self.writer)
        filled = Filled(self.store, self.writer, request)
        fillers: list[StoredMessage] = []
        with ExitStack() as stack:
            if trace:
                found_hits = request.hits(self.store, looked, *self._shown_scans(stack))
                count = self._write_traces(_noted(found_hits, filled), form, seen)
                stack.close()
                fillers = filled.search()
            else:
                rows = self._rows(request, form, seen, looked, filled, stack)
                rows = chain(rows, filled.rows(form, stack.close))
                typed = typed_values(request)
                count = self.writer.write_rows(rows, FIELDS, table_fields(request), typed=typed)
                count -= len(filled.records)
        self._has_fillers = filled.has_ranges
        code = self._ending(request, looked, filled.left, count)
        code = worst_exit_code(seen.exit_code(), code, filled.report())
        if trace:
            self._note_lost(groups_of_lost_texts(self.store, request, fillers))
            code = worst_exit_code(code, self._unread_queues())
        return code

    def _note_lost(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.writer.note(f"rmqtool: {text}")

    def _rows(
        self, request: Request, form: RowFormat, seen: _Damage, looked: SearchReport, filled: Filled,
        stack: ExitStack,
    ) -> Iterator[Row | TextLines | TextColumns]:  # fmt: skip
        """Yield the row of each hit; rows of thousands are made together, if possible."""
        from rmqtool.read.hits import Hit
        from rmqtool.report.export.hit_lines import hit_maker
        from rmqtool.table import TABLE_BLOCK_ROWS

        shown = self._shown_scans(stack)
        maker = hit_maker(
            self.store, self.writer.fields, form, request, line_format=self.writer.line_format,
            block_rows=TABLE_BLOCK_ROWS if self.writer.takes_cells else None,
        )  # fmt: skip
        if maker is None:
            for hit in _noted(request.hits(self.store, looked, *shown), filled):
                yield seen.row(hit, form, request)
            return

        def made() -> Iterator[Hit | TextLines | TextColumns]:
            for hits in request.hits_and_batches(self.store, looked, *shown):
                if not isinstance(hits, Hit):
                    filled.left.found_in(hits)
                    yield from maker.batch(hits)
                elif filled.note(hits):
                    yield from maker.single(hits)
            yield from maker.last()

        for each in made():
            yield seen.row(each, form, request) if isinstance(each, Hit) else each

    def _shown_scans(
        self, stack: ExitStack
    ) -> tuple[Progress, Callable[[Sequence[Gap]], None], Callable[[str], None]]:
        """Return what a search calls: a note precedes a scan of the log; from then on progress is shown."""
        bars: list[ProgressBar] = []

        def before_scan(gaps: Sequence[Gap]) -> None:
            self.writer.note(f"rmqtool: {scan_text(gaps)}")
            if not bars:
                total = sum(file.size for file in self.store.layout.commit_log)
                bars.append(stack.enter_context(self.writer.progress("scan", total)))

        def advance(count: int) -> None:
            for bar in bars:
                bar.advance(count)

        def note(text: str) -> None:
            self.writer.note(f"rmqtool: {text}")

        return advance, before_scan, note

    def _write_traces(self, hits: Iterator[Hit], form: RowFormat, seen: _Damage) -> int:
        """Write the trace of each message once, even if several of its records are hits; count the hits."""
        from rmqtool.report.trace import FIELDS, message_fate, table_fields, unique_key

        unknown: dict[str, None] = {}
        unread: Counter[str] = Counter()
        fates: dict[str, list[str]] = {}  # the messages to which the same happened
        states: set[str | None] = set()
        # Messages of one batch record have the same offset: the key distinguishes them.
        traced_places: set[tuple[str | None, int]] = set()
        others: set[int] = set()  # records of other messages of a batch
        lacking: set[int] = set()  # records that are in no queue
        count = 0

        def rows() -> Iterator[Row]:
            nonlocal count
            for hit in hits:
                count += 1
                if (unique_key(hit.stored), hit.stored.physical_offset) in traced_places:
                    continue
                fate = message_fate(self.store, hit.stored, tz=form.tz)
                traced_places.update(
                    (unique_key(step.stored), step.stored.physical_offset) for step in fate.steps
                )
                others.update(fate.batch)
                traced_rows = fate.rows()
                name, text = of_trace(traced_rows)
                if text in fates or len(fates) < _FATES_SHOWN:
                    fates.setdefault(text, []).append(name)
                unread.update({row["detail"]["reason"] for row in traced_rows if row["state"] == "no_group"})
                for step in fate.steps:
                    seen.report(step.stored)
                for row in traced_rows:
                    states.add(row["state"])
                    lacking.update([row["physical_offset"]] if is_unreached(row) else ())
                    yield row
                unknown.update(dict.fromkeys(fate.unknown))

        # A table of all of them together, for its columns and widths; each takes a while to be found.
        if self.writer.chosen_format == "table":
            traced = [in_words(row) for row in rows() if row["state"] != "no_group"]
            self.writer.write_rows(traced, FIELDS, table_fields(traced))
        else:
            self.writer.write_rows(rows(), FIELDS)
        for text, names in fates.items():
            if text:
                which = names[0] if len(names) == 1 else counted(len(names), "message")
                self.writer.note(f"rmqtool: {which}: {text}")
        if lacking:
            how = "what the queues lack, and how to repair them"
            self.writer.note(f"rmqtool: {how}: {self.command('recover')}")
        self._note_batch(others, traced_places)
        is_unclean = self.store.layout.abort is not None
        for text in (*what_states_mean(states, is_unclean=is_unclean), *of_topics_without_groups(unread)):
            self.writer.note(f"rmqtool: {text}")
        for text in unknown:
            self.writer.note(f"rmqtool: unknown: {text}")
        return count

    def _note_batch(self, others: set[int], traced: set[tuple[str | None, int]]) -> None:
        """Say how many more messages were sent in one batch with the traced ones, and how to see them.

        `traced` are the traced records, each with its unique key, `others` are all records of the batch.
        """
        left = others - {place for _, place in traced}
        if not left:
            return
        text = f"{counted(len(left), 'more message')} of the same batch"
        keys = {key for key, _ in traced}
        if len(keys) == 1 and (key := keys.pop()) is not None:
            text += f" with this unique key: {self.command('lookup', '--uniq-key', key, '--trace')}"
        self.writer.note(f"rmqtool: {text}")

    def _served(self, request: Request) -> str:
        """Return the queue offsets of the queue that was searched, as text; empty for other look-ups."""
        if request.kind != "queue_offset":
            return ""
        topic, queue_id = next(iter(request.selection.topics)), next(iter(request.selection.queues))
        if self._has_fillers:
            return ""
        lost = self._lost_places(topic, queue_id, request.offsets)
        if lost:
            return f"; {lost}"
        queue = self.store.queue(topic, queue_id)
        if (queue is None or not queue.files) and self._is_known(topic, queue_id):
            return (
                f"; topics.json has queue {queue_id} of {topic}, but the store has no file and no message of"
                " it: it never had one, or the end of the log is lost"
            )
        low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        if low < high:
            return f"; queue {queue_id} of {topic} has {low} to {high - 1}"
        return f"; queue {queue_id} of {topic} is empty, offsets below {low} were deleted" if low else ""

    def _lost_places(self, topic: str, queue_id: int, offsets: Sequence[int]) -> str:
        """Say to which places of the log the units of queue offsets lead, if no sound record is there."""
        queue = self.store.queue(topic, queue_id)
        units = [queue.unit(offset) for offset in offsets] if queue is not None else []
        low = self.store.commit_log.min_offset
        places = [unit.physical_offset for unit in units if unit is not None and not unit.is_pre_blank]
        if not places or any(place < low or self._is_sound(place) for place in places):
            return ""
        several = len(places) > 1
        shown = ", ".join(map(str, places[:PLACES_SHOWN])) + (", ..." if len(places) > PLACES_SHOWN else "")
        text = (
            f"the queue leads to offset{'s' if several else ''} {shown} of the log, where no sound record is"
        )
        if min(places) >= self.store.end_offset():
            text = (
                f"the queue leads to offset{'s' if several else ''} {shown}, but the log ends at"
                f" {self.store.end_offset()}"
            )
        fate = "the messages are lost unless a slave or a copy has them"
        if not several:
            fate = "the message is lost unless a slave or a copy has it"
        return f"{text}: {fate}; see rmqtool recover and rmqtool diff"

    def _is_known(self, topic: str, queue_id: int) -> bool:
        from rmqtool.read.known_topics import queue_ids

        return queue_id in (queue_ids(self.store.layout, topic.__eq__) or set())

    def _is_sound(self, place: int) -> bool:
        stored = self.store.find(place)
        return stored is not None and not stored.status

    def _ending(self, request: Request, looked: SearchReport, left: NamesLeft, count: int) -> int:
        """Report damage and what was not found; return the exit code."""
        code = self._wrong(request, looked)
        code = worst_exit_code(code, self._found(request, looked, left, count))
        for text in damaged_texts(self.store, request, looked, left.names(), self.command("recover")):
            self.writer.note(f"rmqtool: {text}")
        return code

    def _wrong(self, request: Request, looked: SearchReport) -> int:
        """Report damage and ranges that were not searched; return the exit code."""
        from rmqtool.commands.finding_report import FindingReport

        for text in (
            *index_texts(self.store, request, looked),
            *dead_texts(request, looked, self.command("recover")),
            *queue_texts(self.store, request),
        ):
            self.writer.note(f"rmqtool: {text}")
        if looked.gaps and request.scan == "never":
            self.writer.note(f"rmqtool: {unseen_text(looked)}")
        layout = self.store.layout
        if looked.index_files and not request.selection.topics and request.scan != "always":
            if layout.kind == "store" and not {"topics.json", "topics.json.bak"} & set(layout.config):
                self.writer.note(
                    "rmqtool: without topics.json only topics that have queues are searched: see --scan"
                )
        seen = FindingReport(self.writer)
        for finding in looked.damage.values():
            seen.report(finding)
        return worst_exit_code(seen.exit_code(), EXIT_FINDINGS if looked.dead or looked.past_end else EXIT_OK)

    def _found(self, request: Request, looked: SearchReport, left: NamesLeft, count: int) -> int:
        """Report names that were not found; return the exit code."""
        if request.selection.limit is not None and count >= request.selection.limit:
            return EXIT_OK
        queues = request.selection if request.kind == "queue_offset" else None
        if not left.has_found and looked.without_topic:
            code = self._nothing(request.selection)
            self.writer.note(
                "rmqtool: only the index was searched: --scan always also finds messages of a deleted topic"
            )
            return worst_exit_code(code, self._unread(queues=queues))
        if not left.has_found:
            code = self._nothing(request.selection, nothing_text(request, looked) + self._served(request))
            if request.kind in ("any", "key"):
                self._note_other_ways(request)
            start = self.store.commit_log.min_offset
            if start > 0 and self.store.layout.queue_logs is None:
                self.writer.note(f"rmqtool: the log begins at {start}; older messages have expired")
            return worst_exit_code(code, self._unread(queues=queues))
        missing = left.names()
        if not missing and request.kind in _EXACT:
            return self._unread(queues=queues) if queues is not None and looked.gaps else EXIT_OK
        if missing:
            self.writer.note(f"rmqtool: {missing_text(request, missing)}")
        return worst_exit_code(EXIT_FINDINGS if missing else EXIT_OK, self._unread())

    def _note_other_ways(self, request: Request) -> None:
        """Say how to see keys, and for a text that no key can be how to search bodies."""
        topics = list(request.selection.topics) or ["TOPIC"]
        words = [word for topic in topics[:1] for word in ("--topic", topic)]
        self.writer.note(f"rmqtool: keys of a topic: {self.command('dump', *words, '--fields', 'keys')}")
        if len(request.names) == 1 and " " in request.names[0]:
            from re import escape

            name = request.names[0]
            pattern = "TEXT" if shortened(name) != name else escape(name).replace("\\ ", " ")
            line = self.command("dump", "--grep", pattern)
            self.writer.note(f"rmqtool: a key has no spaces; to search bodies: {line}")

    def _unread(self, *, queues: Selection | None = None) -> int:
        """Report what could not be read in the log or in the queues of a selection; return the exit code."""
        from rmqtool.commands.finding_report import report_unread

        if queues is None:
            return report_unread(self.store, self.writer, queues=False)
        served = [
            (topic, queue_id)
            for topic, queue_id in self.store.queues
            if queues.matches_topic(topic) and (not queues.queues or queue_id in queues.queues)
        ]
        return report_unread(self.store, self.writer, queues=True, served=served)

    def _unread_queues(self) -> int:
        """Report queues that cannot be read, of which a trace says nothing; return the exit code."""
        from rmqtool.commands.finding_report import FindingReport
        from rmqtool.read.unread import unread

        seen = FindingReport(self.writer)
        for each in unread(self.store, queues=True):
            if each.problem.code == "CQ15":
                seen.report(each)
        return seen.exit_code()

    def _nothing(self, selection: Selection, text: str | None = None) -> int:
        """Report that nothing was found, where it was searched, and topics that the store lacks."""
        from rmqtool.commands.finding_report import note_times, report_unknown
        from rmqtool.findings import ScanCounters

        if text is not None:
            self.writer.note(f"rmqtool: {text}")
        note_times([self.store], selection, self.writer, self.zone, found=False)
        report_unknown([self.store], selection, ScanCounters(), found=False)
        return EXIT_FINDINGS


_LOST_HINT = (
    "the message is lost or damaged: rmqtool recover shows what is lost, rmqtool diff whether a slave or a"
    " copy has it"
)
_EXACT = ("offset", "queue_offset", "msg_id", "uniq_key")
"""Searches for exactly one message: once it is found, the search is complete."""


def _noted(hits: Iterator[Hit], filled: Filled) -> Iterator[Hit]:
    """Yield the hits that are messages, not fillers; note all of them."""
    for hit in hits:
        if filled.note(hit):
            yield hit


class _Damage:
    """Makes the rows of hits, and reports damage in their records."""

    def __init__(self, writer: Output) -> None:
        self._writer = writer
        self._code = EXIT_OK

    def row(self, hit: Hit, form: RowFormat, request: Request) -> Row:
        """Return the row of a hit."""
        from rmqtool.message.rows import OK
        from rmqtool.read.lookup_request import hit_row

        row = hit_row(hit, form, request)
        if row.get("status", [OK]) != [OK] or hit.stored.status:
            self.report(hit.stored, row.get("status", [OK]))
        return row

    def report(self, stored: StoredMessage, status: Sequence[str] = ()) -> None:
        """Report the damage of a record, as the walk saw it and as the `status` of its row says."""
        from rmqtool.commands.finding_report import FindingReport
        from rmqtool.read.log_items import record_findings

        seen = FindingReport(self._writer)
        for each in record_findings(stored, list(status)):
            seen.report(each)
        self._code = worst_exit_code(self._code, seen.exit_code())

    def exit_code(self) -> int:
        """Return the exit code for everything reported."""
        return self._code


_FATES_SHOWN = 20  # sentences on traced messages
