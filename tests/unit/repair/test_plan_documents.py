"""JSON files of our own, read as untrusted input: a value of another type ends in InputError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from rmqtool.errors import InputError
from rmqtool.repair.plan.documents import convert, read_json

LONE = "\ud800"
ESCAPED = "\udc80"
"""What Python makes of the byte 0x80 in the name of a file."""


class Row(msgspec.Struct, forbid_unknown_fields=True):
    number: int


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (LONE, int),
        (LONE, int | None),
        (LONE, Literal["x"]),
        ({"number": LONE}, Row),
        ({"number": 1, LONE: 2}, Row),
        ({"x": LONE}, dict[str, int]),
        ([[LONE]], tuple[tuple[int, ...], ...]),
    ],
)
def test_a_lone_surrogate_where_none_can_stand(tmp_path: Path, document: Any, kind: Any) -> None:
    path = tmp_path / "document.json"
    path.write_text(json.dumps({"value": document}))
    found = read_json(path)
    assert found is not None
    with pytest.raises(InputError, match="cannot be parsed") as raised:
        convert(found["value"], kind, path)
    assert raised.value.path == path
    str(raised.value).encode()


def test_the_name_of_a_file_that_is_not_utf_8_stays() -> None:
    path = Path("document.json")
    assert convert({ESCAPED: 1}, dict[str, int], path) == {ESCAPED: 1}
    assert convert([ESCAPED], tuple[str, ...], path) == (ESCAPED,)
