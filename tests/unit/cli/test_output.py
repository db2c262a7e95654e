"""The one writer: formats, escaping, terminals, interrupts."""

from __future__ import annotations

import csv
import errno
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
from hypothesis import example, given
from hypothesis import strategies as st
from wcwidth import wcswidth

from rmqtool.errors import UsageError
from rmqtool.message.cells import csv_text, field_value
from rmqtool.output import Output
from rmqtool.table import TABLE_BLOCK_ROWS, Table
from rmqtool.terminal import ProgressBar, escape, format_size, let_go_of_stderr, print_error

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


def test_rows_as_json_lines(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """One object a line, names and order as they come, every value as it is."""
    assert Output(format="jsonl").write_rows(ROWS, COLUMNS) == 2
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
    lines = "".join(",".join(map(csv_text, row)) + "\n" for row in rows)
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


def test_a_long_body_makes_no_other_line_longer(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """In ASCII or not, of messages that dump prints in one block."""
    rows = [
        {"n": number, "topic": "Orders", "body": text}
        for number, text in enumerate(("a" * 50_000, "b", "件" * 20_000, "与"))
    ]
    Output(format="table").write_rows(rows, ("n", "topic", "body"))
    header, rule, *lines = written(capfdbinary).rstrip("\n").split("\n")
    assert (len(rule), header) == (len("0  Orders  ") + 120, "n  topic   body")
    assert lines == [f"{row['n']}  Orders  {row['body']}" for row in rows]


def test_unknown_field_is_refused_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """With the nearest names."""

    def rows() -> Iterator[dict[str, object]]:
        raise AssertionError("read")
        yield {}

    with pytest.raises(UsageError) as caught:
        Output(fields="n,topci").write_rows(rows(), COLUMNS)
    assert "topci" in caught.value.message
    assert caught.value.hint == "did you mean topic? --fields help lists them all"
    with pytest.raises(UsageError) as caught:
        Output(fields="queue_of").write_rows(rows(), ("queue_id", "queue_offset", "body"))
    assert caught.value.hint == "did you mean queue_offset or queue_id? --fields help lists them all"
    with pytest.raises(SystemExit) as ended:
        Output(fields="help").write_rows(rows(), COLUMNS)
    assert (ended.value.code, capsys.readouterr().out) == (0, "n\ntopic\nkeys\nbody\n")


def test_table_is_aligned_and_whole_in_a_pipe(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Numbers to the right, no cell cut, few columns unless fields are asked for."""
    rows = [{"n": 5, "t": "a" * 300, "u": 1}, {"n": 12345, "t": None, "u": 2}]
    Output(format="table").write_rows(rows, ("n", "t", "u"), table=("n", "t"))
    assert written(capfdbinary).split("\n") == [
        "    n  t",
        "-----  " + "-" * 120,
        "    5  " + "a" * 300,
        "12345",
        "",
    ]


def test_table_is_aligned_with_wide_characters(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A Chinese character is two columns wide; a list of texts is shown without JSON's marks."""
    rows = [{"t": "消息", "k": ["a", "b"]}, {"t": "消" * 40, "k": []}, {"t": "abcd", "k": ["c"]}]
    Output(format="table").write_rows(rows, ("t", "k"))
    gap = " " * (80 - 4 + 2)
    assert written(capfdbinary).splitlines()[2:] == [f"消息{gap}a, b", "消" * 40, f"abcd{gap}c"]


def widths_on_terminal(
    rows: list[dict[str, object]], columns: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, list[int]]:
    """A table on a terminal of that many columns, and how wide its lines are."""

    def write() -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        Output().write_rows(rows, tuple(rows[0]))

    text = on_terminal(write, monkeypatch)
    return text, [wcswidth(line) for line in text.splitlines()]


def test_a_table_fits_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times lose what they share, then the body gives way, then the other texts; numbers never."""
    rows: list[dict[str, object]] = [
        {
            "offset": 10**12,
            "topic": "t" * 30,
            "store_time": "2026-03-01T12:00:00.000+00:00",
            "body": "消" * 200,
        }
    ]
    text, widths = widths_on_terminal(rows, 100, monkeypatch)
    assert max(widths) in (99, 100)
    assert "t" * 30 in text and "2026-03-01T12:00:00.000+00:00" not in text
    text, widths = widths_on_terminal(rows, 80, monkeypatch)
    assert max(widths) in (79, 80)
    assert "t" * 30 in text
    assert "消消消消消消消" in text
    assert str(10**12) in text
    assert " 12:00:00.000 " in text
    explained: list[dict[str, object]] = [
        {"offset": 1, "hex": "00" * 16, "value": "v" * 33, "text": "t" * 30}
    ]
    text, widths = widths_on_terminal(explained, 80, monkeypatch)
    assert "v" * 33 in text
    assert "00" * 16 in text
    assert "text" not in text
    long = [{"path": "p" * 90, "topic": "t" * 50, "n": 1}]
    assert "t" * 50 in widths_on_terminal(long, 106, monkeypatch)[0]


def test_a_narrow_terminal_gets_fewer_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Headers break before whole columns are left out, which a note on stderr names."""
    rows: list[dict[str, object]] = [
        {"physical_offset": 1, "queue_id": 2, "status": "ok", "keys": "k", "body": "b"}
    ]
    text, widths = widths_on_terminal(rows, 40, monkeypatch)
    assert text.splitlines()[:2] == ["physical  queue  status  keys  body", "  offset     id"]
    assert capsys.readouterr().err == ""
    text, widths = widths_on_terminal(rows, 28, monkeypatch)
    assert text.splitlines()[0] == "physical  queue  keys  body"
    note = "rmqtool: the terminal is too narrow for status; --fields chooses columns\n"
    assert capsys.readouterr().err == note
    assert widths_on_terminal(rows, 3, monkeypatch)[0].splitlines()[-1].strip() == "2"


def test_a_table_inside_an_object_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths lose the zeros of their names, then their middle; elsewhere they are whole."""
    names = [
        f"/data/exports/2026/{folder}/topic=T{n}/date=2026-11-21/messages-{n:020}.parquet"
        for n, folder in enumerate(("orders", "returned-orders-of-all-customers"))
    ]
    row = {"messages": 7, "files": [{"file": name, "messages": 7, "bytes": 12252} for name in names]}

    def write() -> None:
        monkeypatch.setenv("COLUMNS", "80")
        Output().write_object(row)

    text = on_terminal(write, monkeypatch)
    assert max(map(wcswidth, text.splitlines())) == 80
    assert "/orders/topic=T0/date=2026-11-21/messages-…0.parquet " in text
    assert "/topic=T1/date=2026-11-21/messages-…1.parquet " in text
    assert text.count(" 12252\n") == 2  # noqa: PLR2004


_LONG = st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    st.lists(st.tuples(_LONG, st.text(), st.text(), st.text()), min_size=1, max_size=5),
    st.lists(st.tuples(_LONG, st.text(), st.text(), st.text()), min_size=1, max_size=5),
    st.integers(60, 200),
)
@example([(0, "", "", "")], [(0, "", "0\x1f\x1f\x1f\x08\u17be\x1f", "0\x1f\x1f\x1f")], 60)
@example([(0, "", "", "")], [(0, "", "", "0" * 8 + "\x1f\x1f\x1f\x08"), (0, "0" * 12, "", "")], 60)
@example([(-(10**18), "", "", "")], [(0, "", "0" * 6, "0" * 24)], 60)
def test_no_line_is_wider_than_the_terminal(first: list[object], second: list[object], width: int) -> None:
    """Whatever the texts are, in every block."""
    names = ("physical_offset", "topic", "body", "status")
    table = Table(names, width=width)
    for block in (first, second):
        rows = [dict(zip(names, row, strict=True)) for row in block]  # type: ignore[call-overload]
        assert max(map(wcswidth, table.lines(rows))) <= width


def test_columns_can_be_chosen_by_the_rows(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """By the first block; a column may show the first of several fields that has a value."""
    rows = [{"a": {"x": 1}}, {"a": {"y": 2}}]
    Output(format="table").write_rows(
        rows, ("a",), lambda block: [("both", "a.x", "a.y")] if block else ["a"]
    )
    assert written(capfdbinary).split() == ["both", "----", "1", "2"]


def test_parts_of_fields_in_every_format(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """By dotted names; what is not there is null."""
    rows = [{"n": 1, "properties": {"TAGS": "a", "x.y": "b", "deep": {"z": 3}}}]
    fields = "properties.TAGS,properties.x.y,properties.deep.z,properties.none,n.x"
    for format, expected in (("csv", "a,b,3,,"), ("tsv", "a\tb\t3\t\t"), ("table", "a b 3")):
        Output(format=format, fields=fields).write_rows(rows, ("n", "properties"))
        line = written(capfdbinary).splitlines()[-1]
        assert (" ".join(line.split()) if format == "table" else line) == expected
    Output(format="jsonl", fields=fields).write_rows(rows, ("n", "properties"))
    row = json.loads(written(capfdbinary))
    assert list(row) == fields.split(",")
    assert list(row.values()) == ["a", "b", 3, None, None]
    assert field_value({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    with pytest.raises(UsageError):
        Output(fields="propertie.TAGS").write_rows(rows, ("n", "properties"))


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


def test_default_is_a_table_and_no_colour_is_honoured(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Colour says nothing that the text does not say. A pipe gets the same table."""
    rows = [{"severity": "error", "message": "m"}]
    plain = on_terminal(lambda: Output().write_rows(rows, ("severity", "message")), monkeypatch)
    assert plain == "severity  message\n--------  -------\nerror     m\n"
    Output().write_rows(rows, ("severity", "message"))
    assert written(capfdbinary) == plain

    def coloured() -> None:
        monkeypatch.delenv("NO_COLOR")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("PAGER", "cat")
        Output().write_rows(rows, ("severity", "message"))

    text = on_terminal(coloured, monkeypatch)
    assert "\x1b[31merror\x1b[0m" in text

    def lines() -> None:
        monkeypatch.delenv("NO_COLOR")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("PAGER", "cat")
        Output().write_object({}, ["error        CL21 x", "ERROR, certain: y", "errors 3", "Note that"])

    assert on_terminal(lines, monkeypatch) == (
        "\x1b[31merror\x1b[0m        CL21 x\n\x1b[31mERROR\x1b[0m, certain: y\nerrors 3\nNote that\n"
    )
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
        "version  2\nlog:\n  from  0\n  to    99\nqueues:\n  topic  max\n  -----  ---\n"
        "  t        5\nempty    none\npath     x\n"
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

    Output(format="jsonl").write_rows([{"a": np.int64(5), "b": np.array([1, 2])}], ("a", "b"))
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
    """`--progress` without a terminal: one line a second; a rate and a time once they were measured."""
    clock = [0.0]
    monkeypatch.setattr("rmqtool.terminal.time.monotonic", lambda: clock[0])
    with Output(progress=True).progress("verify", 4 << 20) as bar:
        clock[0] += 60  # the kernels were compiled
        bar.advance(1 << 10)
        for _ in range(4):
            clock[0] += 1
            bar.advance((1 << 20) - (1 << 8))
    assert capsys.readouterr().err.splitlines() == [
        "verify: 1.0 KiB of 4.0 MiB",
        "verify: 1.0 MiB of 4.0 MiB",
        "verify: 2.0 MiB of 4.0 MiB, 1023.8 KiB/s, 2s left",
        "verify: 3.0 MiB of 4.0 MiB, 1023.8 KiB/s, 1s left",
        "verify: 4.0 MiB of 4.0 MiB, 1023.8 KiB/s, 0ms left",
    ]


def test_the_rate_of_work_without_an_end_is_that_of_now(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup that has received much, then nothing for an hour, then a little."""
    clock = [0.0]
    monkeypatch.setattr("rmqtool.terminal.time.monotonic", lambda: clock[0])
    with Output(progress=True).progress("receiving", None) as bar:
        for seconds, count in ((60, 100 << 20), (3600, 0), (60, 1 << 10)):
            for _ in range(seconds):
                clock[0] += 1
                bar.advance(count)
            lines = capsys.readouterr().err.splitlines()
            rate = f"{count // 1024 // 1024}.0 MiB/s" if count >= 1 << 20 else "1.0 KiB/s"
            assert lines[-1].endswith(f", {rate}") == bool(count), lines[-1]
            assert ("/s" in lines[-1]) == bool(count)


def test_progress_of_a_long_job_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal and without --progress; --no-progress and -q keep it silent."""
    for output, lines in ((Output(), 2), (Output(progress=False), 0), (Output(quiet=True), 0)):
        clock = [0.0]
        monkeypatch.setattr("rmqtool.terminal.time.monotonic", lambda clock=clock: clock[0])
        with output.progress("spark", 100, line_seconds=10) as bar:
            for _ in range(25):
                clock[0] += 1
                bar.advance(1)
        assert len(capsys.readouterr().err.splitlines()) == lines


def test_a_bar_without_a_measurement_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that took two seconds was shown with 1 kB/s and 52 minutes left."""
    clock = [0.0]

    def work(advances: tuple[tuple[float, int], ...]) -> str:
        def draw() -> None:
            monkeypatch.setattr("rmqtool.terminal.time.monotonic", lambda: clock[0])
            monkeypatch.setenv("TERM", "xterm")
            monkeypatch.setenv("COLUMNS", "120")
            bar = ProgressBar("verify", 4 << 20, shown=True, terminal=True)
            for seconds, count in advances:
                clock[0] += seconds
                bar.advance(count)
            bar.hide()

        return on_terminal(draw, monkeypatch, "stderr")

    early = work(((2.0, 1024), (5.0, 1024)))
    assert "MiB" in early and "/s" not in early and "left" not in early and ":" not in early
    late = work(((2.0, 1024), (4.0, 1 << 20)))
    assert "256.0 KiB/s, 11s left" in late


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


class LostTerminal(io.StringIO):
    """A terminal that nobody looks at any more, from when `lost` is set."""

    lost = False

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        if self.lost:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("then", ["advance", "hide"])
def test_progress_of_a_terminal_that_has_gone(then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is closed while a bar is shown: the work goes on without it."""
    clock = [0.0]
    monkeypatch.setattr("rmqtool.terminal.time.monotonic", lambda: clock[0])
    monkeypatch.setenv("TERM", "xterm")
    terminal, stdout = LostTerminal(), sys.stdout
    monkeypatch.setattr(sys, "stderr", terminal)
    bar = ProgressBar("verify", 1 << 20, shown=True, terminal=True)
    clock[0] = 2.0
    bar.advance(1)
    assert "verify" in terminal.getvalue()
    terminal.lost = True
    clock[0] = 4.0
    if then == "advance":
        bar.advance(1)
        assert bar._rich is None
        bar.advance(1)
    bar.hide()
    assert bar._rich is None
    print_error("x")
    assert (sys.stdout, sys.stderr) == (stdout, terminal)
    let_go_of_stderr()
    assert sys.stderr is None
    terminal.lost = False


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


def test_rows_in_a_pipe_clear_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """They often come out on the same terminal; `--progress` shows it all the same."""
    hidden: list[bool] = []
    monkeypatch.setattr("rmqtool.terminal.ProgressBar.hide", lambda bar, **given: hidden.append(True))
    reading, writing = os.pipe()
    saved = os.dup(1)
    os.dup2(writing, 1)
    try:
        for progress, count in ((None, 2), (True, 1)):
            output = Output(format="jsonl", progress=progress)
            hidden.clear()
            with output.progress("dump", 100):
                output.write_rows([{"a": 1}], ["a"])
            assert len(hidden) == count  # one of them at the end
    finally:
        os.dup2(saved, 1)
        for descriptor in (saved, reading, writing):
            os.close(descriptor)


@pytest.mark.parametrize("label", ["next", "undo", "run", "restore"])
def test_command_lines_stay_whole(label: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """They are pasted into a shell: a part of one may do harm."""
    line = f"{label:<13}cp -an {'a b ' * 40}"
    Output().write_object({}, [line])
    assert capsysbinary.readouterr().out.decode() == f"{line}\n"


def test_text_of_an_object_is_broken_in_a_pipe_too(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between words, at COLUMNS or 80; tables and command lines stay whole."""
    words, command = "word " * 40, f"next         rmqtool recover {'s' * 80}"
    table = Output.table_lines([{"topic": "t" * 90, "body": "b"}], ("topic", "body"))
    for columns in ("80", "60"):
        monkeypatch.setenv("COLUMNS", columns)
        Output().write_object({}, [f"verdict      {words}", f"{'':13}{words}", command, *table])
        lines = capsysbinary.readouterr().out.decode().splitlines()
        broken = lines[: -len(table) - 1]
        assert lines[-len(table) - 1 :] == [command, *table]
        assert " ".join(broken).split() == ["verdict", *words.split() * 2]
        assert int(columns) - 5 <= max(map(len, broken)) <= int(columns)
