"""The columns of an export: which ones, what has to be read for them, and how they are completed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from rmqtool.errors import UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.columns import BY_NAME, FIXED_NAMES, NAMES
from rmqtool.message.schema import arrow_schema, arrow_type
from rmqtool.report.export import system
from rmqtool.report.export.records import LogBytes, body_ranges
from rmqtool.report.export.system import SystemColumn
from rmqtool.report.export.text import as_texts, texts_only
from rmqtool.report.export.writers import BODY_TEXT, RECORD, TEXT_FORMATS, Format

BodyPart = Literal["plain", "stored", "both", "none"]
STORED_BODY = "stored_body"
EXTRA = {
    BODY_TEXT: "the body as text; null if it is not UTF-8",
    RECORD: "the whole record, byte for byte",
}
"""Columns that only an export has."""
_TYPES = {BODY_TEXT: pa.string(), RECORD: pa.binary()}
COLUMNS = (*NAMES, *EXTRA)
_BODY = ("body", "body_encoding")
_OF_BODY = (*_BODY, STORED_BODY)
_PLACE = ("physical_offset", "size")
_SYSTEM = "system"
_LAZY = {
    _SYSTEM: system.READS,
    STORED_BODY: ("physical_offset", "sys_flag", "body_length"),
    BODY_TEXT: _BODY,
    RECORD: _PLACE,
}


def check_columns(names: Sequence[str]) -> None:
    """Raises UsageError for an unknown name, a repeated name, or no name."""
    for name in names:
        if name not in COLUMNS:
            from difflib import get_close_matches

            near = get_close_matches(name, COLUMNS, n=1)
            raise UsageError(
                f"there is no column {name!r}",
                hint=f"did you mean {near[0]}?" if near else "help instead of names lists them",
            )
    if len(set(names)) < len(names) or not names:
        raise UsageError("a column is named twice" if names else "no column is named")


@dataclass(frozen=True)
class ColumnPlan:
    """The columns of an export.

    Attributes:
        names: columns of the files, in order.
        reads: columns to read from the log: those of `names`, and those needed to compute or place them.
        schema: schema of `names`.
        body: which form of the body.
        is_text: the files are lines, in which the body has a text encoding.
        asked: the user named the columns.
        keeps_bodies: `stored_body` has a value for every record, not only where a row of `dump` has it.
    """

    names: tuple[str, ...]
    reads: tuple[str, ...]
    schema: pa.Schema
    body: BodyPart
    is_text: bool
    requested: bool
    keeps_bodies: bool

    @classmethod
    def of(
        cls,
        columns: Sequence[str] | None,
        body: BodyPart,
        format: Format,
        *,
        raw: bool = False,
        partition_by: Sequence[str] = (),
        as_rows: bool = False,
    ) -> ColumnPlan:
        """The columns for a format.

        Args:
            columns: names; None is the default columns.
            body: which form of the body, if `columns` does not name it.
            format: format of the files.
            raw: add the whole record.
            partition_by: columns of the partitions; left out, because readers take them from folders.
            as_rows: `stored_body` has the same value as in a row of `dump`, even if `columns` names it.

        Raises:
            UsageError: see `check_columns`.
        """
        is_text = format in TEXT_FORMATS
        if format == "records":
            names: tuple[str, ...] = (RECORD,)
        elif columns is not None:
            check_columns(columns)
            names = tuple(columns)
        else:
            names = _default_names(body, is_text=is_text)
        if raw and RECORD not in names:
            names += (RECORD,)
        names = tuple(name for name in names if name not in partition_by) or names
        lazy = {name for name in names if name in _LAZY and not (name == BODY_TEXT and body == "none")}
        keeps_bodies = body in ("stored", "both") or (columns is not None and not as_rows)
        if not keeps_bodies:
            lazy.discard(STORED_BODY)  # has a value only if compressing the body would not reproduce it
        reads = [
            name for name in names
            if name in BY_NAME and name not in lazy and not (body == "none" and name in _OF_BODY)
        ]  # fmt: skip
        reads += (each for name in names if name in lazy for each in _LAZY[name])
        if is_text and "body" in reads:
            reads.append("body_encoding")
        reads += [*_PLACE, *(("topic", "store_timestamp_ms") if partition_by else ())]
        fields = [pa.field(name, _TYPES[name]) if name in _TYPES else arrow_schema([name]).field(0)
                  for name in names]  # fmt: skip
        unique = tuple(dict.fromkeys(reads))
        return cls(names, unique, pa.schema(fields), body, is_text, columns is not None, keeps_bodies)

    def complete(self, batch: pa.RecordBatch, log: LogBytes, meaning: SystemColumn) -> pa.RecordBatch:
        """Convert a batch with the columns `reads` to one with `names`, and the body's encoding for text.

        Args:
            batch: the batch as it was read.
            log: reads bytes from the log a second time.
            meaning: computes the column `system`.

        Raises:
            UnreadableError: a record cannot be read a second time.
        """
        names = list(self.names)
        if self.is_text and "body" in names and "body_encoding" not in names:
            names.append("body_encoding")
        arrays = [self._column(batch, name, log, meaning) for name in names]
        return pa.RecordBatch.from_arrays(arrays, names)

    def _column(self, batch: pa.RecordBatch, name: str, log: LogBytes, meaning: SystemColumn) -> Any:
        if name == _SYSTEM:
            return meaning.column(batch)
        if name == STORED_BODY and self.keeps_bodies:
            offsets, flags, lengths = (_numbers(batch, each) for each in _LAZY[STORED_BODY])
            return log.column(*body_ranges(offsets, flags, lengths))
        if name in BY_NAME and name not in self.reads:
            return pa.nulls(len(batch), arrow_type(name))  # a body that is not requested
        if name == BODY_TEXT:
            if "body" not in self.reads:
                return pa.nulls(len(batch), _TYPES[name])
            return texts_only(batch.column("body"), as_texts(batch.column("body_encoding")))
        if name == RECORD:
            return log.column(*(_numbers(batch, each).astype(np.int64) for each in _PLACE))
        return batch.column(name)


def _default_names(body: BodyPart, *, is_text: bool) -> tuple[str, ...]:
    """Lines have the columns of `dump`; other formats have all but `system`, which is derived."""
    names = list(NAMES) if is_text else [*FIXED_NAMES]
    if not is_text:
        names.insert(names.index("properties") + 1, "properties_base64")
        names.insert(names.index("body_compression") + 1, STORED_BODY)
    place = names.index("body")
    if body == "stored" or (body == "none" and not is_text):
        names = [name for name in names if name not in _OF_BODY]
        if body == "stored":
            names.insert(place, STORED_BODY)
    elif body == "both":
        names.remove(STORED_BODY)
        names.insert(place + len(_BODY), STORED_BODY)
    return tuple(names)


def _numbers(batch: pa.RecordBatch, name: str) -> Any:
    return batch.column(name).to_numpy(zero_copy_only=False)
