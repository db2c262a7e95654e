"""Format strings: parsing, every letter, and the commands that take them."""

from __future__ import annotations

import os
import pty
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool import NewMessage
from rmqtool.cli import main
from rmqtool.commands.options import FORMAT_STRING_HELP
from rmqtool.errors import UsageError
from rmqtool.formats import body, properties
from rmqtool.message.format_string import LETTERS, parse
from rmqtool.message.rows import RowFormat, message_row
from rmqtool.read.store import Store
from rmqtool.write.store_writer import StoreWriter
from tests import ROOT
from tests.support.dumps import Result
from tests.support.stores import Library
from tests.support.trees import unchanged

pytestmark = pytest.mark.usefixtures("json_lines")

BODIES = (b"plain text", b"\xff\x00\n\r\x1b[31m raw", b"0", "zw\u00f6lf \u202e".encode(), b"x" * 9000)

Run = Callable[..., Result]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command that reads a store; the store must be as it was afterwards."""

    def call(command: str, store: Path, *arguments: object) -> Result:
        with unchanged(store):
            code = main([command, str(store), "--tz", "UTC", *map(str, arguments)])
        captured = capfdbinary.readouterr()
        return Result(code, captured.out, captured.err.decode())

    return call


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Messages whose bodies are text, not text, empty, and large enough to be compressed."""
    path = tmp_path / "store"
    with StoreWriter.create(
        path, auto_create_queues=1, commit_log_file_size=1 << 20, consume_queue_file_size=20_000
    ) as writer:
        for number, data in enumerate(BODIES):
            writer.put(NewMessage("T", data, tags="tag", keys=[f"k{number}", "all"], properties={"a": "1"}))
    return path


def test_bodies_go_out_unchanged(store: Path, run: Run) -> None:
    """Framed by %R, every body can be read back; dump, lookup and tail write the same bytes."""
    expected = b"".join(struct.pack(">i", len(data)) + data for data in BODIES)
    for command, more in (("dump", ("-f",)), ("tail", ("--format-string",)), ("lookup", ("all", "-f"))):
        result = run(command, store, *more, "%R%s")
        assert (result.code, result.err, result.out) == (0, "", expected), command


def test_every_letter(store: Path, run: Run) -> None:
    """Each is the value of a column; the help names each."""
    row = run("dump", store, "--limit", 1).rows[0]
    expected = {
        "t": "T", "q": "0", "p": "0", "o": "0", "O": str(row["physical_offset"]), "k": "k0 all", "K": "6",
        "u": row["uniq_key"], "i": row["offset_msg_id"], "g": "tag", "T": str(row["store_timestamp_ms"]),
        "B": str(row["born_timestamp_ms"]), "s": "plain text", "S": "10", "R": "\0\0\0\n",
        "h": ",".join(f"{name}={value}" for name, value in row["properties"].items()),
    }  # fmt: skip
    assert expected.keys() == LETTERS.keys()
    for letter, value in expected.items():
        assert run("dump", store, "--limit", 1, "-f", f"%{letter}").out == value.encode(), letter
        assert f"%{letter} " in FORMAT_STRING_HELP
    assert run("dump", store, "--limit", 1, "-f", r"%%\x41\n\t\0\r\\%t").out == b"%A\n\t\0\r\\T"


def test_what_cannot_be_decompressed_has_no_body(cases: Library, run: Run) -> None:
    """Its length is -1, and the damage is reported."""
    store = cases.path("bad_cl14_bad_body")
    wrong = [row["physical_offset"] for row in run("dump", store).rows if "CL14" in row["status"]]
    assert wrong
    result = run("dump", store, "-f", r"%O %S\n")
    lines = dict(line.split() for line in result.out.decode().splitlines())
    assert [int(offset) for offset, length in lines.items() if length == "-1"] == wrong
    assert result.code == 1
    assert "CL14" in result.err


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("-f", "%t %z"), "'%z' at character 4 is not known"),
        (("-f", "100%"), "'%' at character 4"),
        (("-f", r"\q"), r"'\\q' at character 1"),
        (("-f", "%t", "--fields", "topic"), "--format-string and --fields exclude each other"),
        (("-f", "%t", "--format", "csv"), "--format-string and --format exclude each other"),
        (("-f", "%t", "--body", "hex"), "--format-string and --body exclude each other"),
        (("-f", "%t", "--gaps"), "not for --gaps"),
        (("-f", "%t", "--what", "index"), "not for --what index"),
        (("-f", "%t", "--explain", "0"), "not for --explain"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    given: tuple[str, ...], text: str, store: Path, run: Run
) -> None:
    """It names the letter and its place, and writes nothing."""
    result = run("dump", store, *given)
    assert (result.code, result.out) == (2, b"")
    assert text in result.err


@given(st.text(alphabet="%tqs\\n0x4a \u00e9"))
def test_any_text_is_a_format_or_a_usage_error(text: str) -> None:
    """Text without signs stands for itself; doubled signs stand for one."""
    try:
        parse(text)
    except UsageError as error:
        assert "at character" in error.message
    plain = text.replace("%", "%%").replace("\\", "\\\\")
    assert parse(plain).line({}) == text.encode()


def test_values_are_escaped_on_a_terminal(store: Path) -> None:
    """Control characters of a body never reach it; those of the format do."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "rmqtool", "dump", str(store), "-q", "--limit", "2", "-f", r"%s|\n"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=follower, env=environment)
    text = os.read(leader, 4096)  # two lines are less than its buffer holds
    os.close(follower)
    os.close(leader)
    assert text == b"plain text|\r\n" + rb"\xff\x00\n\r\x1b[31m raw|" + b"\r\n"


def test_rows_of_real_stores(cases: Library, run: Run) -> None:
    """For each record what its row says, also with compressed bodies."""
    path = cases.path("ok_540_clean")
    form = parse(r"%t\t%q\t%o\t%O\t%k\t%g\t%S\t%h\n")
    with Store.open(path) as opened:
        expected = b"".join(
            form.line(message_row(each.message, each.physical_offset, each.file, RowFormat()))
            for each in opened.messages()
        )
        first = next(iter(opened.messages())).message
    result = run("dump", path, "-f", r"%t\t%q\t%o\t%O\t%k\t%g\t%S\t%h\n")
    assert (result.code, result.out) == (0, expected)
    keys = " ".join(properties.keys_of(properties.decode(first.properties_bytes)))
    size = len(body.decompress(first.body, first.sys_flag))
    assert result.out.startswith(
        f"{first.topic}\t{first.queue_id}\t{first.queue_offset}\t{first.physical_offset}\t{keys}\t".encode()
    )
    assert f"\t{size}\t".encode() in result.out.splitlines()[0]
