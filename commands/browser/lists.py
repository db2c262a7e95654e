"""The screens that are lists: topics, queues, messages, consumer groups, hits of a search."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.worker import get_current_worker

from rmqtool.commands.browser.grid import Column, Grid, Line, ListSource, RowSource, Source
from rmqtool.commands.browser.view import View, meaning, number_text, severity
from rmqtool.errors import RmqtoolError, UnreadableError
from rmqtool.report.browse.groups import GroupRow, group_rows
from rmqtool.report.browse.messages import MessageRow, QueueMessages, record_row
from rmqtool.report.browse.topics import QueueRow, TopicRow, queue_rows
from rmqtool.terminal import counted, format_size
from rmqtool.times import format_duration

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.report.stats.lag import QueueLag

TIMES = (Column("time", "stored", 23, at_least=110), Column("short_time", "stored", 14, below=110))
_FOLLOW_S = 0.5


_TOPICS = (
    Column("topic", "topic", 20, grow=1),
    Column("kind", "kind", 11, at_least=70),
    Column("queues", "queues", 6, right=True),
    Column("messages", "messages", 12, right=True),
    Column("time", "newest message", 23, at_least=110),
    Column("short_time", "newest", 14, below=110),
    Column("codes", "damage", 6),
)
_QUEUES = (
    Column("queue", "queue", 6, right=True),
    Column("min", "first offset", 14, right=True),
    Column("max", "next offset", 14, right=True),
    Column("messages", "messages", 12, right=True),
    *TIMES,
    Column("codes", "damage", 8, grow=1),
)
_MESSAGES = (
    Column("offset", "offset", 10, right=True),
    *TIMES,
    Column("tags", "tags", 8, grow=1, at_least=60),
    Column("keys", "keys", 12, grow=2),
    Column("size", "size", 9, right=True, at_least=100),
    Column("body", "body", 16, grow=6),
)


class TopicsView(View):
    """The topics of the store: the first screen."""

    KEYS = (
        ("enter", "open", "show the queues of the topic"),
        ("/", "filter", "show only topics whose name contains a text"),
        ("f", "find", ""),
        ("2", "groups", ""),
        ("3", "findings", ""),
        ("4", "log", ""),
    )
    EMPTY = "the store has no queues that can be read; 4 shows the commit log"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("slash", "filter", show=False)]

    def __init__(self) -> None:
        super().__init__("topics")
        self._text = ""

    def first_source(self) -> Source:
        """The topics whose name contains the text of the filter."""
        topics, text = self.browser.topics, self._text.casefold()
        names = [name for name in topics.names if text in name.casefold()]
        return RowSource(
            _TOPICS,
            lambda: range(len(names)),
            lambda start, stop: topics.rows(names[start:stop]),
            self._line,
            lambda number: self._line(topics.name_row(names[number]), "…"),
        )

    def _line(self, row: TopicRow, unknown: str = "") -> Line:
        cells = {
            "topic": row.topic,
            "kind": row.kind,
            "queues": str(row.queues),
            "messages": unknown if row.messages is None else str(row.messages),
            "codes": self.damage(row.problems, *_folders(row.topic)),
            **self.times(row.newest_ms),
        }
        style = severity(row.problems) or ("dim" if row.kind in ("system", "no queue") else "")
        return Line(cells, style, row)

    def describe(self, line: Line) -> str:
        """See `View`."""
        row: TopicRow = line.item
        filtered = f"filter {self._text!r}; " if self._text else ""
        if row.problems:
            return filtered + meaning(row.problems)
        what = {"no queue": "only topics.json names it: it has no queue", "system": "a topic of the broker"}
        return filtered + what.get(row.kind, row.topic)

    def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """Open the queues of a topic."""
        row: TopicRow = event.line.item
        if row.queues:
            self.app.push_screen(QueuesView(row.topic))

    @work
    async def action_filter(self) -> None:
        """Ask for a part of the name."""
        text = await self.ask("filter topics:", self._text, "a part of the name; empty for all")
        if text is not None:
            self._filter(text)

    def action_back(self) -> None:
        """Remove the filter; the first screen stays."""
        if self._text:
            self._filter("")
        else:
            super().action_back()

    def _filter(self, text: str) -> None:
        self._text = text
        self.grid.empty = f"no topic has {text!r} in its name; escape shows all" if text else self.EMPTY
        self.grid.show(self.first_source())

    def reloaded(self) -> None:
        """See `View`."""
        self.grid.show(self.first_source(), self.grid.cursor)


class QueuesView(View):
    """The queues of one topic."""

    KEYS = (
        ("enter", "messages", "show the messages of the queue; the cursor is on the newest"),
        ("t", "time", "show the messages of the queue from a time on"),
        ("c", "consumers", "show the groups that consume the topic"),
    )
    EMPTY = "the topic has no queues"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "time", show=False),
        Binding("c", "consumers", show=False),
    ]

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def first_source(self) -> Source:
        """The queues of the topic."""
        store, queue_ids = self.browser.store, self.browser.topics.queue_ids(self.topic)
        return RowSource(
            _QUEUES,
            lambda: range(len(queue_ids)),
            lambda start, stop: queue_rows(store, self.topic, queue_ids[start:stop]),
            self._line,
            lambda number: self._line(QueueRow(self.topic, queue_ids[number], "")),
        )

    def _line(self, row: QueueRow) -> Line:
        damage = self.damage(row.problems, *_folders(self.topic, row.queue_id))
        cells = {
            "queue": str(row.queue_id),
            "min": number_text(row.min_offset),
            "max": number_text(row.max_offset),
            "messages": number_text(row.messages),
            "codes": " ".join(filter(None, (damage, row.kind))),
            **self.times(row.newest_ms),
        }
        return Line(cells, severity(row.problems), row)

    def describe(self, line: Line) -> str:
        """See `View`."""
        row: QueueRow = line.item
        if row.problems:
            return meaning(row.problems)
        return "" if row.kind != "gone" else "its files were deleted"

    def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """Open a queue."""
        self.open_queue(event.line.item.queue_id)

    @work
    async def open_queue(
        self, queue_id: int, *, time_ms: int | None = None, offset: int | None = None
    ) -> None:
        """Open a queue at its end, at a time or at a queue offset."""
        await open_messages(self, self.topic, queue_id, time_ms=time_ms, offset=offset)

    @work
    async def action_time(self) -> None:
        """Ask for a time, and open the queue under the cursor there."""
        line = self.grid.line
        text = await self.ask("time:", hint="14:30, 2h ago, 2026-01-31 14:30") if line is not None else None
        time_ms = self.time_of(text) if text else None
        if time_ms is not None and line is not None:
            await open_messages(self, self.topic, line.item.queue_id, time_ms=time_ms)

    def action_consumers(self) -> None:
        """Show the groups of the topic."""
        self.app.push_screen(GroupsView(self.topic))

    def reloaded(self) -> None:
        """See `View`."""
        self.grid.show(self.first_source(), self.grid.cursor)


async def open_messages(
    view: View, topic: str, queue_id: int, *, time_ms: int | None = None, offset: int | None = None
) -> None:
    """Open the messages of a queue at its end, at a time or at a queue offset."""
    browser = view.browser

    def start() -> tuple[QueueMessages, int]:
        messages = QueueMessages(browser.store, browser.store.queues[topic, queue_id])
        if time_ms is not None:
            return messages, messages.number_at(time_ms)
        return messages, messages.stop - 1 if offset is None else messages.number_of(offset)

    try:
        messages, cursor = await browser.read(start)
    except KeyError:
        view.say(f"the store has no queue {queue_id} of {topic}", problem=True)
    except (RmqtoolError, OSError) as error:
        view.say(getattr(error, "message", str(error)), problem=True)
    else:
        browser.push_screen(MessagesView(topic, queue_id, messages, cursor))


def message_line(view: View, row: MessageRow) -> Line:
    """The line of a message."""
    cells = {
        "offset": number_text(row.queue_offset),
        "topic": row.topic,
        "queue": number_text(row.queue_id),
        "tags": row.tags or "",
        "keys": " ".join(row.keys),
        "size": "" if row.size is None else format_size(row.size),
        "body": " ".join(filter(None, (*row.problems, row.note, row.body))),
        "found": row.found_by,
        **view.times(row.store_ms),
    }
    style = severity(row.problems) or ("dim" if row.note else "")
    return Line(cells, style, row)


def message_text(row: MessageRow) -> str:
    """A sentence on a message."""
    if row.problems:
        return meaning(row.problems)
    if row.note:
        return row.note
    return f"physical offset {row.physical_offset}, {row.size} bytes"


class MessagesView(View):
    """The messages of one queue, oldest first; it opens at the newest."""

    KEYS = (
        ("enter", "open", "show the message: fields, body and bytes"),
        ("g", "go to", "go to a queue offset"),
        ("t", "time", "go to the first message that was stored at a time or later"),
        ("/", "find", "find a message of this topic by message id, unique key or key"),
        ("F", "follow", "follow the queue: show new messages as they arrive"),
    )
    EMPTY = "the queue has no messages"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("g", "offset", show=False),
        Binding("t", "time", show=False),
        Binding("slash", "find", show=False),
        Binding("F", "follow", show=False),
    ]

    def __init__(self, topic: str, queue_id: int, messages: QueueMessages, cursor: int) -> None:
        super().__init__(f"queue {queue_id}")
        self.topic, self.queue_id, self.messages = topic, queue_id, messages
        self._cursor = cursor
        self.is_following = False

    def first_source(self) -> Source:
        """The units of the queue with their records."""
        return RowSource(
            _MESSAGES,
            lambda: range(self.messages.start, self.messages.stop),
            lambda start, stop: self.messages.page(start, stop),
            partial(message_line, self),
            lambda number: Line({"offset": str(number), "body": "…"}, "dim", MessageRow(number, number)),
        )

    def on_mount(self) -> None:
        """See `View`."""
        super().on_mount()
        self.grid.go_to(self._cursor)
        self.set_interval(_FOLLOW_S, self.look)

    def position(self) -> str:
        """See `View`."""
        follows = "following  " if self.is_following else ""
        return follows + super().position()

    def describe(self, line: Line) -> str:
        """See `View`."""
        return message_text(line.item)

    def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """Open a message."""
        open_record(self, event.line)

    @work
    async def action_offset(self) -> None:
        """Ask for a queue offset."""
        numbers = self.grid.source.numbers
        hint = f"{numbers.start} to {max(numbers.stop - 1, numbers.start)}"
        text = await self.ask("queue offset:", hint=hint)
        if not text:
            return
        if not text.isascii() or not text.strip().isdigit() or len(text) > 19:
            self.say(f"{text!r} is not a queue offset", problem=True)
            return
        self.grid.go_to(await self.browser.read(self.messages.number_of, int(text)))

    @work
    async def action_time(self) -> None:
        """Ask for a time."""
        text = await self.ask("time:", hint="14:30, 2h ago, 2026-01-31 14:30")
        time_ms = self.time_of(text) if text else None
        if time_ms is None:
            return
        try:
            self.grid.go_to(await self.browser.read(self.messages.number_at, time_ms))
        except UnreadableError as error:
            self.say(error.message, problem=True)

    def action_find(self) -> None:
        """Ask for a key of this topic."""
        self.browser.find(self, self.topic)

    def action_follow(self) -> None:
        """Start or stop to follow."""
        self.is_following = not self.is_following
        if self.is_following:
            self.grid.action_edge(1)
            self.look()
        else:
            self.on_grid_moved()

    @work(group="look")
    async def look(self) -> None:
        """Show what was added to the queue, if it is followed."""
        if not self.is_following:
            return
        try:
            is_longer = await self.browser.read(self._refresh)
        except (RmqtoolError, OSError) as error:
            self.say(getattr(error, "message", str(error)), problem=True)
            return
        if is_longer:
            self.grid.extended(to_end=True)

    def _refresh(self) -> bool:
        """Look for new units, and open the store again if their records are in a new file."""
        if not self.messages.refresh():
            return False
        newest = self.messages.queue.last_unit()
        store = self.browser.store
        if newest is not None and store.commit_log.file_of(newest.physical_offset) is None:
            self.browser.open_again()
            self._take(self.browser.store)
        return True

    def _take(self, store: Store) -> None:
        """Read this queue from a store that was opened again."""
        queue = store.queues.get((self.topic, self.queue_id))
        if queue is not None:
            self.messages.store, self.messages.queue = store, queue
            self.messages.refresh()

    def reloaded(self) -> None:
        """See `View`."""
        self._take(self.browser.store)
        self.grid.reload()


def open_record(view: View, line: Line) -> None:
    """Open the message of a line, unless there is none."""
    from rmqtool.commands.browser.detail import RecordView

    row: MessageRow = line.item
    if row.physical_offset is None:
        view.say(row.note or "no message here", problem=bool(row.problems))
    else:
        view.app.push_screen(RecordView(row, view.grid))


class HitsView(View):
    """The messages that have a key or an id."""

    KEYS = (
        ("enter", "open", "show the message: fields, body and bytes"),
        ("o", "in queue", "show the message among the others of its queue"),
        ("s", "scan log", "search the whole log: what the index does not know is found too"),
    )
    EMPTY = "nothing found"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "scan", show=False),
        Binding("o", "in_queue", show=False),
    ]
    COLUMNS = (
        Column("topic", "topic", 14, grow=2),
        Column("queue", "queue", 5, right=True),
        Column("offset", "offset", 9, right=True),
        *TIMES,
        Column("keys", "keys", 10, grow=1),
        Column("found", "found by", 8, at_least=100),
        Column("body", "body", 10, grow=3),
    )

    def __init__(self, text: str, topic: str | None) -> None:
        super().__init__(f"find {text}")
        self._text, self._topic = text, topic
        self._is_busy = False
        self._found: set[int] = set()

    def on_mount(self) -> None:
        """Begin to search."""
        super().on_mount()
        self.search(scan=False)

    def describe(self, line: Line) -> str:
        """See `View`."""
        return message_text(line.item)

    def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """Open a message."""
        open_record(self, event.line)

    @work
    async def action_in_queue(self) -> None:
        """Open its queue there."""
        line = self.grid.line
        if line is not None and line.item.queue_id is not None:
            await open_messages(self, line.item.topic, line.item.queue_id, offset=line.item.queue_offset)

    def action_scan(self) -> None:
        """Search the whole log."""
        if not self._is_busy:
            self.search(scan=True)

    def search(self, *, scan: bool) -> None:
        """Start the search in a thread of its own."""
        self._is_busy = True
        self.hint = "searching the whole log; escape stops" if scan else "searching the index"
        self.say(self.hint)
        self._search(scan)

    @work(thread=True, group="search", exit_on_error=False)
    def _search(self, scan: bool) -> None:
        from rmqtool.read.hits import SearchReport
        from rmqtool.read.lookup_request import Request
        from rmqtool.read.selection import Selection

        worker, browser = get_current_worker(), self.browser
        selection = Selection(topics=(self._topic,)) if self._topic is not None else Selection()
        passed, looked, error = 0, SearchReport(), ""

        def progress(count: int) -> None:
            nonlocal passed
            if worker.is_cancelled:
                raise Stopped
            passed += count
            browser.call_from_thread(self._tell, f"searched {format_size(passed)} of the log; escape stops")

        try:
            with browser.store.location.open() as store:
                request = Request(
                    "any", (self._text,), selection=selection, scan="always" if scan else "never"
                )
                for hit in request.hits(store, looked, progress):
                    if worker.is_cancelled:
                        return
                    row = record_row(hit.stored)._replace(found_by=hit.found_by)
                    browser.call_from_thread(self._add, row)
        except Stopped:
            return
        except (RmqtoolError, OSError) as caught:
            error = getattr(caught, "message", str(caught))
        if not worker.is_cancelled:
            browser.call_from_thread(self._end, error, scan, bool(looked.gaps))

    def _add(self, row: MessageRow) -> None:
        if row.physical_offset in self._found or row.physical_offset is None:
            return
        self._found.add(row.physical_offset)
        self.collected.add(message_line(self, row))
        self.grid.extended(to_end=False)

    def _tell(self, text: str) -> None:
        self.hint = text
        self.say(text)

    def _end(self, error: str, scanned: bool, has_gaps: bool) -> None:
        self._is_busy = False
        found = f"{counted(len(self._found), 'message')} found"
        if not scanned and has_gaps:
            found += "; the index lacks a part of the log: s searches it"
        elif not scanned:
            found += " in the index; s searches the log"
        self.hint = error or found
        self.grid.refresh()
        self.say(self.hint, problem=bool(error))


class Stopped(Exception):  # noqa: N818 - not an error: the user left the screen
    """A search or a check was stopped."""


class GroupsView(View):
    """Consumer groups with their lag, a line for each topic that they read."""

    KEYS = (
        ("enter", "queues", "show the offsets of the group in each queue"),
        ("/", "filter", "show only lines that contain a text"),
        ("s", "sort", "sort by lag, or by name"),
    )
    EMPTY = "no consumer group has an offset here"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", show=False),
        Binding("s", "sort", show=False),
    ]
    COLUMNS = (
        Column("group", "group", 18, grow=1),
        Column("topic", "topic", 18, grow=1),
        Column("lag", "lag", 11, right=True),
        Column("oldest", "oldest waits", 12, right=True),
        Column("status", "", 9, grow=0),
    )

    def __init__(self, topic: str | None = None) -> None:
        super().__init__("groups" if topic is None else "consumers")
        self._topic = topic
        self._is_sorted = False
        self._is_done = False

    def on_mount(self) -> None:
        """Begin to read the groups."""
        super().on_mount()
        self.say("reading the offsets of all groups")
        self._list()

    def describe(self, line: Line) -> str:
        """See `View`."""
        row: GroupRow = line.item
        return STATUS_TEXTS.get(row.status[0], "") if row.status else ""

    @work(thread=True, group="groups", exit_on_error=False)
    def _list(self) -> None:
        worker, browser, error = get_current_worker(), self.browser, ""
        try:
            with browser.store.location.open() as store:
                for row in group_rows(store, self._topic):
                    if worker.is_cancelled:
                        return
                    browser.call_from_thread(self._add, row)
        except (RmqtoolError, OSError) as caught:
            error = getattr(caught, "message", str(caught))
        if not worker.is_cancelled:
            browser.call_from_thread(self._end, error)

    def _add(self, row: GroupRow) -> None:
        self.collected.add(group_line(row))
        self.grid.extended(to_end=False)

    def _end(self, error: str) -> None:
        self._is_done = True
        if error:
            self.say(error, problem=True)
        elif not self.collected.numbers:
            self.say(self.EMPTY)

    def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """Show the queues of a group."""
        self.app.push_screen(GroupView(event.line.item))

    @work
    async def action_filter(self) -> None:
        """Ask for a text."""
        text = await self.ask("filter groups:", hint="a part of the group or topic; empty for all")
        if text is not None:
            self.collected.filter(text)
            self.grid.show(self.collected)

    def action_sort(self) -> None:
        """Sort by lag, or by name again."""
        self._is_sorted = not self._is_sorted

        def key(line: Line) -> tuple[int, str]:
            row: GroupRow = line.item
            lag = row.lag if self._is_sorted and row.lag is not None else -1
            return -lag if self._is_sorted else 0, row.group or "\uffff"

        self.collected.all.sort(key=key)
        self.collected.lines.sort(key=key)
        self.grid.show(self.collected)

    def reloaded(self) -> None:
        """See `View`."""
        self.collected.clear()
        self.grid.show(self.collected)
        self._list()


STATUS_TEXTS = {
    "ahead": "the committed offset is beyond the end of the queue",
    "lost": "messages were deleted before the group consumed them",
    "never_committed": "the group has no offset: it never consumed there",
    "no_group": "no group has an offset for this topic: it was never consumed",
    "no_topic": "the topic was deleted",
    "offsets_missing": "committed offsets of groups are lost: see findings",
    "partial": "the group has no offset in some of the queues: it never consumed there",
    "queue_lost": "the group has consumed from this queue, but it has no files: see rmqtool recover",
    "unreadable": "a file cannot be read",
}
_SHORT_STATUS = {
    "never_committed": "no offset", "no_group": "no group", "no_topic": "no topic", "offsets_missing": "lost",
    "queue_lost": "no files", "unreadable": "unread",
}  # fmt: skip


def _status_style(status: Iterable[str]) -> str:
    found = set(status)
    if found & {"unreadable", "offsets_missing", "lost", "queue_lost"}:
        return "error"
    return "warning" if found & {"ahead", "no_topic"} else ""


def group_line(row: GroupRow) -> Line:
    """The line of a group in one topic."""
    from time import time_ns

    oldest = row.oldest_ms
    age = None if oldest is None else max(time_ns() // 1_000_000 - oldest, 0)
    cells = {
        "group": row.group or "(none)",
        "topic": row.topic,
        "lag": number_text(row.lag),
        "oldest": "" if age is None else format_duration(age),
        "status": " ".join(_SHORT_STATUS.get(each, each) for each in row.status),
    }
    return Line(cells, _status_style(row.status), row)


class GroupView(View):
    """The offsets of one group in the queues of one topic."""

    KEYS = (("enter", "next message", "show the messages of the queue, from the group's offset on"),)
    COLUMNS = (
        Column("queue", "queue", 6, right=True),
        Column("committed", "committed", 12, right=True),
        Column("min", "first offset", 12, right=True),
        Column("max", "next offset", 12, right=True),
        Column("lag", "lag", 11, right=True),
        Column("status", "", 14, grow=1),
    )

    def __init__(self, row: GroupRow) -> None:
        super().__init__(f"{row.group or '(none)'} in {row.topic}")
        self._row = row

    def first_source(self) -> Source:
        """See `View`."""
        return ListSource(self.COLUMNS, list(map(self._line, self._row.queues)))

    def _line(self, lag: QueueLag) -> Line:
        cells = {
            "queue": str(lag.queue_id),
            "committed": number_text(lag.committed),
            "min": number_text(lag.min_offset),
            "max": number_text(lag.max_offset),
            "lag": number_text(lag.messages),
            "status": " ".join(sorted(lag.status)).replace("_", " "),
        }
        return Line(cells, _status_style(lag.status), lag)

    def describe(self, line: Line) -> str:
        """See `View`."""
        lag: QueueLag = line.item
        return STATUS_TEXTS.get(min(lag.status), "") if lag.status else ""

    @work
    async def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """Open the queue at the offset of the group."""
        lag: QueueLag = event.line.item
        await open_messages(self, lag.topic, lag.queue_id, offset=lag.committed or 0)


def _folders(topic: str, queue_id: int | None = None) -> list[str]:
    """Where the queues of a topic lie, or one of them, relative to the store root."""
    names = [topic] if queue_id is None else [topic, str(queue_id)]
    folders = ("consumequeue", "batchconsumequeue", "consumequeue_ext")
    return ["/".join([folder, *names]) for folder in folders]
