"""What a look-up says besides its messages: what was searched, what was not found, and which fillers it met.

With fillers rmqtool recover has replaced lost messages. A lost message is not found by any of its keys. It
would be wrong to say only that: each filler in the log may stand where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING

from rmqtool.commands.verdicts import GROUP_STATES, PASSED_MEANS, is_unreached
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK
from rmqtool.index.index_file import DOUBTED_SLOT, OF_SLOTS
from rmqtool.output import Output
from rmqtool.read.hits import NamesLeft
from rmqtool.terminal import counted

if TYPE_CHECKING:
    from rmqtool.log.events import StoredMessage
    from rmqtool.message.rows import Row, RowFormat
    from rmqtool.read.coverage import Gap
    from rmqtool.read.fillers import FillerRange
    from rmqtool.read.hits import Hit, SearchReport
    from rmqtool.read.lookup_request import Request
    from rmqtool.read.store import Store
    from rmqtool.report.trace import GroupState

_NAMES_SHOWN = 5
_NAME_MAX = 200
PLACES_SHOWN = 3
_KINDS = {"any": "message id, unique key or key", "key": "key", "uniq_key": "unique key", "tag": "tag",
          "msg_id": "message id", "offset": "physical offset", "queue_offset": "queue offset"}  # fmt: skip
_OF_KEYS = ("any", "key", "uniq_key")
_ROWS_SHOWN = 100
_TABLE_ROWS_SHOWN = 3  # a person reads the sentence after the table
_RANGES_SHOWN = 3
_LOST_SHOWN = 3
_GROUPS_SHOWN = 10
_SEARCHED_BYTES = 4 << 30  # of a log: a walk of about a second if it is in memory


class Filled:
    """The names that are left, and the fillers that may replace their messages.

    `left` are the names and offsets, as text, that were not found. `records` are the fillers that are shown
    as rows.
    """

    def __init__(self, store: Store, writer: Output, request: Request) -> None:
        self.left = NamesLeft(request.terms)
        self.records: list[StoredMessage] = []
        self._ranges: list[FillerRange] = []
        self._store = store
        self._writer = writer
        self._request = request
        self._hits = 0
        self._is_met = False
        self._is_left_out = False
        self._is_exact = request.kind in ("offset", "queue_offset")

    @property
    def has_ranges(self) -> bool:
        """Whether fillers were found."""
        return bool(self._ranges)

    def note(self, hit: Hit) -> bool:
        """Note the names of a hit, unless it is a filler; return whether it is a message."""
        if hit.found_by == "filler":
            self._is_met = True
            return False
        self._hits += 1
        self.left.found(hit.names)
        return True

    def search(self) -> list[StoredMessage]:
        """Search the log for fillers if something was not found; return those to show."""
        from rmqtool.read.fillers import candidates, has_place, ranges_of
        from rmqtool.read.known_topics import names_only_unknown_topics

        request = self._request
        missing = self.left.names()
        if not missing or (request.scan == "never" and not self._is_met) or not self._store.commit_log.files:
            return []
        if request.selection.limit is not None and self._hits >= request.selection.limit:
            return []
        if request.scan == "auto" and names_only_unknown_topics(self._store.layout, request.selection):
            return []
        layout = self._store.layout
        is_walk = not all(has_place(self._store, request, name) for name in missing)
        self._is_left_out = (
            is_walk and layout.log_bytes > _SEARCHED_BYTES and request.scan == "auto" and not self._is_met
        )
        if self._is_left_out:
            return []
        passed = sum(file.size for file in layout.commit_log)
        with self._writer.progress("search for fillers", passed) as bar:
            found = candidates(self._store, request, missing, bar.advance)
            shown: list[StoredMessage] = []
            self._ranges = ranges_of(_kept(found, shown))
        return shown

    def rows(self, form: RowFormat, before: Callable[[], None]) -> Iterator[Row]:
        """Call `before`, search, and yield a row for each of the first fillers."""
        from rmqtool.read.hits import Hit
        from rmqtool.read.lookup_request import hit_row

        before()
        self.records = self.search()
        if self._writer.chosen_format == "table":
            del self.records[_TABLE_ROWS_SHOWN:]
        for stored in self.records:
            yield hit_row(Hit(stored, "filler"), form, self._request)

    def report(self) -> int:
        """Say which messages the fillers replace, or that none was searched for; return the exit code."""
        if self._is_left_out:
            self._writer.note(
                "rmqtool: the log is larger than 4 GiB and was not searched for fillers, with which rmqtool"
                " recover replaces lost messages: --scan always does"
            )
        for each in self._ranges[:_RANGES_SHOWN]:
            self._writer.note(f"rmqtool: {filler_text(each, is_exact=self._is_exact)}")
        rest = self._ranges[_RANGES_SHOWN:]
        if rest:
            count = sum(each.fillers for each in rest)
            self._writer.note(
                f"rmqtool: {counted(count, 'more filler')} in {counted(len(rest), 'other place')}"
            )
        return EXIT_FINDINGS if self._ranges else EXIT_OK


def groups_of_lost_texts(
    store: Store, request: Request, fillers: Sequence[StoredMessage] = ()
) -> Iterator[str]:
    """Yield a line for each group: whether it had passed a lost message whose queue offset is known.

    Groups that had not passed it come first: they never receive it. `fillers` are those that stand at the
    physical offsets that were looked up.
    """
    from rmqtool.report.trace import groups_of_lost

    has_passed = False
    for topic, queue_id, queue_offset in islice(_lost_places(store, request, fillers), _LOST_SHOWN):
        found, unknown = groups_of_lost(store, topic, queue_id, queue_offset)
        what = f"lost message {queue_offset} of queue {queue_id} of {shortened(topic)}"
        found.sort(key=lambda each: each.passed is True)
        has_passed = has_passed or any(each.passed for each in found)
        for each in found[:_GROUPS_SHOWN]:
            yield f"{what}: {_state_text(each)}"
        if len(found) > _GROUPS_SHOWN:
            rest = found[_GROUPS_SHOWN:]
            passed = sum(each.passed is True for each in rest)
            yield f"{what}: {counted(len(rest), 'more group')}, of which {passed} had passed it"
        for text in unknown:
            yield f"{what}: which groups had passed it is unknown: {text}"
    if has_passed:
        yield PASSED_MEANS


def _state_text(each: GroupState) -> str:
    if each.group is None:
        return f"no group has an offset for topic {shortened(each.topic)}"
    group = shortened(each.group)
    if each.passed is None:
        return f"never read from its queue by {group}"
    return (
        f"{'passed' if each.passed else 'not passed yet'} by {group}, whose offset is {each.committed_offset}"
    )


def _lost_places(
    store: Store, request: Request, fillers: Sequence[StoredMessage]
) -> Iterator[tuple[str, int, int]]:
    """Yield topic, queue id and queue offset of the lost messages that were looked up by their place."""
    from rmqtool.formats.filler import is_filler
    from rmqtool.read.fillers import lost_by

    if request.kind == "offset":
        for each in fillers:
            message, first = each.message, each.message.queue_offset
            yield from ((message.topic, message.queue_id, first + number) for number in range(lost_by(each)))
        for place in request.offsets if not fillers else ():
            if store.find(place) is None:
                yield from ((topic, queue_id, number) for topic, queue_id, number, _ in store.units_of(place))
        return
    if request.kind != "queue_offset":
        return
    topic, queue_id = next(iter(request.selection.topics)), next(iter(request.selection.queues))
    queue = store.queue(topic, queue_id)
    for queue_offset in request.offsets if queue is not None else ():
        unit = queue.unit(queue_offset) if queue is not None else None
        if unit is None or unit.is_pre_blank or unit.physical_offset < store.commit_log.min_offset:
            continue
        stored = store.find(unit.physical_offset)
        if stored is None or stored.status or is_filler(stored.message):
            yield topic, queue_id, queue_offset


def _kept(found: Iterator[StoredMessage], first: list[StoredMessage]) -> Iterator[StoredMessage]:
    """Yield the fillers; add the first of them to `first`."""
    for stored in found:
        if len(first) < _ROWS_SHOWN:
            first.append(stored)
        yield stored


def filler_text(each: FillerRange, *, is_exact: bool = False) -> str:
    """Say what a range of fillers replaces; `is_exact` is whether exactly their places were looked up."""
    if each.fillers == 1:
        text = f"a filler at offset {each.start} replaces"
    else:
        text = f"{each.fillers} fillers at offsets {each.start} to {each.stop} replace"
    if not each.messages:
        lost = each.stop - each.start
        return f"{text} {lost} lost bytes, whose messages are unknown; the message may have been among them"
    if is_exact and each.messages == 1:
        return f"the message is lost: {text} it (topic {each.topic})"
    if is_exact:
        return f"the messages are lost: {text} {each.messages} messages of {each.topic}"
    which = "it" if each.messages == 1 else "one of them"
    lost_messages = counted(each.messages, "lost message")
    return f"{text} {lost_messages} of {each.topic}; the message may have been {which}"


def gap_text(gap: Gap) -> str:
    """Return the text for a range of the log that the index does not cover."""
    end = "the end" if gap.stop is None else str(gap.stop)
    return f"offsets {gap.start} to {end} ({gap.reason})"


def shortened(name: str) -> str:
    """Return the name; if it is too long to show, its beginning and its length."""
    return name if len(name) <= _NAME_MAX else f"{name[:_NAME_MAX]}... ({len(name)} characters)"


def scan_text(gaps: Sequence[Gap]) -> str:
    """Say why the log is scanned, and where."""
    return f"scanning the log at {_places(gaps)}"


def _places(gaps: Sequence[Gap]) -> str:
    shown = ", ".join(gap_text(gap) for gap in gaps[:PLACES_SHOWN])
    more = len(gaps) - PLACES_SHOWN
    return shown + (f" and {more} more places" if more > 0 else "")


def queue_texts(store: Store, request: Request) -> Iterable[str]:
    """Yield what a queue offset does not say: a consumer does not get every message of a compacted topic."""
    if request.kind == "queue_offset":
        from rmqtool.read.compacted import compacted_texts

        yield from compacted_texts(store.layout, request.selection)


def index_texts(store: Store, request: Request, looked: SearchReport) -> Iterable[str]:
    """Yield problems with index files, one line for each.

    The newest file of a store that was not closed may be incomplete, which verify does not call damage.
    """
    layout = store.layout
    open_file = layout.relative(layout.index_files[-1].path) if layout.abort and layout.index_files else None
    for name, why in looked.unreadable:
        yield f"{name} is skipped: {why}"
    chains: dict[str, list[tuple[str, int]]] = {}
    for name, why, entry in dict.fromkeys(looked.broken):
        chains.setdefault(name, []).append((why, entry))
    for name, ((why, entry), *others) in chains.items():
        more = f"; {counted(len(others), 'more error')}" if others else ""
        number = f"{'slot' if why in OF_SLOTS else 'entry'} {entry}"
        if why == DOUBTED_SLOT and all(other == why for other, _ in others):
            yield f"{name} may have lost slots: {number} and those next to it are empty; see rmqtool verify"
        elif name == open_file:
            instead = "" if request.scan == "never" else "; the log is scanned instead"
            yield f"{name} was not closed: a hash chain {why} ({number}){more}{instead}"
        else:
            yield f"{name} is damaged: a hash chain {why} ({number}){more}"


def missing_text(request: Request, names: Sequence[str]) -> str:
    """Say which of several names were not found."""
    shown = ", ".join(map(shortened, names[:_NAMES_SHOWN])) + (", ..." if len(names) > _NAMES_SHOWN else "")
    what = counted(len(request.terms), "value" if request.kind == "any" else _KINDS[request.kind])
    return f"not found: {len(names)} of {what}: {shown}"


def nothing_text(request: Request, looked: SearchReport) -> str:
    """Say that nothing was found, and what was searched."""
    what = _KINDS[request.kind]
    terms = request.terms
    if len(terms) == 1:
        text = f"no message with {what} {shortened(terms[0])}"
    else:
        text = f"no message with any of {len(terms)} {'values' if request.kind == 'any' else f'{what}s'}"
    if request.kind in ("offset", "queue_offset"):
        scanned = f"; searched {looked.scanned_bytes:,} bytes of log files"
        return text + scanned if looked.scanned_bytes else text
    if looked.without_log:
        return f"{text}: without a commit log it cannot be read; --explain shows what the index has"
    seen = [counted(looked.index_files, "index file"), counted(looked.topics, "topic")]
    if looked.collisions:
        seen.append(f"{_entries(looked.collisions)} of other keys with the same hash")
    if looked.gone:
        seen.append(f"{_entries(looked.gone)} whose record is not in the log")
    if looked.dead:
        seen.append(f"{_entries(len(looked.dead))} whose record is damaged")
    if looked.past_end:
        seen.append(f"{_entries(len(looked.past_end))} past the end of the log")
    if looked.excluded:
        seen.append(f"{looked.excluded} matches that other options exclude")
    if looked.scanned_bytes:
        seen.append(f"{looked.scanned_bytes:,} bytes of log files")
    if looked.batches:
        seen.append(counted(looked.batches, "batch record"))
    case = "; upper and lower case differ" if any(term.swapcase() != term for term in terms) else ""
    return f"{text}; searched {', '.join(seen)}{case}"


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def unseen_text(looked: SearchReport) -> str:
    """Say which ranges of the log were not searched."""
    return f"not searched: the log at {_places(looked.gaps)}: see --scan"


def dead_texts(request: Request, looked: SearchReport, recover: str) -> Iterable[str]:
    """Yield what the index names and the log lacks: offsets without a sound record, and its lost end.

    `recover` is the command line that shows what is lost.
    """
    places = sorted(set(looked.dead))
    for offset in places[:PLACES_SHOWN]:
        yield (
            f"the index leads to offset {offset}, which has no sound record: it may have been the message;"
            " see rmqtool verify"
        )
    if len(places) > PLACES_SHOWN:
        yield f"the index leads to {len(places) - PLACES_SHOWN} more such offsets"
    lost = sorted(set(looked.past_end))
    if lost:
        of_what = _KINDS["key" if request.kind == "any" else request.kind]
        of_what = f"this {of_what}" if len(request.names) == 1 else f"these {of_what}s"
        where = str(lost[0]) if len(lost) == 1 else f"{lost[0]} to {lost[-1]}"
        points = "entry of {} points" if len(lost) == 1 else "entries of {} point"
        yield (
            f"{len(lost)} index {points.format(of_what)} past the end of the log ({where}): it may be among"
            f" the lost messages; {recover}"
        )


def damaged_texts(
    store: Store, request: Request, looked: SearchReport, names: Sequence[str], recover: str
) -> Iterator[str]:
    """Yield in which damaged ranges of the log keys stand that were not found.

    `names` are those of the request that were not found, `recover` is the command line that shows the lost
    messages.
    """
    from rmqtool.read.key_scan import names_in_damage

    names = names if request.kind in _OF_KEYS else ()
    found = names_in_damage(store, names, looked.damage.values())
    for name, start, stop in islice(found, PLACES_SHOWN):
        yield (
            f"{shortened(name)} stands in the damaged bytes at offsets {start} to {stop}: it may be a key of"
            f" a lost message; what is lost: {recover}"
        )


def with_hash(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of --explain without the searches in which no entry has the requested hash."""
    for place, found in groupby(rows, lambda row: (row.get("file"), row.get("topic"), row.get("name"))):
        search = list(found)
        if place[1] is None or not all(row["result"].startswith(_WITHOUT_HASH) for row in search):
            yield from search


_WITHOUT_HASH = ("empty", "chain", "another hash", "the chain ")


def in_words(row: Row) -> Row:
    """Return a row of a trace for the table: its state in words, with the figure that explains it."""
    state, detail = row["state"], row["detail"] or {}
    if row["kind"] == "group":
        committed = detail.get("committed_offset")
        at = "" if committed is None else f" ({committed})"
        return row | {"state": f"{GROUP_STATES.get(state, state)}{at}"}
    times = detail.get("reconsume_times")
    if row["kind"] == "dead_letter":
        state = "gave up" if times is None else f"gave up after {counted(times, 'attempt')}"
    elif row["kind"] == "retry" and times is not None:
        state = f"attempt {times + 1}"
    elif row["kind"] == "delayed" and "level" in detail:
        state = f"{state or 'unknown'}, level {detail['level']}"
    if is_unreached(row):
        state = f"{state}, not in its queue" if state else "not in its queue"
    return row | {"state": state}
