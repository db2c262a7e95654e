"""Findings: what the names and sizes of files show at once; `doctor` and `verify` on request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from rich.table import Table
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static
from textual.worker import get_current_worker

from rmqtool.commands.browser.grid import Column, Grid, Line
from rmqtool.commands.browser.lists import Stopped
from rmqtool.commands.browser.view import View, number_text, pairs
from rmqtool.errors import RmqtoolError
from rmqtool.problems import Finding
from rmqtool.terminal import counted, format_size

if TYPE_CHECKING:
    from rmqtool.report.doctor.diagnosis import Diagnosis

_SHOWN_EVERY = 64 << 20  # bytes between two lines of progress


class FindingsView(View):
    """What is wrong with the store."""

    KEYS = (
        ("enter", "explain", "show what it means, what a broker does, and what to run"),
        ("d", "doctor", "look at everything that can be had in seconds, as rmqtool doctor"),
        ("v", "verify", "check the whole store, as rmqtool verify"),
        ("/", "filter", "show only lines that contain a text"),
    )
    EMPTY = "nothing wrong in the names and sizes of files; d and v look further"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "doctor", show=False),
        Binding("v", "verify", show=False),
        Binding("slash", "filter", show=False),
    ]
    COLUMNS = (
        Column("code", "what", 11),
        Column("severity", "severity", 8, at_least=70),
        Column("path", "where", 16, grow=2),
        Column("offset", "offset", 12, right=True, at_least=100),
        Column("message", "problem", 20, grow=4),
    )

    def __init__(self) -> None:
        super().__init__("findings")
        self._busy = ""

    def on_mount(self) -> None:
        """Look at the names and sizes of files."""
        super().on_mount()
        self._start("files", self._files)

    def describe(self, line: Line) -> str:
        """See `View`."""
        return line.cells["message"]

    def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """Explain a finding."""
        self.app.push_screen(FindingView(event.line))

    @work
    async def action_filter(self) -> None:
        """Ask for a text."""
        text = await self.ask("filter findings:", hint="a part of a line; empty for all")
        if text is not None:
            self.collected.filter(text)
            self.grid.show(self.collected)

    def action_doctor(self) -> None:
        """Run doctor."""
        self._start("doctor", self._doctor)

    def action_verify(self) -> None:
        """Run verify."""
        self._start("verify", self._verify)

    def action_back(self) -> None:
        """Stop the check; without one leave the screen."""
        if self._busy and self._busy != "files":
            self.workers.cancel_group(self, "check")
            self.grid.empty = f"{self._busy} was stopped"
            self.grid.refresh()
            self.hint = f"{self._busy} was stopped; {counted(len(self.collected.all), 'finding')} so far"
            self.say(self.hint)
            self._busy = ""
        else:
            super().action_back()

    def _start(self, name: str, check: object) -> None:
        if self._busy:
            return
        self._busy = name
        if name != "files":
            self.grid.empty = f"{name} is at work"
        self.collected.clear()
        self.grid.show(self.collected)
        self.hint = f"{name} is at work; escape stops it" if name != "files" else ""
        self.say(self.hint)
        check()  # type: ignore[operator]

    def _progress(self, what: str) -> object:
        """Return what counts the bytes that were read, and stops the check if it is to be stopped."""
        worker, browser = get_current_worker(), self.browser
        done = shown = 0

        def advance(count: int) -> None:
            nonlocal done, shown
            if worker.is_cancelled:
                raise Stopped
            done += count
            if done - shown >= _SHOWN_EVERY:
                shown = done
                browser.call_from_thread(self._tell, f"{what}: {format_size(done)} of the log; escape stops")

        return advance

    def _report(self, lines: Iterator[Line], what: str) -> None:
        """Add lines as they are found; runs in a thread of its own."""
        worker, browser, error = get_current_worker(), self.browser, ""
        try:
            for line in lines:
                if worker.is_cancelled:
                    return
                browser.call_from_thread(self._add, line)
        except Stopped:
            return
        except (RmqtoolError, OSError) as caught:
            error = getattr(caught, "message", str(caught))
        if not worker.is_cancelled:
            browser.call_from_thread(self._end, what, error)

    def _add(self, line: Line) -> None:
        self.collected.add(line)
        self.grid.extended(to_end=False)

    def _tell(self, text: str) -> None:
        self.hint = text
        self.say(text)

    def _end(self, what: str, error: str) -> None:
        self._busy = ""
        found = counted(len(self.collected.all), "finding")
        if what != "files":
            self.grid.empty = f"{what} found nothing"
        self.grid.refresh()
        if what == "verify" and not error:
            items = (line.item for line in self.collected.all)
            self.browser.verified = [each for each in items if each.problem.severity != "note"]
            for view in self.app.screen_stack:
                if isinstance(view, View):
                    view.grid.reload()
        self.hint = error or (f"{what}: {found}" if what != "files" else "")
        self.say(self.hint, problem=bool(error))

    @work(thread=True, group="check", exit_on_error=False)
    def _files(self) -> None:
        from rmqtool.check.verify.files import check_files

        store = self.browser.store
        self._report(
            (finding_line(each) for each in check_files(store.layout, store.profile, live=store.live)),
            "files",
        )

    @work(thread=True, group="check", exit_on_error=False)
    def _verify(self) -> None:
        from rmqtool.check.verify import verify

        progress = self._progress("verify")
        with self.browser.store.location.open() as store:
            found = verify(store, progress=progress)  # type: ignore[arg-type]
            self._report(map(finding_line, found), "verify")

    @work(thread=True, group="check", exit_on_error=False)
    def _doctor(self) -> None:
        from rmqtool.report.doctor.examine import DEFAULT_READ_LIMIT, examine

        progress = self._progress("doctor")

        def lines() -> Iterator[Line]:
            with self.browser.store.location.open() as store:
                found = examine(store, read_limit=DEFAULT_READ_LIMIT, jobs=1, progress=progress)  # type: ignore[arg-type]
                yield from map(diagnosis_line, found.diagnoses)

        self._report(lines(), "doctor")

    def reloaded(self) -> None:
        """See `View`."""
        self._start("files", self._files)


def finding_line(found: Finding) -> Line:
    """The line of a finding of verify."""
    problem = found.problem
    detail = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found.detail.items())
    cells = {
        "code": problem.code,
        "severity": problem.severity,
        "path": found.path,
        "offset": number_text(found.physical_offset),
        "message": problem.message + (f" ({detail})" if detail else ""),
    }
    return Line(cells, problem.severity, found)


def diagnosis_line(found: Diagnosis) -> Line:
    """The line of a result of doctor."""
    cells = {
        "code": found.name,
        "severity": found.severity,
        "path": found.path,
        "offset": "",
        "message": found.message,
    }
    return Line(cells, found.severity, found)


class FindingView(View):
    """A finding in words."""

    DEFAULT_CSS = """
    FindingView VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    FindingView VerticalScroll Static { width: 1fr; height: auto; }
    FindingView Grid { display: none; }
    """

    def __init__(self, line: Line) -> None:
        super().__init__(line.cells["code"])
        self._line = line

    def body(self) -> ComposeResult:
        """The text."""
        with VerticalScroll(id="text"):
            yield Static(self._text())
        yield from super().body()

    def on_mount(self) -> None:
        """See `View`."""
        super().on_mount()
        self.query_one("#text").focus()

    def _text(self) -> Table:
        return pairs((name, f"{value}\n") for name, value in self._parts() if value)

    def _parts(self) -> Iterator[tuple[str, str]]:
        item = self._line.item
        yield "problem", self._line.cells["message"]
        yield "severity", self._line.cells["severity"]
        yield "where", self._line.cells["path"]
        if isinstance(item, Finding):
            place = "" if item.physical_offset is None else f"{item.physical_offset}"
            yield "offset", place + (f", {item.length} bytes" if item.length else "")
            yield "broker", item.problem.broker
            yield "repair", self.browser.filled(item.problem.repair or "none needed")
        else:
            yield "certainty", item.certainty
            yield "cost", item.cost
            yield "cure", item.cure or ""
            yield "run", self.browser.command_line(item.command) or ""
            yield "also", ", ".join(item.paths[1:])
