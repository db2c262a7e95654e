"""A list of any length: it draws the lines on the screen, and reads those that it does not have.

Lines are numbered, [low, high). The list asks its source for the missing lines of the screen, in the thread
that reads the store; until they come, it draws what the source knows without reading. Nothing else is read,
so a queue of a billion messages opens as fast as one of ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from rmqtool.errors import RmqtoolError
from rmqtool.lazy_pattern import pattern
from rmqtool.terminal import escape

_GAP = 2
_KEPT = 4096  # lines that stay in memory
_ANY_WIDTH = 1 << 16

STYLES: Mapping[str, Style] = {
    "": Style(),
    "dim": Style(dim=True),
    "error": Style(color="red", bold=True),
    "warning": Style(color="yellow"),
    "note": Style(color="cyan"),
    "title": Style(bold=True),
}
_HEADER = Style(bold=True, underline=True)
_CURSOR = Style(reverse=True)
_ZEROS = pattern("0{6,}(?=[0-9])")
_TRACK, _THUMB = "│", "┃"


class Column(NamedTuple):
    """A column: at least `width` wide; those with `grow` share what is left, by its weight.

    It is shown if the list is at least `at_least` columns wide and narrower than `below`.
    """

    key: str
    title: str
    width: int
    grow: int = 0
    right: bool = False
    at_least: int = 0
    below: int = _ANY_WIDTH


class Line(NamedTuple):
    """A line: its cells by the key of their column, a name of STYLES, and what it stands for."""

    cells: Mapping[str, str]
    style: str = ""
    item: Any = None


class Source(Protocol):
    """What a list shows. `page` is called in the thread that reads the store."""

    columns: Sequence[Column]

    @property
    def numbers(self) -> range:
        """The numbers of the lines."""

    def page(self, start: int, stop: int) -> list[Line]:
        """The lines [start, stop)."""

    def outline(self, number: int) -> Line:
        """A line as far as it is known without reading."""


class ListSource:
    """Lines that are all in memory; more may be added."""

    def __init__(self, columns: Sequence[Column], lines: Sequence[Line] = ()) -> None:
        self.columns = columns
        self.all = list(lines)
        self.lines = list(lines)
        self._filter = ""

    @property
    def numbers(self) -> range:
        """See `Source`."""
        return range(len(self.lines))

    def page(self, start: int, stop: int) -> list[Line]:
        """See `Source`."""
        return self.lines[start:stop]

    def outline(self, number: int) -> Line:
        """See `Source`."""
        return self.lines[number]

    def add(self, line: Line) -> None:
        """Add a line at the end."""
        self.all.append(line)
        if self._matches(line):
            self.lines.append(line)

    def clear(self) -> None:
        """Remove all lines."""
        self.all.clear()
        self.lines.clear()

    def filter(self, text: str) -> None:
        """Keep only lines of which a cell contains a text."""
        self._filter = text.casefold()
        self.lines = list(filter(self._matches, self.all))

    def _matches(self, line: Line) -> bool:
        return not self._filter or any(self._filter in cell.casefold() for cell in line.cells.values())


class RowSource:
    """Lines whose rows are read when they are on the screen.

    `numbers` gives the numbers of the lines, `read` the rows [start, stop), `line` the line of a row, and
    `known` the line of a number without reading.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        numbers: Callable[[], range],
        read: Callable[[int, int], Iterable[Any]],
        line: Callable[[Any], Line],
        known: Callable[[int], Line],
    ) -> None:
        self.columns = columns
        self._numbers, self._read, self._line, self._known = numbers, read, line, known

    @property
    def numbers(self) -> range:
        """See `Source`."""
        return self._numbers()

    def page(self, start: int, stop: int) -> list[Line]:
        """See `Source`."""
        return list(map(self._line, self._read(start, stop)))

    def outline(self, number: int) -> Line:
        """See `Source`."""
        return self._known(number)


class Grid(Widget, can_focus=True):
    """See the module. The cursor is a number; `top` is that of the first line on the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup,ctrl+b", "page(-1)", show=False),
        Binding("pagedown,ctrl+f,space", "page(1)", show=False),
        Binding("home", "edge(-1)", show=False),
        Binding("end,G", "edge(1)", show=False),
        Binding("enter", "choose", show=False),
    ]
    DEFAULT_CSS = "Grid { height: 1fr; width: 1fr; }"

    class Chosen(Message):
        """Enter was pressed on a line."""

        def __init__(self, line: Line) -> None:
            super().__init__()
            self.line = line

    class Moved(Message):
        """The cursor, or what the list shows, has changed."""

    class Failed(Message):
        """Lines could not be read."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(
        self, source: Source, read: Callable[..., Any], *, empty: str = "nothing here", id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self.source = source
        self.cursor = source.numbers.start
        self.top = self.cursor
        self.empty = empty
        self._read = read
        self._lines: dict[int, Line] = {}
        self._is_loading = False

    # what is shown

    @property
    def rows(self) -> int:
        """How many lines fit below the header."""
        return max(self.size.height - 1, 1)

    @property
    def line(self) -> Line | None:
        """The line under the cursor; None in an empty list."""
        return self.known(self.cursor) if self.cursor in self.source.numbers else None

    def known(self, number: int) -> Line:
        """A line as far as it is known."""
        return self._lines.get(number) or self.source.outline(number)

    @property
    def is_complete(self) -> bool:
        """Whether all lines on the screen have been read."""
        return not self._missing()

    def show(self, source: Source, cursor: int | None = None) -> None:
        """Show another source."""
        self.source = source
        self._lines.clear()
        self.go_to(source.numbers.start if cursor is None else cursor)

    def reload(self) -> None:
        """Read all lines again; the cursor stays."""
        self._lines.clear()
        self.go_to(self.cursor)

    def extended(self, *, to_end: bool) -> None:
        """The source has more lines; `to_end` moves the cursor to the last one."""
        self.go_to(self.source.numbers.stop - 1 if to_end else self.cursor)

    def go_to(self, number: int) -> None:
        """Move the cursor to a line, or the nearest that there is."""
        numbers = self.source.numbers
        self.cursor = min(max(number, numbers.start), max(numbers.stop - 1, numbers.start))
        last_top = max(numbers.stop - self.rows, numbers.start)
        self.top = min(max(self.top, self.cursor - self.rows + 1, numbers.start), self.cursor, last_top)
        self.refresh()
        self.post_message(self.Moved())
        self._load()

    # reading

    def _missing(self) -> range:
        """The numbers on the screen from the first to the last that is not in memory."""
        numbers = self.source.numbers
        shown = range(max(self.top, numbers.start), min(self.top + self.rows, numbers.stop))
        missing = [number for number in shown if number not in self._lines]
        return range(missing[0], missing[-1] + 1) if missing else range(0)

    def _load(self) -> None:
        if not self._is_loading and self.is_mounted and self._missing():
            self._is_loading = True
            self.run_worker(self._fetch(), group="page", exit_on_error=True)

    async def _fetch(self) -> None:
        """Read what the screen lacks, and again as long as it was moved meanwhile."""
        try:
            while missing := self._missing():
                source = self.source
                try:
                    lines = await self._read(source.page, missing.start, missing.stop)
                except (RmqtoolError, OSError) as error:
                    text = getattr(error, "message", str(error))
                    lines = [source.outline(number)._replace(style="error") for number in missing]
                    self.post_message(self.Failed(text))
                if source is self.source:
                    self._keep(missing, lines)
                    self.refresh()
                    self.post_message(self.Moved())
        finally:
            self._is_loading = False

    def _keep(self, numbers: range, lines: Sequence[Line]) -> None:
        if len(self._lines) > _KEPT:
            self._lines.clear()
        self._lines.update(zip(numbers, lines, strict=False))
        for number in numbers[len(lines) :]:  # the source became shorter
            self._lines[number] = self.source.outline(number)

    # drawing

    def on_resize(self) -> None:
        """Keep the cursor on the screen."""
        self.go_to(self.cursor)

    def on_mount(self) -> None:
        """Read the first screen."""
        self.go_to(self.cursor)

    def columns_at(self, width: int) -> list[tuple[Column, int]]:
        """The columns that are shown, each with its width."""
        columns = [each for each in self.source.columns if each.at_least <= width < each.below]
        left = width - sum(each.width for each in columns) - _GAP * (len(columns) - 1)
        weights = sum(each.grow for each in columns)
        placed = []
        for each in columns:
            more = left * each.grow // weights if weights and left > 0 else 0
            left -= more
            weights -= each.grow
            placed.append((each, each.width + more))
        return placed

    def render_line(self, y: int) -> Strip:
        """One line of the widget, cut to its width."""
        width, base = self.size.width, self.rich_style
        numbers = self.source.numbers
        inner = width - (2 if self._has_bar else 0)
        columns = self.columns_at(inner)
        number = self.top + y - 1
        if y == 0:
            text = self._joined(columns, {each.key: each.title for each, _ in columns})
            return Strip([Segment(set_cell_size(text, width), base + _HEADER)], width)
        if number not in numbers:
            text = f" {escape(self.empty)}" if y == 1 and not numbers else ""
            return Strip([Segment(set_cell_size(text, width), base + STYLES["dim"])], width)
        line = self.known(number)
        style = base + STYLES[line.style]
        if number == self.cursor and self.has_focus:
            style += _CURSOR
        elif number == self.cursor:
            style += STYLES["title"]
        segments = [Segment(set_cell_size(self._joined(columns, line.cells), inner), style)]
        if self._has_bar:
            segments.append(Segment(f" {self._bar(y)}", base + STYLES["dim"]))
        return Strip(segments, width)

    def _joined(self, columns: Sequence[tuple[Column, int]], cells: Mapping[str, str]) -> str:
        return (" " * _GAP).join(
            _cell(_spelled(cells.get(each.key, ""), each.key), width, right=each.right)
            for each, width in columns
        )

    @property
    def _has_bar(self) -> bool:
        """Whether the two last columns, of all lines, are those of the scroll bar."""
        return len(self.source.numbers) > self.rows

    def _bar(self, y: int) -> str:
        """The piece of the scroll bar on a line."""
        numbers, rows = self.source.numbers, self.rows
        size = max(rows * rows // len(numbers), 1)
        hidden = max(len(numbers) - rows, 1)
        first = (self.top - numbers.start) * (rows - size) // hidden
        return _THUMB if first <= y - 1 < first + size else _TRACK

    # keys

    def action_move(self, step: int) -> None:
        """Move the cursor by some lines."""
        self.go_to(self.cursor + step)

    def action_page(self, pages: int) -> None:
        """Move by screens."""
        self.top += pages * self.rows
        self.go_to(self.cursor + pages * self.rows)

    def action_edge(self, side: int) -> None:
        """Move to the first (-1) or the last line (1)."""
        numbers = self.source.numbers
        self.go_to(numbers.start if side < 0 else numbers.stop - 1)

    def action_choose(self) -> None:
        """Open the line under the cursor."""
        line = self.line
        if line is not None:
            self.post_message(self.Chosen(line))


def _spelled(text: str, key: str) -> str:
    """The text of a cell, safe for a terminal; the zeros of a file's name say nothing."""
    return escape(_ZEROS.sub("…", text) if key == "path" else text)


def _cell(text: str, width: int, *, right: bool) -> str:
    """An escaped text in exactly `width` columns; what is cut ends with an ellipsis."""
    size = cell_len(text)
    if size > width:
        return set_cell_size(set_cell_size(text, max(width - 1, 0)).rstrip() + "…", width)
    return " " * (width - size) + text if right else text + " " * (width - size)
