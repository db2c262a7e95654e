"""Rows of Arrow batches and rows of `message/rows.py` in one spelling, to compare them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from rmqtool.message.columns import NAMES
from rmqtool.message.rows import RowFormat
from rmqtool.message.schema import arrow_schema
from rmqtool.problems import Finding
from rmqtool.read.access import Access
from rmqtool.read.due_times import due_of
from rmqtool.read.messages import message_batches
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.dump.log import message_rows

ALL = Selection()


def expected(
    store: Store,
    selection: Selection = ALL,
    columns: Sequence[str] = NAMES,
) -> tuple[list[dict[str, Any]], list[Any]]:
    """(rows, findings) of the plain way, the rows as `batch_rows` spells them."""
    findings: list[Any] = []
    form = RowFormat(names=tuple(columns), due_of=due_of(store))
    rows = message_rows(store, selection, form, lambda found: findings.append(found))
    return [_spelled(row) for row in rows], findings


def _spelled(row: dict[str, Any]) -> dict[str, Any]:
    values = dict(row)
    if "body" in values and values["body"] is not None:
        text = values["body"]
        values["body"] = text.encode() if row["body_encoding"] == "utf-8" else base64.b64decode(text)
    if values.get("body_encoding") == "base64":
        values["body_encoding"] = "binary"  # of bytes in a column
    for name in ("born_time", "store_time"):
        if values.get(name) is not None:
            values[name] = datetime.fromisoformat(values[name])
    if "properties" in values:
        values["properties"] = list(values["properties"].items())
    if values.get("system") is not None:
        values["system"] = json.dumps(values["system"])
    return values


def batch_rows(
    store: Store,
    selection: Selection = ALL,
    columns: Sequence[str] = NAMES,
    pieces: Iterable[Access | None] = (None,),
    **arguments: Any,
) -> tuple[list[dict[str, Any]], list[Finding]]:
    """(rows, findings) of `message_batches` over the pieces, every batch checked as Arrow checks it."""
    rows: list[dict[str, Any]] = []
    findings: list[Finding] = []
    schema = arrow_schema(columns)
    for piece in pieces:
        for batch in message_batches(
            store, selection, columns=columns, access=piece, report=findings.append, **arguments
        ):
            batch.validate(full=True)
            assert batch.schema.equals(schema)
            assert batch.num_rows
            rows += batch.to_pylist()
    return rows, findings


def seen(findings: Iterable[Finding]) -> list[tuple[Any, ...]]:
    """Findings as values in a fixed order."""
    return sorted(
        (each.physical_offset or -1, each.problem.code, each.path or "", each.length or 0, str(each.detail))
        for each in findings
    )


def table(store: Store, **arguments: Any) -> pa.Table:
    """All batches as one table."""
    return pa.Table.from_batches(message_batches(store, **arguments))
