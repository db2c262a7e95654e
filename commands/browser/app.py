"""The browser as a Textual application: the store, the one thread that reads it, and the stack of screens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import tzinfo
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from textual import work
from textual.app import App
from textual.binding import Binding, BindingType

from rmqtool.commands.browser.checks import FindingsView
from rmqtool.commands.browser.dialogs import Prompt
from rmqtool.commands.browser.grid import Line
from rmqtool.commands.browser.lists import GroupsView, HitsView, TopicsView, open_record
from rmqtool.commands.browser.log import FilesView
from rmqtool.commands.browser.view import View
from rmqtool.errors import RmqtoolError
from rmqtool.problems import Finding
from rmqtool.read.store import Store
from rmqtool.report.browse.record import row_at
from rmqtool.report.browse.topics import Topics

_WARM_UP_S = 1.0

CommandLine = Callable[[Sequence[str]], str | None]
"""Return a command line for a shell from words; STORE stands for the store."""


class BrowseApp(App[None]):
    """Browse an open store. `command_line` fills the commands that findings name."""

    TITLE = "rmqtool"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c,ctrl+q", "quit", show=False),
        Binding("1", "show('topics')", show=False),
        Binding("2", "show('groups')", show=False),
        Binding("3", "show('findings')", show=False),
        Binding("4", "show('log')", show=False),
        Binding("f", "find", show=False),
        Binding("at", "physical", show=False),
    ]

    def __init__(self, store: Store, zone: tzinfo | None, command_line: CommandLine) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.store, self.zone, self.command_line = store, zone, command_line
        self.topics = Topics(store)
        self.state = self._state()
        self.verified: list[Finding] | None = None  # warnings and errors of a whole verify
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._is_left = False

    def on_mount(self) -> None:
        """Show the topics."""
        self.push_screen(TopicsView())
        if not self.store.queues and self.store.layout.commit_log:
            self.push_screen(FilesView())  # only the log can be browsed
        self.set_timer(_WARM_UP_S, self.warm_up)

    def warm_up(self) -> None:
        """Load what explains a record (construct): before a record is opened, but after the first screen."""
        if not self._is_left:  # a timer that is due when the user quits calls after `on_unmount`
            self._reader.submit(import_module, "rmqtool.formats.structures")

    def on_unmount(self) -> None:
        """Let the thread end; nothing waits for what it still reads."""
        self._is_left = True
        self._reader.shutdown(wait=False, cancel_futures=True)

    # the store

    async def read(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the thread that reads the store: a store is not for several threads."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, partial(function, *arguments))

    def open_again(self) -> None:
        """Look at the folders again; only in the thread that reads the store.

        A store at a URL or in an archive does not change.
        """
        if self.store.is_local:
            before, self.store = self.store, self.store.location.open()
            before.close()
            self.topics = Topics(self.store)
            self.state = self._state()
            self.verified = None

    async def reopen(self, view: View) -> bool:
        """As `open_again`, from a screen; returns whether the store could be opened."""
        try:
            await self.read(self.open_again)
        except (RmqtoolError, OSError) as error:
            view.say(getattr(error, "message", str(error)), problem=True)
            return False
        view.write_place()
        return True

    def _state(self) -> str:
        layout = self.store.layout
        if layout.kind != "store":
            return layout.kind
        if self.store.live:
            return "in use by a broker"
        if layout.guard is not None:
            return "repair unfinished"
        return "not stopped cleanly" if layout.abort is not None else "stopped"

    def filled(self, text: str) -> str:
        """A sentence with a command on STORE, with the path of this store."""
        return text.replace("STORE", str(self.store.location))

    # screens

    def path_to(self, view: View) -> str:
        """The titles of the screens up to one of them."""
        titles = [each.place for each in self.screen_stack if isinstance(each, View)]
        if view not in self.screen_stack:
            titles.append(view.place)
        return " › ".join((self.store.location.path.name or str(self.store.location), *titles))

    def back(self) -> None:
        """Leave the screen; the first one stays."""
        if sum(isinstance(each, View) for each in self.screen_stack) > 1:
            self.pop_screen()

    def action_show(self, name: str) -> None:
        """Show one of the lists at the bottom, and leave all others."""
        while sum(isinstance(each, View) for each in self.screen_stack) > 1:
            self.pop_screen()
        views: dict[str, type[View]] = {"groups": GroupsView, "findings": FindingsView, "log": FilesView}
        if name in views:
            self.push_screen(views[name]())  # type: ignore[call-arg]

    def action_find(self) -> None:
        """Find a message in all topics."""
        if isinstance(self.screen, View):
            self.find(self.screen, None)

    @work
    async def find(self, view: View, topic: str | None) -> None:
        """Ask for a key or id, and show what has it."""
        where = "" if topic is None else f" in {topic}"
        text = await view.ask(f"find{where}:", hint="message id, unique key or key")
        if text and text.strip():
            self.push_screen(HitsView(text.strip(), topic))

    @work
    async def action_physical(self) -> None:
        """Ask for a physical offset, and show what is there."""
        view = self.screen
        if not isinstance(view, View):
            return
        text = await self.push_screen_wait(
            Prompt("physical offset:", "", "a byte position in the commit log")
        )
        if not text:
            return
        if not text.isascii() or not text.strip().isdigit() or len(text) > 19:
            view.say(f"{text!r} is not a physical offset", problem=True)
            return
        try:
            row = await self.read(row_at, self.store, int(text))
        except (RmqtoolError, OSError) as error:
            view.say(getattr(error, "message", str(error)), problem=True)
            return
        if row.queue_offset is not None and row.physical_offset != int(text):
            row = row._replace(found_by=f"byte {text}")
        open_record(view, Line({}, "", row))


def run(store: Store, zone: tzinfo | None, command_line: CommandLine) -> None:
    """Browse a store on this terminal until the user quits."""
    app = BrowseApp(store, zone, command_line)
    app.run(mouse=False)
