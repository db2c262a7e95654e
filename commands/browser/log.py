"""The screens of the commit log: its files, and the records of one file."""

from __future__ import annotations

from typing import ClassVar

from textual import work

from rmqtool.commands.browser.dialogs import Keys
from rmqtool.commands.browser.grid import Column, Grid, Line, RowSource, Source
from rmqtool.commands.browser.lists import TIMES, message_line, message_text, open_record
from rmqtool.commands.browser.view import View, meaning, severity
from rmqtool.errors import RmqtoolError
from rmqtool.read.store import Store
from rmqtool.report.browse.log import FileRecords, FileRow, file_row
from rmqtool.storage.layout import StoreFile
from rmqtool.terminal import format_size

_BLOCK = 200  # records that are read at once


_FILES = (
    Column("path", "file", 24, grow=1),
    Column("from", "from offset", 14, right=True),
    Column("size", "size", 9, right=True),
    *TIMES,
    Column("codes", "damage", 6),
)


class FilesView(View):
    """The files of the commit log."""

    KEYS: ClassVar[Keys] = (
        ("enter", "records", "show the records of the file, in order"),
        ("@", "offset", ""),
        ("1", "topics", ""),
    )
    EMPTY = "the commit log has no files"

    def __init__(self) -> None:
        super().__init__("commit log")

    def first_source(self) -> Source:
        """The files; the head of a file is read when it is on the screen."""
        store = self.browser.store
        files = store.layout.commit_log
        return RowSource(
            _FILES,
            lambda: range(len(files)),
            lambda start, stop: (file_row(store, file) for file in files[start:stop]),
            self._line,
            lambda number: self._line(FileRow(files[number], files[number].path.name)),
        )

    def _line(self, row: FileRow) -> Line:
        cells = {
            "path": row.path,
            "from": str(row.file.file_from_offset),
            "size": format_size(row.file.size),
            "codes": self.damage(row.problems, self.browser.store.layout.relative(row.file.path)),
            **self.times(row.first_ms),
        }
        return Line(cells, severity(row.problems), row)

    def describe(self, line: Line) -> str:
        """See `View`."""
        row: FileRow = line.item
        if row.problems:
            return meaning(row.problems)
        return f"offsets {row.file.file_from_offset} to {row.file.end}"

    def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """Open a file."""
        row: FileRow = event.line.item
        self.app.push_screen(FileView(self.browser.store, row.file))

    def reloaded(self) -> None:
        """See `View`."""
        self.grid.show(self.first_source(), self.grid.cursor)


class FileView(View):
    """The records of one file of the log, and what lies between them."""

    KEYS: ClassVar[Keys] = (
        ("enter", "open", "show the message: fields, body and bytes"),
        ("end", "more", "read on in the file"),
    )
    COLUMNS = (
        Column("place", "offset", 13, right=True),
        *TIMES,
        Column("topic", "topic", 12, grow=2),
        Column("queue", "queue", 5, right=True),
        Column("keys", "keys", 10, grow=1, at_least=100),
        Column("body", "body", 14, grow=3),
    )

    def __init__(self, store: Store, file: StoreFile) -> None:
        super().__init__(file.path.name.lstrip("0") or "0")
        self._records = FileRecords(store, file)
        self._is_done = self._is_reading = False

    def on_mount(self) -> None:
        """Read the first records."""
        super().on_mount()
        self._more()

    def position(self) -> str:
        """See `View`."""
        return super().position() + ("" if self._is_done else " so far")

    def describe(self, line: Line) -> str:
        """See `View`."""
        return message_text(line.item)

    def on_grid_moved(self) -> None:
        """Read on when the cursor comes near the end of what is known."""
        super().on_grid_moved()
        if self.grid.cursor + 2 * self.grid.rows >= len(self.collected.lines):
            self._more()

    def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """Open a message."""
        open_record(self, event.line)

    def _more(self) -> None:
        if not self._is_done and not self._is_reading:
            self._is_reading = True
            self._read_on()

    @work(group="more")
    async def _read_on(self) -> None:
        try:
            rows = await self.browser.read(self._records.more, _BLOCK)
        except (RmqtoolError, OSError) as error:
            self._is_done = True
            self.say(getattr(error, "message", str(error)), problem=True)
            return
        finally:
            self._is_reading = False
        self._is_done = len(rows) < _BLOCK
        for row in rows:
            line = message_line(self, row)
            self.collected.add(Line({**line.cells, "place": str(row.physical_offset)}, line.style, row))
        self.grid.extended(to_end=False)

    def reloaded(self) -> None:
        """See `View`; what was read stays."""
