"""One record: its fields and its body as text, its bytes as a list; side by side where there is room."""

from __future__ import annotations

from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Static

from rmqtool.commands.browser.grid import Column, Grid, Line, ListSource
from rmqtool.commands.browser.view import View, pairs
from rmqtool.errors import RmqtoolError
from rmqtool.message.explain import ExplainedField
from rmqtool.report.browse.messages import MessageRow
from rmqtool.report.browse.record import Record, record_at
from rmqtool.terminal import escape

WIDE = 130
"""From this width on text and bytes are side by side."""


class RecordView(View):
    """A message, sound or damaged."""

    KEYS = (
        ("tab", "bytes", "show the bytes, field by field, or the fields and the body"),
        ("n", "next", "show the next message of the list"),
        ("p", "previous", "show the previous message of the list"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,b", "other_part", show=False, priority=True),
        Binding("n", "step(1)", show=False),
        Binding("p", "step(-1)", show=False),
    ]
    DEFAULT_CSS = """
    RecordView Horizontal { height: 1fr; }
    RecordView VerticalScroll { width: 1fr; height: 1fr; scrollbar-size-vertical: 1; }
    RecordView VerticalScroll Static { width: 1fr; height: auto; }
    RecordView.-bytes VerticalScroll { display: none; }
    RecordView.-text Grid { display: none; }
    """
    COLUMNS = (
        Column("offset", "offset", 13, right=True, at_least=100),
        Column("place", "at", 7, right=True, below=100),
        Column("field", "field", 12, grow=1),
        Column("hex", "bytes", 35, at_least=70),
        Column("short_hex", "bytes", 17, below=70),
        Column("value", "value", 18, grow=9),
    )

    def __init__(self, row: MessageRow, grid: Grid) -> None:
        super().__init__(self._title(row))
        self._row, self._list = row, grid
        self.record: Record | None = None
        self._shows_bytes = False

    @staticmethod
    def _title(row: MessageRow) -> str:
        return f"message {row.queue_offset}" if row.queue_offset is not None else f"at {row.physical_offset}"

    def body(self) -> ComposeResult:
        """Text and bytes."""
        with Horizontal():
            with VerticalScroll(id="text"):
                yield Static(Text("reading"), id="record")
            yield Grid(self.first_source(), self.browser.read, empty="no bytes", id="bytes")

    def on_mount(self) -> None:
        """Read the record."""
        super().on_mount()
        self._arrange()
        self._load()

    def on_resize(self) -> None:
        """Show both parts if there is room."""
        self._arrange()

    def _arrange(self) -> None:
        is_wide = self.size.width >= WIDE
        self.set_class(not is_wide and not self._shows_bytes, "-text")
        self.set_class(not is_wide and self._shows_bytes, "-bytes")
        (self.grid if self._shows_bytes else self.query_one("#text")).focus()

    def action_other_part(self) -> None:
        """Go to the other part."""
        self._shows_bytes = not self._shows_bytes
        self._arrange()

    def position(self) -> str:
        """See `View`."""
        return "" if self.record is None else f"physical offset {self.record.physical_offset}"

    def describe(self, line: Line) -> str:
        """See `View`."""
        if self.record is not None and self.record.problems:
            return self.record.problems[0]
        field: ExplainedField = line.item
        if not self._shows_bytes or not field.text:
            return ""
        return f"{field.name} {field.value.partition('  ')[2] or field.value}: {field.text}"

    def action_step(self, step: int) -> None:
        """Show a neighbour in the list that this screen was opened from."""
        self._list.go_to(self._list.cursor + step)
        self._step()

    @work(exclusive=True, group="step")
    async def _step(self) -> None:
        number = self._list.cursor
        lines = await self.browser.read(self._list.source.page, number, number + 1)
        if lines and lines[0].item.physical_offset is not None:
            self._row = lines[0].item
            self.place = self._title(self._row)
            self.write_place()
            self._load()
        elif lines:
            self.say(lines[0].item.note, problem=bool(lines[0].item.problems))

    @work(exclusive=True, group="record")
    async def _load(self) -> None:
        try:
            record = await self.browser.read(record_at, self.browser.store, self._row, self.browser.zone)
        except (RmqtoolError, OSError) as error:
            message = getattr(error, "message", str(error))
            self.query_one("#record", Static).update(Text(escape(message)))
            self.say(message, problem=True)
            return
        self.record = record
        self.query_one("#record", Static).update(_text(record))
        self.query_one("#text", VerticalScroll).scroll_home(animate=False)
        self.grid.show(ListSource(self.COLUMNS, [_line(each, record) for each in record.rows]))
        self.say(*((record.problems[0],) if record.problems else ("",)), problem=bool(record.problems))

    def reloaded(self) -> None:
        """See `View`."""
        self._load()


def _line(field: ExplainedField, record: Record) -> Line:
    row = field.row()
    part = "." in field.name or not field.name
    cells = {
        "offset": str(field.offset),
        "place": f"+{field.offset - record.physical_offset}",
        "field": f"  {field.name.partition('.')[2]}" if part else field.name,
        "hex": row["hex"],
        "short_hex": row["hex"][:17],
        "value": field.value,
    }
    return Line(cells, "dim" if part else "", field)


def _text(record: Record) -> Group:
    """The record as text; everything from the store is escaped."""
    parts: list[Table | Text] = [Text(escape(problem), "bold red") for problem in record.problems]
    if record.size is None:
        return Group(*parts, Text("No whole record is here; tab shows the bytes."))
    parts.append(pairs(record.fields))
    if record.properties:
        parts += [Text("\nproperties", "bold"), pairs(record.properties)]
    parts += [Text("\nbody", "bold"), Text("\n".join(map(escape, record.body)), overflow="fold")]
    return Group(*parts)
