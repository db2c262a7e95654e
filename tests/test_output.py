"""The one writer: formats, escaping, terminals, interrupts."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import UsageError
from rmqtool.output import CELL_WIDTH, TABLE_BLOCK_ROWS, Output
from rmqtool.terminal import ProgressBar, escape, format_size

HOSTILE = "\x1b]0;owned\x07\x1b[31m\r\n\t\x7f\x9b2J\u202eevil\u2066\udc80"
ROWS = [
    {"n": 1, "topic": "orders", "keys": ["a", "b"], "body": ""},
    {"n": 22, "topic": HOSTILE, "keys": [], "body": None},
]
COLUMNS = ("n", "topic", "keys", "body")


def written(capfdbinary: pytest.CaptureFixture[bytes]) -> str:
    """What stdout got."""
    sys.stdout.flush()
    return capfdbinary.readouterr().out.decode("utf-8")


def on_terminal(write: Callable[[], object], monkeypatch: pytest.MonkeyPatch, stream: str = "stdout") -> str:
    """What a terminal gets when `write` runs with `stream` on it."""
    master, slave = pty.openpty()
    pieces: list[bytes] = []

    def read() -> None:
        while True:
            try:
                pieces.append(os.read(master, 65536))
            except OSError:  # the last writer has closed it
                return

    reader = threading.Thread(target=read)
    reader.start()
    with open(slave, "w", encoding="utf-8") as terminal:  # noqa: PTH123  a file descriptor, no path
        monkeypatch.setattr(sys, stream, terminal)
        write()
    monkeypatch.undo()
    reader.join()
    os.close(master)
    return b"".join(pieces).decode("utf-8").replace("\r\n", "\n")


def test_piped_rows_are_json_lines(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """One object a line, names and order as they come, every value as it is."""
    assert Output().write_rows(ROWS, COLUMNS) == 2
    lines = written(capfdbinary).splitlines()
    assert [json.loads(line) for line in lines] == ROWS
    assert list(json.loads(lines[0])) == ["n", "topic", "keys", "body"]


def test_json_is_one_array(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Also without rows."""
    Output(format="json").write_rows(ROWS, COLUMNS)
    assert json.loads(written(capfdbinary)) == ROWS
    Output(format="json").write_rows([], COLUMNS)
    assert json.loads(written(capfdbinary)) == []


def test_csv_round_trips(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Quotes, separators and line ends survive; null is an empty cell, the empty text a quoted one."""
    rows = [{"a": 'say "hi", x\r\ny', "b": None}, {"a": "", "b": " padded "}, {"a": {"k": [1]}, "b": True}]
    Output(format="csv").write_rows(rows, ("a", "b"))
    text = written(capfdbinary)
    assert list(csv.reader(io.StringIO(text, newline=""))) == [
        ["a", "b"],
        ['say "hi", x\r\ny', ""],
        ["", " padded "],
        ['{"k":[1]}', "true"],
    ]
    assert text.splitlines()[-2:] == ['""," padded "', '"{""k"":[1]}",true']


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8")), st.integers()), max_size=5))
def test_csv_of_any_text_reads_back(rows: list[tuple[str, int]]) -> None:
    """Exact, whatever the text is."""
    from rmqtool import output

    lines = "".join(",".join(map(output._csv, row)) + "\n" for row in rows)
    assert list(csv.reader(io.StringIO(lines, newline=""))) == [[text, str(number)] for text, number in rows]


def test_tsv_has_one_line_a_row(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Tab, line ends and backslash are escaped."""
    Output(format="tsv").write_rows([{"a": "x\ty\nz\r\\", "b": 5}], ("a", "b"))
    assert written(capfdbinary) == "a\tb\nx\\ty\\nz\\r\\\\\t5\n"


def test_fields_choose_and_order_in_every_format(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The same names mean the same everywhere."""
    for format, expected in (("jsonl", '{"topic":"orders","n":1}\n'), ("csv", "topic,n\norders,1\n")):
        Output(format=format, fields="topic, n").write_rows(ROWS[:1], COLUMNS)
        assert written(capfdbinary) == expected


def test_unknown_field_is_refused_before_anything_is_read() -> None:
    """With the nearest name."""

    def rows() -> Iterator[dict[str, object]]:
        raise AssertionError("read")
        yield {}

    with pytest.raises(UsageError) as caught:
        Output(fields="n,topci").write_rows(rows(), COLUMNS)
    assert "topci" in caught.value.message
    assert "topic" in str(caught.value.hint)


def test_table_is_aligned_and_cut(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Numbers to the right, long cells cut, few columns unless fields are asked for."""
    rows = [{"n": 5, "t": "a" * 100, "u": 1}, {"n": 12345, "t": None, "u": 2}]
    Output(format="table").write_rows(rows, ("n", "t", "u"), table=("n", "t"))
    cut = "a" * (CELL_WIDTH - 1) + "…"
    assert written(capfdbinary).split("\n") == [
        "    n  t",
        "-----  " + "-" * CELL_WIDTH,
        f"    5  {cut}",
        "12345",
        "",
    ]


def test_table_is_aligned_with_wide_characters(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A Chinese character is two columns wide; a list of texts is shown without JSON's marks."""
    rows = [{"t": "消息", "k": ["a", "b"]}, {"t": "消" * 40, "k": []}, {"t": "abcd", "k": ["c"]}]
    Output(format="table").write_rows(rows, ("t", "k"))
    gap = " " * (CELL_WIDTH - 1 - 4 + 2)
    assert written(capfdbinary).splitlines()[2:] == [f"消息{gap}a, b", "消" * 29 + "…", f"abcd{gap}c"]
    Output(format="table").write_rows([{"t": "消" * 30}, {"t": "é" * 61}], ("t",))
    assert written(capfdbinary).splitlines()[2:] == ["消" * 30, "é" * 59 + "…"]


def test_table_keeps_its_widths_over_blocks(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The header stands once, later blocks are aligned with it."""
    rows = [{"name": "x" * 20, "n": 1}] + [{"name": "y", "n": 2}] * (2 * TABLE_BLOCK_ROWS)
    assert Output(format="table").write_rows(rows, ("name", "n")) == len(rows)
    lines = written(capfdbinary).splitlines()
    assert len(lines) == len(rows) + 2
    assert {line.index("2") for line in lines[3:]} == {lines[2].index("1")}


def test_no_control_character_reaches_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """In no format, nor in colours that the store chose."""
    for format in ("table", "jsonl", "json", "csv", "tsv", None):
        text = on_terminal(lambda format=format: Output(format=format).write_rows(ROWS, COLUMNS), monkeypatch)
        assert "orders" in text
        separator = "\t" if format == "tsv" else ""
        assert re.findall(f"[^\n -~…{separator}]", text) == [], format
    for value in ({"name": HOSTILE}, {HOSTILE: {"deep": [HOSTILE]}}, {"rows": [{"a": HOSTILE}]}):
        for format in ("text", "json"):
            text = on_terminal(lambda v=value, f=format: Output(format=f).write_object(v), monkeypatch)
            assert re.findall("[^\n -~…]", text) == [], (format, text)


def test_terminal_gets_a_table_and_no_colour_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colour says nothing that the text does not say."""
    rows = [{"severity": "error", "message": "m"}]
    plain = on_terminal(lambda: Output().write_rows(rows, ("severity", "message")), monkeypatch)
    assert plain == "severity    message\n----------  ---------\nerror       m\n"

    def coloured() -> None:
        monkeypatch.delenv("NO_COLOR")
        monkeypatch.setenv("TERM", "xterm")
        Output().write_rows(rows, ("severity", "message"))

    text = on_terminal(coloured, monkeypatch)
    assert "\x1b[31merror\x1b[0m" in text
    assert re.sub("\x1b\\[[0-9]*m", "", text) == plain


def test_bytes_go_to_a_pipe_but_not_to_a_terminal(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is cut out of a store is not for a terminal."""
    assert Output().write_bytes([b"\x00\xff", b"\x1b"]) == 3
    assert capfdbinary.readouterr().out == b"\x00\xff\x1b"

    def write() -> None:
        with pytest.raises(UsageError):
            Output().write_bytes([b"\x1b"])

    assert on_terminal(write, monkeypatch) == ""


def test_object_as_text_shows_nested_values(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Names aligned, nested objects indented, lists of objects as tables."""
    value = {
        "version": 2,
        "log": {"from": 0, "to": 99},
        "queues": [{"topic": "t", "max": 5}],
        "empty": [],
        "path": Path("x"),
    }
    Output().write_object(value)
    assert written(capfdbinary) == (
        "version  2\nlog:\n  from  0\n  to    99\nqueues:\n  topic      max\n  -------  -----\n"
        "  t            5\nempty    []\npath     x\n"
    )
    Output(format="json").write_object(value)
    assert json.loads(written(capfdbinary)) == {**value, "path": "x"}


@pytest.mark.parametrize("format", ["json", "jsonl", "csv", "table"])
def test_rows_so_far_are_shown_when_reading_stops(
    format: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """An interrupt or an error in the middle: what came before is complete and well formed."""

    def rows() -> Iterator[dict[str, object]]:
        yield {"n": 11}
        yield {"n": 12}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Output(format=format).write_rows(rows(), ("n",))
    text = written(capfdbinary)
    assert re.findall(r"1[12]", text) == ["11", "12"]
    if format == "json":
        assert json.loads(text) == [{"n": 11}, {"n": 12}]


def test_numpy_values_are_plain_json(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Rows may hold numbers straight from a column."""
    import numpy as np

    Output().write_rows([{"a": np.int64(5), "b": np.array([1, 2])}], ("a", "b"))
    assert json.loads(written(capfdbinary)) == {"a": 5, "b": [1, 2]}


def test_notes_go_to_stderr_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """Escaped like everything else."""
    Output().note("seen \x1b[1m")
    Output(quiet=True).note("not seen")
    captured = capsys.readouterr()
    assert captured.err == "seen \\x1b[1m\n"
    assert captured.out == ""


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """And for short work."""
    with Output().progress("verify", 100) as bar:
        bar.advance(50)
    assert capsys.readouterr().err == ""


def test_progress_on_request_is_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--progress` without a terminal: one line a second."""
    clock = [0.0]
    monkeypatch.setattr("rmqtool.terminal.time.monotonic", lambda: clock[0])
    with Output(progress=True).progress("verify", 4 << 20) as bar:
        for _ in range(4):
            clock[0] += 0.75
            bar.advance(1 << 20)
    assert capsys.readouterr().err.splitlines() == [
        "verify: 2.0 MiB of 4.0 MiB, 1.3 MiB/s, 1s left",
        "verify: 4.0 MiB of 4.0 MiB, 1.3 MiB/s, 0ms left",
    ]


def test_progress_bar_on_a_terminal_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn after a second, cleared at the end and before other lines."""
    clock = [0.0]

    def work() -> None:
        monkeypatch.setattr("rmqtool.terminal.time.monotonic", lambda: clock[0])
        monkeypatch.setenv("TERM", "xterm")
        bar = ProgressBar("verify \x1b[5m", 2048, shown=True, terminal=True)
        clock[0] = 2.0
        bar.advance(1024)
        bar.hide()

    text = on_terminal(work, monkeypatch, "stderr")
    assert "verify \\x1b[5m" in text
    assert text.rstrip("\n").endswith("\x1b[2K")


def test_progress_counts_from_several_threads() -> None:
    """No advance is lost."""
    bar = ProgressBar("verify", 8000, shown=False, terminal=False)
    threads = [threading.Thread(target=lambda: [bar.advance(1) for _ in range(1000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bar._done_bytes == 8000


def test_escape_leaves_ordinary_text_alone() -> None:
    """Only what a terminal would act on is changed."""
    assert escape("orders-é-中文-🙂 \\n") == "orders-é-中文-🙂 \\n"
    assert escape("\x00\t\x9b\u202e\udc80") == "\\x00\\t\\x9b\\u202e\\udc80"


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (3 << 30, "3.0 GiB"),
        (2**70, "1024.0 EiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_size_is_printed_in_iec_units(size: int, expected: str) -> None:
    """One decimal, the unit always there."""
    assert format_size(size) == expected
