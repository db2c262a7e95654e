"""JSON lines in compiled code: the columns that are there otherwise, or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqtool.write.ingest.json_columns import plain_columns
from rmqtool.write.ingest.json_kernel import MAX_PAIRS
from rmqtool.write.ingest.json_rows import JsonRows, Lines, raw_columns
from rmqtool.write.ingest.rows import RowRules
from tests.support.programs import PATIENCE_S, ROOT
from tests.support.sweep import IS_WHOLE

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ROWS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "topic": TEXT | st.none(),
            "body": TEXT,
            "queue_id": st.integers(-(1 << 31), (1 << 31) - 1) | st.none(),
            "physical_offset": st.integers(-(10**18) + 1, 10**18 - 1),
            "kind": st.sampled_from(["record", "blank", None]),
            "wait": st.booleans() | st.none(),
            "keys": TEXT | st.lists(TEXT, max_size=3) | st.none(),
            "properties": st.dictionaries(TEXT, TEXT, max_size=3) | st.none(),
            "system": st.booleans() | st.integers(0, 9) | TEXT,
        },
    ),
    min_size=1,
    max_size=6,
)


def other(data: bytes, line_count: int) -> tuple[dict[str, Any], list[int]] | None:
    """What is found row by row; None where something is wrong."""
    found = JsonRows(RowRules()).rows(Lines(0, line_count, memoryview(data)))
    return None if found.errors else (raw_columns(found.rows), list(found.numbers))


def compiled(data: bytes, line_count: int) -> tuple[dict[str, Any], list[int]] | None:
    """What is found in compiled code."""
    found = plain_columns(memoryview(data), line_count)
    return None if found is None else (found.columns, found.lines.tolist())


def check(data: bytes) -> bool:
    """Both are the same, or the compiled code has given up: then False."""
    line_count = data.count(b"\n") + (not data.endswith(b"\n"))
    found = compiled(data, line_count)
    if found is None:
        return False
    wanted = other(data, line_count)
    assert wanted is not None, "read where something is wrong"
    assert found[1] == wanted[1]
    assert list(found[0]) == list(wanted[0])
    for name, array in wanted[0].items():
        assert found[0][name].type == array.type
        assert found[0][name].to_pylist() == array.to_pylist()
        found[0][name].validate(full=True)
    return True


@given(ROWS, st.booleans(), st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\r :")]), st.booleans())
def test_what_programs_write_is_read(
    rows: list[dict[str, Any]], ascii_only: bool, marks: tuple[str, str], ends: bool
) -> None:
    lines = [json.dumps(row, ensure_ascii=ascii_only, separators=marks) for row in rows]
    # Of names with escapes it is left to others whether two are the same.
    plain = not any("\\" in json.dumps(name, ensure_ascii=ascii_only)
                    for row in rows for name in row.get("properties") or ())  # fmt: skip
    assert check(("\n \r\n".join(lines) + "\n" * ends).encode()) or not plain


@given(ROWS, st.booleans(), st.data())
def test_what_is_changed_is_read_the_same_or_not_at_all(
    rows: list[dict[str, Any]], ascii_only: bool, draw: st.DataObject
) -> None:
    """Bytes taken away, doubled, or replaced by what means something in JSON, or is no UTF-8."""
    data = bytearray("\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows).encode())
    for _ in range(draw.draw(st.integers(1, 3))):
        place = draw.draw(st.integers(0, len(data)))
        size = draw.draw(st.integers(0, 3))
        new = draw.draw(
            st.sampled_from([b"", bytes(data[place : place + 9]), b"\\u00", b"-", b"1e3", b".0", b"0"])
            | st.binary(min_size=1, max_size=2)
            | st.sampled_from(b'"\\{}[]:,\n tfnu/d8\xff\x00\x1f').map(lambda byte: bytes([byte]))
        )
        data[place : place + size] = new
    check(bytes(data))


@pytest.mark.parametrize("before", [0, 1, 7, 8, 15, 16, 30, 31, 32])
def test_every_character_and_its_escape(before: int) -> None:
    """At places around the ends of what is looked at together, 32 bytes."""
    characters = [*range(0x20, 0x300), *range(0x7F0, 0x810), 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]
    for ascii_only in (True, False):
        rows = [{"body": "x" * before + chr(code) + "y"} for code in (*range(0x20), *characters)]
        assert check("\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows).encode())
    upper = "\n".join(f'{{"body":"\\u{code:04X}\\/"}}' for code in characters if code < 0xD800)
    assert check(upper.encode())


@pytest.mark.parametrize(
    "line",
    [
        '{"a":1}', '{"topic":"x","topic":"y"}', '{"queue_id":1.0}', '{"queue_id":1e2}',
        '{"queue_id":2147483648}', '{"physical_offset":9223372036854775807}', '{"queue_id":"1"}',
        '{"queue_id":01}', '{"queue_id":-}', '{"queue_id":+1}', '{"wait":tru}', '{"wait":1}',
        r'{"topic":"\ud800"}', r'{"topic":"\udc00\ud800"}', r'{"topic":"\ud800\u0041"}', r'{"topic":"\x"}',
        r'{"topic":"\u12g4"}', r'{"topic":"\u12', r'{"topic":"\ud800\udc', '{"topic":"\\',
        '{"topic":"a\x01"}', '{"topic":"' + 21 * "a" + "\x1f" + 20 * "b" + '"}',
        '{"topic":"a', '{"topic":1}', r'{"topic\":1}', r'{"t\u006fpic":"T"}',
        '{"topic"', '{"topic":', '{"topic":}', '{"topic" "x"}', '{"topic":"a",}', '{"topic":"a" "tags":"b"}',
        '{', '[]', '[{"topic":"x"}]', '"x"', '{"topic":"x"} x', '{} {}', '{}{}', '{"topic":"x"\n}',
        '{"keys":["a"', '{"keys":["a",]}', '{"keys":[1]}', '{"keys":[null]}',
        '{"keys":["a" "b"]}', '{"keys":{}}',
        '{"properties":{"a":"1","a":"2"}}', '{"properties":{"a":1}}', '{"properties":{"a":null}}',
        '{"properties":{"a":"1",}}', '{"properties":{"a"}}', '{"properties":[]}', '{"properties":{"a":"1"',
        '{"properties":{' + ",".join(f'"{n}":"v"' for n in range(MAX_PAIRS + 1)) + "}}",
        '{"kind":"other"}', '{"record":{"a":[1]}}', '{"system":1.5}', '\ufeff{}', '{"topic":"\xff"}',
    ],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_others(line: str) -> None:
    """Wrong, or right and unusual; also behind a line that is plain."""
    encoded = line.encode("latin-1" if "\xff" in line else "utf-8")
    assert not check(encoded)
    assert not check(b'{"topic":"T"}\n' + encoded + b'\n{"topic":"T"}')


@example(b"")
@example(b"\n\n")
@given(st.binary(max_size=40))
def test_any_bytes(data: bytes) -> None:
    check(data)


_CHECKED = """
import json
from tests.unit.write.test_json_columns import check
row = {"topic": "T\\u00e9\\n", "keys": ["a", "b\\t"], "properties": {"p": "q\\r"}, "queue_id": 7}
for length in range(40):
    line = json.dumps({"body": "y" * length, **row}).encode()
    assert check(line) and check(line + b"\\n")
    for stop in range(len(line)):
        check(line[:stop])
print("same")
"""


@pytest.mark.sweep
@pytest.mark.skipif(not IS_WHOLE, reason="compiles the kernel again: make sweep")
def test_no_byte_outside_is_read(tmp_path: Path) -> None:
    """With every index checked, on lines that end at every place."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path),
                   "PYTHONPATH": str(ROOT)}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _CHECKED], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.stdout, done.stderr) == ("same\n", "")
