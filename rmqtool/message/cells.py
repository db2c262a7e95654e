"""The value of a field, also by a dotted name, and its text in JSON, plain text, CSV and TSV."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from pathlib import PurePath
from typing import Any

from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern
from rmqtool.times import format_time

Row = Mapping[str, Any]


@dataclass(frozen=True)
class TextLines:
    """`count` rows that are already lines, each with its line end."""

    data: bytes | memoryview
    count: int


@dataclass(frozen=True)
class TextColumns:
    """`count` rows as columns of texts, one for each column of a table.

    Attributes:
        columns: Arrow arrays of plain texts, empty where there is no value.
        count: how many rows they have.
        block_rows: how many rows share the widths of the columns.
    """

    columns: Sequence[Any]
    count: int
    block_rows: int


_JSON_CONTROL = pattern("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def field_value(row: Row, name: str) -> Any:
    """The value of a field; `system.kind` is `kind` of the object `system`. None if it does not exist.

    Names of properties may contain dots: a key that equals the whole rest of the name wins.
    """
    if name in row:
        return row[name]
    places = [place for place, character in enumerate(name) if character == "."]
    for place in places:
        value = row.get(name[:place])
        if isinstance(value, Mapping):
            return field_value(value, name[place + 1 :])
    return None


def with_times(value: Any, zone: tzinfo | None) -> Any:
    """The same object with a readable time after every `*_timestamp_ms`."""
    if isinstance(value, list | tuple):
        return [with_times(item, zone) for item in value]
    if not isinstance(value, dict):
        return value
    result: dict[str, Any] = {}
    for name, item in value.items():
        result[name] = with_times(item, zone)
        if name.endswith("_timestamp_ms"):
            result[f"{name.removesuffix('stamp_ms')}"] = format_time(item, zone) if item else None
    return result


def _plain(value: object) -> object:
    """Converts values that the JSON encoder does not know: paths, and numbers and arrays of numpy."""
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"no JSON for {type(value).__name__}")


_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)
_indented = json.JSONEncoder(ensure_ascii=False, indent=2, default=_plain)


def json_text(value: object, *, indented: bool = False) -> str:
    """JSON on one line, or indented; control characters of terminals are escaped."""
    # Only strings can hold these characters, so the escape is valid JSON and means the same.
    text = (_indented if indented else _compact).encode(value)
    return _JSON_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def plain_text(value: object) -> str:
    """One value as exact text: empty for None, compact JSON for lists and objects."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | list | tuple | dict):
        return json_text(value)
    return str(value)


def csv_text(value: object) -> str:
    """A CSV cell, quoted if necessary."""
    text = plain_text(value)
    # None is an empty cell, the empty string a quoted one; the csv module does not distinguish them.
    quoted = text != text.strip() or any(character in text for character in ',"\r\n')
    if quoted or (not text and value is not None):
        return '"' + text.replace('"', '""') + '"'
    return text


def tsv_text(value: object) -> str:
    """A TSV cell: tab, line ends and backslash escaped."""
    text = plain_text(value).replace("\\", "\\\\")
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
