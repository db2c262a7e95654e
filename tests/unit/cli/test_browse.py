"""`rmqtool browse` at 80 x 24: every screen by its keys, hostile text, damage, vanished files."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import select
import shlex
import shutil
import struct
import sys
import tarfile
import termios
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.screen import Screen

from rmqtool import NewMessage, Store
from rmqtool.commands.browser.app import BrowseApp
from rmqtool.commands.browser.grid import Column, Grid, Line, ListSource
from rmqtool.commands.browser.view import GENERAL, Bar, KeysBar, View
from rmqtool.write.store_writer import StoreWriter
from tests.support.programs import PATIENCE_S, started, surroundings, until
from tests.support.stores import Library
from tests.support.sweep import in_sweeps
from tests.support.tail_writer import SMALL, message

pytestmark = pytest.mark.sweep

SIZE = (80, 24)


class Terminal:
    """The browser, driven by keys."""

    def __init__(self, app: BrowseApp, pilot: Pilot[Any]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def view(self) -> View:
        """The screen."""
        assert isinstance(self.app.screen, View), self.app.screen
        return self.app.screen

    @property
    def grid(self) -> Grid:
        """Its list."""
        return self.view.grid

    @property
    def lines(self) -> list[str]:
        """The lines of the list, the header first."""
        return [self.grid.render_line(y).text.rstrip(" │┃") for y in range(self.grid.size.height)]

    def bar(self, name: str) -> str:
        """One of the lines around the list."""
        return self.view.query_one(f"#{name}", Bar).text

    @property
    def keys(self) -> list[str]:
        """The keys in the last line, with their texts."""
        return [" ".join(each) for each in self.view.query_one("#keys", KeysBar).shown]

    @property
    def text(self) -> str:
        """All of it: what the terminal gets."""
        return "\n".join(
            "".join(each.text for each in line) for line in self.app.screen._compositor.render_strips()
        )

    async def until(self, test: Callable[[], object]) -> None:
        """Wait for a state."""
        last = time.monotonic() + PATIENCE_S
        while not test():
            assert time.monotonic() < last, self.text
            await self.pilot.pause()
            await asyncio.sleep(0.005)

    async def press(self, *keys: str) -> None:
        """Press keys, and wait until what is on the screen has been read."""
        await self.pilot.press(*keys)
        await self.until(self._is_shown)

    def _is_shown(self) -> bool:
        screen = self.app.screen
        return not isinstance(screen, View) or all(grid.is_complete for grid in screen.query(Grid).results())

    async def type(self, text: str) -> None:
        """Type into the line for input, and press enter."""
        await self.until(lambda: not isinstance(self.app.screen, View))
        await self.pilot.press(*text, "enter")
        await self.until(lambda: isinstance(self.app.screen, View))
        await self.press()

    async def to(self, name: str) -> None:
        """Wait for a screen."""
        await self.until(lambda: type(self.app.screen).__name__ == name and self.app.screen.query(Grid))
        await self.press()


def browse(path: Path, steps: Callable[[Terminal], Awaitable[None]], size: tuple[int, int] = SIZE) -> None:
    """Run the browser over a store, and press keys in it."""

    async def run() -> None:
        with Store.open(path) as store:
            app = BrowseApp(store, None, lambda words: " ".join(words) or None)
            async with app.run_test(size=size) as pilot:
                terminal = Terminal(app, pilot)
                await terminal.until(lambda: type(app.screen).__name__ in ("TopicsView", "FilesView"))
                await terminal.press()
                await steps(terminal)
            app.store.close()

    asyncio.run(run())


async def open_queue(terminal: Terminal, topic: str, queue: int = 0) -> None:
    """Open the messages of a queue from the topics."""
    await terminal.press("slash")
    await terminal.type(topic)
    await terminal.press("enter")
    await terminal.to("QueuesView")
    await terminal.press(*["down"] * queue, "enter")
    await terminal.to("MessagesView")


def test_from_topics_to_bytes(
    cases: Library, unchanged: Callable[[Path], AbstractContextManager[None]]
) -> None:
    """Enter leads from topics to queues, messages, fields and bytes, escape back; nothing is changed."""

    async def steps(terminal: Terminal) -> None:
        assert terminal.lines[0].split() == ["topic", "kind", "queues", "messages", "newest", "damage"]
        assert "pubTopicOne" in terminal.text and "enter open" in terminal.keys
        await open_queue(terminal, "pubOrder")
        assert terminal.bar("place").startswith("ok_540_clean › topics › pubOrder › queue 0")
        assert terminal.lines[-1].split()[0] == "43"  # the newest
        assert "44 of 44" in terminal.bar("status")
        await terminal.press("home", "down", "down", "down", "enter")
        await terminal.to("RecordView")
        await terminal.until(lambda: "ORDER_0" in terminal.text)
        assert "pubOrder" in terminal.text and "sound" in terminal.text
        assert not terminal.grid.display
        await terminal.press("tab")
        assert terminal.grid.display
        assert terminal.lines[1].split()[:4] == ["+0", "total_size", "00000508", "1288"]
        assert terminal.bar("status").startswith("total_size 1288: bytes of the whole record")
        await terminal.press("n")
        await terminal.until(lambda: "message 4" in terminal.bar("place"))
        await terminal.press("escape")
        await terminal.to("MessagesView")
        assert terminal.grid.cursor == 4
        await terminal.press("escape")
        await terminal.to("QueuesView")
        assert terminal.lines[1].split()[:4] == ["0", "0", "44", "44"]
        await terminal.press("escape", "escape", "escape", "escape")
        await terminal.to("TopicsView")

    path = cases.path("ok_540_clean")
    with unchanged(path):
        browse(path, steps)


def test_places_in_a_queue(cases: Library) -> None:
    """Key g goes to an offset, t to a time; what cannot be understood is said, and moves nothing."""

    async def steps(terminal: Terminal) -> None:
        await open_queue(terminal, "pubTopicOne")
        await terminal.press("g")
        await terminal.type("700")
        assert terminal.grid.cursor == 700
        assert any(line.split()[:1] == ["700"] for line in terminal.lines)
        for wrong in ("7x", "-1"):
            await terminal.press("g")
            await terminal.type(wrong)
            assert f"{wrong!r} is not a queue offset" in terminal.bar("status")
        await terminal.press("t")
        await terminal.type("soon")
        assert "not a time" in terminal.bar("status")
        assert terminal.grid.cursor == 700
        time_ms = terminal.grid.known(705).item.store_ms
        await terminal.press("t")
        await terminal.type(str(time_ms))
        assert terminal.grid.known(terminal.grid.cursor).item.store_ms == time_ms
        await terminal.press("g", "escape")
        await terminal.to("MessagesView")
        await terminal.press("home", "pageup")
        assert terminal.grid.cursor == 0
        await terminal.press("pagedown")
        assert terminal.grid.cursor == terminal.grid.rows
        await terminal.press("end")
        assert terminal.grid.cursor == 1399
        await terminal.press("at")
        await terminal.type("20")
        await terminal.to("RecordView")
        await terminal.until(lambda: "byte 20" in terminal.text)

    browse(cases.path("ok_540_clean"), steps)


def test_search(cases: Library) -> None:
    """Key f finds a key in all topics, s searches the whole log, o shows a hit in its queue."""

    async def steps(terminal: Terminal) -> None:
        await terminal.press("f")
        await terminal.type("ORDER_5")
        await terminal.to("HitsView")
        await terminal.until(lambda: terminal.bar("status").startswith("15 messages found"))
        assert all("ORDER_5" in line for line in terminal.lines[1:16])
        await terminal.press("s")
        await terminal.until(lambda: terminal.bar("status").startswith("15 messages found  "))
        await terminal.press("down", "o")
        await terminal.to("MessagesView")
        assert terminal.grid.line is not None and terminal.grid.line.item.keys == ("ORDER_5",)
        await terminal.press("slash")
        await terminal.type("no such key")
        await terminal.to("HitsView")
        await terminal.until(lambda: terminal.bar("status").startswith("0 messages found"))
        assert "nothing found" in terminal.lines[1]

    browse(cases.path("ok_540_clean"), steps)


def test_groups_lead_to_the_next_message(cases: Library) -> None:
    """2 shows groups with lag; enter shows their queues, and then the message that comes next."""

    async def steps(terminal: Terminal) -> None:
        await terminal.press("2")
        await terminal.to("GroupsView")
        await terminal.until(lambda: len(terminal.grid.source.numbers) >= 9)
        await terminal.press("s")
        assert terminal.lines[1].split()[:3] == ["pub_group_one", "pubTopicOne", "1101"]
        await terminal.press("enter")
        await terminal.to("GroupView")
        assert terminal.lines[1].split() == ["0", "299", "0", "1400", "1101"]
        await terminal.press("enter")
        await terminal.to("MessagesView")
        assert terminal.grid.cursor == 299
        await terminal.press("1")
        await terminal.to("TopicsView")
        await terminal.press("slash")
        await terminal.type("pubOrder")
        await terminal.press("enter", "c")
        await terminal.to("GroupsView")
        await terminal.until(lambda: "(none)" in terminal.lines[1])
        assert "no group has an offset for this topic" in terminal.bar("status")

    browse(cases.path("ok_540_clean"), steps)


def test_findings(cases: Library) -> None:
    """3 shows findings: v those of verify, d those of doctor; enter explains, with the command to run."""

    async def steps(terminal: Terminal) -> None:
        await terminal.press("3")
        await terminal.to("FindingsView")
        await terminal.press("v")
        await terminal.until(lambda: terminal.bar("status").startswith("verify: "))
        assert any(line.startswith("CL03") for line in terminal.lines)
        await terminal.press("home")
        while terminal.grid.line is None or terminal.grid.line.cells["code"] != "CL03":
            await terminal.press("down")
        await terminal.press("enter")
        await terminal.to("FindingView")
        await terminal.until(lambda: "rmqtool recover" in terminal.text)
        assert "broker" in terminal.text
        await terminal.press("escape", "d")
        await terminal.until(lambda: terminal.bar("status").startswith("doctor: "))
        assert any("CL03" in line for line in terminal.lines)

    browse(cases.path("bad_cl03_body_crc"), steps)


@pytest.mark.parametrize(("name", "shown"), [("ok_497_clean", ""), ("bad_cl03_body_crc", "?")])
def test_a_topic_is_sound_when_verify_has_found_nothing(cases: Library, name: str, shown: str) -> None:
    """Until then its damage is unknown, which is not the same as none."""

    async def steps(terminal: Terminal) -> None:
        def damage() -> str:
            assert terminal.grid.line is not None
            return terminal.grid.line.cells["codes"]

        assert damage() == "?" and terminal.lines[1].endswith("?")
        await terminal.press("3")
        await terminal.to("FindingsView")
        await terminal.press("v")
        await terminal.until(lambda: terminal.bar("status").startswith("verify: "))
        await terminal.press("1")
        await terminal.to("TopicsView")
        assert damage() == shown
        await terminal.press("r")
        assert damage() == "?"

    browse(cases.path(name), steps)


def test_what_verify_finds_is_in_the_column_damage(cases: Library) -> None:
    """Of files of the log, each its own; of topics whose queues are damaged while the log is sound."""

    async def verified(terminal: Terminal) -> None:
        await terminal.press("3")
        await terminal.to("FindingsView")
        await terminal.press("v")
        await terminal.until(lambda: terminal.bar("status").startswith("verify: "))

    async def of_log(terminal: Terminal) -> None:
        await verified(terminal)
        await terminal.press("4")
        await terminal.to("FilesView")
        found = [line.split()[-1] for line in terminal.lines[1:] if "commitlog" in line or "0000" in line]
        assert [each for each in found if each.startswith("CL")] == ["CL08"] and "?" not in found

    async def of_queues(terminal: Terminal) -> None:
        await verified(terminal)
        await terminal.press("1")
        await terminal.to("TopicsView")
        codes = {line.split()[0]: line.split()[-1] for line in terminal.lines[1:] if line.strip()}
        assert [each for each in codes.values() if each.startswith("CQ")] == ["CQ06"]
        assert "?" not in codes.values()

    browse(cases.path("gap_cl08_zeroed_page"), of_log)
    browse(cases.path("bad_cq06_wrong_tags_code"), of_queues)


def test_damage_is_shown(cases: Library) -> None:
    """A damaged record has its code in the list, and its bytes can be seen."""

    async def steps(terminal: Terminal) -> None:
        with Store.open(cases.path("bad_cl04_wrong_length")) as store:
            from tests.unit.report.test_browse import rows_of

            key, bad = next((key, row) for key, row in rows_of(store) if "CL04" in row.problems)
        await open_queue(terminal, key[0], key[1])
        await terminal.press("g")
        await terminal.type(str(bad.number))
        assert "CL04" in terminal.lines[terminal.grid.cursor - terminal.grid.top + 1]
        assert terminal.bar("status").startswith("CL04: ")
        await terminal.press("enter")
        await terminal.to("RecordView")
        await terminal.until(lambda: "No whole record is here" in terminal.text)
        await terminal.press("tab")
        assert "total_size" in terminal.lines[1]

    browse(cases.path("bad_cl04_wrong_length"), steps)


HOSTILE = "\x1b[2J\x07[bold red]x[/] [/nothing] \u202egnp.exe\u2066 \x9b31m"


def test_hostile_text(tmp_path: Path) -> None:
    """Control characters, marks of direction and markup from a store never reach the terminal as such."""
    root = tmp_path / "store"
    with StoreWriter.create(root, "5.4", **SMALL) as writer:
        for _ in range(4):
            writer.put(NewMessage("Orders", HOSTILE.encode(), tags="[red]", properties={"name": HOSTILE}))
        writer.flush()

    async def steps(terminal: Terminal) -> None:
        screens = []
        await terminal.press("enter")
        await terminal.to("QueuesView")
        await terminal.press("enter")
        await terminal.to("MessagesView")
        screens.append(terminal.text)
        await terminal.press("enter")
        await terminal.to("RecordView")
        await terminal.until(lambda: "status" in terminal.text)
        screens.append(terminal.text)
        await terminal.press("tab")
        screens.append(terminal.text)
        await terminal.press("f")
        await terminal.type("[bold]x[/] [/nothing]")
        await terminal.to("HitsView")
        screens.append(terminal.text)
        for text in screens:
            assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e", "\u2066"}
        assert "[red]" in screens[0] and "\\x1b[2J\\x07[bold" in screens[0]
        assert "[bold red]x[/] [/nothing] \\u202egnp.exe" in screens[1]
        assert "[bold]x[/] [/nothing]" in screens[3]

    browse(root, steps)


def test_hostile_names(cases: Library, tmp_path: Path) -> None:
    """The folder of a topic may have any name: the screen keeps its lines, each as wide as it was."""
    root = tmp_path / "store"
    shutil.copytree(cases.path("ok_540_clean"), root)
    queues = root / "consumequeue"
    names = [
        "\x1b[31m[red]x\n\r\x9b",
        "[bold]" * 40,
        "寬" * 80,
        "zz" + "a\u0301" * 80,
        "yy\u202e\u2066",
        "!" * 255,
    ]
    for name in names:
        shutil.copytree(queues / "pubTx", queues / name)

    async def steps(terminal: Terminal) -> None:
        shown = ""
        for _ in names:
            shown += terminal.text
            await terminal.press("pagedown")
        await terminal.press("slash")
        await terminal.type("nothing[red]")
        assert "no topic has 'nothing[red]' in its name; escape shows all" in terminal.text
        await terminal.press("escape")
        for name in ("[red]x", "[bold]", "寬寬", "zz", "yy", "!!"):
            await open_queue(terminal, name)
            assert len(terminal.text.split("\n")) == SIZE[1]
            assert {cell_len(line) for line in terminal.text.split("\n")} == {SIZE[0]}
            await terminal.press("escape", "escape", "escape")
            await terminal.to("TopicsView")
        assert "\\x1b[31m[red]x\\n" in shown and "[bold][bo" in shown and "寬寬" in shown
        assert not set(shown) & {"\x1b", "\x9b", "\r", "\u202e"}

    browse(root, steps)


@pytest.mark.parametrize(("rows", "is_long"), [(3, False), (400, True)])
def test_titles_stand_above_their_columns(rows: int, is_long: bool) -> None:
    """With a scroll bar too: it has two columns of its own, on every line."""
    columns = (Column("a", "one", 8, grow=1), Column("b", "two", 8, right=True))
    lines = [Line({"a": "x" * 60, "b": "9" * 8}) for _ in range(rows)]

    class Lists(App[None]):
        def compose(self) -> ComposeResult:
            yield Grid(ListSource(columns, lines), asyncio.to_thread)

    async def run() -> None:
        app = Lists()
        async with app.run_test(size=(40, 12)) as pilot:
            grid = app.query_one(Grid)
            while not grid.is_complete:
                await pilot.pause()
            title, line = (grid.render_line(y).text for y in (0, 1))
            assert title.rstrip().endswith("two") and line.index("9" * 8) + 8 == title.index("two") + 3
            assert title.endswith("two  " if is_long else "two") and line.endswith(" ┃" if is_long else "9")

    asyncio.run(run())


def test_every_screen_names_the_keys_that_lead_on(cases: Library) -> None:
    """At 80 columns all keys of every screen are in its last line; if it is narrow, help and quit are."""

    async def steps(terminal: Terminal) -> None:
        async def check() -> None:
            general = [f"{key} {short}" for key, short, _ in GENERAL if short]
            own = [f"{key} {short}" for key, short, _ in terminal.view.KEYS if short]
            await terminal.until(
                lambda: (
                    terminal.text.split("\n")[-1].split("  ")[: len(own) + 2]
                    == [*own, *general]
                    == terminal.keys
                )
            )

        for key in ("2", "3", "4", "1"):
            await terminal.press(key)
            await check()
        await open_queue(terminal, "pubOrder")
        await check()
        await terminal.press("enter")
        await terminal.to("RecordView")
        await check()
        await terminal.pilot.resize_terminal(24, 8)
        await terminal.until(lambda: terminal.keys == ["? help", "q quit"])

    browse(cases.path("ok_540_clean"), steps)


def test_the_terminal_says_at_once_what_is_opened(cases: Library) -> None:
    """Before the first screen: the libraries take a second on a busy host."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    path = cases.path("ok_540_clean")
    shown = bytearray()

    def sees(text: bytes) -> Callable[[], bool]:
        def look() -> bool:
            if select.select([master], [], [], 0)[0]:
                with suppress(OSError):
                    shown.extend(os.read(master, 65536))
            return text in shown

        return look

    try:
        command = [sys.executable, "-m", "rmqtool", "browse", path]
        environment = surroundings(TERM="xterm")
        environment.pop("COLUMNS", None)
        with started(command, env=environment, stdin=slave, stdout=slave, stderr=slave) as program:
            os.close(slave)
            slave = -1
            until(sees(b"pubTopicOne"))
            os.write(master, b"q")
            until(lambda: sees(b"\0")() or program.poll() is not None)
            assert program.wait() == 0
        assert shown.startswith(f"opening {path}\r\x1b[K".encode())
    finally:
        os.close(master)
        if slave >= 0:
            os.close(slave)


@pytest.mark.parametrize("size", [(20, 5), *in_sweeps([(40, 10), (80, 24), (120, 40)]), (200, 50)])
def test_it_fits_any_size(cases: Library, size: tuple[int, int]) -> None:
    """Each line fills the width; the cursor stays on the screen; if it is wide, text and bytes are shown."""

    async def check(terminal: Terminal) -> None:
        for y in range(terminal.grid.size.height):
            assert terminal.grid.render_line(y).cell_length == terminal.grid.size.width
        grid = terminal.grid
        assert grid.top <= grid.cursor < grid.top + grid.rows or not grid.source.numbers

    async def steps(terminal: Terminal) -> None:
        await check(terminal)
        await terminal.press("end", "home")
        await open_queue(terminal, "pub-Topic_Four")
        await check(terminal)
        await terminal.press("enter")
        await terminal.to("RecordView")
        await terminal.until(lambda: terminal.view.record is not None)  # type: ignore[attr-defined]
        await terminal.press()
        assert terminal.grid.display is (size[0] >= 130)
        await terminal.press("tab")
        await check(terminal)
        for key in ("2", "3"):
            await terminal.press(key)
            await check(terminal)

    browse(cases.path("ok_540_clean"), steps, size)


def test_it_follows_a_store_that_is_written(tmp_path: Path) -> None:
    """F shows new messages as they come, also those in new files of the log and of the queue."""
    root = tmp_path / "store"
    with StoreWriter.create(root, "5.4", **SMALL) as writer:
        writer.put(message(0))
        writer.flush()

        async def steps(terminal: Terminal) -> None:
            assert "in use by a broker" in terminal.bar("place")
            await terminal.press("enter", "enter")
            await terminal.to("MessagesView")
            await terminal.press("F")
            for number in range(1, 1200):
                writer.put(message(number))
            writer.flush()
            await terminal.until(lambda: terminal.grid.cursor == 299 and terminal.grid.is_complete)
            assert "key-1196" in terminal.lines[-1]
            assert "following" in terminal.bar("status")
            await terminal.press("F")
            assert "following" not in terminal.bar("status")

        browse(root, steps)


def test_files_that_vanish(store_copy: Callable[[str], Path]) -> None:
    """The store is deleted while it is browsed: every key still works, and the screen says what happened."""
    path = store_copy("ok_540_clean")

    async def steps(terminal: Terminal) -> None:
        await open_queue(terminal, "pubTopicOne")
        shutil.rmtree(path)
        await terminal.press("pageup", "pageup", "home")
        assert terminal.grid.cursor == 0
        await terminal.press("enter")
        await terminal.press("escape", "r")
        await terminal.until(lambda: "no such" in terminal.bar("status"))
        await terminal.press("f")
        await terminal.type("ORDER_5")
        await terminal.to("HitsView")
        await terminal.until(lambda: "no such" in terminal.bar("status"))
        for key in ("2", "3", "1"):
            await terminal.press(key)
        await terminal.press("down", "enter")

    browse(path, steps)


def test_an_empty_store(tmp_path: Path) -> None:
    """A store without a message has topics of the broker, or none."""
    with StoreWriter.create(tmp_path / "store", "5.4", **SMALL):
        pass

    async def steps(terminal: Terminal) -> None:
        await terminal.press("enter", "down", "pagedown", "end")
        for key in ("2", "3", "1"):
            await terminal.press(key)

    browse(tmp_path / "store", steps)


def test_an_archive(cases: Library, tmp_path: Path) -> None:
    """A store in a tar is browsed as a folder is."""
    with tarfile.open(tmp_path / "store.tar", "w") as tar:
        tar.add(cases.path("ok_540_clean"), "store")

    async def steps(terminal: Terminal) -> None:
        await open_queue(terminal, "pubOrder")
        assert terminal.lines[-1].split()[0] == "43"
        await terminal.press("f")
        await terminal.type("ORDER_5")
        await terminal.to("HitsView")
        await terminal.until(lambda: terminal.bar("status").startswith("15 messages found"))

    browse(tmp_path / "store.tar", steps)


@pytest.mark.parametrize(
    "name", ["kind_rocksdb_540", "kind_dledger_540", "kind_tiered_540", "old_un01_tiered"]
)
def test_forms_that_cannot_be_read(cases: Library, name: str) -> None:
    """Where queues or offsets are out of reach the screens say so."""

    async def steps(terminal: Terminal) -> None:
        for key in ("2", "3", "1"):
            await terminal.press(key)
        await terminal.press("enter")
        await terminal.press("f")
        await terminal.type("ORDER_5")
        await terminal.to("HitsView")

    browse(cases.path(name), steps)


def test_the_log_of_a_single_file(cases: Library) -> None:
    """Without queues the browser begins with the files of the log; enter shows their records in order."""

    async def steps(terminal: Terminal) -> None:
        await terminal.to("FilesView")
        assert terminal.lines[1].split()[:4] == ["…1048576", "1048576", "1.0", "MiB"]
        await terminal.press("enter")
        await terminal.to("FileView")
        await terminal.until(lambda: len(terminal.grid.source.numbers) == 200)
        first = terminal.grid.known(0).item
        assert first.physical_offset == 1 << 20 and first.topic in terminal.lines[1]
        while "so far" in terminal.bar("status"):
            await terminal.press("end")
        await terminal.press("end")
        assert "the end mark" in terminal.lines[-1]
        await terminal.press("up", "enter")
        await terminal.to("RecordView")
        await terminal.until(lambda: "status" in terminal.text)

    browse(cases.path("ok_540_clean") / "commitlog" / f"{1 << 20:020}", steps)


def test_a_timer_that_is_due_when_it_ends(cases: Library) -> None:
    """Nothing is read any more, and nothing fails."""
    apps: list[BrowseApp] = []

    async def steps(terminal: Terminal) -> None:
        apps.append(terminal.app)

    browse(cases.path("ok_540_clean"), steps)
    apps[0].warm_up()


def test_help_names_the_keys(cases: Library) -> None:
    """? shows the keys of the screen, escape closes it."""

    async def steps(terminal: Terminal) -> None:
        await open_queue(terminal, "pubOrder")
        await terminal.pilot.press("question_mark")
        await terminal.until(lambda: not isinstance(terminal.app.screen, View))
        screen: Screen[Any] = terminal.app.screen
        assert "go to a queue offset" in terminal.text and "physical offset" in terminal.text
        assert screen is terminal.app.screen
        await terminal.pilot.press("escape")
        await terminal.to("MessagesView")

    browse(cases.path("ok_540_clean"), steps)


def test_it_needs_a_terminal(cases: Library) -> None:
    """In a pipe it is a usage error that names other commands."""
    command = [sys.executable, "-m", "rmqtool", "browse", str(cases.path("ok_540_clean"))]
    for line in (command, ["sh", "-c", shlex.join(command) + " <&-"]):
        with started(line) as program:
            out, error = program.communicate(timeout=PATIENCE_S)
        assert (program.returncode, out) == (2, b"")
        assert b"browse needs a terminal" in error
