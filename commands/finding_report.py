"""Findings as blocks of text; and on stderr of commands that read messages, with names that no store has."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rmqtool.errors import EXIT_FINDINGS, EXIT_OK, worst_exit_code
from rmqtool.formats.filler import TAG
from rmqtool.lazy_pattern import pattern
from rmqtool.output import Output
from rmqtool.problems import NEEDS_STORE, Finding, messages_of
from rmqtool.storage.counted_queues import topics_of_batches
from rmqtool.terminal import counted, print_error, shortened
from rmqtool.times import format_time

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import tzinfo

    from rmqtool.findings import BatchRecords, ScanCounters
    from rmqtool.read.selection import Selection
    from rmqtool.read.store import Store
    from rmqtool.storage.layout import StoreLayout

_OF_QUEUES = ("--topic", "--exclude-topic", "--queue")
"""Units of queues are selected by these options too; entries of the index by none."""
_COMMAND = pattern(r"\brmqtool ([a-z-]+) STORE\b")
_LABEL = 10
_LINES = 20  # findings that are reported one by one


class FindingReport:
    """Reports findings on stderr: the first ones one by one, the others as a count.

    On a terminal the sentence is below the code and the place, as in a block; elsewhere each is one line.
    """

    def __init__(self, writer: Output) -> None:
        self._writer = writer
        self._code = EXIT_OK
        self._count = 0

    def report(self, finding: Finding) -> None:
        """Report one finding."""
        problem = finding.problem
        self._code = worst_exit_code(self._code, problem.exit_code)
        if problem.severity == "note" and self._writer.quiet:
            return
        self._count += 1
        if self._count > _LINES:
            return
        messages = messages_of(problem.code, finding.detail)
        place = _place(finding.path, finding.physical_offset, finding.length, messages)
        reason, expected = finding.detail.get("reason"), finding.detail.get("expected_bytes")
        if expected is not None:
            reason = f"{expected} bytes expected"
        text = (finding.message or problem.message) + (f" ({reason})" if reason else "")
        if sys.stderr is not None and sys.stderr.isatty():
            print_error(f"rmqtool: {problem.severity}: {problem.code} {place}")
            print_error(f"  {text}")
        else:
            print_error(f"rmqtool: {problem.severity}: {problem.code} {text}: {place}")

    def note_past_end(self, store: Store, selection: Selection, count: int | None) -> None:
        """Note units of the selected queues that point past the end of the log, if the limit is not reached.

        `count` is how many messages were found, None if they are the newest.
        """
        from rmqtool.read.past_end import units_past_end
        from rmqtool.storage.next_command import command_on

        if count is not None and selection.limit is not None and count >= selection.limit:
            return
        found = units_past_end(store, selection)
        if found is None:
            return
        units, queues = counted(found.units, "unit"), counted(found.queues, "queue")
        points, its = ("points", "its message is") if found.units == 1 else ("point", "their messages are")
        self._writer.note(
            f"rmqtool: {units} of {queues} {points} past the end of the log: {its} lost, or the log's last"
            f" file is missing; {command_on(store.layout, 'recover')}"
        )
        self._code = worst_exit_code(self._code, EXIT_FINDINGS)

    def exit_code(self) -> int:
        """Return the exit code for all findings; print how many were not shown."""
        if self._count > _LINES:
            print_error(f"rmqtool: and {self._count - _LINES} more; rmqtool verify shows all of them")
        return self._code


def report_unread(
    store: Store, writer: Output, *, queues: bool, served: Iterable[tuple[str, int]] = ()
) -> int:
    """Report parts of the log, and with `queues` of the queues, that cannot be read; return the exit code.

    For the queues `served`, it also reports units that a broker would not serve.
    """
    from rmqtool.read.unread import unread, unserved

    seen = FindingReport(writer)
    for each in (*unread(store, queues=queues), *unserved(store, served)):
        seen.report(each)
    return seen.exit_code()


def note_selection(
    stores: Sequence[Store],
    selection: Selection,
    writer: Output,
    batches: BatchRecords | None = None,
    *,
    is_query: bool = False,
) -> None:
    """Note a time range that is empty, and how many batch records were met.

    Without any of these, note that names and filters do not reach into them.

    Args:
        stores: the stores.
        selection: what was selected.
        writer: writes the note.
        batches: the batch records among the selected ones, if they were counted and are shown packed.
        is_query: a query has read them; its result may leave them out.
    """
    if selection.since is not None and selection.since == selection.until:
        writer.note(
            "rmqtool: --since and --until are the same time and select nothing: --until is exclusive; a whole"
            " day ends with the next day"
        )
    if batches is not None and batches.records:
        found = f"{counted(batches.records, 'batch record')} (BatchCQ)"
        verb = "holds" if batches.records == 1 else "hold"
        holds = f"{verb} {counted(batches.messages, 'message')}"
        shows = "in the rows of rmqtool dump --json, system.messages has"
        if is_query:
            first, *others = sorted(batches.topics)
            which = f"{len(batches.topics)} topics, such as" if others else "topic"
            writer.note(
                f"rmqtool: the query read {found} of {which} {shortened(first)}, which {holds}; if its result"
                f" includes them, each counts as one row; {shows} each of the messages"
            )
            return
        writer.note(
            f"rmqtool: {found} {holds}: each counts as one, has its own keys, tags and properties, and a body"
            f" of packed messages; {shows} each of them"
        )
        return
    if not (selection.keys or selection.tags or selection.filter):
        return
    if set(selection.tags) == {TAG}:  # fillers stand alone
        return
    topics = {topic for store in stores for topic in topics_of_batches(store.layout)}
    if any(map(selection.matches_topic, topics)):
        writer.note(
            "rmqtool: a batch record counts as one message with its own keys, tags and properties;"
            " rmqtool lookup also searches the messages inside"
        )


def note_times(
    stores: Iterable[Store], selection: Selection, writer: Output, zone: tzinfo | None, *, found: bool
) -> None:
    """Note which times --since and --until are where nothing was found, or one of them is in the future.

    A time of day is today's: it was perhaps meant for the day of a table, which shows times without dates.
    """
    found = found or selection.limit == 0
    last_ms = None
    if not found and selection.since is not None and selection.time_field == "store":
        lasts = (store.last_stored_ms() for store in stores)
        last_ms = max((last for last in lasts if last is not None), default=None)
    times = {"--since": selection.since, "--until": selection.until}
    text = times_text(times, zone, last_ms, only_future=found)
    if text:
        writer.note(f"rmqtool: {text}")


def times_text(
    times: Mapping[str, int | None], zone: tzinfo | None, last_ms: int | None = None, *, only_future: bool
) -> str:
    """Say which times options gave: `--since is 2026-11-27T08:50:33.000+00:00, which is in the future`.

    `times` are by option, `last_ms` is when the last message was stored: it is shown if it is before --since.
    With `only_future` only times in the future are shown; the text is empty if nothing is.
    """
    now_ms = time.time_ns() // 1_000_000
    texts = [
        f"{name} is {format_time(time_ms, zone) or time_ms}"
        + (", which is in the future" if time_ms > now_ms else "")
        for name, time_ms in times.items()
        if time_ms is not None and not (only_future and time_ms <= now_ms)
    ]
    since = times.get("--since")
    if last_ms is not None and since is not None and last_ms < since:
        texts.append(f"the last message was stored at {format_time(last_ms, zone) or last_ms}")
    return "; ".join(texts)


def note_fillers(
    found: BatchRecords, selection: Selection, writer: Output, *, query: str | None = None
) -> None:
    """Note how many fillers are among the messages, and what leaves them out.

    Nothing is said to those who select fillers, or name them in `query`, which has read the messages.
    """
    count = found.fillers + found.fillers_of_no_queue
    if not count or TAG in selection.tags or (query is not None and TAG in query):
        return
    given = "" if selection.filter is None else selection.filter.text
    how: list[str] = []
    if query is not None:
        conditions = (f"tags IS DISTINCT FROM '{TAG}'", f"topic <> '{TAG}'")
        there = (found.fillers, found.fillers_of_no_queue)
        which = [each for each, number in zip(conditions, there, strict=True) if number]
        how = [f"WHERE {' AND '.join(which)}"]
    elif found.fillers and TAG not in given:
        text = f"TAGS IS NULL OR TAGS <> '{TAG}'"
        how.append(f'--filter "(...) AND ({text})"' if given else f'--filter "{text}"')
    if query is None and found.fillers_of_no_queue:
        how.append(f"--exclude-topic {TAG}")
    who = "the query read" if query is not None else "the messages include"
    leave = f"; without {'it' if count == 1 else 'them'}: {' '.join(how)}" if how else ""
    writer.note(f"rmqtool: {who} {fillers_text(count)}{leave}")


def fillers_text(count: int) -> str:
    """Return `2 fillers of recover in the place of lost messages`."""
    whose = "a lost message" if count == 1 else "lost messages"
    return f"{counted(count, 'filler')} of recover in the place of {whose}"


def report_unknown(
    stores: Sequence[Store], selection: Selection, looked: ScanCounters, *, found: bool
) -> int:
    """Report the requested topics, patterns and queues that no store has, with the closest names.

    `looked.topics` are topics that records have, `found` is whether anything was selected. Returns
    the exit code.
    """
    from rmqtool.read.known_topics import all_topic_names, queue_ids, unknown_topics
    from rmqtool.read.selection import is_glob

    known = all_topic_names(store.layout for store in stores)
    if known is None:
        return EXIT_OK
    known |= looked.topics
    unknown = unknown_topics(selection, known)
    whose = "the store has" if len(stores) == 1 else "the stores have"
    for name in unknown:
        what = f"topic that matches {name}" if is_glob(name) else f"topic {name}"
        print_error(f"rmqtool: {whose} no {what}; {_instead(name, known)}")
    if unknown or found or not selection.queues:
        return EXIT_FINDINGS if unknown else EXIT_OK
    ids: set[int] = set()
    for store in stores:
        ids |= queue_ids(store.layout, selection.matches_topic) or set(selection.queues)
    if ids & set(selection.queues):
        return EXIT_OK
    whose = "the selected topics have" if selection.topics or selection.exclude_topics else whose
    wanted = ", ".join(map(str, sorted(selection.queues)[:8]))
    there = f"0 to {max(ids)}" if ids == set(range(max(ids) + 1)) else ", ".join(map(str, sorted(ids)[:8]))
    print_error(f"rmqtool: {whose} no queue {wanted}; there are {there}")
    return EXIT_FINDINGS


def _instead(name: str, known: Collection[str]) -> str:
    """Return what to give for a topic that no store has: several topics, near names, or the topics.

    Names that match if upper and lower case are the same are the nearest.
    """
    from rmqtool.message.system_topics import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
    from rmqtool.near_names import listed, near_or_listed
    from rmqtool.read.selection import Selection

    parts = [part.strip() for part in name.split(",")]
    if len(parts) > 1 and all(part in known for part in parts):
        return "give each topic with an option of its own: " + " ".join(f"--topic {part}" for part in parts)
    of_any_case = Selection(topics=[name.lower()])
    near = sorted(each for each in known if of_any_case.matches_topic(each.lower()))
    if near:
        return f"upper and lower case differ: {listed(near)}"
    plain = sorted(each for each in known if not is_system_topic(each)
                   and not each.startswith((RETRY_PREFIX, DLQ_PREFIX)))  # fmt: skip
    text = near_or_listed(name.strip("*"), known, "topics are", plain)
    return text if plain or text.startswith("nearest") else "there are only system topics"


def note_unselected(views: Collection[str], selection: Selection, writer: Output) -> None:
    """Note which options do not restrict the tables of queues and index that a query reads."""
    given = _given(selection)
    of_queues = [name for name in given if name not in _OF_QUEUES]
    views_and_names = (("consume_queue", of_queues), ("index_entries", given))
    texts = [
        f"{view} ignores {', '.join(names)}" for view, names in views_and_names if view in views and names
    ]
    if texts:
        writer.note(f"rmqtool: {'; '.join(texts)}: these options select only messages")


def _given(selection: Selection) -> list[str]:
    """Return the given options that select messages."""
    lists = {
        "--topic": selection.topics, "--exclude-topic": selection.exclude_topics,
        "--queue": selection.queues, "--tag": selection.tags, "--key": selection.keys,
    }  # fmt: skip
    single = {
        "--filter": selection.filter, "--since": selection.since, "--until": selection.until,
        "--from-offset": selection.from_offset, "--to-offset": selection.to_offset,
    }  # fmt: skip
    return [
        *(name for name, values in lists.items() if values),
        *(name for name, value in single.items() if value is not None),
    ]


class FindingBlocks:
    """Makes the block of each finding: severity, code and place; what is wrong; what to do.

    What was said of a problem is not repeated at its other places.
    """

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def lines(self, row: Mapping[str, Any], width: int) -> Iterator[str]:
        """Yield the lines for the row of a finding, wrapped at `width` columns."""
        code, message = row["problem"], row["message"]
        is_new = self._said.get(code) != message
        if is_new and self._said:
            yield ""
        messages = messages_of(code, row.get("detail", {}))
        place = _place(row["path"], row["physical_offset"], row["length"], messages)
        if "record_physical_offset" in row.get("detail", {}):
            place += f", its record at {row['detail']['record_physical_offset']}"
        yield from wrapped(f"{row['severity'].upper()}: {code} {place}", width, indent=2)
        if is_new:
            yield from wrapped(f"  {message}", width, indent=2)
            if code not in self._said and row["repair"]:
                yield from wrapped(f"{'  do':<{_LABEL}}{row['repair']}", width, indent=_LABEL)
        self._said[code] = message


def finding_row(found: Finding, layout: StoreLayout, command: Callable[[str], str]) -> dict[str, Any]:
    """Return the row of a finding, whose repair names the store instead of STORE.

    `command` returns the line of a command on the store. Of a part of a store, which no command repairs, the
    row says so.
    """
    row, repair = found.row(), found.problem.repair
    if repair is not None and layout.kind not in ("commitlog", "consumequeue", "index"):
        row["repair"] = commands_on_store(repair, command)
    elif repair is not None and repair.startswith("rmqtool "):
        row["repair"] = NEEDS_STORE
    return row


def commands_on_store(text: str, command: Callable[[str], str]) -> str:
    """Return a text with command lines on the store instead of those on STORE."""
    return _COMMAND.sub(lambda found: command(found[1]), text)


def _place(path: str, physical_offset: int | None, length: int | None, messages: int = 0) -> str:
    """Return where a finding is, in words; of one about messages how many, and not their bytes."""
    offset = [] if physical_offset is None else [f"offset {physical_offset}"]
    size = [counted(messages, "message")] if messages else [] if length is None else [f"{length} bytes"]
    return ", ".join([path, *offset, *size])


def wrapped(text: str, width: int, *, indent: int) -> list[str]:
    """Return `text` as lines of at most `width` columns, broken between words."""
    from textwrap import wrap

    return wrap(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
