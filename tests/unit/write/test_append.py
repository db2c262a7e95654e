"""`rmqtool append`: messages of options and of inputs, and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import IO, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rmqtool.check.verify import verify
from rmqtool.cli import main
from rmqtool.formats import properties
from rmqtool.formats.index import Shape
from rmqtool.formats.java import string_hash
from rmqtool.log.events import StoredMessage
from rmqtool.read.store import Store
from rmqtool.write.records.message import NewMessage
from rmqtool.write.schedule import plan
from rmqtool.write.store_writer import StoreWriter
from tests.support.dumps import Result
from tests.support.hard_limits import no_reader, size_limit
from tests.support.programs import PATIENCE_S, RMQTOOL, ROOT, started, until
from tests.support.stores import Library
from tests.support.sweep import IS_WHOLE
from tests.support.trees import tree_digest

pytestmark = pytest.mark.usefixtures("json_lines")

NEW = ("--create", "--commitlog-file-size", "64K", "--queue-file-size", "2000", "--index-slots", "100",
       "--index-entries", "400", "--no-reserve")  # fmt: skip
HELLO = ("--topic", "T", "--body", "hello")
Append = Callable[..., Result]


@pytest.fixture
def append(capfdbinary: pytest.CaptureFixture[bytes]) -> Append:
    """Runs `rmqtool append`."""

    def run(store: Path, *arguments: object) -> Result:
        code = main(["append", str(store), "--tz", "UTC", *map(str, arguments)])
        captured = capfdbinary.readouterr()
        return Result(code, captured.out, captured.err.decode())

    return run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of small files with topic T of four queues, Order and Closed, and one message."""
    with StoreWriter.create(
        tmp_path / "store", commit_log_file_size=64 << 10, consume_queue_file_size=2000, index_slots=100,
        index_entries=400, reserve=False,
    ) as writer:  # fmt: skip
        writer.topics.add("T", 4)
        writer.put(NewMessage("T", b"first"))
        writer.topics.add("Order", 4, order=True)
        writer.topics.add("Closed", 4, perm=4)
    return tmp_path / "store"


def stored(store: Path) -> list[StoredMessage]:
    """The records of a store behind its first one; `verify` must find all of them sound."""
    with Store.open(store) as opened:
        assert not [finding for finding in verify(opened) if finding.problem.severity != "note"]
        return [found for found in opened.messages() if found.message.body != b"first"]


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def numbered(count: int, **more: Any) -> list[dict[str, Any]]:
    """Rows like no other."""
    return [{"topic": "T", "body": f"{n}", "keys": [f"k{n}"], **more} for n in range(count)]


# one message


def test_one_message_has_what_the_options_say(store: Path, append: Append) -> None:
    result = append(
        store, *HELLO, "--queue", 2, "--tag", "A", "--key", "k1", "--key", "k2", "--property", "a=b=c",
        "--uniq-key", "U1", "--flag", 7, "--born-time", "2026-03-01T00:00:00Z", "--store-time", 1772323201000,
        "--born-host", "1.2.3.4:5", "--store-host", "[::1]:6",
    )  # fmt: skip
    (found,) = stored(store)
    assert result.code == 0
    assert result.rows == [{
        "physical_offset": found.physical_offset, "queue_offset": 0,
        "size": found.message.total_size, "topic": "T", "queue_id": 2,
        "store_timestamp_ms": 1772323201000, "store_time": "2026-03-01T00:00:01.000+00:00",
        "offset_msg_id": f"{1:032X}{6:08X}{found.physical_offset:016X}", "flushed": True,
    }]  # fmt: skip
    record = found.message
    assert (record.topic, record.queue_id, record.body, record.flag) == ("T", 2, b"hello", 7)
    assert (record.born_timestamp, record.store_timestamp) == (1772323200000, 1772323201000)
    assert record.born_host == bytes((1, 2, 3, 4, 0, 0, 0, 5))
    given = properties.decode(record.properties_bytes)
    assert (given["TAGS"], given["KEYS"], given["UNIQ_KEY"], given["a"]) == ("A", "k1 k2", "U1", "b=c")


def test_an_option_and_its_property_may_say_the_same(store: Path, append: Append) -> None:
    agreed = ("--tag", "A", "--property", "TAGS=A", "--key", "k", "--key", "l", "--property", "KEYS=k l",
              "--uniq-key", "U", "--property", "UNIQ_KEY=U", "--property", "DELAY=01")  # fmt: skip
    assert append(store, *HELLO, *agreed[:-2]).code == 0
    assert append(store, *HELLO, *agreed, "--delay-level", 1, "--dry-run").code == 0
    (found,) = stored(store)
    given = properties.decode(found.message.properties_bytes)
    assert (given["TAGS"], given["KEYS"], given["UNIQ_KEY"]) == ("A", "k l", "U")


def test_a_new_store_with_a_new_topic(tmp_path: Path, append: Append) -> None:
    """Of the profile and sizes asked for."""
    result = append(tmp_path / "new", *HELLO, *NEW, "--profile", "4.9", "--create-topic", "--queues", 2)
    assert result.code == 0
    assert append(tmp_path / "new", *HELLO, "--queue", 1).code == 0
    assert append(tmp_path / "new", *HELLO, "--queue", 2).code == 3
    assert [found.message.queue_id for found in stored(tmp_path / "new")] == [0, 1]
    with Store.open(tmp_path / "new") as opened:
        assert opened.profile.name == "4.9"
        assert opened.layout.commit_log_file_size == 64 << 10
    again = append(tmp_path / "new", *HELLO, *NEW)
    assert again.code == 4
    assert "is already a store" in again.err


CONF = (
    "messageDelayLevel=1s 3s 5s 1h\nmappedFileSizeCommitLog=2097152\nmappedFileSizeConsumeQueue=40000\n"
    "maxHashSlotNum=500\nmaxIndexNum=2000\nstorePathRootDir=/rmq/store\n"
    "storePathCommitLog=/rmq/store/commitlog\nflushDiskType=SYNC_FLUSH\n"
)


@pytest.mark.parametrize("variable", [False, True])
def test_a_new_store_as_broker_conf_says(
    tmp_path: Path, append: Append, monkeypatch: pytest.MonkeyPatch, variable: bool
) -> None:
    """Sizes, delay levels and flush; options win."""
    conf, new = tmp_path / "broker.conf", tmp_path / "new"
    conf.write_text(CONF)
    given: tuple[object, ...] = () if variable else ("--broker-conf", conf)
    if variable:
        monkeypatch.setenv("RMQTOOL_BROKER_CONF", str(conf))
    at = ("--key", "k", "--store-time", 1_700_000_000_000, "--delay-level", 4)
    asked = (new, *HELLO, *at, "--create", "--create-topic", *given, "--index-slots", 600)
    assert append(*asked, "--dry-run").code == 0
    result = append(*asked)
    assert result.code == 0, result.err
    assert result.rows[0]["flushed"]
    with Store.open(new) as opened:
        layout = opened.layout
        assert {file.size for file in layout.commit_log} == {2 << 20}
        assert {file.size for queue in layout.consume_queues.values() for file in queue.files} == {40_000}
        assert [file.size for file in layout.index_files] == [Shape(600, 2000).size]
        assert [each.due_timestamp for each in plan(opened, 1_800_000_000_000)] == [1_700_003_600_000]
    large = ("--topic", "T", "--body", "x" * 50_000, "--create-topic", "--create", "--dry-run", *given)
    assert append(tmp_path / "more", *large).code == 0
    assert append(tmp_path / "more", *large, "--commitlog-file-size", "50000").code == 3


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("text", "code", "what"),
    [
        (None, 3, "cannot read the broker configuration"),
        ("mappedFileSizeCommitLog=1g", 3, "mappedFileSizeCommitLog='1g' is not an integer"),
        (
            "mappedFileSizeCommitLog= 1048576 ",
            3,
            "mappedFileSizeCommitLog='1048576 ' is not an integer for a",
        ),
        ("maxIndexNum=", 3, "maxIndexNum='' is not an integer"),
        ("mappedFileSizeCommitLog=20", 2, "commit log file size 20"),
        ("messageDelayLevel=1 s", 2, "delay level '1'"),
        ("storePathCommitLog=/other", 2, "storePathCommitLog is /other: a new store has its log in its own"),
        ("readOnlyCommitLogStorePaths=/a,/b", 2, "readOnlyCommitLogStorePaths is /a"),
        ("brokerRole=SLAVE", 4, "brokerRole is SLAVE"),
        (
            "storeType=DefaultRocksdb",
            4,
            "storeType is defaultRocksDB: that broker keeps its queues in RocksDB",
        ),
        ("indexRocksDBEnable=true", 4, "index entries in RocksDB, which rmqtool does not write"),
    ],
)
def test_a_new_store_of_a_wrong_broker_conf(
    tmp_path: Path, append: Append, text: str | None, code: int, what: str, dry_run: list[str]
) -> None:
    """Refused as for a store that exists; nothing is made."""
    if text is not None:
        (tmp_path / "conf").write_text(text)
    result = append(
        tmp_path / "new", *HELLO, *dry_run, "--create", "--create-topic", "--broker-conf", tmp_path / "conf"
    )
    assert (result.code, what in result.err) == (code, True), result.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("option", ["--commitlog", "--read-only-commitlog"])
def test_a_new_store_has_its_log_in_itself(tmp_path: Path, append: Append, option: str) -> None:
    result = append(tmp_path / "new", *HELLO, *NEW, "--create-topic", option, tmp_path)
    assert (result.code, f"{option} is for an existing store" in result.err) == (2, True)
    assert not (tmp_path / "new").exists()


def test_body_is_a_file_byte_for_byte(store: Path, append: Append, tmp_path: Path) -> None:
    """Compressed where it is long enough and that was asked for."""
    for size in (4095, 4096):
        (tmp_path / "body").write_bytes(b"\xff\n" + b"x" * (size - 2))
        arguments = ("--topic", "T", "--body-file", tmp_path / "body", "--compress", "zlib")
        assert append(store, *arguments).code == 0
    short, long = stored(store)
    assert (len(short.message.body), short.message.sys_flag & 1) == (4095, 0)
    assert (len(long.message.body) < 100, long.message.sys_flag & 1) == (True, 1)


def run(store: Path, *arguments: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    """The program itself, with something on its standard input."""
    return subprocess.run(
        [sys.executable, "-m", "rmqtool", "append", str(store), *arguments],
        input=data, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip


def test_standard_input_is_a_body_or_rows(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMQTOOL_FORMAT")
    piped = run(store, "--topic", "T", "--body-file", "-", data=b"hello\n")
    assert piped.returncode == 0 and b"empty" not in piped.stderr
    empty = run(store, "--topic", "T", "--body-file", "-", data=b"")
    assert empty.returncode == 0 and b"rmqtool: the body is empty\n" in empty.stderr
    result = run(store, "--topic", "T", "--input", "-", data=b'{"body":"a"}\n{"body":"b"}')
    assert result.returncode == 0
    assert result.stdout.splitlines()[0].split() == [b"messages", b"2"]
    assert [found.message.body for found in stored(store)] == [b"hello\n", b"", b"a", b"b"]


def test_one_message_loads_nothing_heavy(store: Path) -> None:
    """Columns and kernels are for many."""
    code = (
        "import sys; from rmqtool.cli import main; main(sys.argv[1:]);"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    command = [sys.executable, "-c", code, "append", str(store), *HELLO]
    result = subprocess.run(
        command, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True
    )
    assert not {"pyarrow", "numpy", "numba", "rich", "tabulate"} & set(result.stdout.decode().split())


def test_a_transaction(store: Path, append: Append) -> None:
    """Half, then commit or rollback; what is no half message is refused."""
    half = ("--transaction", "half", "--group", "G")
    first, second = append(store, *HELLO, *half).rows + append(store, *HELLO, *half).rows
    assert first["topic"] == second["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"
    committed, op = append(store, "--commit", first["physical_offset"]).rows
    assert (committed["topic"], op["topic"]) == ("T", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    (op,) = append(store, "--rollback", second["physical_offset"]).rows
    assert op["topic"] == "RMQ_SYS_TRANS_OP_HALF_TOPIC"
    refused = append(store, "--commit", committed["physical_offset"])
    assert refused.code == 4
    assert append(store, "--commit", 3).code == 3
    assert len(stored(store)) == 5


# many


@pytest.mark.parametrize("show", ["summary", "messages"])
def test_csv_rows_before_an_unclosed_quote_are_stored(
    store: Path, append: Append, tmp_path: Path, show: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('topic,body\nT,a\nT,b\nT,"c\nT,d\n')
    result = append(store, "--input", path, "--show", show)
    assert result.code == 3
    assert 'row 4: a cell starts with a quote (") that is never closed' in result.err
    assert [found.message.body for found in stored(store)] == [b"a", b"b"]


@pytest.mark.parametrize("show", ["summary", "messages"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_of_an_input(store: Path, append: Append, tmp_path: Path, show: str, kind: str) -> None:
    """Stored in their order, over the topic's queues in turn, behind the message in queue 0."""
    rows = numbered(10)
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        write_rows(path, *rows)
    else:
        parquet.write_table(pa.Table.from_pylist(rows), path)
    result = append(store, "--input", path, "--show", show, "--format", "jsonl")
    assert result.code == 0
    found = stored(store)
    assert [each.message.body for each in found] == [b"%d" % n for n in range(10)]
    assert [each.message.queue_id for each in found] == [(n + 1) % 4 for n in range(10)]
    if show == "summary":
        assert result.rows == [{
            "messages": 10, "bytes": sum(each.message.total_size for each in found), "left_out": 0,
            "left_out_fillers": 0, "blanks": 0,
            "topics": 1, "queues": 4, "first_physical_offset": found[0].physical_offset,
            "last_physical_offset": found[-1].physical_offset, "flushed": True,
        }]  # fmt: skip
        assert "rmqtool: 10 messages" in result.err
    else:
        assert [row["physical_offset"] for row in result.rows] == [each.physical_offset for each in found]
        assert [row["row"] for row in result.rows] == list(range(1, 11))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"topic": "T"}, "row 3, body: it has none"),
    ({"topic": "T", "body": "x", "tag": "A"}, "row 3: unknown column 'tag'"),
    ({"topic": "Nope", "body": "x"}, "TOPIC_NOT_EXIST"),
    ({"topic": "Closed", "body": "x"}, "NO_PERMISSION"),
    ({"topic": "T", "body": "x", "queue_id": 9}, "INVALID_PARAMETER"),
    ({"topic": "T", "body": "x" * 70_000}, "MESSAGE_ILLEGAL"),
    ({"topic": "T", "body": "x", "properties": {"p": "x" * 40_000}}, "PROPERTIES_SIZE_EXCEEDED"),
    ({"topic": "T" * 200, "body": "x"}, "MESSAGE_ILLEGAL"),
]


@pytest.mark.parametrize(("wrong", "what"), WRONG)
@pytest.mark.parametrize("show", ["summary", "messages"])
def test_a_wrong_row_ends_it(
    store: Path, append: Append, tmp_path: Path, wrong: dict[str, Any], what: str, show: str
) -> None:
    """Told with row and reason; the rows before it are stored, whole, and none behind it."""
    rows = numbered(5)
    path = write_rows(tmp_path / "rows", *rows[:2], wrong, *rows[3:])
    result = append(store, "--input", path, "--show", show)
    assert result.code == 3
    assert what in result.err
    assert "row 3" in result.err
    assert [found.message.body for found in stored(store)] == [b"0", b"1"]


ODD: list[tuple[dict[str, Any], str]] = [
    ({"topic": "T", "body": "x" * 65_400}, "body: record of"),
    ({"topic": "Order", "body": "x"}, "topic: topic Order is an order topic"),
    ({"topic": "a b", "body": "x"}, "topic: topic 'a b' has characters"),
    ({"topic": "T", "body": "x", "store_timestamp_ms": 0}, "store_timestamp_ms: store_timestamp 0"),
    ({"topic": "T", "body": "x", "tags": "\x02"}, "tags: property 'TAGS' holds byte 01 or 02"),
    ({"topic": "T", "body": "x", "properties": {"a\x01": "b"}}, "properties: property"),
    ({"topic": "T", "body": "x", "properties": {"TIMER_DELAY_SEC": "x"}}, "properties: a timer's time"),
    ({"topic": "T", "body": "x", "physical_offset": 3, "properties": {}}, "queue_id: a record as it was"),
]


@pytest.mark.parametrize(("wrong", "what"), [*WRONG, *ODD])
def test_a_wrong_row_is_told_the_same_way(
    store: Path, append: Append, tmp_path: Path, wrong: dict[str, Any], what: str
) -> None:
    """Whether rows are stored as tables or one by one, or checked only: with its column."""
    path = write_rows(tmp_path / "rows", *numbered(2), wrong)
    ways = [(), ("--show", "messages"), ("--dry-run",)]
    told = [append(store, "--input", path, *way).err.splitlines() for way in ways]
    assert ["--skip-rows 2" in "".join(lines) for lines in told] == [True, True, False]
    way_on = "the rows before it are stored"
    told = [[line.partition(way_on)[0].rstrip("; ") for line in lines] for lines in told]
    errors = [[line for line in lines if line and " messages, " not in line] for lines in told]
    assert errors[0] == errors[1] == errors[2]
    assert what in errors[0][0]
    assert "row 3, " in errors[0][0] or "unknown column" in what


@pytest.mark.parametrize("show", ["summary", "messages"])
def test_wrong_rows_are_left_out(store: Path, append: Append, tmp_path: Path, show: str) -> None:
    """With --on-error skip; each is told."""
    wrong = [row for row, _ in WRONG]
    path = write_rows(tmp_path / "rows", *numbered(3), *wrong, *numbered(3))
    result = append(store, "--input", path, "--on-error", "skip", "--show", show)
    assert result.code == 3
    assert [found.message.body for found in stored(store)] == [b"0", b"1", b"2"] * 2
    told = [line for line in result.err.splitlines() if "skipped: " in line]
    assert [line.split("row ")[1].split(",")[0].split(":")[0] for line in told] == [
        str(n) for n in range(4, 12)
    ]


def feed_rows(program: subprocess.Popen[bytes], store: Path) -> None:
    """Seven rows into a pipe that stays open; they are in the commit log afterwards."""
    assert program.stdin is not None
    program.stdin.write(b"".join(json.dumps(row).encode() + b"\n" for row in numbered(7, tags="last")))
    program.stdin.flush()
    until(lambda: b"k6" in (store / "commitlog" / f"{0:020}").read_bytes())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_input_is_summed_up(store: Path, number: signal.Signals) -> None:
    """What was stored by then, behind a pipe that has not ended."""
    with started([*RMQTOOL, "append", store, "--input", "-", "--format", "jsonl"]) as program:
        feed_rows(program, store)
        program.send_signal(number)
        assert program.wait(PATIENCE_S) == 130
        out, err = program.communicate()
    (row,) = map(json.loads, out.splitlines())
    assert (row["messages"], row["queues"], row["flushed"]) == (7, 4, True)
    assert b"interrupted" in err
    assert len(stored(store)) == 7


def test_an_ignored_interrupt_stays_ignored(store: Path) -> None:
    """A shell starts what runs behind it so, as nohup does."""
    command = [*RMQTOOL, "append", store, "--input", "-", "--show", "messages", "--format", "jsonl"]
    with started(command, ignored=[signal.SIGINT]) as program:
        feed_rows(program, store)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(b'{"topic":"T","body":"x"}\n', PATIENCE_S)
    assert (program.returncode, len(out.splitlines()), err) == (0, 8, b"")


def test_what_was_stored_before_the_disk_was_full(store: Path, append: Append, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    path = write_rows(tmp_path / "rows", {"blank": True}, *numbered(100, delay_level=1))
    with size_limit(8 << 10):
        result = append(store, "--input", path, "--format", "jsonl")
    assert result.code == 3
    assert re.search("cannot write .+: File too large", result.err)
    (row,) = result.rows
    assert 10 < row["messages"] < 60
    with Store.open(store) as opened:
        assert row["messages"] == sum(each.message.body != b"first" for each in opened.messages())
    last = row["messages"] + 1  # the first row is empty
    assert f"the rows up to number {last} are stored; continue with --skip-rows {last}" in result.err


def test_all_is_stored_though_nobody_reads_the_rows(store: Path, tmp_path: Path) -> None:
    """The exit code is that of the work."""
    path = write_rows(tmp_path / "rows", *numbered(200), {"topic": "Nope", "body": "x"})
    for error, count in (("skip", 200), ("stop", 400)):
        with no_reader():
            arguments = ("--input", str(path), "--show", "messages", "--on-error", error)
            assert main(["append", str(store), *arguments]) == 3
        assert len(stored(store)) == count


@pytest.mark.parametrize(
    ("stdout", "told"),
    [
        (">/dev/full", "cannot write standard output: No space left on device"),
        (">&-", "standard output is closed"),
    ],
)
def test_all_is_stored_though_the_rows_cannot_be_written(
    store: Path, tmp_path: Path, stdout: str, told: str
) -> None:
    """As with a reader that went away; but that is told, once, and the exit code says it."""
    if "full" in stdout and not Path("/dev/full").exists():
        return
    path = write_rows(tmp_path / "rows", *numbered(3000))
    command = f"{sys.executable} -m rmqtool append {store} --input {path} --show messages -q {stdout}"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 3
    assert done.stderr.decode().count(told) == 1
    assert len(stored(store)) == 3000


def test_an_order_topic_is_not_spread(store: Path, append: Append, tmp_path: Path) -> None:
    """But a queue, or a key to choose it by, is fine."""
    rows = write_rows(tmp_path / "rows", {"topic": "Order", "body": "x", "keys": ["k"]})
    for arguments in (("--topic", "Order", "--body", "x"), ("--input", rows), ("--input", rows, "--dry-run")):
        result = append(store, *arguments)
        assert result.code == 4
        assert "order topic" in result.err
    assert append(store, "--input", rows, "--queue-by", "key-hash").code == 0
    assert append(store, "--input", rows, "--queue", 3).code == 0
    assert [found.message.queue_id for found in stored(store)] == [abs(string_hash("k")) % 4, 3]


@pytest.mark.parametrize("show", ["summary", "messages"])
def test_queues_by_key(store: Path, append: Append, tmp_path: Path, show: str) -> None:
    """As SelectMessageQueueByHash; a named queue stays, a row without a key is wrong."""
    rows = [*numbered(20), {"topic": "T", "body": "named", "queue_id": 1}]
    path = write_rows(tmp_path / "rows", *rows, {"topic": "T", "body": "none"})
    result = append(store, "--input", path, "--queue-by", "key-hash", "--show", show)
    assert result.code == 3
    assert "row 22" in result.err
    assert [found.message.queue_id for found in stored(store)] == [
        *(abs(string_hash(f"k{n}")) % 4 for n in range(20)), 1,
    ]  # fmt: skip


def test_round_robin_goes_on_in_the_next_run(store: Path, append: Append, tmp_path: Path) -> None:
    """Behind the queue of the topic's newest message, whoever has chosen that queue."""
    assert [append(store, *HELLO).rows[0]["queue_id"] for _ in range(5)] == [1, 2, 3, 0, 1]
    append(store, *HELLO, "--queue", 3)
    append(store, "--topic", "Order", "--queue", 1, "--body", "of another topic")
    path = write_rows(tmp_path / "rows", *numbered(6))
    for arguments in ((), ("--show", "messages")):
        assert append(store, "--input", path, *arguments).code == 0
    ids = [found.message.queue_id for found in stored(store) if found.message.topic == "T"]
    assert ids == [1, 2, 3, 0, 1, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]


def test_round_robin_of_a_new_topic_begins_at_queue_0(store: Path, append: Append) -> None:
    """It has no newest message; nor do queues that it got later have one."""
    new = ("--topic", "New", "--body", "x", "--create-topic", "--queues", 2)
    assert [append(store, *new).rows[0]["queue_id"] for _ in range(3)] == [0, 1, 0]


def test_queues_by_column(store: Path, append: Append, tmp_path: Path) -> None:
    """Every row must have one."""
    path = write_rows(tmp_path / "rows", *numbered(3, queue_id=2), *numbered(1))
    result = append(store, "--input", path, "--queue-by", "column")
    assert result.code == 3
    assert "row 4, queue_id: it has none" in result.err
    assert [found.message.queue_id for found in stored(store)] == [2, 2, 2]


@pytest.mark.parametrize("name", ["ok_497_small_ipv6", "ok_540_small_propcrc"])
def test_what_dump_prints_is_appended(
    name: str, cases: Library, append: Append, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The records of a real store, as they were stored: the same bytes of the commit log."""
    old = cases.path(name)
    assert main(["dump", str(old), "--gaps"]) == 0
    path = tmp_path / "rows.jsonl"
    path.write_bytes(capfdbinary.readouterr().out)
    with Store.open(old) as opened:
        profile, size = opened.profile.name, opened.layout.commit_log_file_size
        first, end = opened.commit_log.min_offset, opened.end_offset()
    assert first == 0
    new = tmp_path / "new"
    result = append(
        new, "--input", path, "--create", "--create-topic", "--profile", profile,
        "--commitlog-file-size", size,
        "--index-slots", 100, "--index-entries", 400, "--no-reserve",
    )  # fmt: skip
    assert result.code == 0, result.err
    files = sorted(path.name for path in (old / "commitlog").iterdir())
    whole = [
        b"".join((root / "commitlog" / name).read_bytes() for name in files)[:end] for root in (old, new)
    ]
    assert whole[0] == whole[1]


@pytest.mark.parametrize("show", ["summary", "messages"])
@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_half_messages_and_ops_among_rows_are_told(
    store: Path, append: Append, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], show: str,
    dry_run: list[str],
) -> None:  # fmt: skip
    """They are stored as they were; what a broker makes of them is said."""
    first = append(store, *HELLO, "--transaction", "half", "--group", "G")
    append(store, *HELLO, "--transaction", "half", "--group", "G")
    assert "half messages" not in first.err
    assert append(store, "--commit", first.rows[0]["physical_offset"]).code == 0
    assert main(["dump", str(store), "--quiet"]) == 0
    path = tmp_path / "rows.jsonl"
    path.write_bytes(capfdbinary.readouterr().out)
    new = (tmp_path / "new", *NEW, "--create-topic", "--input", path, "--show", show)
    result = append(*new, *dry_run)
    assert result.code == 0
    assert (
        "rmqtool: half messages: 2; a broker asks the producers whether to commit those that no" in result.err
    )
    assert "rmqtool: op records: 1; each finishes whatever half messages this store has" in result.err
    if not dry_run:
        assert [found.message.topic[:8] for found in stored(tmp_path / "new")] == ["RMQ_SYS_"] * 2 + [
            "T",
            "RMQ_SYS_",
        ]


# what is not done


def test_dry_run_writes_nothing(store: Path, append: Append, tmp_path: Path) -> None:
    """Nor makes a store; it finds what is wrong."""
    before = tree_digest(store)
    good = write_rows(tmp_path / "good", *numbered(5))
    bad = write_rows(tmp_path / "bad", *numbered(2), {"topic": "Nope", "body": "x"})
    result = append(store, "--input", good, "--dry-run", "--format", "jsonl")
    (row,) = result.rows
    assert (row["messages"], row["left_out"], row["dry_run"]) == (5, 0, True)
    assert f"nothing was stored; to store the messages: rmqtool append {store} --input {good}" in result.err
    words = [sys.executable, "-m", "rmqtool", "append", str(store), "--input", "-", "--dry-run"]
    piped = subprocess.run(words, input=good.read_bytes(), capture_output=True, check=True)
    assert b"to store the messages: the same line without --dry-run\n" in piped.stderr
    assert append(store, "--input", good).code == 0
    assert row["bytes"] == sum(found.message.total_size for found in stored(store))
    before = tree_digest(store)
    result = append(store, "--input", bad, "--dry-run")
    assert result.code == 3
    assert "row 3, topic: the store has no topic Nope (TOPIC_NOT_EXIST)" in result.err
    assert append(store, "--input", bad, "--dry-run", "--create-topic").code == 0
    assert append(store, *HELLO, "--dry-run").code == 0
    assert append(store, "--topic", "T", "--body", "x" * 70_000, "--dry-run").code == 3
    assert tree_digest(store) == before
    assert append(tmp_path / "none", *HELLO, *NEW, "--dry-run").code == 0
    assert not (tmp_path / "none").exists()


def test_a_store_that_is_not_there(tmp_path: Path, append: Append) -> None:
    """Nothing is made without --create; with it the topics of the input are made too."""
    result = append(tmp_path / "none", *HELLO)
    assert (result.code, "--create makes a new store" in result.err) == (3, True)
    assert not (tmp_path / "none").exists()
    (tmp_path / "loop").symlink_to("loop")
    result = append(tmp_path / "loop", *HELLO)
    assert (result.code, "Too many levels of symbolic links" in result.err) == (3, True)
    assert append(tmp_path / "new", *HELLO, *NEW, "--queues", 2).code == 0
    assert len(stored(tmp_path / "new")) == 1


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_a_store_in_use_is_refused(store: Path, append: Append, dry_run: list[str]) -> None:
    with StoreWriter.open(store):
        result = append(store, *HELLO, *dry_run)
    assert result.code == 5
    assert not stored(store)


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_a_store_that_was_not_closed_is_refused(store: Path, append: Append, dry_run: list[str]) -> None:
    """With the command that helps."""
    (store / "abort").touch()
    before = tree_digest(store)
    result = append(store, *HELLO, *dry_run)
    assert result.code == 4
    assert f"rmqtool recover {store}" in result.err
    assert tree_digest(store) == before


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "there is nothing to append"),
        (("--body", "x"), "the message has no topic"),
        ((*HELLO, "--queue-by", "column"), "--queue-by column: the message names no queue"),
        ((*HELLO, "--input", "x"), "--body and --input exclude each other"),
        ((*HELLO, "--commit", "1"), "--body and --commit exclude each other"),
        (("--commit", "1", "--dry-run"), "--dry-run is for messages"),
        ((*HELLO, "--transaction", "half"), "--transaction and --group go together"),
        ((*HELLO, "--queues", "2"), "--queues needs --create-topic"),
        ((*HELLO, "--index-slots", "2"), "file sizes need --create"),
        ((*HELLO, "--property", "x"), "--property 'x': it must be NAME=VALUE"),
        ((*HELLO, "--property", "x=1", "--property", "x=2"), "--property 'x=2': it must be"),
        ((*HELLO, "--tag", "A", "--property", "TAGS=B"), "--tag 'A', but property TAGS is 'B'"),
        ((*HELLO, "--key", "k", "--key", "l", "--property", "KEYS=k"), "--key 'k l', but property KEYS is"),
        ((*HELLO, "--uniq-key", "U", "--property", "UNIQ_KEY=V"), "--uniq-key 'U', but property UNIQ_KEY"),
        ((*HELLO, "--delay-level", "3", "--property", "DELAY=4"), "--delay-level 3, but property DELAY is"),
        (("--input", os.devnull, "--tag", "A", "--property", "TAGS=B"), "--tag 'A', but property TAGS"),
        ((*HELLO, "--born-host", "x"), "--born-host: 'x' is not ip:port"),
        ((*HELLO, "--store-host", "x"), "--store-host: 'x' is not ip:port"),
        ((*HELLO, "--store-time", "soon"), "not a time: 'soon'"),
        ((*HELLO, "--fields", "nothing"), "unknown field: 'nothing'"),
        (("--input", os.devnull, "--fields", "row"), "unknown field: 'row'"),
        (("--input", os.devnull, "--uniq-key", "x"), "--uniq-key is for one message"),
    ],
)
def test_usage_errors(store: Path, append: Append, arguments: tuple[str, ...], what: str) -> None:
    """Nothing is written then."""
    before = tree_digest(store)
    result = append(store, *arguments)
    assert (result.code, result.out) == (2, b"")
    assert what in result.err
    assert tree_digest(store) == before


def test_the_store_must_be_named(store: Path, monkeypatch: pytest.MonkeyPatch, append: Append) -> None:
    """RMQTOOL_STORE is not for commands that write."""
    monkeypatch.setenv("RMQTOOL_STORE", str(store))
    before = tree_digest(store)
    assert main(["append", *HELLO]) == 2
    assert tree_digest(store) == before


def test_an_input_that_is_not_there(store: Path, append: Append, tmp_path: Path) -> None:
    result = append(store, "--input", tmp_path / "none")
    assert result.code == 3
    assert "No such file" in result.err
    assert not (store / "abort").exists()
    result = append(store, "--input", "s3://bucket/rows.csv")
    assert result.code == 2 and "s3://bucket/rows.csv" in result.err


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_compacted_topic_takes_no_messages(
    form: str, append: Append, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """Consumers get the broker's compaction log: a message would be lost to them, as it was stored too."""
    root, rows = store_copy("kind_compaction_540"), tmp_path / f"rows.{form}"
    assert main(["export", str(root), "--topic", "TopicCompact", "--output", str(rows), "--quiet"]) == 0
    before = tree_digest(root / "commitlog")
    result = append(root, "--input", rows, "--quiet")
    assert result.code == 4 and "row 1, topic: topic TopicCompact is compacted" in result.err
    assert append(root, "--topic", "TopicCompact", "--body", "x").code == 4
    assert tree_digest(root / "commitlog") == before


@pytest.mark.parametrize(
    ("start", "options", "told"),
    [
        (b"topic,body\nT,a\nT\n", ["--dry-run"], "row 3: 1 cells, the header has 2"),
        (b"topic,body\nT," + b"x" * (40 << 20), ["--create"], "a row has more than 16777216 bytes"),
    ],
)
@pytest.mark.parametrize("run", range(3 if IS_WHOLE else 1))
@pytest.mark.sweep
def test_csv_that_still_comes_behind_an_error(
    store: Path, tmp_path: Path, start: bytes, options: list[str], told: str, run: int
) -> None:
    """The reader has a thread that reads on: the process ended with a signal, or not at all."""
    target = tmp_path / "new" if options == ["--create"] else store
    command = [*RMQTOOL, "append", target, *options, "--create-topic", "-q",
               "--input", "-", "--input-format", "csv"]  # fmt: skip
    with started(command, stdout=subprocess.DEVNULL, bufsize=0) as process:
        assert process.stdin is not None and process.stderr is not None

        def feed(pipe: IO[bytes]) -> None:
            with contextlib.suppress(BrokenPipeError), pipe:
                pipe.write(start)
                while True:
                    pipe.write(b"T,more\n" * 10_000)

        feeder = Thread(target=feed, args=(process.stdin,), daemon=True)
        feeder.start()
        assert process.wait(PATIENCE_S) == 3
        feeder.join(PATIENCE_S)
        assert told in process.stderr.read().decode()
