"""What is wrong with a row of an input."""

from __future__ import annotations

from rmqtool.errors import InputError


class RowError(InputError):
    """A row of the input that is no message.

    `row` counts from 1 (a line of JSONL; in CSV the header is row 1), `column` is its column, and
    `status` what a broker would call it, where it is a broker's rule.
    """

    def __init__(
        self,
        what: str,
        *,
        column: str | None = None,
        row: int | None = None,
        status: str | None = None,
        hint: str | None = None,
    ) -> None:
        place = ", ".join(part for part in (f"row {row}" if row is not None else "", column or "") if part)
        super().__init__(f"{place}: {what}" if place else what, hint=hint, column=column)
        self.what = what
        self.row = row
        self.status = status

    def at(self, row: int) -> RowError:
        """The same with its row."""
        return RowError(self.what, column=self.column, row=row, status=self.status, hint=self.hint)
