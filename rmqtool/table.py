"""Tables for people: aligned columns that fit a terminal; elsewhere cells are never cut.

A line is never wider than the terminal, because a wrapped line is hard to read. What does not fit gives way
in this order:

    1. times lose what all of them share, the zone and then the date: `shared` has it. Columns of _ALIKE that
       say the same in each row are left out, and those that repeat what was typed: `alike` has what they say
    2. headers break at their underscores
    3. while a text has less than its room, columns are left out: empty ones and those that say nothing new,
       from the right and those of _STAY last, then those of _FIRST_TO_GO, in its order. A group's offset in a
       queue, and the first and last one there, stay if those of _LESS_THAN_OFFSETS make room
    4. body and text are cut down to their room, then the other texts to theirs, except names; then body and
       text to TEXT_FLOOR columns; text is then left out. A body that was searched shows the match
    5. then all other texts are cut, the widest first; sentences continue on more lines instead. Names keep
       NAME_FLOOR columns as long as step 6 can leave out a column that few people look for
    6. whole columns are left out; `left_out` names all that are

A text's room is TEXT_ROOM columns; names of topics and groups have more, up to NAME_ROOM, where different
names would be cut to the same text. Numbers, times, hex and states are never cut, paths and names in their
middle, unique keys at their start. The table of a look-up keeps physical_offset, which the next commands
take. Only this file uses tabulate and wcwidth, and loads them for texts that are not ASCII: loading them
takes a fifth of the start of `info`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Protocol, SupportsInt

from rmqtool.lazy_pattern import pattern
from rmqtool.message.cells import Row, field_value, plain_text
from rmqtool.terminal import counted, escape

Heading = str | tuple[str, ...]
"""A column: a field's name, or (header, field, field, ...), which shows the first that has a value."""
Sought = Callable[[str], tuple[int, int] | None]

TABLE_BLOCK_ROWS = 200  # rows that share their column widths; a table holds back no more rows than these
TEXT_FLOOR = 6  # terminal columns that a text keeps before whole columns are left out
TEXT_ROOM = 16  # terminal columns that a text should have: numbers that few people look for give way to it
BODY_ROOM = 24
NAME_FLOOR, NAME_ROOM = 12, 36
_OWN_SIGNS = dict.fromkeys((0x2026, *range(0x2580, 0x25A0)))  # of cut texts and of bars
_GAP = 2  # between two columns
_LONGEST_RULE = 120  # below the header of the last column
_CHARACTERS_PER_COLUMN = 16  # at most, with combining ones: of a cut text no more are looked at
_END = "."  # stands for the text of the last column while the others are aligned
_FIRST_TO_GO = (
    "share", "field_offset", "size", "physical_offset", "length", "reads_from", "body_p99_bytes",
    "body_mean_bytes", "body_min_bytes", "delay_p99_ms", "delay_p50_ms", "duration_p99_ms",
    "duration_p50_ms", "lag_bytes", "body_max_bytes", "messages_per_s", "skipped_messages",
    "again_messages", "committed_offset", "min_offset", "max_offset",
)  # fmt: skip
_OFFSETS = ("committed_offset", "min_offset", "max_offset")
_LESS_THAN_OFFSETS = ("share", "reads_from", "lag_bytes", "oldest_time", "lost_messages", "status")
_TOLD_BY_OFFSETS = {"ok", "lost", "ahead", "never_committed", "no_topic"}
_PLACE = "physical_offset"
_ALIKE = ("found_by", "matched")
_ALIKE_SHOWN = 3
_SAYS_NOTHING = {"status": {"ok"}, "lost_messages": {"0", ""}, "overdue": {"0", ""}}
_NAMES = ("topic", "group", "name", "consumer_group")  # that people must tell apart
_WHOLE = ("kind", "status", "severity", "problem")  # words from a short list
_WHOLE_MOST = 24
_GIVE_WAY = ("body", "text")  # the first to be cut and to be left out
_CONTINUES = ("message", "reason", "result", "state", "left")  # sentences: broken between words, not cut
_PATHS = ("path", "file")
_ENDS_DIFFER = ("uniq_key", "offset_msg_id")  # of one producer they begin alike: they lose their beginning
_STAY = (
    "problem", "severity", "kind", "status", "topic", "group", "count", "messages", "lag_messages",
    "lag_messages_max", "queue_id", "state",
)  # the last to be left out, after the first column  # fmt: skip
_TIME = pattern(r"(?P<date>[0-9-]{10})T[0-9:.]+(?P<zone>Z|[+-][0-9:]{5})")
_MIDNIGHT = pattern(r"T00:00:00\.000")
_ZEROS = pattern(r"(?<=[/-])0{4,}(?=[0-9])")
_COLOUR = pattern(r"\x1b\[[0-9]*m")
_SEVERITY_COLOURS = {"error": "31", "warning": "33", "note": "2"}


class CellBlock(Protocol):
    """Rows whose cells are texts already, in the order of the columns."""

    def aligned(
        self, is_right: Sequence[bool], widths: Sequence[int]
    ) -> tuple[Iterator[memoryview], list[int]]:
        """The lines with their ends in pieces, and the widths of the columns at the end: these, or wider."""


class Table:
    """The lines of one table, block by block; column widths never shrink from block to block.

    Args:
        columns: what to show.
        colour: whether the header and severities have a colour.
        width: columns of the terminal; None: nothing is cut.
        sought: where in a body the text that was searched for begins and ends; a body is cut around it.
        typed: of a look-up, the value that was typed, by the column that shows it; empty if there is none.
            None for other tables.
        keeps_place: whether the next commands take physical_offset, as those after a look-up do.
    """

    def __init__(
        self,
        columns: Sequence[Heading],
        *,
        colour: bool = False,
        width: int | None = None,
        sought: Sought | None = None,
        typed: Mapping[str, str] | None = None,
        keeps_place: bool = False,
    ) -> None:
        self._columns = [_Column(each) for each in columns]
        self._colour = colour
        self._width = width
        self._sought = sought
        self._is_look_up = typed is not None
        keeps_place |= self._is_look_up
        self._first_to_go = [name for name in _FIRST_TO_GO if not (keeps_place and name == _PLACE)]
        self._typed = {name: escape(text) for name, text in (typed or {}).items()}
        for column in self._columns:
            column.is_sought = sought is not None and column.header == "body"
            column.stays = column.header in _STAY or (keeps_place and column.header == _PLACE)
        self._started = False
        self.left_out: tuple[str, ...] = ()
        self.shared: str | None = None
        self.alike: dict[str, list[str]] = {}
        self._alike: list[_Column] = []

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """The lines of a block of rows; the first block begins with the header."""
        first, self._started = not self._started, True
        for column in (*self._columns, *self._alike):
            column.take(rows, first=first)
        for column in self._alike:
            known = self.alike[column.header]
            known += [text for text in dict.fromkeys(column.texts) if text not in known]
        limits = self._fit(first=first)
        titles = self._titles()
        lines = self._aligned(titles, limits)
        if not first:
            lines = lines[len(titles) + 1 :]
        elif self._colour:
            lines[: len(titles)] = [f"\x1b[1m{line}\x1b[0m" for line in lines[: len(titles)]]
        return lines

    def said_of_all(self) -> list[str]:
        """What the columns say that are not shown, because they say the same in each row."""
        return [f"{name} is {_one_of(texts)}" for name, texts in self.alike.items() if any(texts)]

    def block(self, cells: CellBlock) -> Iterator[memoryview]:
        """The lines of later blocks of a table that is as wide as it needs to be, in pieces."""
        data, widths = cells.aligned(
            [column.is_number for column in self._columns], [column.width for column in self._columns]
        )
        for column, width in zip(self._columns, widths, strict=True):
            column.width = width
        return data

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
        cells = [
            column.cells(limit, self._sought if column.header == "body" else None)
            for column, limit in zip(self._columns, limits, strict=True)
        ]
        if self._colour:
            cells = [
                [list(map(coloured, pieces)) for pieces in texts] if column.header == "severity" else texts
                for column, texts in zip(self._columns, cells, strict=True)
            ]
        lines = [line for row in zip(*cells, strict=True) for line in zip_longest(*row, fillvalue="")]
        rule = ["-" * limit for limit in limits]
        rule[-1] = rule[-1][:_LONGEST_RULE]
        rows = [*titles, rule, *lines]
        is_right = [column.is_number for column in self._columns]
        if is_right[-1]:
            return _align(rows, is_right)
        # Nothing is padded to the longest text of the last column: bodies differ by a factor of thousands.
        starts = _align([(*row[:-1], _END) for row in rows], is_right)
        return [
            f"{start.removesuffix(_END)}{row[-1].strip()}".rstrip()
            for start, row in zip(starts, rows, strict=True)
        ]

    def _fit(self, *, first: bool) -> list[int]:
        """The width of every column that is shown; leaves out columns only before the first line."""
        if self._width is None:
            return [column.width for column in self._columns]
        if first:
            self._give_way(self._width)
            self._leave_out_text(self._width)
        limits = self._limits(self._width)
        while limits is None and first and len(self._columns) > 1:
            least = min(self._columns[1:], key=self._order_to_go)
            if least.rank != 1 and not self._columns[0].squeeze:
                for column in self._columns:
                    column.squeeze = 1  # names lose more before something that people look for goes
            else:
                self._leave_out(least)
            limits = self._limits(self._width)
        for squeeze in (1, 2):
            if limits is None:  # a later block, which can leave out no column
                for column in self._columns:
                    column.squeeze = squeeze
                limits = self._limits(self._width)
        if limits is None:  # nothing else can be cut
            limits = [column.floor if column.is_text else column.width for column in self._columns]
        for column, limit in zip(self._columns, limits, strict=True):
            column.width = limit
        return limits

    def _order_to_go(self, column: _Column) -> tuple[int, bool, int]:
        """Which column is left out first."""
        return column.rank, column.header not in self._first_to_go, -self._columns.index(column)

    def _give_way(self, width: int) -> None:
        """Saves columns of the terminal where no text loses anything: the first three steps."""
        if not self._is_narrow(width, whole=True):
            return
        self._share_times(width)
        self._take_alike(width)
        if self._is_narrow(width, whole=True):
            for column in self._columns:
                if column.header.isidentifier():  # not an expression of a query
                    column.pieces = column.header.split("_")
                column.width = column.natural
        self._keep_offsets(width)
        empty = sorted((each for each in self._columns[:0:-1] if each.is_empty), key=lambda each: each.rank)
        for name in (*(each.header for each in empty), *self._first_to_go):
            for column in [each for each in self._columns if each.header == name]:
                if self._is_narrow(width):
                    self._leave_out(column)

    def _keep_offsets(self, width: int) -> None:
        """Leaves out columns that say less than the offsets of groups, if these have room then.

        The headers of the offsets lose the word that they share.
        """
        offsets = [each for each in self._columns if each.header in _OFFSETS]
        words = {word for each in self._columns if each.header == "status" for text in each.texts
                 for word in text.split(", ")}  # fmt: skip
        if len(offsets) < len(_OFFSETS) or not words <= _TOLD_BY_OFFSETS or not self._is_narrow(width):
            return
        for column in offsets:
            column.pieces = column.pieces[:1]
            column.width = column.natural
        less = sorted(
            (each for each in self._columns[1:] if each.header in _LESS_THAN_OFFSETS),
            key=lambda each: _LESS_THAN_OFFSETS.index(each.header),
        )
        if _least([each for each in self._columns if each not in less]) > width:
            return
        for column in less:
            if _least(self._columns) > width:
                self._leave_out(column)
        self._first_to_go = [name for name in self._first_to_go if name not in _OFFSETS]

    def _is_narrow(self, width: int, *, whole: bool = False) -> bool:
        """Whether lines of `width` leave a text less than TEXT_ROOM columns, or with `whole` cut it."""
        need = sum(
            each.width if whole or not each.is_text else min(each.width, max(each.floor, each.room))
            for each in self._columns
        )
        return need + _GAP * (len(self._columns) - 1) > width

    def _share_times(self, width: int) -> None:
        """Takes from the times what all of them have in common: the zone, then the date."""
        times = [column for column in self._columns if column.is_time]
        parts = [_TIME.fullmatch(text) for column in times for text in column.texts if text]
        found = [part for part in parts if part is not None]
        if not found or len(found) < len(parts):
            return
        dates, zones = {part["date"] for part in found}, {part["zone"] for part in found}
        if len(zones) > 1:
            return
        zone = zones.pop()
        for shared in (("", zone), (dates.pop(), zone)) if len(dates) == 1 else (("", zone),):
            if not self._is_narrow(width, whole=True):
                return
            self.shared = ", ".join(filter(None, shared))
            for column in times:
                is_day = column.header == "day_time" and all(map(_MIDNIGHT.search, column.texts))
                column.share(*(("", f"T00:00:00.000{zone}") if is_day else shared))

    def _take_alike(self, width: int) -> None:
        """Takes out columns that say the same in each row; what later blocks say is added to `alike`."""
        for column in [*self._columns]:
            texts = set(column.texts)
            is_alike = column.header in _ALIKE and (len(column.texts) > 1 or self._is_look_up)
            is_typed = texts == {self._typed.get(column.header)}
            is_alike = (is_alike or is_typed) and len(texts) == 1 and len(self._columns) > 1
            if is_alike and self._is_narrow(width, whole=True):
                self._columns.remove(column)
                self._alike.append(column)
                self.alike[column.header] = [*texts]

    def _leave_out(self, column: _Column) -> None:
        self._columns.remove(column)
        self.left_out = (column.header, *self.left_out)

    def _leave_out_text(self, width: int) -> None:
        """Leaves out a column of explanations if other cells would be cut to show a few of its words."""
        for column in [each for each in self._columns if each.header == "text"]:
            need = sum(each.width for each in self._columns) - column.width + column.floor
            if need + _GAP * (len(self._columns) - 1) > width and len(self._columns) > 1:
                self._leave_out(column)

    def _limits(self, width: int) -> list[int] | None:
        """The column widths for lines of at most `width`; None if that is impossible."""
        limits = [column.width for column in self._columns]
        over = sum(limits) + _GAP * (len(limits) - 1) - width
        texts = [place for place, each in enumerate(self._columns) if each.is_text]
        for keeps_room, gives_way in ((True, True), (True, False), (False, True), (False, False)):
            places = [place for place in texts if (self._columns[place].rank == 0) is gives_way]
            if over <= 0 or not places:
                continue
            widths = [limits[place] for place in places]
            columns = [self._columns[place] for place in places]
            floors = [each.kept if keeps_room else each.floor for each in columns]
            cut = narrower(widths, floors, over)
            over -= sum(widths) - sum(cut)
            for place, limit in zip(places, cut, strict=True):
                limits[place] = limit
        return None if over > 0 else limits


def _least(columns: Sequence[_Column]) -> int:
    """The width of lines in which each text is as narrow as it can be."""
    return sum(each.floor if each.is_text else each.width for each in columns) + _GAP * (len(columns) - 1)


def narrower(widths: Sequence[int], floors: Sequence[int], over: int) -> list[int]:
    """The widths after `over` columns of the terminal are taken, one at a time, from the widest.

    Of equally wide ones the first gives way first; none becomes narrower than its floor.
    """

    def capped(cap: int) -> list[int]:
        return [min(width, max(floor, cap)) for width, floor in zip(widths, floors, strict=True)]

    goal = sum(widths) - over
    cap = max(bisect_right(range(max(widths) + 1), goal, key=lambda cap: sum(capped(cap))) - 1, 0)
    limits = capped(cap)
    spare = goal - sum(limits)
    for place in reversed(range(len(limits))):
        if spare > 0 and limits[place] == cap < widths[place]:
            limits[place] += 1
            spare -= 1
    return limits


def _is_narrow(text: str) -> bool:
    """Whether each character takes one column: ASCII, `…`, and the blocks of which bars are made."""
    return text.isascii() or text.translate(_OWN_SIGNS).isascii()


def _align(rows: Sequence[Sequence[str]], is_right: Sequence[bool]) -> list[str]:
    align = narrow_lines if all(map(_is_narrow, chain.from_iterable(rows))) else tabulated_lines
    return align(rows, is_right)


def narrow_lines(rows: Sequence[Sequence[str]], is_right: Sequence[bool]) -> list[str]:
    """The cells of `rows` in aligned columns, those of `is_right` to the right.

    A cell is one line of ASCII, `…` and blocks of a bar; only colours take no columns. White space around a
    cell is left out, and none ends a line.
    """
    columns = [[text.strip() for text in column] for column in zip(*rows, strict=True)]
    for place, (texts, right) in enumerate(zip(columns, is_right, strict=True)):
        widths = [len(_COLOUR.sub("", text)) if "\x1b" in text else len(text) for text in texts]
        gaps = [" " * (max(widths) - width) for width in widths]
        columns[place] = [gap + text if right else text + gap for gap, text in zip(gaps, texts, strict=True)]
    return [(" " * _GAP).join(row).rstrip() for row in zip(*columns, strict=True)]


def tabulated_lines(rows: Sequence[Sequence[str]], is_right: Sequence[bool]) -> list[str]:
    """As `narrow_lines`, for cells in any language."""
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

    Widths are in columns of the terminal. With a `squeeze` of 1, names may be cut alike; with 2, words of a
    short list too.
    """

    def __init__(self, heading: Heading) -> None:
        self.header, *names = (heading, heading) if isinstance(heading, str) else heading
        self._names = names
        self.texts: list[str] = []
        self._distinct_width: int | None = None
        self._shared: tuple[str, str] | None = None
        self.is_number = False
        self.is_time = self.header.endswith("time")
        self.pieces = [self.header]
        self.width = 0
        self.squeeze = 0
        self.is_sought = False
        self.stays = False

    @property
    def is_text(self) -> bool:
        """Whether its cells may be cut."""
        return not (self.is_number or self.is_time or self.header == "hex")

    @property
    def is_empty(self) -> bool:
        """Whether no cell of the block says anything."""
        return not any(self.texts) or set(self.texts) <= _SAYS_NOTHING.get(self.header, set())

    @property
    def rank(self) -> int:
        """The order in which columns are left out."""
        if self.header in _GIVE_WAY and not self.is_sought:
            return 0
        return 2 if self.stays or self.is_sought else 1

    @property
    def natural(self) -> int:
        """The width that the header and the cells of the block need."""
        return max(map(terminal_width, (*self.texts, *self.pieces)))

    @property
    def floor(self) -> int:
        """The smallest width to which a text can be cut."""
        if self.header in _WHOLE and self.squeeze < 2:
            return min(self.natural, _WHOLE_MOST)
        if self.is_sought:
            return min(self.natural, BODY_ROOM)
        if self.header in _NAMES:
            least = TEXT_FLOOR if self.squeeze else max(NAME_FLOOR, self._distinct)
            return min(self.natural, max(least, *map(len, self.pieces)))
        words = chain.from_iterable(map(str.split, self.texts)) if self.header in _CONTINUES else ()
        longest = max(map(terminal_width, words), default=0)
        return min(self.natural, max(TEXT_FLOOR, min(longest, TEXT_ROOM), *map(len, self.pieces)))

    @property
    def room(self) -> int:
        """The width that a text should have; a body is what most people look for."""
        if self.header in _NAMES:
            return max(TEXT_ROOM, self._distinct)
        return BODY_ROOM if self.header == "body" else TEXT_ROOM

    @property
    def kept(self) -> int:
        """The width that it keeps until the others are as narrow as they should be; names stay whole."""
        return self.width if self.header in _NAMES else max(self.floor, self.room)

    @property
    def _distinct(self) -> int:
        """The smallest width, up to NAME_ROOM, from which on no name of the block looks like another one."""
        if self._distinct_width is None:
            names, width = set(self.texts), NAME_ROOM
            while width > TEXT_FLOOR and _are_distinct(names, width - 1):
                width -= 1
            self._distinct_width = width
        return self._distinct_width

    def take(self, rows: Sequence[Row], *, first: bool) -> None:
        """Takes the cells of a block."""
        values = [self._value(row) for row in rows]
        if first:
            self.is_number = all(map(_is_number, values))
        self.texts = [_text(value) for value in values]
        if first and not self.is_time:  # a column of a query has any name
            texts = [text for text in self.texts if text]
            self.is_time = bool(texts) and all(map(_TIME.fullmatch, texts))
        self._distinct_width = None
        self._shorten()
        self.width = max(self.width, self.natural)

    def share(self, date: str, zone: str) -> None:
        """Leaves out this zone, and with a date this date, of the times of this block and of later ones."""
        self._shared = (f"{date}T" if date else "", zone)
        self._shorten()
        self.width = self.natural

    def _shorten(self) -> None:
        if self._shared is not None:
            before, after = self._shared
            self.texts = [text.removesuffix(after).removeprefix(before) for text in self.texts]

    def _value(self, row: Row) -> object:
        values = (field_value(row, name) for name in self._names)
        return next((value for value in values if value is not None), None)

    def cells(self, width: int, sought: Sought | None = None) -> list[list[str]]:
        """The cells of the block, each as lines of at most `width` columns; only texts are cut."""
        if not self.is_text:
            return [[text] for text in self.texts]
        if self.header in _CONTINUES:
            return [_broken(text, width) for text in self.texts]
        if sought is not None:
            return [[_cut_around(text, width, sought(text))] for text in self.texts]
        cut = _CUTS.get(self.header, _cut)
        return [[cut(text, width)] for text in self.texts]


def _text(value: object) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ", ".join(value)
    return escape(plain_text(value))


def _one_of(texts: Sequence[str]) -> str:
    rest = len(texts) - _ALIKE_SHOWN
    return " or ".join([*texts[:_ALIKE_SHOWN], *([counted(rest, "other")] if rest > 0 else ())])


def coloured(text: str) -> str:
    """Return `text`; a severity that it begins with has its colour, in capital letters too."""
    word = text.partition(" ")[0].rstrip(",:\n")
    colour = _SEVERITY_COLOURS.get(word.lower() if word.isupper() else word)
    return text if colour is None else f"\x1b[{colour}m{word}\x1b[0m{text[len(word) :]}"


def terminal_width(text: str) -> int:
    """Columns of the terminal; Chinese characters take two."""
    if _is_narrow(text):
        return len(text)
    # tabulate aligns by the same widths.
    from wcwidth import wcswidth

    return max(wcswidth(text), 0)


def _cut(text: str, limit: int) -> str:
    """`text`, at most `limit` columns wide."""
    if terminal_width(text) <= limit:
        return text
    text = text[: _CHARACTERS_PER_COLUMN * (limit + 1)]
    # By the widths of whole beginnings: whether a combining character takes a column depends on its base.
    end = bisect_right(range(len(text)), limit - 1, key=lambda end: terminal_width(text[:end])) - 1
    return text[: max(end, 0)] + "…"


def _cut_around(text: str, limit: int, span: tuple[int, int] | None) -> str:
    """`text`, at most `limit` columns wide, with the characters of `span` as far as they fit."""
    if span is None or terminal_width(text) <= limit:
        return _cut(text, limit)
    start, end = span
    lead = min(limit // 3, max(limit - 2 - (end - start), 0))
    return _cut(text, limit) if start <= lead else _cut(f"…{text[start - lead :]}", limit)


def _cut_start(text: str, limit: int) -> str:
    """`text`, at most `limit` columns wide, without its beginning if it is wider."""
    width = terminal_width(text)
    if width <= limit or width != len(text):
        return _cut(text, limit)
    return f"…{text[len(text) - limit + 1 :]}"


def _cut_path(text: str, limit: int) -> str:
    """As `_cut`, but the zeros of a file's name go first, then the middle."""
    if terminal_width(text) > limit:
        text = _ZEROS.sub("…", text)
    width = terminal_width(text)
    if width <= limit or width != len(text):
        return _cut(text, limit)
    head = min(text.find("/") + 1, limit // 2)
    return f"{text[:head]}…{text[len(text) - (limit - head - 1) :]}"


def _cut_middle(text: str, limit: int) -> str:
    """As `_cut`, but the middle goes: names often differ in their ends."""
    width = terminal_width(text)
    if width <= limit or width != len(text):
        return _cut(text, limit)
    head = limit // 2
    return f"{text[:head]}…{text[len(text) - (limit - head - 1) :]}"


def _are_distinct(names: Collection[str], limit: int) -> bool:
    """Whether `_cut_middle` leaves of each name what no other one begins and ends with."""
    head = limit // 2
    tail = limit - head - 1
    cut = {name: _cut_middle(name, limit) for name in names}
    ends = Counter((name[:head], name[-tail:]) for name in names if len(name) >= head + tail)
    alike = any(ends[name[:head], name[-tail:]] > 1 for name, text in cut.items() if text != name)
    return not alike and len({*cut.values()}) == len(cut)


_CUTS = {
    **dict.fromkeys(_PATHS, _cut_path),
    **dict.fromkeys(_ENDS_DIFFER, _cut_start),
    **dict.fromkeys(_NAMES, _cut_middle),
}


def _broken(text: str, limit: int) -> list[str]:
    """`text` as lines of at most `limit` columns; it is broken between words."""
    width = terminal_width(text)
    if width <= limit or width != len(text):
        return [_cut(text, limit)]
    from textwrap import wrap

    return wrap(text, limit)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, SupportsInt) and not isinstance(value, bool))
