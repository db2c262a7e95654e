"""`rmqtool export`: every format, columns, folders, and the way back with append."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
from collections.abc import Callable
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc, parquet

from rmqtool.cli import main
from rmqtool.formats import message as form
from rmqtool.formats.batch import decode_items
from rmqtool.formats.body import decompress
from rmqtool.message.columns import COLUMNS
from rmqtool.message.rows import RowFormat, message_row
from rmqtool.message.schema import arrow_schema
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.export.request import folder_of
from rmqtool.times import format_time
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.support.exports import SMALL, Ran, append_numbered, kept, messages, ran, small_store
from tests.support.remote import pack
from tests.support.stores import Library
from tests.support.trees import tree_digest

Run = Callable[..., Ran]
HOSTILE = [
    "=1+1",
    "+x",
    "-x",
    "@x",
    'a "b", c',
    "a\nb\r\nc",
    "\x1b[31m\x00",
    "‮evil",
    "a\tb",
    "é中\U0001f600",
    " x ",
]
READ = {
    "parquet": lambda path: parquet.read_table(path, partitioning=None),
    "arrow": lambda path: pa.ipc.open_file(path).read_all(),
    "orc": lambda path: orc.ORCFile(path).read(),
}
CLEAN = "ok_540_clean"


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command, `export` unless another is named."""

    def run(store: Path, *arguments: object, command: str = "export") -> Ran:
        given = [command, str(store), *map(str, arguments)]
        code = main(given if command == "append" else [*given, "--format", "json"])
        captured = capfdbinary.readouterr()
        return ran(code, b"" if command == "append" else captured.out, captured.err)

    return run


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A store whose messages hold what formats trip over, bytes that are no UTF-8 and compressed bodies."""
    with StoreWriter.create(tmp_path / "hostile", auto_create_queues=1, **SMALL) as writer:
        for number, text in enumerate(HOSTILE):
            pairs = {"p": text, text.strip() or "n": "=v"}
            writer.put(NewMessage("T", text.encode(), tags="=A", properties=pairs, flag=number))
        writer.put(NewMessage("T", b"\xff\xfe\x00" * 9))
        writer.put(NewMessage("T", b"", born_timestamp=-(1 << 40)))
        writer.put(NewMessage("T", b"", born_timestamp=1 << 61))
        for compression in ("zlib", "lz4", "zstd"):
            writer.put(NewMessage("T", b"compressed " * 900, compression=compression))
        odd = b"a\x01first\x02a\x01doubled\x02empty\x01\x02KEYS\x01k  k2\x02"
        writer.put(NewMessage("T", b"odd properties", properties=odd, queue_id=0))
    return tmp_path / "hostile"


def dumped(store: Path, format: str, capfdbinary: pytest.CaptureFixture[bytes], *more: str) -> bytes:
    """What `dump` prints."""
    main(["dump", str(store), "--format", format, *more])
    return capfdbinary.readouterr().out


# what is in the files


def test_units_past_the_end_of_the_log(cases: Library, run: Run, tmp_path: Path) -> None:
    store = cases.copy(CLEAN, tmp_path / "store")
    max((store / "commitlog").iterdir()).unlink()
    cut = run(store, "--topic", "pubOrder", "--output", tmp_path / "rows.jsonl")
    assert cut.code == 1 and "160 units of 4 queues point past the end of the log" in cut.err


@pytest.mark.parametrize("name", [CLEAN, "ok_497_small_ipv6", "ok_533_small_propcrc", "bad_cl03_body_crc"])
@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_lines_are_those_of_dump(
    cases: Library, name: str, format: str, run: Run, tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:  # fmt: skip
    """Byte for byte, with what it says about damage."""
    store, path = cases.path(name), tmp_path / f"a.{format}"
    more = ("--tz", "+08:00", "--to-offset", "100000")
    found = run(store, "--output", path, *more)
    assert path.read_bytes() == dumped(store, format, capfdbinary, *more)
    assert found.code == (1 if name.startswith("bad") else 0)
    assert ("CL03" in found.err) == name.startswith("bad")


@pytest.mark.parametrize(
    "more", [("--body", "none"), ("--topic", "T", "--limit", "4"), ("--to-offset", "900")]
)
def test_hostile_lines_are_those_of_dump(
    hostile: Path, run: Run, tmp_path: Path, more: tuple[str, ...], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for format in ("jsonl", "csv"):
        path = tmp_path / f"a.{format}"
        run(hostile, "--output", path, *more)
        assert path.read_bytes() == dumped(hostile, format, capfdbinary, *more)
    rows = list(csv.reader(io.StringIO((tmp_path / "a.csv").read_text("utf-8"), newline="")))
    assert {len(row) for row in rows} == {len(COLUMNS)}


@pytest.mark.parametrize("format", ["parquet", "arrow", "orc"])
def test_columns_are_those_of_rows(hostile: Path, run: Run, tmp_path: Path, format: str) -> None:
    """Field by field, of the types of the table of columns."""
    path = tmp_path / f"a.{format}"
    names = [column.name for column in COLUMNS if column.name not in ("born_time", "store_time")]
    found = run(hostile, "--output", path, "--columns", ",".join(names))
    assert (found.code, found.out["messages"]) == (0, len(HOSTILE) + 7)
    table = READ[format](path)
    if format != "orc":
        assert table.schema.equals(arrow_schema(names))
    with Store.open(hostile) as opened:
        rows = [message_row(each.message, each.physical_offset, each.file, RowFormat(body="base64"))
                for each in opened.messages()]  # fmt: skip
        stored = [each.message.body for each in opened.messages()]
    assert [row["stored_body"] for row in table.to_pylist()] == stored
    for row, wanted in zip(table.to_pylist(), rows, strict=True):
        assert list(row["properties"]) == list(wanted["properties"].items())
        assert row["body"] == base64.b64decode(wanted["body"])
        same = set(names) - {"properties", "body", "body_encoding", "stored_body"}
        assert {name: row[name] for name in same} == {name: wanted.get(name) for name in same}


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_bodies_of_tables_are_called_binary(run: Run, tmp_path: Path, format: str) -> None:
    """Not base64, in which text files have them; `append` reads files with either word to the same bytes."""
    store, path = small_store(tmp_path / "s", 1), tmp_path / f"a.{format}"
    with StoreWriter.open(store, reserve=False) as writer:
        writer.put(NewMessage("T", b"//4=\xff", queue_id=0))
        writer.put(NewMessage("T", b"//4=", queue_id=0))
    run(store, "--output", path, "--columns", "topic,body,body_encoding")
    table = READ[format](path)
    assert table["body_encoding"].to_pylist()[1:] == ["binary", "utf-8"]
    run(store, "--output", tmp_path / "a.csv", "--columns", "body_encoding")
    assert (tmp_path / "a.csv").read_text().split()[2:] == ["base64", "utf-8"]
    as_before = table.set_column(2, "body_encoding", pa.array(["utf-8", "base64", "utf-8"]))
    with parquet.ParquetWriter(tmp_path / "old.parquet", as_before.schema) as old:
        old.write_table(as_before)
    for number, given in enumerate((path, tmp_path / "old.parquet")):
        copy = tmp_path / str(number)
        assert run(copy, "--create", "--create-topic", "--input", given, command="append").code == 0
        with Store.open(copy) as opened:
            bodies = [each.message.body for each in opened.messages()]
        assert bodies == table["body"].to_pylist() and bodies[1:] == [b"//4=\xff", b"//4="]


def test_times_are_timestamps(hostile: Path, run: Run, tmp_path: Path) -> None:
    """Null where the year has more than four digits."""
    run(hostile, "--output", tmp_path / "a.parquet", "--columns", "born_time,born_timestamp_ms")
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.schema.field("born_time").type == pa.timestamp("us", "UTC")
    assert table.column("born_timestamp_ms").to_pylist().count(1 << 61) == 1
    assert table.column("born_time").null_count == 1


@pytest.mark.parametrize("format", ["parquet", "arrow", "csv", "jsonl"])
def test_the_way_back(hostile: Path, cases: Library, run: Run, tmp_path: Path, format: str) -> None:
    """Messages are equal field by field; the stored body goes along where it is compressed."""
    given = ((hostile, "*"), (cases.path("ok_497_small_ipv6"), "*"), (cases.path(CLEAN), "*"),
             (cases.path(CLEAN), "pubBatchCQ"))  # fmt: skip
    for number, (store, topic) in enumerate(given):
        more = ("--topic", topic, "--limit", "300")
        path = tmp_path / f"{number}.{format}"
        wanted = messages(store, Selection(topics=(topic,), limit=300))
        for body in ("both", "plain") if number == 0 else ("stored",):
            target = tmp_path / f"{number}{body}"
            assert run(store, "--output", path, "--body", body, "--force", *more).code == 0
            back = run(target, "--create", "--create-topic", "--no-reserve", "--commitlog-file-size", "1M",
                       "--input", path, command="append")  # fmt: skip
            assert back.code == 0, back.err
            # What a library packs may differ from what another one packed; what is in it does not.
            without = ("body", "body_crc") if body == "plain" else ()
            assert wanted and kept(messages(target), without=without) == kept(wanted, without=without)


@pytest.mark.parametrize(
    ("command", "options"),
    [("export", ["--output", "{}/a.parquet"]), ("export", ["--output", "{}/b.jsonl", "--limit", "9999"]),
     ("dump", []), ("dump", ["--reverse"]), ("dump", ["--stats-only"]), ("stats", ["--by", "queue"]),
     ("sql", ["SELECT a.size FROM messages a JOIN messages b USING (physicalOffset)"])],
)  # fmt: skip
def test_batch_records_are_reported(
    cases: Library, run: Run, tmp_path: Path, command: str, options: list[str]
) -> None:
    """A row that holds several messages packed is not taken for a message."""
    given = [each.format(tmp_path) for each in options]
    with Store.open(cases.path(CLEAN)) as store:
        packed = [
            len(list(decode_items(decompress(each.message.body, each.message.sys_flag))))
            for each in store.messages(Selection(topics=("pubBatchCQ",)))
            if each.message.sys_flag & form.INNER_BATCH
        ]
    assert packed
    found = run(cases.path(CLEAN), *given, "--topic", "pubBatchCQ", command=command)
    hold, then = (
        (" of topic pubBatchCQ, which hold", "; if its result includes them, ")
        if command == "sql"
        else (" hold", ": ")
    )
    text = f"{len(packed)} batch records (BatchCQ){hold} {sum(packed)} messages{then}each counts as one"
    assert text in found.err
    single = run(
        cases.path(CLEAN),
        *given,
        "--topic",
        "pubOrder",
        *["--force"] * (command == "export"),
        command=command,
    )
    assert "batch record" not in single.err


@pytest.mark.parametrize(
    ("options", "note"),
    [(["--since", "2026-11-21", "--until", "2026-11-21"], "--until is exclusive"),
     (["--limit", "1"], "to leave the first out: --exclude-topic SCHEDULE_TOPIC_XXXX --exclude-topic rmq"),
     (["--limit", "1", "--exclude-topic", "rmq_sys_*"], "rmqtool: SCHEDULE_TOPIC_XXXX: a delayed message"),
     (["--limit", "1", "--exclude-topic", "rmq_sys_*", "--exclude-topic", "SCHEDULE_*"], "")],
)  # fmt: skip
def test_notes_on_what_is_selected(
    cases: Library, run: Run, tmp_path: Path, options: list[str], note: str
) -> None:
    """A range of times that is empty; topics whose messages are stored again in others."""
    found = run(cases.path(CLEAN), "--output", tmp_path / "a.csv", *options)
    assert found.code == 0 and note in found.err and bool(found.err) == bool(note)
    assert run(cases.path(CLEAN), "--output", tmp_path / "b.csv", "--quiet", *options).err == ""


def test_records_byte_for_byte(cases: Library, run: Run, tmp_path: Path) -> None:
    """In a file of their own, and as a column."""
    store = cases.path(CLEAN)
    with Store.open(store) as opened:
        wanted = [form.encode(each.message) for each in opened.messages(Selection(topics=("pubTopic*",)))]
    run(store, "--output", tmp_path / "all", "--raw", "--topic", "pubTopic*")
    assert (tmp_path / "all").read_bytes() == b"".join(wanted)
    run(store, "--output", tmp_path / "a.parquet", "--raw", "--columns", "topic", "--topic", "pubTopic*")
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.column_names == ["topic", "record"]
    assert table.column("record").to_pylist() == wanted
    run(store, "--output", tmp_path / "a.jsonl", "--columns", "record", "--topic", "pubTopic*")
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text("utf-8").splitlines()]
    assert [base64.b64decode(row["record"]) for row in rows] == wanted


def test_packed_lines(cases: Library, run: Run, tmp_path: Path) -> None:
    store = cases.path("ok_497_small_ipv6")
    run(store, "--output", tmp_path / "a.jsonl")
    run(store, "--output", tmp_path / "a.jsonl.gz")
    found = run(store, "--output", tmp_path / "b", "--output-format", "jsonl", "--compression", "zstd")
    plain = (tmp_path / "a.jsonl").read_bytes()
    assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()) == plain
    assert pa.input_stream(tmp_path / "b", compression="zstd").read() == plain
    assert found.out["files"][0]["bytes"] == (tmp_path / "b").stat().st_size < len(plain)


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_bodies_of_chosen_columns_come_back(form: str, run: Run, tmp_path: Path) -> None:
    """As text they say what they are, named or not; without bodies the column is empty."""
    bodies = [b"plain", b"\xff\xfe\0", b"//4A", b""]
    with StoreWriter.create(tmp_path / "store", auto_create_queues=1, **SMALL) as writer:
        for each in bodies:
            writer.put(NewMessage("T", each))
    path = tmp_path / f"a.{form}"
    run(tmp_path / "store", "--output", path, "--columns", "topic,body")
    assert run(tmp_path / "new", "--create", "--create-topic", "--input", path, command="append").code == 0
    with Store.open(tmp_path / "new") as store:
        assert [each.message.body for each in store.messages()] == bodies
    empty = tmp_path / f"b.{form}"
    assert run(tmp_path / "store", "--output", empty, "--columns", "topic,body", "--body", "none").code == 0


@pytest.mark.parametrize("form", ["parquet", "arrow", "orc"])
def test_bodies_as_text(form: str, run: Run, tmp_path: Path) -> None:
    """A column of strings, null where a body is none; append ignores it."""
    bodies = [b"plain", b"\xff\xfe\0", "\u8ba2\u5355".encode(), b""]
    with StoreWriter.create(tmp_path / "store", auto_create_queues=1, **SMALL) as writer:
        for each in bodies:
            writer.put(NewMessage("T", each))
    path = tmp_path / f"a.{form}"
    assert run(tmp_path / "store", "--output", path, "--columns", "topic,body_text,body").code == 0
    column = READ[form](path).column("body_text")
    assert pa.types.is_string(column.type) and column.to_pylist() == ["plain", None, "\u8ba2\u5355", ""]
    alone = tmp_path / f"b.{form}"
    assert run(tmp_path / "store", "--output", alone, "--columns", "body_text", "--body", "none").code == 0
    assert READ[form](alone).column("body_text").null_count == len(bodies)
    lines = tmp_path / "a.jsonl"
    assert run(tmp_path / "store", "--output", lines, "--columns", "body_text").code == 0
    assert [json.loads(line)["body_text"] for line in lines.read_text().splitlines()] == column.to_pylist()
    if form == "parquet":
        new = run(tmp_path / "new", "--create", "--create-topic", "--input", path, command="append")
        assert new.code == 0
        with Store.open(tmp_path / "new") as store:
            assert [each.message.body for each in store.messages()] == bodies


def test_spreadsheets(hostile: Path, run: Run, tmp_path: Path) -> None:
    """Guarded, said to be lossy, and UTF-8 for Excel."""
    found = run(hostile, "--output", tmp_path / "a.csv", "--spreadsheet", "--columns", "tags,body")
    assert (tmp_path / "a.csv").read_bytes().startswith(b"\xef\xbb\xbftags,")
    rows = list(csv.reader(io.StringIO((tmp_path / "a.csv").read_text("utf-8-sig"), newline="")))
    assert rows[1] == ["'=A", "'=1+1", "utf-8"]
    assert "not exact" in found.err


def test_a_spreadsheet_has_times_and_says_which_bodies_are_not_text(run: Run, tmp_path: Path) -> None:
    store, path = small_store(tmp_path / "s", 1), tmp_path / "a.csv"
    with StoreWriter.open(store, reserve=False) as writer:
        writer.put(NewMessage("T", b"\xff\xfe", queue_id=0))
    found = run(store, "--output", path, "--spreadsheet", "--tz", "+02:00")
    rows = list(csv.DictReader(io.StringIO(path.read_text("utf-8-sig"), newline="")))
    with Store.open(store) as opened:
        stored = [each.message.store_timestamp for each in opened.messages()]
    zone = timezone(timedelta(hours=2))
    wanted = [format_time(each, zone).replace("T", " ").removesuffix("+02:00") for each in stored]
    assert [each["store_time"] for each in rows] == wanted and "writes times in +02:00, without" in found.err
    assert "1 body is not text: it is in base64 (column body_encoding)" in found.err
    found = run(store, "--output", tmp_path / "b.csv", "--spreadsheet", "--columns", "topic")
    assert "base64" not in found.err and "in the local zone" in found.err


def test_a_spreadsheet_with_long_bodies(run: Run, tmp_path: Path) -> None:
    """Bodies that a cell cannot hold are counted; append skips the byte order mark."""
    store = small_store(tmp_path / "s", 1)
    with StoreWriter.open(store, reserve=False) as writer:
        for size in (32_767, 32_768, 40_000):
            writer.put(NewMessage("T", "复".encode() + b"a" * (size - 1), queue_id=0))
    found = run(store, "--output", tmp_path / "a.csv", "--spreadsheet")
    assert "2 bodies are longer than a cell of Excel (32,767 characters), which cuts" in found.err
    assert "--columns without body leaves bodies out" in found.err
    assert "longer than a cell" not in run(store, "--output", tmp_path / "b.csv").err
    found = run(store, "--output", tmp_path / "c.csv", "--spreadsheet", "--columns", "topic")
    assert "longer than a cell" not in found.err
    copied = tmp_path / "copied"
    assert main(["append", str(copied), "--create", "--input", str(tmp_path / "a.csv")]) == 0
    with Store.open(copied) as made, Store.open(store) as first:
        bodies = [[each.message.body for each in opened.messages()] for opened in (made, first)]
    assert bodies[0] == bodies[1]


def test_row_groups_are_bounded(tmp_path: Path, run: Run) -> None:
    store = small_store(tmp_path / "s", 600)
    run(store, "--output", tmp_path / "a.parquet", "--row-group", "64K")
    file = parquet.ParquetFile(tmp_path / "a.parquet")
    assert file.metadata.num_rows == 600
    groups = range(file.num_row_groups)
    assert [file.read_row_group(group).nbytes < 1 << 20 for group in groups].count(True) == len(groups)


def test_properties_that_are_no_text(
    tmp_path: Path, run: Run, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Replaced where they are shown, there as stored beside, and said to be damage."""
    store = small_store(tmp_path / "s", 1)
    bad = b"a\x01\xff\xfe\x02KEYS\x01k\xff k2\x02"
    with StoreWriter.open(store, reserve=False) as writer:
        writer.put(NewMessage("T", b"x", properties=bad, queue_id=0))
    for format in ("jsonl", "csv", "parquet"):
        found = run(store, "--output", tmp_path / f"a.{format}")
        assert (found.code, found.out["messages"], "CL13" in found.err) == (1, 2, True)
    assert (tmp_path / "a.jsonl").read_bytes() == dumped(store, "jsonl", capfdbinary)
    row = parquet.read_table(tmp_path / "a.parquet").to_pylist()[1]
    assert row["properties"] == [("a", "\ufffd\ufffd"), ("KEYS", "k\ufffd k2")]
    assert (base64.b64decode(row["properties_base64"]), row["status"]) == (bad, ["CL13"])


def test_times_that_orc_readers_cannot_read_are_null(tmp_path: Path, run: Run) -> None:
    """Else they could read nothing of the file; the numbers are exact."""
    store, born = small_store(tmp_path / "s"), [-(1 << 45), 0, 250_000_000_000_000]
    with StoreWriter.open(store, auto_create_queues=1, reserve=False) as writer:
        for time in born:
            writer.put(NewMessage("T", b"", born_timestamp=time))
    run(store, "--output", tmp_path / "a.orc")
    table = READ["orc"](tmp_path / "a.orc")
    assert table.column("born_timestamp_ms").to_pylist() == born
    assert [each.as_py() is None for each in table.column("born_time")] == [True, False, True]


# folders


def test_a_folder_gets_files_of_about_a_size(tmp_path: Path, run: Run) -> None:
    store = small_store(tmp_path / "s", 300)
    found = run(store, "--output", f"{tmp_path}/out/", "--output-format", "jsonl", "--file-size", "64K")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert len(names) > 2
    assert names[0] == "messages-00000000000000000000.jsonl"
    assert [Path(each["file"]).name for each in found.out["files"]] == names
    lines = [
        json.loads(line) for name in names for line in (tmp_path / "out" / name).read_text().splitlines()
    ]
    assert [row["keys"] for row in lines] == [[f"k{number}"] for number in range(300)]
    for name in names:
        first = json.loads((tmp_path / "out" / name).read_text().partition("\n")[0])
        assert first["physical_offset"] >= int(name[9:29])


def test_partitions_of_topic_and_date(cases: Library, run: Run, tmp_path: Path) -> None:
    store = cases.path(CLEAN)
    found = run(store, "--output", f"{tmp_path}/out", "--partition-by", "topic,date")  # means Parquet
    assert found.code == 0
    folders = {path.parent.parent.name for path in (tmp_path / "out").rglob("*.parquet")}
    assert folder_of("topic", "a%b-c_pub") == "topic=a%25b-c_pub" in folders
    table = parquet.read_table(tmp_path / "out")
    assert len(table) == 4099
    assert set(table.column("date").to_pylist()) == {"2026-11-21"}
    assert table.column("topic").to_pylist().count("a%b-c_pub") == 273
    schema = parquet.read_schema(next((tmp_path / "out" / "topic=a%25b-c_pub").rglob("*.parquet")))
    assert schema.metadata[b"rmqtool.topic"] == b"a%b-c_pub"
    assert "topic" not in schema.names


def test_files_of_another_run_in_the_folder_are_counted(run: Run, tmp_path: Path) -> None:
    """A query over the folder would read the messages of both runs."""
    store = small_store(tmp_path / "s", 30)
    arguments = ["--output", f"{tmp_path}/out/", "--partition-by"]
    assert "in the folder" not in run(store, *arguments, "topic").err
    (tmp_path / "out" / "of another format.csv").touch()
    assert "1 other file is in the folder" in run(store, *arguments, "date").err
    assert "1 other file is in the folder" in run(store, *arguments, "date", "--force").err
    rest = ["--output-format", "jsonl", "--cursor-file", tmp_path / "c.json"]
    for _ in range(2):
        assert "in the folder" not in run(store, "--output", f"{tmp_path}/out/", *rest).err


@pytest.mark.parametrize(
    "topic", ["..", "/etc", "a/b", "", "\x00", "a" * 127, "中" * 90, "%2e%2e", "..\\x", "~"]
)
def test_a_topic_is_one_folder_whatever_it_is(topic: str) -> None:
    folder = folder_of("topic", topic)
    assert folder.startswith("topic=")
    assert len(folder.encode()) <= 240
    assert not set(folder) & set("/\\\x00\n")


# what is refused


def test_a_file_that_is_there_stays(cases: Library, run: Run, tmp_path: Path) -> None:
    path, store = tmp_path / "a.csv", cases.path("ok_497_small_ipv6")
    path.write_text("mine")
    found = run(store, "--output", path)
    assert (found.code, path.read_text()) == (4, "mine")
    assert "--force" in found.err
    assert run(store, "--output", path, "--force").code == 0
    assert path.read_text().startswith("physical_offset,")
    assert [each.name for each in tmp_path.iterdir()] == ["a.csv"]


def test_nothing_is_written_into_the_store(tmp_path: Path, run: Run) -> None:
    store = small_store(tmp_path / "s", 3)
    before = tree_digest(store)
    assert run(store, "--output", store / "a.csv").code == 4
    assert run(store, "--output", store / "new" / "x/", "--output-format", "csv").code == 4
    assert run(store, "--output", tmp_path / "a.csv", "--cursor-file", store / "c").code == 4
    assert tree_digest(store) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--output", "a.xyz"], "the format of the output is unknown"),
        (["--output", "a b.xlsx"], "  for Excel: --output 'a b.csv' --spreadsheet\n"),
        (["--output", "-"], "not to standard output"),
        (["--output", "a.parquet", "--columns", "topik"], "did you mean topic"),
        (["--output", "a.parquet", "--columns", "topic,topic"], "twice"),
        (["--output", "out/", "--output-format", "csv", "--partition-by", "topic"], "Parquet"),
        (["--output", "out/", "--output-format", "parquet", "--partition-by", "day"],
         "--partition-by day: it must be topic, date or topic,date"),
        (["--output", "a.parquet", "--file-size", "1M"], "folder"),
        (["--output", "a.parquet", "--spreadsheet"], "CSV"),
        (["--output", "a.csv", "--compression", "lz4"], "lz4"),
        (["--output", "a.jsonl.gz", "--compression", "none"], "suffix"),
        (["--output", "a.csv", "--cursor-file", "c", "--until", "now"], "cursor"),
        ([], "--output is missing"),
    ],
)  # fmt: skip
def test_usage(cases: Library, run: Run, arguments: list[str], says: str, tmp_path: Path,
               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    found = run(cases.path("ok_497_small_ipv6"), *arguments)
    assert found.code == 2
    assert says in found.err
    assert not list(tmp_path.iterdir())


def test_columns_help_names_them(cases: Library, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(cases.path("ok_497_small_ipv6"))
    assert main(["export", root, "--columns", "help"]) == 0
    names = capsys.readouterr().out.split("\n")
    assert (names[0], names[-2:]) == ("physical_offset", ["record", ""])


def test_no_match_is_no_error_and_an_unknown_topic_is(cases: Library, run: Run, tmp_path: Path) -> None:
    store = cases.path("ok_497_small_ipv6")
    assert run(store, "--output", tmp_path / "a.csv", "--tag", "none").code == 0
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 1
    for format in ("parquet", "arrow", "orc"):
        assert run(store, "--output", tmp_path / f"a.{format}", "--until", 5).code == 0
        assert len(READ[format](tmp_path / f"a.{format}")) == 0
    found = run(store, "--output", tmp_path / "b.csv", "--topic", "nobody")
    assert (found.code, "nobody" in found.err) == (1, True)


def test_damage_is_told_and_what_is_sound_is_exported(
    cases: Library, run: Run, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for name in ("bad_cl04_wrong_length", "gap_cl02_zero_hole", "torn_cl01_tail"):
        store, more = cases.path(name), ("--from-offset", "5900000") if name.startswith("torn") else ()
        found = run(store, "--output", tmp_path / f"{name}.jsonl", *more)
        wanted: Any = dumped(store, "jsonl", capfdbinary, *more)
        assert (tmp_path / f"{name}.jsonl").read_bytes() == wanted
        assert found.code == (0 if name.startswith("torn") else 1)


def test_a_message_more_than_a_batch(tmp_path: Path, run: Run) -> None:
    """Large bodies, appended to a store that grows: all are exported."""
    store = small_store(tmp_path / "s", 2)
    append_numbered(store, 2, 5)
    run(store, "--output", tmp_path / "a.parquet")
    assert parquet.read_table(tmp_path / "a.parquet", columns=["keys"]).to_pylist() == [
        {"keys": [f"k{number}"]} for number in range(5)
    ]


def test_one_file_and_a_packed_store(tmp_path: Path, run: Run, cases: Library) -> None:
    """What `dump` reads can be exported and copied too."""
    store = small_store(tmp_path / "s", 9)
    archive = pack(store, tmp_path / "s.tar")
    for number, source in enumerate((store, store / "commitlog" / f"{0:020}", archive)):
        assert run(source, "--output", tmp_path / f"{number}.jsonl").out["messages"] == 9
    lines = [json.loads(line) for line in (tmp_path / "2.jsonl").read_text().splitlines()]
    assert lines == [json.loads(line) for line in (tmp_path / "0.jsonl").read_text().splitlines()]
    found = run(archive, "--output", tmp_path / "new", "--no-reserve", command="copy")
    assert (found.code, found.out["messages"]) == (0, 9)
    assert kept(messages(tmp_path / "new")) == kept(messages(store))
