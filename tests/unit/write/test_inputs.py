"""Inputs of many messages: JSON lines, CSV, Parquet and Arrow, what is wrong in them and where."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import io
import json
import operator
import os
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc, parquet

from rmqtool.cli import main
from rmqtool.errors import InputError, UsageError
from rmqtool.formats import body as bodies
from rmqtool.formats.message_id import host_bytes
from rmqtool.message.columns import NAMES
from rmqtool.message.rows import BodyForm, RowFormat, blank_row, damage_row, message_row
from rmqtool.read.store import Store
from rmqtool.storage.profile import PROFILES
from rmqtool.write.ingest import files, json_rows
from rmqtool.write.ingest import reader as inputs
from rmqtool.write.ingest.reader import Format, Input, OnError, format_of, open_input
from rmqtool.write.ingest.rows import HOST_BITS, RowError, RowRules
from rmqtool.write.records.message import NewMessage
from rmqtool.write.table.schema import messages_of
from tests.support.one_row import message_of
from tests.support.programs import PATIENCE_S, RMQTOOL, is_asleep, started, until
from tests.support.stores import Library, case
from tests.support.sweep import in_sweeps, paired
from tests.support.trees import copy_tree

pytestmark = pytest.mark.sweep

HELLO = {"topic": "T", "body": "hello"}
Result = tuple[list[NewMessage], dict[int, str]]


def lines_of(*rows: object) -> bytes:
    """JSON lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def row_by_row(path: Path, rules: RowRules, on_error: OnError) -> tuple[Result, int]:
    """JSON lines as the reference reads them: what `Source` gives, and how many rows are empty."""
    messages, errors, empty = [], {}, 0
    decoder = json_rows.JsonRows(rules)
    with path.open("rb", 0) as file:
        for lines in json_rows.line_blocks(file):
            decoded = decoder.rows(lines)
            wrong = dict(decoded.errors)
            for number, row in zip(decoded.numbers, decoded.rows, strict=True):
                try:
                    message = message_of(row, rules)
                except RowError as error:
                    wrong[number] = error.at(number)
                    continue
                empty += message is None
                if message is not None and (on_error == "skip" or not any(each < number for each in wrong)):
                    messages.append(message)
            errors |= {number: str(wrong[number]) for number in sorted(wrong)}
            if wrong and on_error == "stop":
                return (messages, {min(errors): errors[min(errors)]}), empty
    return (messages, errors), empty


class Source:
    """Reads bytes as an input, in each way that there is; they must agree."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self,
        data: bytes,
        format: Format = "jsonl",
        *,
        on_error: OnError = "skip",
        rules: RowRules | None = None,
    ) -> Result:
        """(messages, what was wrong by row)."""
        path = self._folder / "input"
        path.write_bytes(data)
        results = []
        for columns, compiled_from in ((True, 0), (True, sys.maxsize), (False, 0)):
            json_rows.COMPILED_FROM = compiled_from
            errors: dict[int, str] = {}

            def report(error: RowError, errors: dict[int, str] = errors) -> None:
                assert error.row is not None
                errors[error.row] = str(error)

            with open_input(path) as file:
                source = Input(file, format, rules or RowRules(zone=UTC), on_error=on_error, report=report)
                found: list[NewMessage] = []
                try:
                    if columns:
                        for batch in source.batches():
                            found += messages_of(batch)
                    else:
                        found += (message for _, message in source.messages())
                except RowError as error:
                    if error.row is None:  # not of one row
                        raise
                    report(error)
                assert source.rows == len(found)
            results.append((found, errors))
        if format == "jsonl":
            results.append(row_by_row(path, rules or RowRules(zone=UTC), on_error)[0])
        (one, one_wrong), *others = results
        for two, two_wrong in others:
            assert one_wrong == two_wrong
            assert all(map(operator.eq, one, two)) and len(one) == len(two)
        return results[0]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """What becomes of an input."""
    monkeypatch.setattr(json_rows, "COMPILED_FROM", 0)  # set back behind the test
    return Source(tmp_path)


# what a row may be


def test_a_row_is_a_message(read: Source) -> None:
    row = {
        "topic": "T", "body": "héllo", "queue_id": 3, "tags": "A", "keys": ["k1", "k2"], "uniq_key": "U1",
        "properties": {"color": "red", "empty": ""}, "flag": 7, "sys_flag": 0, "delay_level": 2,
        "wait": False,
        "born_timestamp_ms": 1700000000000, "born_host": "1.2.3.4:5", "store_timestamp_ms": 1700000000001,
        "store_host": "[::1]:10911", "reconsume_times": 1, "prepared_transaction_offset": 9,
        "body_compression": "zstd",
    }  # fmt: skip
    assert read(lines_of(row)) == ([NewMessage(
        "T", "héllo".encode(), "A", ("k1", "k2"), {"color": "red", "empty": ""}, 3, 7, 0, 1700000000000,
        host_bytes("1.2.3.4:5"), 1700000000001, host_bytes("[::1]:10911"), 1, 9, 2, False, "U1", "zstd",
    )], {})  # fmt: skip


@pytest.mark.parametrize(
    ("row", "field", "value"),
    [
        ({"keys": "a b"}, "keys", ("a", "b")),
        ({"keys": "[a]"}, "keys", ("[a]",)),
        ({"keys": []}, "keys", ()),
        ({"keys": ["a b", "", "c"]}, "keys", ("a", "b", "c")),
        ({"properties": {"KEYS": "a b"}}, "keys", ("a", "b")),
        ({"properties": {"KEYS": "a b"}, "keys": ["a", "b"]}, "keys", ("a", "b")),
        ({"properties": {"TAGS": "x"}}, "tags", "x"),
        ({"properties": {"TAGS": "x"}, "tags": "x"}, "tags", "x"),
        ({"properties": {"UNIQ_KEY": "u"}}, "uniq_key", "u"),
        ({"properties": {"DELAY": "3"}}, "delay_level", 3),
        ({"properties": {"WAIT": "false"}}, "wait", False),
        ({"properties": {"WAIT": "TRUE"}}, "wait", True),
        ({"properties": {"TAGS": "x", "b": "1"}}, "properties", {"b": "1"}),
        ({"properties": None}, "properties", {}),
        ({"body": ""}, "body", b""),
        ({"body": "68690a", "body_encoding": "hex"}, "body", b"hi\n"),
        ({"body": "/wA=", "body_encoding": "base64"}, "body", b"\xff\x00"),
        ({"body": "/wA=", "body_encoding": "utf-8"}, "body", b"/wA="),
        ({"born_time": "2026-03-01T12:00:00.5+08:00"}, "born_timestamp", 1772337600500),
        ({"born_time": "2026-03-01T04:00:00"}, "born_timestamp", 1772337600000),
        ({"born_time": "2026-03-01T04:00:00", "born_timestamp_ms": 5}, "born_timestamp", 5),
        ({"store_time": "2026-03-01T04:00:00Z"}, "store_timestamp", 1772337600000),
        ({"sys_flag": 0x301}, "compression", "zlib"),
        ({"sys_flag": 0x301}, "sys_flag", 0),
        ({"sys_flag": 0x38}, "sys_flag", 8),
        ({"offset_msg_id": "x", "file": "y", "status": ["ok"], "system": {"kind": "half"}}, "flag", 0),
        ({"found_by": "batch", "matched": ["key"], "inside": [{"tags": "x"}], "asked": ["k"]}, "flag", 0),
    ],
)
def test_shapes_of_a_value(read: Source, row: dict[str, Any], field: str, value: object) -> None:
    """Each has one meaning; TAGS and the like leave the properties."""
    (message,), errors = read(lines_of({**HELLO, **row}))
    assert not errors
    assert getattr(message, field) == value


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"topic": None}, "row 2, topic: it has none"),
        ({"topic": ""}, "row 2, topic: it has none"),
        ({"topic": 5}, "row 2, topic: expected str | null, got int"),
        ({"body": None}, "row 2, body: it has none"),
        ({"queue_id": 1.5}, "row 2, queue_id: expected int | null, got float"),
        ({"queue_id": 1 << 31}, "row 2, queue_id: expected int <= 2147483647"),
        ({"keys": [1]}, "row 2, keys: expected str, got int"),
        ({"properties": {"a": 1}}, "row 2, properties: expected str, got int"),
        ({"tag": "x"}, "row 2: unknown column 'tag'; did you mean tags?"),
        ({"body_encoding": "latin-1"}, "row 2, body_encoding: invalid enum value 'latin-1'"),
        ({"body": "abc", "body_encoding": "hex"}, "row 2, body: not hex"),
        ({"body": "*", "body_encoding": "base64"}, "row 2, body: not base64"),
        ({"body_compression": "lzo"}, "row 2, body_compression: invalid enum value 'lzo'"),
        ({"sys_flag": 0x501}, "row 2, sys_flag: unknown compression type 5"),
        ({"born_time": "noon"}, "row 2, born_time: not a time: 'noon'"),
        ({"born_host": "localhost:1"}, "row 2, born_host: 'localhost' is not an IP address"),
        ({"store_host": "1.2.3.4"}, "row 2, store_host: '1.2.3.4' is not ip:port"),
        ({"tags": "x", "properties": {"TAGS": "y"}}, "row 2, tags: 'x', but property TAGS is 'y'"),
        ({"keys": ["x"], "properties": {"KEYS": "x y"}}, "row 2, keys: "),
        ({"uniq_key": "x", "properties": {"UNIQ_KEY": "y"}}, "row 2, uniq_key: 'x', but"),
        (
            {"delay_level": 1, "properties": {"DELAY": "2"}},
            "row 2, delay_level: 1, but property DELAY is '2'",
        ),
        ({"properties": {"DELAY": "soon"}}, "row 2, properties: property DELAY is 'soon', no number"),
        ({"status": ["CL03"]}, "row 2, status: CL03: not stored as if it were sound"),
    ],
)
def test_a_wrong_row_is_told(read: Source, row: dict[str, Any], what: str) -> None:
    """With its number, its column and what is wrong; the others are read."""
    messages, errors = read(lines_of(HELLO, {**HELLO, **row}, HELLO))
    assert len(messages) == 2
    (number,) = errors
    assert number == 2
    assert errors[2].startswith(what)


def test_a_stop_leaves_the_rows_before(read: Source) -> None:
    """None behind the first wrong one is handed out, whether it is no JSON or no message."""
    for wrong in ("nonsense", {**HELLO, "queue_id": "x"}, {"topic": "T"}):
        messages, errors = read(lines_of(HELLO, HELLO, wrong, HELLO, "worse"), on_error="stop")
        assert (len(messages), list(errors)) == (2, [3])


def test_defaults_fill_what_is_empty(read: Source) -> None:
    """Not what a row has, in whatever form."""
    rules = RowRules(zone=UTC, defaults={
        "topic": "D", "queue_id": 1, "tags": "t", "keys": ["k", "l"], "properties": {"p": "q"},
        "delay_level": 1,
        "born_timestamp_ms": 8, "born_host": "9.9.9.9:9", "body_compression": "lz4", "wait": False,
    })  # fmt: skip
    full, rest = read(lines_of(
        {**HELLO, "queue_id": 2, "properties": {"TAGS": "x", "KEYS": "y", "DELAY": "3", "WAIT": "true"},
         "born_time": "1970-01-01T00:00:01Z", "born_host": "1.1.1.1:1", "body_compression": "none"},
        {"body": "b"},
    ), rules=rules)[0]  # fmt: skip
    assert full == NewMessage("T", b"hello", "x", ("y",), {}, 2, born_timestamp=1000,
                              born_host=host_bytes("1.1.1.1:1"), delay_level=3)  # fmt: skip
    assert rest == NewMessage("D", b"b", "t", ("k", "l"), {"p": "q"}, 1, born_timestamp=8,
                              born_host=host_bytes("9.9.9.9:9"), delay_level=1, wait=False,
                              compression="lz4")  # fmt: skip


# lines


@pytest.mark.parametrize(
    ("data", "numbers"),
    [
        (b"", []),
        (b"\n\n", []),
        (b"\xef\xbb\xbf", []),
        (b'{"topic":"T","body":"1"}', [1]),
        (b'\xef\xbb\xbf{"topic":"T","body":"1"}\r\n\r\n  \n{"topic":"T","body":"2"}\r\n', [1, 4]),
        (b'\n\n{"topic":"T","body":"1"}\n\n{"topic":"T","body":"2"}', [3, 5]),
    ],
)
def test_odd_line_ends(read: Source, data: bytes, numbers: list[int], tmp_path: Path) -> None:
    """A mark at the start, CRLF, empty lines and a missing last end are fine; lines keep their numbers."""
    messages, errors = read(data)
    assert not errors
    assert [message.body for message in messages] == [b"%d" % n for n in range(1, len(numbers) + 1)]
    with open_input(tmp_path / "input") as file:
        assert [number for number, _ in Input(file, "jsonl", RowRules()).messages()] == numbers


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"topic":"T","body":"x"', "no JSON object: Input data was truncated"),
        (b'{"topic":"T","body":"x"}}', "no JSON object: JSON is malformed"),
        (b'{"topic":"T","body":"x"} {"topic":"T","body":"y"}', "no JSON object: JSON is malformed"),
        (b"[]", "a JSON array; one object per line is needed"),
        (b"3", "expected object, got int"),
        (b'{"topic":"T","body":"\xff"}', "the line is not UTF-8"),
        (b'{"topic":"T","body":"a\x01"}', "no JSON object: "),
    ],
)
def test_a_line_that_is_no_object(read: Source, line: bytes, what: str) -> None:
    messages, errors = read(lines_of(HELLO) + line + b"\n" + lines_of(HELLO))
    assert len(messages) == 2
    assert list(errors) == [2]
    assert errors[2].startswith(f"row 2: {what}")


@pytest.mark.parametrize("column", ["zz", "system"])
def test_a_line_nested_too_deeply(read: Source, column: str) -> None:
    """In a column that nothing is read from."""
    deep = b"[" * 5000 + b"]" * 5000
    line = b'{"topic":"T","body":"x","%s":%s}\n' % (column.encode(), deep)
    messages, errors = read(lines_of(HELLO) + line + lines_of(HELLO), rules=RowRules(ignore_unknown=True))
    assert len(messages) == 2
    assert errors == {2: "row 2: its lists and objects are nested too deeply"}


def test_utf_16_is_told_as_such(read: Source) -> None:
    for format in ("jsonl", "csv"):
        with pytest.raises(InputError, match="UTF-16"):
            read('{"topic":"T"}'.encode("utf-16"), format)


def test_a_line_over_the_limit_is_left_out() -> None:
    """Whatever the sizes of blocks are: the lines around it are handed out, with their numbers."""
    short = b"".join(b"%d\n" % n for n in range(5))
    data = short + b"x" * 2000 + b"\n" + short + b"y" * 2001 + b"\n" + short + b"z" * 3000
    for size in (1, 2, 3, 7, 64, 500):
        got: dict[int, bytes | None] = {}
        for lines in json_rows.line_blocks(io.BytesIO(data), size=size, limit=500):
            pieces = [None] if lines.data is None else bytes(lines.data).splitlines()
            assert lines.line_count == len(pieces)
            got |= dict(enumerate(pieces, lines.first))
        assert list(got) == list(range(1, 19))
        assert list(got.values()) == 3 * [b"0", b"1", b"2", b"3", b"4", None]


@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=30),
       st.integers(1, 64), st.booleans())  # fmt: skip
def test_blocks_are_the_lines(lines: list[bytes], size: int, ends: bool) -> None:
    """All bytes, in order, cut behind line ends only."""
    data = b"\n".join(lines) + b"\n" * ends
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return
    got, first = b"", 1
    for block in json_rows.line_blocks(io.BytesIO(data), size=size):
        assert block.data is not None
        assert block.first == first
        piece = bytes(block.data)
        first += block.line_count
        got += piece
        assert piece.endswith(b"\n") or len(got) + 3 >= len(data)
    assert got == data.removeprefix(b"\xef\xbb\xbf")


def test_rows_of_a_pipe_that_pauses_are_given() -> None:
    """What has come is handed out; a line that has not wholly come waits for its end."""
    first, second = lines_of({"topic": "T", "body": "1"}), lines_of({"topic": "T", "body": "2"})
    reading, writing = os.pipe()
    late = threading.Timer(30, os.write, (writing, second))  # only where the rows are not given
    late.start()
    with open_input(Path(f"/dev/fd/{reading}")) as file:
        os.close(reading)
        batches = Input(file, "jsonl", RowRules()).batches()
        os.write(writing, first + second[:7])
        assert [message.body for message in messages_of(next(batches))] == [b"1"]
        late.cancel()
        os.write(writing, second[7:])
        os.close(writing)
        assert [message.body for batch in batches for message in messages_of(batch)] == [b"2"]


@pytest.mark.parametrize("rows", [1, 1400, 2500])
def test_a_burst_of_any_size_is_given_in_the_pause_behind_it(rows: int) -> None:
    """Half a block, nearly one, more than one; one row longer than any."""
    data = lines_of(*[{"topic": "T", "body": "x" * (2_000_000 if rows == 1 else 470)}] * rows)
    reading, writing = os.pipe()
    with open_input(Path(f"/dev/fd/{reading}")) as file:
        os.close(reading)
        batches = Input(file, "jsonl", RowRules()).batches()
        threading.Thread(target=os.write, args=(writing, data)).start()
        late = threading.Timer(PATIENCE_S, os.close, (writing,))  # only where the rows are not given
        late.start()
        got = 0
        while got < rows:
            got += len(next(batches))
        assert late.is_alive()
        late.cancel()
        os.close(writing)


def test_rows_of_a_steady_pipe_are_given() -> None:
    """One that never pauses for long: a batch comes while rows do, and nothing is lost between them."""
    reading, writing = os.pipe()
    given, sent = threading.Event(), 0

    def write() -> None:
        nonlocal sent
        last = time.monotonic() + PATIENCE_S
        while sent < 30 or not (given.is_set() or time.monotonic() > last):
            os.write(writing, lines_of({"topic": "T", "body": f"{sent}"}))
            sent += 1
            time.sleep(0.05)
        os.close(writing)

    thread = threading.Thread(target=write)
    with open_input(Path(f"/dev/fd/{reading}")) as file:
        os.close(reading)
        thread.start()
        batches = Input(file, "jsonl", RowRules()).batches()
        got = [message.body for message in messages_of(next(batches))]
        assert thread.is_alive()
        given.set()
        got += [message.body for batch in batches for message in messages_of(batch)]
        thread.join()
    assert got == [b"%d" % number for number in range(sent)]


def unread(pipe: IO[bytes]) -> int:
    """How many bytes of a pipe wait for its reader; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
    return 0


@pytest.mark.parametrize("sent", [b"\n", b'{"topic":"T","body":"1"}\n{"top'])
def test_an_interrupt_while_a_pipe_pauses(tmp_path: Path, sent: bytes) -> None:
    command = [*RMQTOOL, "append", tmp_path / "s", "--create", "--create-topic", "--no-reserve"]
    with started([*command, "--input", "-"]) as process:
        assert process.stdin is not None
        process.stdin.write(sent)
        process.stdin.flush()
        # All that was sent is taken, and a store that has a message is open: what is left to do is to wait.
        until(lambda: b"}" not in sent or (tmp_path / "s" / "abort").exists())
        until(lambda: unread(process.stdin) == 0 and is_asleep(process))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    assert not (tmp_path / "s" / "abort").exists()


# what dump prints


def dumped(store: Store, body: BodyForm) -> list[dict[str, Any]]:
    """The rows that dump prints."""
    shape = RowFormat(body=body)
    return [message_row(each.message, each.physical_offset, each.file, shape) for each in store.messages()]


@pytest.mark.parametrize(
    "name",
    [*in_sweeps(["ok_497_clean", "ok_540_clean"]), "ok_497_small_ipv6", "ok_533_small_propcrc",
     "ok_540_expired", "ok_540_small_propcrc"],
)  # fmt: skip
def test_rows_of_dump_give_the_stored_message(name: str, cases: Library, read: Source) -> None:
    """Every field of every record of a real store."""
    with Store.open(cases.path(name)) as store:
        stored = [each.message for each in store.messages()]
        rows = dumped(store, "text")
    wrong = PROFILES["5.4" if case(name).profile == "4.9" else "4.9"]
    messages, errors = read(lines_of(*rows), rules=RowRules(profile=wrong))
    assert not errors
    for record, found in zip(stored, messages, strict=True):
        # zstd compresses differently from version to version.
        exact = bodies.compression_of(record.sys_flag) != "zstd"
        if not exact:
            plain = bodies.decompress(record.body, record.sys_flag)
            assert bodies.decompress(found.body, found.sys_flag) == plain
        assert found == NewMessage(
            topic=record.topic,
            body=record.body if exact else found.body,
            properties=record.properties_bytes,
            queue_id=record.queue_id,
            flag=record.flag,
            sys_flag=record.sys_flag & ~HOST_BITS,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            store_timestamp=record.store_timestamp,
            store_host=record.store_host,
            reconsume_times=record.reconsume_times,
            prepared_transaction_offset=record.prepared_transaction_offset,
        )


def test_rows_of_blanks_hold_no_message(read: Source, tmp_path: Path) -> None:
    """As dump --gaps prints them; damage is refused."""
    rows = [
        {"kind": "record", **HELLO},
        blank_row(10, 20, "f"),
        {"kind": "blank", **blank_row(10, 20, "f")},
        {"kind": "zeros", **damage_row("CL02", 30, 5, "f")},
        {"kind": "missing", **damage_row("CL20", 30, 5, "f")},
        damage_row("CL01", 30, 5, "f"),
    ]
    messages, errors = read(lines_of(*rows))
    assert len(messages) == 1
    assert {number: error.split(":")[1].strip() for number, error in errors.items()} == {5: "CL20", 6: "CL01"}


STORED = {
    "physical_offset": 5, "size": 200, "version": 1, "topic": "T", "queue_id": 0, "sys_flag": 0,
    "body_length": 5, "body": "hello", "properties": {"TAGS": "A"}, "status": ["ok"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"size": 91 + 1 + 5 + 7}, b"TAGS\x01A\x02"),
        ({"size": 91 + 1 + 5 + 6}, b"TAGS\x01A"),
        ({"size": 92 + 1 + 5 + 6, "version": 2}, b"TAGS\x01A"),
        ({"size": 115 + 1 + 5 + 6, "sys_flag": 0x30}, b"TAGS\x01A"),
        ({"size": 500}, b"TAGS\x01A\x02"),
        ({"size": None}, b"TAGS\x01A\x02"),
        ({"properties": {}}, b""),
        ({"properties_base64": base64.b64encode(b"a\x01\x02TAGS\x01A").decode()}, b"a\x01\x02TAGS\x01A"),
        ({"properties": {"a": "1\x01"}}, b"a\x011\x01\x02"),
        ({"properties": {"b": "1", "__CRC32#": "0123456789"}}, b"b\x011\x02__CRC32#\x010123456789\x02"),
        ({"tags": "A", "properties": {"TAGS": "A", "DELAY": "odd"}}, b"TAGS\x01A\x02DELAY\x01odd\x02"),
    ],
)
def test_properties_of_a_stored_row(read: Source, row: dict[str, Any], wanted: bytes) -> None:
    """The dialect is the one that gives the record's size, else the store's."""
    (message,), errors = read(lines_of({**STORED, **row}), rules=RowRules(defaults={"tags": "no"}))
    assert not errors
    assert message.properties == wanted
    assert (message.tags, message.keys) == (None, ())


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"properties": None}, "row 1, properties: a row with physical_offset"),
        ({"properties": {"": "x"}}, "row 1, properties: property '' cannot be stored"),
        ({"properties": {"a": "x\x02y"}}, "row 1, properties: property 'a' cannot be stored"),
        ({"properties": {"a": "x" * 40000}}, "row 1, properties: properties of 40002 bytes"),
        ({"properties_base64": "*"}, "row 1, properties_base64: not base64"),
        ({"tags": "B"}, "row 1, tags: 'B', but property TAGS is 'A'"),
        ({"status": ["CL03", "CL13"]}, "row 1, status: CL03, CL13: not stored as if it were sound"),
    ],
)
def test_a_wrong_stored_row(read: Source, row: dict[str, Any], what: str) -> None:
    _, errors = read(lines_of({**STORED, **row}))
    assert errors[1].startswith(what)


# other formats


def test_csv_of_dump_is_read_back(cases: Library, tmp_path: Path, read: Source,
                                  capfdbinary: pytest.CaptureFixture[bytes]) -> None:  # fmt: skip
    """The same messages as from its JSON lines."""
    results = []
    for format in ("jsonl", "csv"):
        arguments = ["dump", str(cases.path("ok_540_small_propcrc")), "--format", format, "--tz", "UTC"]
        assert main([*arguments, *(["--fields", ",".join(NAMES)] if format == "csv" else [])]) == 0
        results.append(read(capfdbinary.readouterr().out, format))
    assert results[0][0]
    assert all(map(operator.eq, results[0][0], results[1][0]))
    assert not results[0][1] and not results[1][1]


@pytest.mark.parametrize(
    ("text", "bodies_found", "errors"),
    [
        ('topic,body\nT,a\nT,"b\nc"\nT,""\n', [b"a", b"b\nc", b""], {}),
        ("\ufefftopic,body\r\nT,a\r\nT,b", [b"a", b"b"], {}),
        ("topic,body\n", [], {}),
        ("topic,body\nT,a\nT\nT,b,c\nT,d\n", [b"a", b"d"],
         {3: "row 3: 1 cells, the header has 2", 4: "row 4: 3 cells, the header has 2"}),
        ("topic,body\nT,\nT,b\n", [b"b"], {2: "row 2, body: it has none"}),
        ("topic,body,queue_id\nT,a,x\nT,b,3000000000\nT,c,3\nT,d,\n", [b"c", b"d"],
         {2: "row 2, queue_id: 'x' is not an integer",
          3: "row 3, queue_id: '3000000000' does not fit 32 bits"}),
        ("topic,body,wait\nT,a,yes\nT,b,TRUE\n", [b"b"], {2: "row 2, wait: 'yes' is neither true nor false"}),
        ('topic,body,properties\nT,a,{}\nT,b,"{""a"":1}"\nT,c,x\n', [b"a"],
         {3: "row 3, properties: no JSON object of texts", 4: "row 4, properties: no JSON object of texts"}),
        ("topic,body,body_encoding\nT,6869,hex\nT,aGk=,base64\nT,hi,utf-8\nT,hi,\nT,hi,latin-1\nT,x,hex\n",
         [b"hi"] * 4, {6: "row 6, body_encoding: 'latin-1' is not one of", 7: "row 7, body: not hex"}),
        ("topic,body,body_compression\nT,a,lzo\nT,b,zlib\n", [b"b"],
         {2: "row 2, body_compression: 'lzo' is not one of"}),
        ("topic,body,born_time\nT,a,noon\nT,b,2026-03-01\n", [b"b"], {2: "row 2, born_time: not a time"}),
        ("topic,body,born_host\nT,a,here\nT,b,1.1.1.1:1\n", [b"b"], {2: "row 2, born_host: 'here' is not"}),
    ],
)  # fmt: skip
def test_csv(read: Source, text: str, bodies_found: list[bytes], errors: dict[int, str]) -> None:
    """Rows count from the header; wrong cells are told."""
    messages, wrong = read(text.encode(), "csv")
    assert [message.body for message in messages] == bodies_found
    assert list(wrong) == list(errors)
    for number, start in errors.items():
        assert wrong[number].startswith(start)


def test_csv_cells_of_keys(read: Source) -> None:
    messages, errors = read(b'topic,body,keys\nT,a,k1 k2\nT,b,"[""k1"",""k2""]"\nT,c,[x]\n', "csv")
    assert [message.keys for message in messages] == [("k1", "k2")] * 2
    assert errors[4].startswith("row 4, keys: no list of texts")


def test_csv_is_not_utf_8(read: Source) -> None:
    """Text must be; a body may be anything."""
    messages, errors = read(b"topic,body,tags\nT,\xff,a\nT,b,\xff\n", "csv")
    assert [message.body for message in messages] == [b"\xff"]
    assert errors == {3: "row 3, tags: b'\\xff' is not UTF-8"}


def test_a_csv_row_that_is_not_utf_8_and_too_long(
    read: Source, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One error, and no traceback of pyarrow, which cannot decode the row for its handler."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # that of pytest collects
    with pytest.raises(InputError, match="cannot read the input as CSV: .*Row #2: Expected 2 columns, got 4"):
        read(b"topic,body\n\xbf\xbf,a,b,c\n", "csv")
    assert capfd.readouterr().err == ""


HOSTILE_OFFSETS = {
    "topic": ((0, 3, 7, 8), (0, -5, 7, 8)),
    "body": ((0, 4, 6, 9), (0, 100, 50, 9)),
    "keys": ((0, 2, 4, 6), (0, 1 << 30, 4, 6)),
}
"""By column, its sound offsets of three rows, and those that lead out of its buffers."""


def hostile_arrow(column: str, *, stream: bool) -> bytes:
    """An Arrow file or stream of three rows, the offsets of one column overwritten."""
    batch = pa.RecordBatch.from_pydict({
        "topic": ["ABC", "ABCD", "A"], "body": [b"1234", b"12", b"123"],
        "keys": [["a", "b"], ["c", "d"], ["e", "f"]],
    })  # fmt: skip
    sink = io.BytesIO()
    with (ipc.new_stream if stream else ipc.new_file)(sink, batch.schema) as writer:
        writer.write_batch(batch)
    sound, hostile = (struct.pack("<4i", *offsets) for offsets in HOSTILE_OFFSETS[column])
    assert sink.getvalue().count(sound) == 1
    return sink.getvalue().replace(sound, hostile)


@pytest.mark.parametrize(
    ("what", "way"), paired(HOSTILE_OFFSETS, [(), ("stream", "--dry-run"), ("--dry-run",), ("stream",)])
)
def test_hostile_arrow_offsets(what: str, way: tuple[str, ...], cases: Library, tmp_path: Path) -> None:
    """Such a file ended the process with SIGSEGV and left the store unclean; so this runs one of its own."""
    store = tmp_path / "store"
    copy_tree(cases.path("ok_540_small_ipv6"), store)
    path = tmp_path / "rows.arrow"
    path.write_bytes(hostile_arrow(what, stream="stream" in way))
    command = [sys.executable, "-m", "rmqtool", "append", str(store), "--create-topic", "--input", str(path)]
    arguments = [each for each in way if each != "stream"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert "cannot read the input as Arrow" in done.stderr
    assert not (store / "abort").exists()


@pytest.mark.parametrize(
    ("format", "data", "what"),
    [
        ("csv", b"", "Empty CSV"),
        ("csv", b"topic,body,topic\nT,a,T\n", "the column topic twice"),
        ("csv", b"topic,boddy\nT,a\n", "unknown column 'boddy'; did you mean body?"),
        ("csv", b"\n\n", "Empty CSV"),
        ("csv", b"topic,body" + b",x" * 800_000 + b"\nT,a\n", "the header has more than 4096 columns"),
        ("csv", b"topic,body\nT,a" + b"a" * (34 << 20) + b"\n", "a row has more than 16777216 bytes"),
        ("parquet", b"PAR1xxxxPAR1", "cannot read the input as Parquet"),
        ("parquet", b"", "cannot read the input as Parquet"),
        ("arrow", b"ARROW1xxxxxx", "cannot read the input as Arrow"),
        ("arrow", b"\xff\xff\xff\xff\x10\x00\x00\x00junk", "cannot read the input as Arrow"),
    ],
)  # fmt: skip
def test_an_input_that_is_not_what_it_should_be(read: Source, format: Format, data: bytes, what: str) -> None:
    with pytest.raises(InputError, match=what.replace("?", r"\?")):
        read(data, format)


def csv_until_error(tmp_path: Path, data: bytes, *, on_error: OnError) -> tuple[list[int], str]:
    """The rows that were given before the error, and the error."""
    path = tmp_path / "input"
    path.write_bytes(data)
    with open_input(path) as file:
        source = Input(file, "csv", RowRules(), on_error=on_error)
        numbers: list[int] = []
        with pytest.raises(RowError) as caught:
            numbers.extend(number for number, _ in source.messages())
    return numbers, caught.value.message


_UNCLOSED = 'a cell starts with a quote (") that is never closed'


@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize(
    ("data", "given", "number", "what"),
    [
        (b'topic,body\nT,a\nT,"b\nT,c', [2], 3, _UNCLOSED),
        (b'topic,body\nT,a\n"T,b\nT,c\n', [2], 3, _UNCLOSED),
        (b'topic,body,tags\nT,a,x\nT,"b\nT,c,y\n', [2], 3, _UNCLOSED),
        (b'"topic,body\nT,a\nT,b\n', [], 1, _UNCLOSED),
        (b'topic\nT\n"T\nT\n', [], 3, _UNCLOSED),
        (b'topic,body\n' + b"T,a\n" * 70_000 + b'T,"b\nT,c\n', [*range(2, 70_002)], 70_002, _UNCLOSED),
        (b"topic,body\nT,a\nT,b" + b"b" * (34 << 20) + b"\nT,c\n", [2], 3, "more than 16777216 bytes, or"),
        (b'topic,body\nT,a\nT,"b' + b"\nT,c" * (7 << 20), [2], 3, "more than 16777216 bytes, or"),
    ],
    ids=["last", "first cell", "fewer cells", "header", "one column", "many", "long", "long and unclosed"],
)  # fmt: skip
def test_csv_rows_before_one_that_never_ends(
    tmp_path: Path, data: bytes, given: list[int], number: int, what: str, on_error: OnError
) -> None:
    """They are given; what lies behind is in that row's cell, so nothing goes on there."""
    rows, error = csv_until_error(tmp_path, data, on_error=on_error)
    if data.startswith(b"topic\n"):  # no body: those are wrong rows
        number, what = (2, "it has none") if on_error == "stop" else (number, what)
    assert rows == given
    assert error.startswith(f"row {number}") and what in error


def test_csv_quotes_inside_of_cells_open_nothing(read: Source) -> None:
    messages, errors = read(b'topic,body\nT,5" disk\nT,a"b"c"\n', "csv")
    assert [message.body for message in messages] == [b'5" disk', b'a"b"c"']
    assert not errors


TABLE = pa.table(
    {
        "topic": pa.array(["T", "T", "U"]).dictionary_encode(),
        "body": pa.array([b"\xff", b"", b"x"], pa.large_binary()),
        "queueId": pa.array([1, None, 2], pa.int64()),
        "keys": pa.array([["a", "b"], None, []]),
        "properties": pa.array([[("p", "q"), ("TAGS", "x")], [], None], pa.map_(pa.string(), pa.string())),
        "bornTimestamp": pa.array([datetime(2026, 3, 1, tzinfo=UTC)] * 3, pa.timestamp("ns", "UTC")),
        "store_time": pa.array([datetime(2026, 3, 1)] * 3, pa.timestamp("us")),
        "uniq_key": pa.array(["u1", None, "u3"], pa.string_view()),
        "flag": pa.array([1.0, None, 3.0]),
    }
)
FROM_TABLE = [
    NewMessage("T", b"\xff", "x", ("a", "b"), {"p": "q"}, 1, 1, born_timestamp=1772323200000,
               store_timestamp=1772323200000, uniq_key="u1"),
    NewMessage("T", b"", born_timestamp=1772323200000, store_timestamp=1772323200000),
    NewMessage("U", b"x", queue_id=2, flag=3, born_timestamp=1772323200000, store_timestamp=1772323200000,
               uniq_key="u3"),
]  # fmt: skip


def arrow_bytes(table: pa.Table, *, stream: bool) -> bytes:
    """The table as Arrow IPC."""
    sink = io.BytesIO()
    with (ipc.new_stream if stream else ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


def parquet_bytes(table: pa.Table) -> bytes:
    """The table as Parquet."""
    sink = io.BytesIO()
    parquet.write_table(table, sink, row_group_size=2)
    return sink.getvalue()


def test_parquet_and_arrow(read: Source) -> None:
    """Names of the engine and of Spark, and the types that writers have for the same thing."""
    for data in (arrow_bytes(TABLE, stream=True), arrow_bytes(TABLE, stream=False)):
        assert read(data, "arrow") == (FROM_TABLE, {})
    plain = TABLE.set_column(7, "uniq_key", TABLE["uniq_key"].cast(pa.string()))
    assert read(parquet_bytes(plain), "parquet") == (FROM_TABLE, {})


def test_a_parquet_file_is_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BATCH_SIZE", 1 << 20)
    path, rows = tmp_path / "rows.parquet", 3000
    table = pa.table({"topic": ["T"] * rows, "body": [os.urandom(8192) for _ in range(rows)]})
    parquet.write_table(table, path, row_group_size=100)
    del table
    before, most = pa.total_allocated_bytes(), 0
    with open_input(path) as file:
        source = Input(file, "parquet", RowRules())
        for _ in source.messages():
            most = max(most, pa.total_allocated_bytes() - before)
    assert source.rows == rows
    assert most < path.stat().st_size / 2


def test_a_column_of_the_wrong_type(read: Source) -> None:
    """Is an error of the whole input; a whole number may be a text."""
    table = pa.table({"topic": ["T"], "body": ["x"], "tags": [17]})
    assert read(arrow_bytes(table, stream=True), "arrow")[0] == [NewMessage("T", b"x", tags="17")]
    table = pa.table({"topic": ["T"], "body": ["x"], "queue_id": pa.array([datetime(2026, 1, 1)])})
    assert "queue_id: the column is timestamp" in str(read_error(read, table))
    table = pa.table({"topic": ["T"], "body": ["x"], "nothing": [1]})
    assert "unknown column 'nothing'" in str(read_error(read, table))
    assert read(arrow_bytes(table, stream=True), "arrow", rules=RowRules(ignore_unknown=True))[0]


def read_error(read: Source, table: pa.Table) -> InputError:
    """What reading the table ends with."""
    with pytest.raises(InputError) as caught:
        read(arrow_bytes(table, stream=True), "arrow", on_error="skip")
    return caught.value


def test_numbers_that_are_not_whole(read: Source) -> None:
    table = pa.table({"topic": ["T"] * 3, "body": ["x"] * 3, "queue_id": [1.0, 1.5, float("inf")]})
    messages, errors = read(parquet_bytes(table), "parquet")
    assert len(messages) == 1
    assert errors == {
        2: "row 2, queue_id: 1.5 is not an integer",
        3: "row 3, queue_id: inf is not an integer",
    }


# many rows


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as they can: the one that reads ahead, and the one that asks."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("size", [50_000, json_rows.BLOCK_SIZE])
def test_large_inputs_keep_order_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Over many blocks, with a wrong row now and then: blocks read in compiled code, and row by row."""
    monkeypatch.setattr(json_rows, "COMPILED_FROM", 0)
    monkeypatch.setattr(json_rows.line_blocks, "__kwdefaults__", {
        **json_rows.line_blocks.__kwdefaults__, "size": size,
    })  # fmt: skip
    path = tmp_path / "rows.jsonl"
    count = 20_000 if size > 50_000 else 4000
    wrong = set(range(500, count, 977))
    with path.open("w") as file:
        for number in range(1, count + 1):
            row = {"topic": 5} if number in wrong else {"topic": "T", "body": f"{number}".zfill(700)}
            file.write(json.dumps(row) + "\n")
    for columns in (True, False):
        errors: list[int | None] = []
        with open_input(path) as file:
            source = Input(
                file,
                "jsonl",
                RowRules(),
                on_error="skip",
                report=lambda error, errors=errors: errors.append(error.row),
            )
            found = []
            if columns:
                for batch in source.batches():
                    for index, each in enumerate(batch.column("body").to_pylist(), len(found)):
                        assert source.number_of(index) == int(each)
                        found.append(int(each))
            else:
                found = [number for number, message in source.messages() if int(message.body) == number]
        assert found == [number for number in range(1, count + 1) if number not in wrong]
        assert errors == sorted(wrong)
        assert source.skipped == len(wrong)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
MAYBE_ROW = st.fixed_dictionaries(
    {},
    optional={
        "topic": st.sampled_from(["T", "", "U"]) | TEXT,
        "body": st.sampled_from(["", "aGk=", "6869", "x"]),
        "body_encoding": st.sampled_from(["utf-8", "base64", "hex"]),
        "physical_offset": st.integers(0, 9),
        "size": st.integers(80, 140),
        "body_length": st.integers(0, 5),
        "version": st.sampled_from([1, 2]),
        "sys_flag": st.sampled_from([0, 0x10, 0x20, 0x301, 0x101, 0x501, 8]),
        "queue_id": st.integers(-1, 4),
        "tags": st.sampled_from(["a", "b"]),
        "keys": st.sampled_from(["a", "a b", ["a", "b"], []]),
        "uniq_key": st.sampled_from(["a", "b"]),
        "delay_level": st.integers(0, 2),
        "wait": st.booleans(),
        "properties": st.dictionaries(
            st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "WAIT", "p", "__CRC32#", "q\x01"]) | TEXT,
            st.sampled_from(["a", "a b", "1", "true", "0123456789", "x\x02", "y\x01"]) | TEXT,
            max_size=4,
        ),
        "properties_base64": st.sampled_from(["", "YQFiAg==", "*"]),
        "status": st.sampled_from(["ok", ["ok"], ["CL03"]]),
        "blank": st.booleans(),
        "kind": st.sampled_from(["record", "blank", "bad"]),
        "body_compression": st.sampled_from(["none", "zlib", "lz4"]),
        "born_time": st.sampled_from(["2026-01-01", "x", "1970-01-01T00:00:01.9999Z"]),
        "store_timestamp_ms": st.integers(0, 5),
        "born_host": st.sampled_from(["1.2.3.4:5", "[::1]:5", "x"]),
    },
)


@given(st.lists(MAYBE_ROW, max_size=6), st.booleans(), st.sampled_from(["4.9", "5.4"]))
def test_columns_are_as_single_rows(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]],
                                    defaults: bool, profile: str) -> None:  # fmt: skip
    """The fast way gives the same messages, and finds the same rows wrong, as the plain one."""
    rules = RowRules(PROFILES[profile], UTC, {"topic": "D", "tags": "a", "queue_id": 9} if defaults else {})
    data = lines_of(*rows)
    found = []
    ways = ((True, 0), (True, json_rows.BLOCK_SIZE), (False, 0))
    for columns, compiled_from in ways:
        errors: list[tuple[int | None, str | None]] = []

        def report(error: RowError, errors: list[tuple[int | None, str | None]] = errors) -> None:
            errors.append((error.row, None))

        path = tmp_path_factory.getbasetemp() / "generated"
        path.write_bytes(data)
        with open_input(path) as file, pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_rows, "COMPILED_FROM", compiled_from)
            source = Input(file, "jsonl", rules, on_error="skip", report=report)
            if columns:
                messages = [each for batch in source.batches() for each in messages_of(batch)]
            else:
                messages = [message for _, message in source.messages()]
        found.append((messages, errors, source.empty))
    (messages, wrong), empty = row_by_row(path, rules, "skip")
    found.append((messages, [(number, None) for number in wrong], empty))
    assert all(each == found[0] for each in found)


# where it comes from


@pytest.mark.parametrize(
    ("name", "start", "wanted"),
    [
        ("a.jsonl", b"", "jsonl"), ("a.CSV", b"", "csv"), ("a.pq", b"", "parquet"),
        ("a.feather", b"", "arrow"),
        ("a", b'\n {"topic":1}', "jsonl"), ("a", b"\xef\xbb\xbf{}", "jsonl"), ("a", b"PAR1", "parquet"),
        ("a", b"ARROW1\0\0", "arrow"), ("a", b"\xff\xff\xff\xff\1", "arrow"), ("a", b"", "jsonl"),
    ],
)  # fmt: skip
def test_format_is_known_by_name_or_start(tmp_path: Path, name: str, start: bytes, wanted: str) -> None:
    path = tmp_path / name
    path.write_bytes(start)
    with open_input(path) as file:
        assert format_of(file, path) == wanted


def test_format_that_nothing_tells(tmp_path: Path) -> None:
    for name, hint in (("a", "--input-format"), ("a.jsonl.gz", "zcat")):
        path = tmp_path / name
        path.write_bytes(b"topic,body\n")
        with open_input(path) as file, pytest.raises(UsageError) as caught:
            format_of(file, path)
        assert hint in (caught.value.hint or "")


def test_a_pipe_is_read_as_it_comes(tmp_path: Path, read: Source) -> None:
    """Whatever pieces it comes in; a Parquet file, which is read from its end, too."""
    table = pa.table({"topic": ["T"] * 9, "body": [f"{n}" for n in range(9)]})
    wanted = [NewMessage("T", f"{n}".encode()) for n in range(9)]
    inputs_by_format: dict[Format, bytes] = {
        "jsonl": lines_of(*table.to_pylist()), "parquet": parquet_bytes(table),
        "arrow": arrow_bytes(table, stream=False),
    }  # fmt: skip
    for number, (format, data) in enumerate(inputs_by_format.items()):
        path = tmp_path / f"pipe{number}"
        os.mkfifo(path)

        def write(path: Path = path, data: bytes = data) -> None:
            with path.open("wb", buffering=0) as pipe:
                for start in range(0, len(data), 50):
                    pipe.write(data[start : start + 50])

        writer = threading.Thread(target=write)
        writer.start()
        with open_input(path) as file:
            assert inputs.size_of(file) is None
            source = Input(file, format, RowRules())
            assert [each for batch in source.batches() for each in messages_of(batch)] == wanted
        writer.join()
