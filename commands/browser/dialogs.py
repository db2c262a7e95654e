"""The line for input, and the help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

Keys = Sequence[tuple[str, str, str]]
"""(key, short text for the last line, long text for the help)."""


class Prompt(ModalScreen[str | None]):
    """Ask for one line at the bottom of the screen; escape gives None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", show=False)]
    DEFAULT_CSS = """
    Prompt { align: left bottom; background: transparent; }
    Prompt Horizontal { height: 1; width: 1fr; }
    Prompt Static { width: auto; height: 1; text-style: bold; }
    Prompt Input { width: 1fr; height: 1; border: none; padding: 0; }
    """

    def __init__(self, label: str, value: str = "", hint: str = "") -> None:
        super().__init__()
        self._label, self._value, self._hint = label, value, hint

    def compose(self) -> ComposeResult:
        """The label and the line."""
        with Horizontal():
            yield Static(Text(f"{self._label} "))
            yield Input(self._value, placeholder=self._hint, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return what was typed."""
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Return nothing."""
        self.dismiss(None)


class Help(ModalScreen[None]):
    """The keys of a screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "close", show=False),
    ]
    DEFAULT_CSS = """
    Help { align: center middle; background: transparent; }
    Help VerticalScroll { width: 72; max-width: 100%; height: auto; max-height: 100%; }
    Help VerticalScroll { border: round; padding: 0 1; }
    Help Static { width: 1fr; height: auto; }
    """

    def __init__(self, title: str, keys: Keys) -> None:
        super().__init__()
        self._title, self._keys = title, keys

    def compose(self) -> ComposeResult:
        """One line for each key."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for key, _, long in filter(lambda each: each[2], self._keys):
            table.add_row(key, long)
        with VerticalScroll():
            yield Static(
                Group(Text(f"{self._title}\n", "bold"), table, Text("\nEscape closes this help.", "dim"))
            )

    def action_close(self) -> None:
        """Go back."""
        self.dismiss(None)
