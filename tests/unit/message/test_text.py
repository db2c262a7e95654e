"""Lines of JSON and CSV from columns are those that `cells` makes of rows."""

from __future__ import annotations

import base64
from datetime import UTC, timedelta, timezone, tzinfo
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqtool.message.cells import csv_text, json_text
from rmqtool.message.columns import BY_NAME
from rmqtool.report.export.text import TextForm, csv_header, csv_lines, json_lines, time_texts
from rmqtool.times import format_time

NAMES = ("physical_offset", "topic", "born_timestamp_ms", "born_time", "body", "body_encoding", "tags",
         "keys", "properties", "properties_base64", "status")  # fmt: skip
TYPES = {
    "int64": pa.int64(), "string": pa.string(), "binary": pa.binary(),
    "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"), "list<item: string>": pa.list_(pa.string()),
    "map<string, string>": pa.map_(pa.string(), pa.string()),
}  # fmt: skip
HOSTILE = [
    "", " ", "a b", " a", "a ", 'say "hi"', "a,b", "a\nb", "\r\n", "\t", "\\", "\x00", "\x1b[31m",
    "\x7f", "\x85", "\xa0x", "\u202eabc", "\u2028", "\u061c", "\u3000", "\ufeff", "=1+1", "+1", "-1", "@x",
    "中文",
    "中 ", "é",    "\U0001f600", "\x1c", "x\x1f", "null", '""', "{}", "�", "²", "\u0301",
]  # fmt: skip
ZONES = (UTC, timezone(timedelta(hours=8)), timezone(timedelta(hours=-3, minutes=-30)), None)

texts = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.lists(st.sampled_from([*HOSTILE, "plain text", "12345678"]), max_size=12).map("".join),
)
bodies = st.one_of(texts.map(str.encode), st.binary(max_size=8), st.none())


def row_of(text: str, **more: Any) -> dict[str, Any]:
    """A row with `text` everywhere."""
    row = {"physical_offset": -5, "topic": text, "born_timestamp_ms": 0, "body": text.encode(),
           "body_encoding": "utf-8", "tags": text, "keys": [text], "properties": {text: text},
           "properties_base64": None, "status": ["ok"]}  # fmt: skip
    return row | more


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    body = draw(bodies)
    encoding = None
    if body is not None:
        try:
            body.decode()
            encoding = "utf-8"
        except UnicodeDecodeError:
            encoding = "base64"
    return {
        "physical_offset": draw(st.integers(-(2**63), 2**63 - 1)),
        "topic": draw(texts),
        "born_timestamp_ms": draw(st.integers(-70_000_000_000_000, 260_000_000_000_000)),
        "body": body,
        "body_encoding": encoding,
        "tags": draw(st.one_of(st.none(), texts)),
        "keys": draw(st.lists(texts, max_size=3)),
        "properties": draw(st.dictionaries(texts, texts, max_size=3)),
        "properties_base64": draw(st.one_of(st.none(), texts)),
        "status": draw(st.sampled_from([["ok"], ["CL03", "CL13"]])),
    }


def spelled(row: dict[str, Any], zone: tzinfo | None) -> dict[str, Any]:
    """The row as `message_row` has it."""
    body = row["body"]
    text = body if body is None else body.decode() if row["body_encoding"] == "utf-8" else None
    if body is not None and text is None:
        text = base64.b64encode(body).decode()
    values = {**row, "body": text, "born_time": format_time(row["born_timestamp_ms"], zone)}
    found = {name: values[name] for name in NAMES}
    if found["properties_base64"] is None:
        del found["properties_base64"]
    return found


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """The rows as columns of the types of the table of columns."""
    columns = []
    for name in NAMES:
        kind = TYPES[BY_NAME[name].arrow_type]
        if name == "born_time":
            known = [format_time(row["born_timestamp_ms"], UTC) is not None for row in rows]
            values: Any = [row["born_timestamp_ms"] * 1000 for row in rows]
            columns.append(pa.array([v if k else None for v, k in zip(values, known, strict=True)], kind))
            continue
        values = [row[name] for row in rows]
        if name == "properties":
            values = [list(value.items()) for value in values]
        columns.append(pa.array(values, kind))
    return pa.RecordBatch.from_arrays(columns, NAMES)


@given(st.lists(rows(), min_size=1, max_size=6), st.sampled_from(ZONES), st.integers(0, 3))
@example([row_of(text) for text in HOSTILE], UTC, 0)
def test_lines_are_those_of_cells(found: list[dict[str, Any]], zone: tzinfo | None, skip: int) -> None:
    """Also of a slice of a batch."""
    batch = batch_of(found)
    skip = min(skip, len(found) - 1)
    batch, found = batch.slice(skip), found[skip:]
    wanted = [spelled(row, zone) for row in found]
    form = TextForm(NAMES, zone)
    assert bytes(json_lines(batch, form)).decode() == "".join(json_text(row) + "\n" for row in wanted)
    cells = [",".join(csv_text(row.get(name)) for name in NAMES) + "\n" for row in wanted]
    assert bytes(csv_lines(batch, form)).decode() == "".join(cells)


def test_every_character_at_every_place_of_a_word() -> None:
    """The characters up to U+07FF, and those of three bytes that begin as an escaped one."""
    characters = [chr(code) for code in (*range(0x800), *range(0x2000, 0x2080), 0x1F600)]
    form = TextForm(("topic",))
    for before in range(9):
        rows = [row_of("a" * before + each + '"' + "b" * 9) for each in characters]
        lines = bytes(json_lines(batch_of(rows), form)).decode()
        assert lines == "".join(json_text({"topic": row["topic"]}) + "\n" for row in rows)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "＝1"])  # noqa: RUF001
def test_spreadsheets_get_no_formulas(text: str) -> None:
    """A guard in front of texts; numbers stay numbers."""
    row = row_of(text)
    form = TextForm(("physical_offset", "topic", "body"), spreadsheet=True)
    guarded = csv_text("'" + text)
    assert bytes(csv_lines(batch_of([row]), form)).decode() == f"-5,{guarded},{guarded}\n"


@pytest.mark.parametrize(
    ("text", "is_changed"),
    [("00123", True), ("0", False), ("7", False), ("123456789012345", False), ("1234567890123456", True),
     ("1E5", True), ("12e-3", True), ("1.50", True), ("1,000", True), ("5%", True), (" 12 ", True),
     ("3-4", True), ("2026-11-21", True), ("2026-11-21 08:50", True), ("08:50", True), ("1/2", True),
     ("1.2.3", True), ("MAR1", True), ("1-Sept", True), ("may 5, 2026", True), ("Decoder7", False),
     ("may", False), ("127.0.0.1:10911", False), ("ORDER_5", False), ("1E", False), ("5 apples", False),
     ("7F000001000051AF", False), ("", False)],
)  # fmt: skip
def test_spreadsheets_change_no_numbers(text: str, is_changed: bool) -> None:
    """What Excel takes for a number, a date or a time gets an apostrophe, unless it stays as it is."""
    form = TextForm(("topic",), spreadsheet=True)
    expected = csv_text("'" * is_changed + text)
    assert bytes(csv_lines(batch_of([row_of(text)]), form)).decode() == f"{expected}\n"


def test_asked_for_by_name_nulls_are_shown() -> None:
    row = row_of("T", body=None, body_encoding=None)
    form = TextForm(("properties_base64", "body"), shows_nulls=True)
    assert bytes(json_lines(batch_of([row]), form)) == b'{"properties_base64":null,"body":null}\n'
    assert form.reads == ("properties_base64", "body", "body_encoding")
    assert csv_header(TextForm(("a", "b"))) == b"a,b\n"


@given(st.lists(st.integers(-62_135_596_800_000, 253_402_300_799_999), max_size=8), st.sampled_from(ZONES))
def test_times(ms: list[int], zone: tzinfo | None) -> None:
    """As one by one, in any zone."""
    array = pa.array([value * 1000 for value in ms], pa.timestamp("us", "UTC"))
    assert time_texts(array, zone).to_pylist() == [format_time(value, zone) for value in ms]
