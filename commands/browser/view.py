"""What every screen has: a line with the place, a list, a line of messages, and the keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from rmqtool.commands.browser.dialogs import Help, Keys, Prompt
from rmqtool.commands.browser.grid import Column, Grid, Line, ListSource, Source
from rmqtool.errors import UsageError
from rmqtool.problems import BY_CODE
from rmqtool.terminal import escape
from rmqtool.times import format_time, parse_time

if TYPE_CHECKING:
    from rmqtool.commands.browser.app import BrowseApp

GENERAL: Keys = (
    ("1 2 3 4", "", "topics, consumer groups, findings, the files of the commit log"),
    ("f", "", "find a message by message id, unique key or key"),
    ("@", "", "go to a physical offset of the commit log"),
    ("r", "", "read the store again"),
    ("up down", "", "move; also k j, page up and page down, home and end"),
    ("escape", "", "go back; stop a search or a check"),
    ("?", "help", "this help"),
    ("q", "quit", "quit"),
)

_LOG = "commitlog"


class Bar(Widget):
    """One line of text with a part at its right end; only `Style`s of ours, no markup."""

    DEFAULT_CSS = "Bar { height: 1; width: 1fr; }"

    def __init__(self, style: Style, *, id: str) -> None:
        super().__init__(id=id)
        self._style = style
        self.left: Sequence[tuple[str, Style]] = ()
        self.right = ""

    def write(self, left: str | Sequence[tuple[str, Style]], right: str = "") -> None:
        """Show another text."""
        self.left = ((left, Style()),) if isinstance(left, str) else left
        self.right = right
        self.refresh()

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(text for text, _ in self.left) + (f"  {self.right}" if self.right else "")

    def render_line(self, y: int) -> Strip:
        """The line; the right part goes first if there is no room."""
        width, base = self.size.width, self.rich_style + self._style
        segments, used = [], 0
        for text, style in self.left:
            text = escape(text)
            if used + cell_len(text) > width:
                text = set_cell_size(text, max(width - used - 1, 0)) + "…"
            segments.append(Segment(text, base + style))
            used += cell_len(text)
            if used >= width:
                break
        right = escape(self.right)
        if right and used + 2 + cell_len(right) <= width:
            segments.append(Segment(" " * (width - used - cell_len(right)) + right, base))
        else:
            segments.append(Segment(" " * max(width - used, 0), base))
        return Strip(segments).crop(0, width)


class KeysBar(Widget):
    """The keys of a screen in one line: as many of its own as fit, then those that every screen has."""

    DEFAULT_CSS = "KeysBar { height: 1; width: 1fr; }"

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._own: Pairs = ()
        self._general: Pairs = ()

    def write(self, own: Pairs, general: Pairs) -> None:
        """Show other keys."""
        self._own, self._general = own, general
        self.refresh()

    @property
    def shown(self) -> Pairs:
        """The keys that fit."""
        left = self.size.width - sum(map(_key_width, self._general))
        fitting = []
        for each in self._own:
            left -= _key_width(each)
            if left < 0:
                break
            fitting.append(each)
        return (*fitting, *self._general)

    def render_line(self, y: int) -> Strip:
        """The line."""
        base, segments = self.rich_style, []
        for key, short in self.shown:
            segments.append(Segment(key, base + Style(reverse=True)))
            segments.append(Segment(f" {short}  ", base))
        return Strip(segments).adjust_cell_length(self.size.width, base)


Pairs = Sequence[tuple[str, str]]
"""Keys with their short texts."""


def _key_width(pair: tuple[str, str]) -> int:
    return cell_len("".join(pair)) + 3


class View(Screen[None]):
    """A screen with a list. A subclass gives its keys, what enter does, and what the list shows.

    Its list shows `collected`, lines with COLUMNS that the subclass adds, unless it has another source.
    """

    KEYS: ClassVar[Keys] = ()
    COLUMNS: ClassVar[Sequence[Column]] = ()
    EMPTY = "nothing here"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace,left", "back", show=False),
        Binding("right", "open", show=False),
        Binding("question_mark", "help", show=False),
        Binding("r", "reload", show=False),
    ]

    def __init__(self, title: str) -> None:
        super().__init__()
        self.place = title
        self.hint = ""
        self.collected = ListSource(self.COLUMNS)

    @property
    def browser(self) -> BrowseApp:
        """The application."""
        return cast("BrowseApp", self.app)

    @property
    def grid(self) -> Grid:
        """The list."""
        return self.query_one(Grid)

    def first_source(self) -> Source:
        """What the list shows at first."""
        return self.collected

    def compose(self) -> ComposeResult:
        """The parts from top to bottom."""
        yield Bar(Style(bold=True), id="place")
        yield from self.body()
        yield Bar(Style(), id="status")
        yield KeysBar(id="keys")

    def body(self) -> ComposeResult:
        """What is between the first and the last two lines."""
        yield Grid(self.first_source(), self.browser.read, empty=self.EMPTY)

    def on_mount(self) -> None:
        """Write the lines."""
        self.write_place()
        self.query_one("#keys", KeysBar).write(
            [(key, short) for key, short, _ in self.KEYS if short],
            [(key, short) for key, short, _ in GENERAL if short],
        )
        self.grid.focus()

    def write_place(self) -> None:
        """Show where in the store this is, and the state of the store."""
        self.query_one("#place", Bar).write(self.browser.path_to(self), self.browser.state)

    def say(self, text: str, *, problem: bool = False) -> None:
        """Show a line of text above the keys."""
        style = Style(color="red", bold=True) if problem else Style()
        self.query_one("#status", Bar).write([(text, style)], self.position())

    def position(self) -> str:
        """Where the cursor is."""
        grid = self.grid
        numbers = grid.source.numbers
        return f"{grid.cursor - numbers.start + 1} of {len(numbers)}" if numbers else ""

    def describe(self, line: Line) -> str:
        """A sentence on the line under the cursor."""
        return ""

    def on_grid_moved(self) -> None:
        """Say what is under the cursor; on the first line the hint, if there is one."""
        grid, line = self.grid, self.grid.line
        if self.hint and grid.cursor == grid.source.numbers.start:
            self.say(self.hint)
            return
        text = "" if line is None else self.describe(line)
        self.say(text, problem=line is not None and line.style == "error")

    def on_grid_failed(self, event: Grid.Failed) -> None:
        """Say what could not be read."""
        self.say(event.text, problem=True)

    def action_open(self) -> None:
        """As enter."""
        self.grid.action_choose()

    def action_back(self) -> None:
        """Leave the screen."""
        self.browser.back()

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(Help(f"Keys: {self.place}", (*self.KEYS, *GENERAL)))

    async def action_reload(self) -> None:
        """Read everything again."""
        if await self.browser.reopen(self):
            self.reloaded()

    def reloaded(self) -> None:
        """The store was opened again: show it."""
        self.grid.reload()

    async def ask(self, label: str, value: str = "", hint: str = "") -> str | None:
        """Ask for one line; None if it was cancelled."""
        return await self.app.push_screen_wait(Prompt(label, value, hint))

    def time_of(self, text: str) -> int | None:
        """Parse a time; None, and a message, if it cannot be understood."""
        from time import time_ns

        try:
            return parse_time(text, self.browser.zone, time_ns() // 1_000_000)
        except UsageError as error:
            self.say(f"{error.message}; {error.hint}", problem=True)
            return None

    def damage(self, codes: Sequence[str], *places: str) -> str:
        """The codes as a cell, with those that verify has found in `places`: a file, or folders of queues.

        A question mark where there is none and verify has not run, or has found damage of the log, which can
        be that of any queue.
        """
        found = self.browser.verified
        if found is None:
            return " ".join(codes) or "?"
        here = [each.problem.code for each in found if _lies_in(each.path, places)]
        is_open = any(
            each.problem.severity == "error" and each.path.startswith(_LOG) for each in found
        ) and not any(place.startswith(_LOG) for place in places)
        return " ".join(dict.fromkeys([*codes, *here])) or "?" * is_open

    def times(self, time_ms: int | None) -> dict[str, str]:
        """A time in two lengths, as cells."""
        full = None if time_ms is None else format_time(time_ms, self.browser.zone)
        if full is None:
            text = "" if time_ms is None else str(time_ms)
            return {"time": text, "short_time": text}
        date, _, clock = full.partition("T")
        return {"time": f"{date} {clock[:12]}", "short_time": f"{date[5:]} {clock[:8]}"}


def severity(codes: Sequence[str]) -> str:
    """The name of a style for the worst of some codes."""
    found = {BY_CODE[code].severity for code in codes if code in BY_CODE}
    return next((name for name in ("error", "warning", "note") if name in found), "")


def meaning(codes: Sequence[str]) -> str:
    """The first of some codes in words."""
    first = next((code for code in codes if code in BY_CODE), None)
    return "" if first is None else f"{first}: {BY_CODE[first].message}"


def number_text(value: Any) -> str:
    """A number, or nothing where it is unknown."""
    return "" if value is None else str(value)


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and values in two columns; a long value is broken inside its column. Both are escaped here."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, max_width=28)
    table.add_column(overflow="fold")
    for name, value in rows:
        lines = "\n".join(map(escape, value.split("\n")))
        table.add_row(Text(escape(name), "bold"), Text(lines))
    return table


def _lies_in(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)
