"""Tables of messages: rolled, counted and flushed as by `put`, wrong rows named, nothing half written."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from rmqtool import NewMessage, Store
from rmqtool.check.verify import verify
from rmqtool.errors import InputError, UnwritableError, UsageError
from rmqtool.formats import message, properties
from rmqtool.formats.message_id import host_bytes
from rmqtool.problems import BY_CODE
from rmqtool.write import encode
from rmqtool.write.store_writer import StoreWriter
from rmqtool.write.table import appender as table
from rmqtool.write.table.appender import TableAppender, WrongRowError
from rmqtool.write.table.schema import message_of
from tests.support.hard_limits import size_limit
from tests.support.put_tables import HOSTS, NOW, Pair, Row, log_bytes, make, plain_row, table_of
from tests.support.stores import VERSIONS, Library, real_case


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels also for few rows."""
    monkeypatch.setattr(encode, "is_for_plain", lambda rows: False)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("profile", ["5.3", "5.4"])
def test_property_crc(tmp_path: Path, profile: str) -> None:
    pair = Pair(tmp_path, profile, property_crc=True)
    rows = [plain_row(number, tags="TagA", body=b"x" * number) for number in range(50)]
    rows.append({**plain_row(3, properties_bytes=b"TAGS\x01a"), "uniq_key": None})
    assert pair.check(table_of(rows)) == []
    assert properties.property_crc_ok(_last_record(pair.fast))
    pair.close()


def _last_record(writer: StoreWriter) -> bytes:
    found = [each.message for each in writer.read().messages()]
    return message.encode(found[-1])


@pytest.mark.parametrize("rows_at_once", [7, 1 << 14])
@pytest.mark.parametrize("plain", [False, True])
def test_files_are_rolled_as_by_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int, plain: bool
) -> None:
    monkeypatch.setattr(table, "ROWS_AT_ONCE", rows_at_once)
    monkeypatch.setattr(encode, "is_for_plain", lambda rows: plain)
    sizes = {"commit_log_file_size": 20_000, "index": True, "index_slots": 50, "index_entries": 200}
    rows = [
        plain_row(
            n, body=b"b" * (n * 37 % 3000), tags=f"T{n % 3}", keys=[f"k{n}", "all"][: n % 3],
            properties=[("color", f"red {n}"), ("size", f"{n}")][: n % 4], born_host=HOSTS[n % 2],
        )
        for n in range(200)
    ]  # fmt: skip
    with make(tmp_path / "slow", **sizes) as slow, make(tmp_path / "fast", **sizes) as fast:
        batch = table_of(rows)
        for row in range(len(rows)):
            slow.put(message_of(batch, row))
        result = fast.put_table(pa.Table.from_batches([batch]))
        assert (result.rows, result.first_physical_offset) == (200, 0)
        last = message.decode(_last_record(fast))
        assert result.last_physical_offset == last.physical_offset
    files = sorted(path.name for path in (tmp_path / "slow" / "commitlog").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "fast" / "commitlog").iterdir())
    assert len(files) > 15
    for name in files:
        made = [(tmp_path / each / "commitlog" / name).read_bytes() for each in ("slow", "fast")]
        assert made[0] == made[1]
    with Store.open(tmp_path / "fast") as store:
        assert [each.problem for each in verify(store) if BY_CODE[each.problem].severity != "note"] == []


@pytest.mark.usefixtures("compiled")
def test_a_record_larger_than_a_buffer(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "5.4", max_message_size=10 << 20)
    assert pair.check(table_of([plain_row(0), plain_row(1, body=b"x" * (9 << 20)), plain_row(2)])) == []
    pair.close()


@pytest.mark.usefixtures("compiled")
def test_without_queue_every_queue_in_turn(tmp_path: Path) -> None:
    rows = [plain_row(number, queue_id=None) for number in range(11)]
    with make(tmp_path / "store") as writer:
        first = writer.put_table(table_of(rows)).queues
        assert first == {("TopicTest", queue): (0, 3 if queue < 3 else 2) for queue in range(4)}
        assert writer.put(NewMessage("TopicTest")).queue_id == 3
        assert writer.put_table(table_of(rows[:1])).queues == {("TopicTest", 0): (3, 1)}


def test_unique_ids_are_made(tmp_path: Path) -> None:
    rows = [plain_row(n, uniq_key=None, born_host=HOSTS[n % 2], queue_id=None) for n in range(1000)]
    with make(tmp_path / "store") as writer:
        writer.put_table(table_of(rows))
        writer.put_table(table_of(rows))
        ids = {properties.decode(found.message.properties_bytes)["UNIQ_KEY"]
               for found in writer.read().messages()}  # fmt: skip
    assert len(ids) == 2000
    assert {len(each) for each in ids} == {32, 56}
    assert {each[:8] for each in ids} == {"0A000001", "20010DB8"}


def test_times_and_hosts_have_defaults(tmp_path: Path) -> None:
    with make(tmp_path / "store", store_host=host_bytes("[2001:db8::7]:10911")) as writer:
        before = writer.put(NewMessage("TopicTest")).store_timestamp
        writer.put_table(pa.table({"topic": ["TopicTest"]}))
        after = writer.put(NewMessage("TopicTest")).store_timestamp
        found = [each.message for each in writer.read().messages()][1]
    assert before <= found.store_timestamp <= after
    assert before <= found.born_timestamp <= after
    assert found.born_host == found.store_host == host_bytes("[2001:db8::7]:10911")
    assert found.sys_flag == message.BORN_HOST_V6 | message.STORE_HOST_V6
    assert found.body == b""


class StoppedHereError(BaseException):
    """As KeyboardInterrupt, which pytest takes for its own."""


def test_an_interrupt_at_any_call_leaves_true_counts(tmp_path: Path) -> None:
    """At each function that the calling thread enters: what is stored is counted, with its queues."""
    rows = table_of([plain_row(number, queue_id=number % 2) for number in range(9)])
    folder = str(Path(table.__file__).parent)
    interrupted = at = 0
    while interrupted == at:  # until a run has fewer calls
        at += 1
        calls = 0

        def trace(frame: FrameType, event: str, argument: object, at: int = at) -> None:
            nonlocal calls, interrupted
            if frame.f_code.co_filename.startswith(folder):
                calls += 1
                if calls == at:
                    interrupted += 1
                    raise StoppedHereError

        with make(tmp_path / f"store{at}") as writer:
            appender = TableAppender(writer)
            sys.settrace(trace)
            try:
                appender.append(rows)
            except StoppedHereError:
                pass
            finally:
                sys.settrace(None)
            found = [each.message for each in writer.read().messages()]
            result = appender.result()
            assert result.rows == len(found), at
            counts = Counter(each.queue_id for each in found)
            assert result.queues == {("TopicTest", each): (0, counts[each]) for each in counts}, at
            for each in (0, 1):
                assert writer.put(NewMessage("TopicTest", queue_id=each)).queue_offset == counts[each], at
    assert at > 30


@pytest.mark.parametrize("rows_at_once", [3, 1 << 14])
def test_stop_keeps_the_rows_before_the_wrong_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr(table, "ROWS_AT_ONCE", rows_at_once)
    rows = [plain_row(number, queue_id=0) for number in range(10)]
    rows[7]["tags"] = "a\x02b"
    rows[8]["queue_id"] = 77
    with make(tmp_path / "store") as writer:
        appender = TableAppender(writer)
        with pytest.raises(WrongRowError, match="^row 7, column tags: property 'TAGS' ") as caught:
            appender.append(table_of(rows))
        assert (caught.value.row, caught.value.column, caught.value.status) == (7, "tags", "MESSAGE_ILLEGAL")
        assert (appender.result().rows, appender.result().queues) == (7, {("TopicTest", 0): (0, 7)})
        assert [each.message.queue_offset for each in writer.read().messages()] == list(range(7))
        assert writer.put(NewMessage("TopicTest", queue_id=0)).queue_offset == 7


@pytest.mark.parametrize(
    ("rows", "column", "status"),
    [
        ([plain_row(0, topic=None)], "topic", "MESSAGE_ILLEGAL"),
        ([plain_row(0, topic="gone")], "topic", "TOPIC_NOT_EXIST"),
        ([plain_row(0, queue_id=5)], "queue_id", "INVALID_PARAMETER"),
        ([plain_row(0, body=b"x" * 2001)], "body", "MESSAGE_ILLEGAL"),
        ([plain_row(0, tags="T" * 33_000)], "properties", "PROPERTIES_SIZE_EXCEEDED"),
        ([plain_row(0, store_host=b"x")], "store_host", "MESSAGE_ILLEGAL"),
        ([plain_row(0, body_compression="snappy")], "body_compression", "MESSAGE_ILLEGAL"),
        ([plain_row(0, keys=[None])], "keys", "MESSAGE_ILLEGAL"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, rows: list[Row], column: str, status: str) -> None:
    with make(tmp_path / "store", auto_create_queues=0, max_message_size=2000) as writer:
        writer.topics.add("TopicTest", 4)
        with pytest.raises(WrongRowError) as caught:
            writer.put_table(table_of([plain_row(0), *rows]))
        assert (caught.value.row, caught.value.column, caught.value.status) == (1, column, status)


@pytest.mark.parametrize(
    "columns",
    [
        {"body": ["x"]}, {"topic": ["T"], "tag": ["x"]}, {"topic": [1]}, {"topic": ["T"], "body": [1]},
        {"topic": ["T"], "queue_id": [1.0]}, {"topic": ["T"], "keys": [[1]]}, {"topic": ["T"], "wait": [1]},
        {"topic": ["T"], "properties": [{"a": "b"}]}, {"topic": ["T"], "flag": ["1"]},
        {"topic": ["T"], "born_host": [1]}, {"topic": [b"T"]},
    ],
)  # fmt: skip
def test_columns_of_other_names_or_types_are_refused(tmp_path: Path, columns: dict[str, list[Any]]) -> None:
    with make(tmp_path / "store") as writer:
        with pytest.raises((UsageError, InputError), match="column"):
            writer.put_table(pa.table(columns))
        assert writer.log.end == 0


def test_broken_buffers_are_refused(tmp_path: Path) -> None:
    """Offsets behind the end of the data: what a damaged Arrow file can hold."""
    offsets = pa.py_buffer(b"".join(each.to_bytes(4, "little") for each in (0, 1 << 20, 3)))
    broken = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    with make(tmp_path / "store") as writer, pytest.raises(InputError, match="damaged"):
        writer.put_table(pa.record_batch({"topic": pa.array(["T", "T"]), "body": broken}))


def test_numbers_that_do_not_fit(tmp_path: Path) -> None:
    batch = table_of([plain_row(0), plain_row(1, flag=1 << 40)], flag=pa.int64())
    big = pa.array([NOW, (1 << 63) + 1], pa.uint64())
    with make(tmp_path / "store") as writer:
        with pytest.raises(WrongRowError, match="row 1, column flag: 1099511627776 does not fit 32 bits"):
            writer.put_table(batch)
        with pytest.raises(WrongRowError, match="row 1, column born_timestamp_ms: 9223372036854775809 does"):
            writer.put_table(table_of([plain_row(0), plain_row(1)]).set_column(
                batch.schema.get_field_index("born_timestamp_ms") - 1, "born_timestamp_ms", big))  # fmt: skip


def test_nothing_to_store(tmp_path: Path) -> None:
    with make(tmp_path / "store") as writer:
        result = writer.put_table(pa.table({"topic": pa.array([], pa.string())}))
        assert (result.rows, result.first_physical_offset, result.queues) == (0, None, {})


def test_queues_and_topics_beyond_the_first_guess(tmp_path: Path) -> None:
    rows = [plain_row(n, topic=f"topic{n % 50}", queue_id=n * 7 % 64) for n in range(3000)]
    with make(tmp_path / "store", auto_create_queues=64) as writer:
        result = writer.put_table(table_of(rows))
        seen: dict[tuple[str, int], int] = {}
        for each in writer.read().messages():
            key = (each.message.topic, each.message.queue_id)
            assert each.message.queue_offset == seen.get(key, 0)
            seen[key] = seen.get(key, 0) + 1
        assert {key: (0, count) for key, count in seen.items()} == result.queues


def test_puts_come_between_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ROWS_AT_ONCE", 20)
    rows = [plain_row(number, queue_id=0) for number in range(400)]

    def put() -> None:
        for _ in range(300):
            writer.put(NewMessage("TopicTest", queue_id=0))
            time.sleep(0)

    with make(tmp_path / "store") as writer:
        threads = [threading.Thread(target=put) for _ in range(2)]
        for thread in threads:
            thread.start()
        writer.put_table(table_of(rows))
        for thread in threads:
            thread.join()
        found = [each.message for each in writer.read().messages()]
        assert [each.queue_offset for each in found] == list(range(1000))
        assert [each.body for each in found if each.body] == [row["body"] for row in rows]


@pytest.mark.usefixtures("compiled")
def test_after_a_failed_write_the_log_holds_what_was_counted(tmp_path: Path) -> None:
    rows = [plain_row(number, body=b"x" * 1000) for number in range(12_000)]
    writer = make(tmp_path / "store")
    writer.put(NewMessage("TopicTest", queue_id=0))
    appender = TableAppender(writer)
    with size_limit(9_000_000), pytest.raises(UnwritableError, match="cannot write"):
        appender.append(table_of(rows))
    result = appender.result()
    assert 0 < result.rows < 12_000
    data, position, count = log_bytes(writer, 0, writer.log.end), 0, 0
    while position < len(data):
        position += message.decode(data, position).total_size
        count += 1
    assert count == result.rows + 1
    assert sum(writer.offsets.next("TopicTest", queue) for queue in range(4)) == count
    with pytest.raises(UnwritableError):
        writer.close()


def test_a_sync_writer_returns_when_all_is_on_the_device(tmp_path: Path) -> None:
    with make(tmp_path / "store", flush="sync") as writer:
        result = writer.put_table(table_of([plain_row(0), plain_row(1)]))
        assert result.flushed
        assert writer.log.flushed == writer.log.end


@pytest.mark.usefixtures("compiled")
def test_the_write_buffer_takes_tables(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "5.4", write_buffer=True)
    batch = table_of([plain_row(number, body=b"x" * 999) for number in range(6000)])
    pair.fast.put_table(batch)
    pair.fast.log.commit()
    for row in range(len(batch)):
        pair.slow.put(message_of(batch, row))
    pair.slow.log.commit()
    assert log_bytes(pair.fast, 0, pair.fast.log.end) == log_bytes(pair.slow, 0, pair.slow.log.end)
    pair.close()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("version", VERSIONS)
def test_records_of_brokers_are_stored_as_they_were(cases: Library, tmp_path: Path, version: str) -> None:
    """Every record of a real store, appended again: the same fields, queue offsets and properties.

    Physical offsets differ where a broker kept the records of a batch in one file.
    """
    real = real_case(version, "clean")
    with Store.open(cases.path(real.name)) as store:
        found = [each.message for each in store.messages()]
        batch_topics = {topic for topic, _ in store.layout.batch_queues}
    rows = [
        {
            "topic": each.topic, "queue_id": each.queue_id, "body": each.body, "flag": each.flag,
            "sys_flag": each.sys_flag, "properties_bytes": each.properties_bytes,
            "born_timestamp_ms": each.born_timestamp, "store_timestamp_ms": each.store_timestamp,
            "store_host": each.store_host, "reconsume_times": each.reconsume_times,
            "prepared_transaction_offset": each.prepared_transaction_offset,
        }
        for each in found
    ]  # fmt: skip
    batch = table_of(rows).append_column("born_host", pa.array([each.born_host for each in found]))
    with make(tmp_path / "store", version[:3], commit_log_file_size=1 << 20) as writer:
        for topic in batch_topics:
            writer.topics.add(topic, 2, attributes={"queue.type": "BatchCQ"})
        result = writer.put_table(batch)
        made = [each.message for each in writer.read().messages()]
    assert result.rows == len(found) > 0
    assert [replace(each, physical_offset=0) for each in made] == [
        replace(each, physical_offset=0) for each in found
    ]
