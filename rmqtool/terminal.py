"""Text for a terminal: escaping, lines on stderr, sizes, the progress bar.

Text from a store is untrusted. Everything that can reach a terminal goes through `escape`. Only
this file uses rich, and loads it when a bar is shown.
"""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rmqtool.command_line import UNPRINTABLE
from rmqtool.sizes import cut_name
from rmqtool.sizes import format_size as format_size
from rmqtool.times import format_duration

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

PROGRESS_DELAY_SECONDS = 1.0
MEASURED_SECONDS, MEASURED_PART = 2.0, 0.02
"""For so long, and of so much of the total, progress is measured before it gives a rate."""
RATE_SECONDS = 10.0
"""Of work that may never end the rate is that of the last so many seconds, or up to twice as many."""
DRAW_SECONDS = 0.1

_SHORT_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def escape(text: str) -> str:
    r"""`text` with control characters as `\n`, `\x1b` or `\u202e`: safe for a terminal."""
    return UNPRINTABLE.sub(_escaped, text)


def counted(count: int, what: str) -> str:
    """`count` and `what`, with an s unless `count` is 1."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def shortened(name: str) -> str:
    """`cut_name`, escaped."""
    return cut_name(escape(name))


_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(value: int, most: int, width: int) -> str:
    """A bar of up to `width` characters, in proportion to `most`; it is empty only for 0."""
    if value <= 0 or most <= 0:
        return ""
    eighths = max(round(value / most * width * 8), 1)
    return _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def print_error(text: str) -> None:
    """Prints one escaped line on stderr; a terminal that is narrower shows it on several.

    A closed or full stderr is ignored: it changes no result.
    """
    if _held is not None:
        _held.append(text)
    elif sys.stderr is not None:
        with suppress(OSError, ValueError):
            lines = [escape(text)]
            if sys.stderr.isatty():
                lines = broken(lines[0], shutil.get_terminal_size().columns)
            print("\n".join(lines), file=sys.stderr, flush=True)  # noqa: T201


_held: list[str] | None = None


@contextmanager
def errors_held() -> Iterator[None]:
    """Lines for stderr are printed after the block: until then a pager has the terminal."""
    global _held
    lines: list[str] = []
    _held = lines
    try:
        yield
    finally:
        _held = None
        for line in lines:
            print_error(line)


def broken(text: str, width: int) -> list[str]:
    """`text` as lines of at most `width` columns, broken between words.

    A command line that is the text or ends it stays whole, on a line of its own: it is there to be copied.
    """
    if len(text) <= width or text.startswith("  rmqtool "):
        return [text]
    from textwrap import wrap

    text, colon, command = text.partition(": rmqtool ")
    lines = wrap(
        f"{text}:" if colon else text,
        max(width, NARROWEST),
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*lines, f"  rmqtool {command}"] if colon else lines


NARROWEST = 40  # columns of a text, however narrow the terminal is


def let_go_of_stderr() -> None:
    """Flushes stderr, and closes it if that fails: the interpreter would exit with 120 otherwise."""
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except (OSError, ValueError):
            sys.stderr = None


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT_ESCAPES.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


@contextmanager
def waiting_line(text: str) -> Iterator[None]:
    """Shows a line on a terminal while a block runs: what it loads takes a second on a busy host."""
    line = escape(text)[: shutil.get_terminal_size().columns - 1]
    sys.stdout.write(line)
    sys.stdout.flush()
    try:
        yield
    finally:
        sys.stdout.write("\r\x1b[K")
        sys.stdout.flush()


class ProgressBar:
    """The progress of a long task; safe to advance from several threads.

    Nothing is shown for the first second, nor while rows are written to the same terminal or a pipe. Without
    a terminal (`--progress`) it is one plain line every `line_seconds`. The total is None if unknown, as
    for a pipe.
    """

    def __init__(
        self,
        title: str,
        total_bytes: int | None,
        *,
        shown: bool,
        terminal: bool,
        line_seconds: float = PROGRESS_DELAY_SECONDS,
    ) -> None:
        self._title = title
        self._total_bytes = total_bytes
        self._shown = shown
        self._terminal = terminal
        self._delay = PROGRESS_DELAY_SECONDS if terminal else line_seconds
        self._done_bytes = 0
        self._shown_last = self._drawn_last = time.monotonic()
        self._first: tuple[float, int] | None = None  # when the first bytes were done, and how many
        self._recent: tuple[float, int] | None = None  # the same of a later moment, without a total
        self._lock = threading.Lock()
        self._rich: RichProgress | None = None

    def advance(self, count_bytes: int) -> None:
        """Adds `count_bytes` to the bytes that are done."""
        with self._lock:
            self._done_bytes += count_bytes
            now = time.monotonic()
            if self._first is None:
                self._first = now, self._done_bytes
            self._slide(now, self._first)
            if not self._shown or now - self._shown_last < self._delay and self._rich is None:
                return
            if self._terminal:
                try:
                    self._draw(now)
                except (OSError, ValueError):  # the terminal has gone
                    self._shown = False
                    self._stop()
            else:
                self._shown_last = now
                print_error(self._line(now))

    def _slide(self, now: float, first: tuple[float, int]) -> None:
        """Forget what was long ago: a backup that runs for days has the rate of now."""
        recent = self._recent or first
        if self._total_bytes is None and now - recent[0] >= RATE_SECONDS:
            self._first, self._recent = recent, (now, self._done_bytes)

    def describe(self, title: str) -> None:
        """Sets the title; it is shown with the next advance."""
        with self._lock:
            self._title = title
            if self._rich is not None:
                self._rich.update(self._rich.task_ids[0], description=escape(title))

    def hide(self, *, for_good: bool = False) -> None:
        """Clears the bar, so that other lines can be written; it comes back after a second.

        With `for_good` it does not: a pager has the terminal.
        """
        with self._lock:
            self._shown = self._shown and not for_good
            self._shown_last = time.monotonic()
            self._stop()

    def _stop(self) -> None:
        if self._rich is not None:
            with suppress(OSError, ValueError):
                self._rich.stop()
            self._rich = None

    def _draw(self, now: float) -> None:
        if self._rich is None:
            from rich import progress
            from rich.console import Console

            self._rich = progress.Progress(
                "{task.description}",
                progress.BarColumn(),
                progress.DownloadColumn(binary_units=True),
                progress.TextColumn("{task.fields[rate]}", style="progress.data.speed"),
                console=Console(stderr=True),
                transient=True,
                auto_refresh=False,  # its thread would die noisily with the terminal
            )
            self._rich.add_task(escape(self._title), total=self._total_bytes, rate="")
            self._rich.start()
        rate = ", ".join(self._measured(now))
        self._rich.update(self._rich.task_ids[0], completed=self._done_bytes, rate=rate)
        if now - self._drawn_last >= DRAW_SECONDS:
            self._drawn_last = now
            self._rich.refresh()

    def _line(self, now: float) -> str:
        of = "" if self._total_bytes is None else f" of {format_size(self._total_bytes)}"
        return ", ".join((f"{self._title}: {format_size(self._done_bytes)}{of}", *self._measured(now)))

    def _measured(self, now: float) -> list[str]:
        """The rate and, if the total is known, the time that is left; nothing before both can be judged.

        What was done first may have waited for code or files to load: it and its time do not count.
        """
        start, before = self._first or (now, 0)
        seconds, done = now - start, self._done_bytes - before
        total = self._total_bytes
        if seconds < MEASURED_SECONDS or done <= (0 if total is None else total * MEASURED_PART):
            return []
        parts = [f"{format_size(int(done / seconds))}/s"]
        if total is not None:
            left = max(total - self._done_bytes, 0) * seconds / done
            parts.append(f"{format_duration(int(left * 1000))} left")
        return parts
