"""Tables for people: aligned columns that fit a terminal; elsewhere cells are never cut.

A line is never wider than the terminal, because a wrapped line is hard to read:

    1. body, message and text are cut, down to TEXT_FLOOR columns; text is then left out
    2. then the other texts are cut, the widest first
    3. headers break at their underscores
    4. whole columns are left out; `left_out` names them

Numbers, times and hex are never cut. Only this file uses tabulate and wcwidth, and loads them for texts that
are not ASCII: loading them takes a fifth of the start of `info`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain
from typing import SupportsInt

from rmqtool.lazy_pattern import pattern
from rmqtool.message.cells import Row, field_value, plain_text
from rmqtool.terminal import escape

Heading = str | tuple[str, ...]
"""A column: a field's name, or (header, field, field, ...), which shows the first that has a value."""

TEXT_FLOOR = 6  # terminal columns that a text keeps before whole columns are left out
_GAP = 2  # between two columns
_GIVE_WAY = ("body", "message", "text")  # the first to be cut and to be left out
_STAY = ("problem", "severity", "kind", "status")  # the last to be left out, after the first column
_COLOUR = pattern(r"\x1b\[[0-9]*m")
_SEVERITY_COLOURS = {"error": "31", "warning": "33", "note": "2"}


class Table:
    """The lines of one table, block by block; column widths never shrink from block to block.

    Args:
        columns: what to show.
        colour: whether the header and severities have a colour.
        width: columns of the terminal; None: nothing is cut.
    """

    def __init__(self, columns: Sequence[Heading], *, colour: bool = False, width: int | None = None) -> None:
        self._columns = [_Column(each) for each in columns]
        self._colour = colour
        self._width = width
        self._started = False
        self.left_out: tuple[str, ...] = ()

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """The lines of a block of rows; the first block begins with the header."""
        first, self._started = not self._started, True
        for column in self._columns:
            column.take(rows, first=first)
        limits = self._fit(first=first)
        titles = self._titles()
        lines = self._aligned(titles, limits)
        if not first:
            lines = lines[len(titles) + 1 :]
        elif self._colour:
            lines[: len(titles)] = [f"\x1b[1m{line}\x1b[0m" for line in lines[: len(titles)]]
        return lines

    def _titles(self) -> list[tuple[str, ...]]:
        """The lines of the header."""
        height = max(len(column.pieces) for column in self._columns)
        return list(
            zip(
                *(column.pieces + [""] * (height - len(column.pieces)) for column in self._columns),
                strict=True,
            )
        )

    def _aligned(self, titles: Sequence[Sequence[str]], limits: Sequence[int]) -> list[str]:
        """The titles, a rule that keeps the widths in every block, and the cells."""
        cells = [column.cells(limit) for column, limit in zip(self._columns, limits, strict=True)]
        if self._colour:
            cells = [
                list(map(_coloured, texts)) if column.header == "severity" else texts
                for column, texts in zip(self._columns, cells, strict=True)
            ]
        rows = [*titles, ["-" * limit for limit in limits], *zip(*cells, strict=True)]
        align = ascii_lines if all(map(str.isascii, chain.from_iterable(rows))) else tabulated_lines
        return align(rows, [column.is_number for column in self._columns])

    def _fit(self, *, first: bool) -> list[int]:
        """The width of every column that is shown; leaves out columns only before the first line."""
        if self._width is None:
            return [column.width for column in self._columns]
        if first:
            self._leave_out_text(self._width)
        limits = self._limits(self._width)
        if limits is None and first:
            for column in self._columns:
                column.pieces = column.header.split("_")
                column.width = column.natural
            limits = self._limits(self._width)
        while limits is None and first and len(self._columns) > 1:
            column = min(self._columns[1:], key=lambda each: (each.rank, -self._columns.index(each)))
            self._columns.remove(column)
            self.left_out = (column.header, *self.left_out)
            limits = self._limits(self._width)
        if limits is None:  # a later block, or a single column: nothing else can be cut
            limits = [column.floor if column.is_text else column.width for column in self._columns]
        for column, limit in zip(self._columns, limits, strict=True):
            column.width = limit
        return limits

    def _leave_out_text(self, width: int) -> None:
        """Leaves out a column of explanations if other cells would be cut to show a few of its words."""
        for column in [each for each in self._columns if each.header == "text"]:
            need = sum(each.width for each in self._columns) - column.width + column.floor
            if need + _GAP * (len(self._columns) - 1) > width and len(self._columns) > 1:
                self._columns.remove(column)
                self.left_out = (column.header, *self.left_out)

    def _limits(self, width: int) -> list[int] | None:
        """The column widths for lines of at most `width`; None if that is impossible."""
        limits = [column.width for column in self._columns]
        over = sum(limits) + _GAP * (len(limits) - 1) - width
        texts = [place for place, each in enumerate(self._columns) if each.is_text]
        for gives_way in (True, False):
            places = [place for place in texts if (self._columns[place].rank == 0) is gives_way]
            while over > 0 and places:
                place = max(places, key=lambda place: limits[place])
                if limits[place] > self._columns[place].floor:
                    limits[place] -= 1
                    over -= 1
                else:
                    places.remove(place)
        return None if over > 0 else limits


def ascii_lines(rows: Sequence[Sequence[str]], is_right: Sequence[bool]) -> list[str]:
    """The cells of `rows` in aligned columns, those of `is_right` to the right.

    A cell is one line of ASCII; only colours take no columns. White space around a cell is left out, and none
    ends a line.
    """
    columns = [[text.strip() for text in column] for column in zip(*rows, strict=True)]
    for place, (texts, right) in enumerate(zip(columns, is_right, strict=True)):
        widths = [len(_COLOUR.sub("", text)) if "\x1b" in text else len(text) for text in texts]
        gaps = [" " * (max(widths) - width) for width in widths]
        columns[place] = [gap + text if right else text + gap for gap, text in zip(gaps, texts, strict=True)]
    return [(" " * _GAP).join(row).rstrip() for row in zip(*columns, strict=True)]


def tabulated_lines(rows: Sequence[Sequence[str]], is_right: Sequence[bool]) -> list[str]:
    """As `ascii_lines`, for cells in any language."""
    from tabulate import tabulate

    text = tabulate(
        rows,
        tablefmt="plain",  # its own header would make narrow columns wider
        disable_numparse=True,
        colalign=["right" if right else "left" for right in is_right],
    )
    return [line.rstrip() for line in text.split("\n")]


class _Column:
    """One column with the cells of the current block; `pieces` are the lines of its header.

    Widths are in columns of the terminal.
    """

    def __init__(self, heading: Heading) -> None:
        self.header, *names = (heading, heading) if isinstance(heading, str) else heading
        self._names = names
        self._texts: list[str] = []
        self.is_number = False
        self.pieces = [self.header]
        self.width = 0

    @property
    def is_text(self) -> bool:
        """Whether its cells may be cut."""
        return not (self.is_number or self.header == "hex" or self.header.endswith("time"))

    @property
    def rank(self) -> int:
        """The order in which columns are left out."""
        return 0 if self.header in _GIVE_WAY else 2 if self.header in _STAY else 1

    @property
    def natural(self) -> int:
        """The width that the header and the cells of the block need."""
        return max(map(_width, (*self._texts, *self.pieces)))

    @property
    def floor(self) -> int:
        """The smallest width to which a text can be cut."""
        return min(self.natural, max(TEXT_FLOOR, *map(len, self.pieces)))

    def take(self, rows: Sequence[Row], *, first: bool) -> None:
        """Takes the cells of a block."""
        values = [self._value(row) for row in rows]
        if first:
            self.is_number = all(map(_is_number, values))
        self._texts = [_text(value) for value in values]
        self.width = max(self.width, self.natural)

    def _value(self, row: Row) -> object:
        values = (field_value(row, name) for name in self._names)
        return next((value for value in values if value is not None), None)

    def cells(self, width: int) -> list[str]:
        """The cells of the block; only texts are cut."""
        return [_cut(text, width) for text in self._texts] if self.is_text else self._texts


def _text(value: object) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ", ".join(value)
    return escape(plain_text(value))


def _coloured(text: str) -> str:
    colour = _SEVERITY_COLOURS.get(text)
    return text if colour is None else f"\x1b[{colour}m{text}\x1b[0m"


def _width(text: str) -> int:
    """Columns of the terminal; Chinese characters take two."""
    if text.isascii():
        return len(text)
    # tabulate aligns by the same widths.
    from wcwidth import wcswidth

    return max(wcswidth(text), 0)


def _cut(text: str, limit: int) -> str:
    """`text`, at most `limit` columns wide."""
    if _width(text) <= limit:
        return text
    # By the widths of whole beginnings: whether a combining character takes a column depends on its base.
    end = bisect_right(range(len(text)), limit - 1, key=lambda end: _width(text[:end])) - 1
    return text[: max(end, 0)] + "…"


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, SupportsInt) and not isinstance(value, bool))
