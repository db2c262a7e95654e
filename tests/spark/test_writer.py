"""Written stores are sound and hold the rows, in the order that was asked for; what fails leaves nothing."""

from __future__ import annotations

import errno
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, PythonException
from pyspark.sql.types import StructType

from rmqtool.check.verify import verify
from rmqtool.errors import InputError, RefusedError, UnwritableError, UsageError
from rmqtool.read.store import Store
from rmqtool.spark.options import parse_options
from rmqtool.spark.schema import columns_by_options
from rmqtool.spark.writer import NewStoreWriter, Part, write_columns
from rmqtool.write.store_writer import StoreWriter
from tests.spark.frames import read, read_table, struct
from tests.support.stores import Library

SMALL = {
    "write.commitLogFileSize": "1M", "write.consumeQueueFileSize": "20000", "write.indexSlots": "1000",
    "write.indexEntries": "4000",
}  # fmt: skip
CLEAN = "ok_540_clean"
# What depends on where a record lies, on how its body was packed, or on the store.
COMPUTED = {"physicalOffset", "offsetMsgId", "size", "bodyCrc", "bodyLength", "brokerName", "file"}
# When a delayed message is due says its queue's unit, which is made anew by the usual levels of delay.
DUE = ("deliver_timestamp_ms", "deliver_time")


def writer_of(path: Path, source: dict[str, str], overwrite: bool = False, **options: str) -> NewStoreWriter:
    settings = parse_options({"path": str(path), **SMALL, **options})
    return NewStoreWriter(settings, schema_of(source), overwrite)


def schema_of(source: dict[str, str]) -> StructType:
    return struct(columns_by_options(parse_options(source)))


def is_sound(path: Path) -> bool:
    """But for timer files, without which a broker would deliver timer messages again (TM03)."""
    with Store.open(path) as store:
        return {each.problem.code for each in verify(store) if each.problem.severity != "note"} <= {"TM03"}


def beside(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir() if entry != path)


@pytest.mark.parametrize("columns", ["full", "rocketmq"])
def test_what_was_read_can_be_written(cases: Library, tmp_path: Path, columns: str) -> None:
    """All kinds of messages: delayed, half, of batches, compressed; parts in any order."""
    source = {"path": str(cases.path(CLEAN)), "columnSet": columns}
    table = read_table(source)
    path = tmp_path / "new"
    writer = pickle.loads(pickle.dumps(writer_of(path, source)))
    parts: list[Any] = []
    for number, start in enumerate(range(0, len(table), 1500)):
        part = writer.write(iter(table.slice(start, 1500).to_batches(max_chunksize=400)))
        parts.append(Part(number, part.name, part.rows, part.times, part.queues, part.batch_topics))
        (writer._folder / "rows" / part.name).rename(writer._folder / "rows" / f"{number}.arrow")
        parts[-1] = Part(number, f"{number}.arrow", part.rows, part.times, part.queues, part.batch_topics)
    assert not path.exists()
    writer.commit([*reversed(parts), None])
    assert beside(path) == []
    assert is_sound(path)
    written = read({"path": str(path), "columnSet": columns})
    for row, known in zip(written, table.to_pylist(), strict=True):
        assert told(row) == told(known)


def told(row: dict[str, Any]) -> dict[str, Any]:
    """What a row says of its message."""
    values = {name: value for name, value in row.items() if name not in COMPUTED}
    if values.get("system") is not None:
        values["system"] = {
            name: value for name, value in json.loads(values["system"]).items() if name not in DUE
        }
    return values


def test_order_is_by_partition_and_store_times_do_not_fall(cases: Library, tmp_path: Path) -> None:
    source = {
        "path": str(cases.path("ok_540_small_ipv6")),
        "columns": "topic,body,queueId,storeTimestamp,uniqKey",
    }
    table = read_table({**source, "topics": "pub*"})
    halves = [table.slice(len(table) // 2), table.slice(0, len(table) // 2)]
    path = tmp_path / "new"
    for order in ("given", "storeTimestamp"):
        writer = writer_of(path, source, order=order)
        parts = []
        for number, half in enumerate(halves):
            part = writer.write(iter(half.to_batches()))
            name = f"{number}.arrow"
            (writer._folder / "rows" / part.name).rename(writer._folder / "rows" / name)
            parts.append(Part(number, name, part.rows, part.times, part.queues, part.batch_topics))
        if order == "given":
            with pytest.raises(InputError, match="orderBy"):
                writer.commit(parts)
            assert not path.exists()
            assert beside(path) == []
        else:
            writer.commit(parts)
    assert is_sound(path)
    columns = {"columns": "uniqKey"}
    assert read({"path": str(path), **columns}) == table.select(["uniqKey"]).to_pylist()


def test_only_a_free_path_or_a_store_is_written_over(cases: Library, tmp_path: Path) -> None:
    source = {"path": str(cases.path("ok_540_small_ipv6")), "columns": "topic,body", "topics": "pub*"}
    table = read_table(source)
    path = tmp_path / "new"
    (path / "mine").mkdir(parents=True)
    with pytest.raises(RefusedError):
        writer_of(path, source)
    with pytest.raises(InputError):
        writer_of(path, source, overwrite=True)
    (path / "mine").rmdir()
    for overwrite in (False, True):
        writer = writer_of(path, source, overwrite)
        writer.commit([writer.write(iter(table.to_batches()))])
        assert len(read({"path": str(path), **{"columns": "topic"}})) == len(table)
        assert beside(path) == []
    with pytest.raises(RefusedError, match="new store"):
        writer_of(path, source)
    with StoreWriter.open(path), pytest.raises(RefusedError, match="in use"):
        writer_of(path, source, overwrite=True)


def test_what_fails_leaves_nothing(cases: Library, tmp_path: Path) -> None:
    """A wrong row, an abort: the path is as it was, and so is its folder."""
    source = {"path": str(cases.path("ok_540_small_ipv6")), "columns": "topic,body"}
    path = tmp_path / "new"
    writer = writer_of(path, source)
    wrong = pa.table({"topic": ["T", "no topic!"], "body": [b"a", b"b"]})
    part = writer.write(iter(wrong.to_batches()))
    with pytest.raises(InputError, match="no topic!"):
        writer.commit([part])
    assert beside(path) == []
    writer = writer_of(path, source)
    writer.write(iter(wrong.to_batches()))
    writer.abort([None])
    assert (path.exists(), beside(path)) == (False, [])
    writer = writer_of(path, source)
    writer.commit([writer.write(iter(()))])  # no rows: an empty store
    assert is_sound(path)


@pytest.mark.parametrize(
    ("options", "schema", "word"),
    [
        ({"write.commitLogSize": "1M"}, "topic,body", "commitlogsize"),
        ({"write.reserve": "perhaps"}, "topic,body", "reserve"),
        ({"profile": "3.0"}, "topic,body", "3.0"),
        ({}, "topic,queueId", "body"),
        ({}, "body,value,topic", "body"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_named(
    tmp_path: Path, options: dict[str, str], schema: str, word: str
) -> None:
    with pytest.raises(UsageError) as error:
        writer_of(tmp_path / "new", {"columns": schema}, **options)
    assert word in error.value.message.lower()
    for path in ("s3://bucket/store", '["/a","/b"]'):
        with pytest.raises(UsageError, match="path"):
            NewStoreWriter(parse_options({"path": path}), schema_of({"columns": "topic,body"}), False)


def test_types_that_no_column_has_are_named() -> None:
    """With what the column can be made of; what was read has other types than these."""
    for schema, words in (
        ([("topic", "int"), ("body", "binary")], "column topic is of the type int"),
        ([("topic", "string"), ("body", "double")], "column body is of the type double"),
        ([("topic", "string"), ("value", "binary"), ("partition", "string")], "column partition"),
        ([("topic", "string"), ("body", "string"), ("storeTimestamp", "date")], "column storeTimestamp"),
        ([("topic", "string"), ("body", "string"), ("properties", "map<string,int>")], "map<string,int>"),
    ):
        with pytest.raises(UsageError, match=words) as error:
            write_columns(schema)
        assert "CAST makes it" in str(error.value.hint)
    write_columns([("topic", "varchar(20)"), ("body", "string"), ("queueId", "bigint"), ("tags", "void")])


def test_what_cannot_be_written_is_told_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One error of ours, in a task and on the driver."""
    source = {"columns": "topic,body"}
    rows = pa.table({"topic": ["T"], "body": [b"a"]})
    (tmp_path / "file").write_bytes(b"")
    inside = writer_of(tmp_path / "file" / "new", source)
    with pytest.raises(UnwritableError, match=f"cannot write {tmp_path}/file/.*: Not a directory"):
        inside.write(iter(rows.to_batches()))
    with pytest.raises(UnwritableError, match=f"cannot write {tmp_path}/file/.*: Not a directory"):
        inside.commit([])
    with pytest.raises(UnwritableError, match="name too long"):
        writer_of(tmp_path / ("x" * 300), source)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = writer_of(tmp_path / "new", source)
    monkeypatch.setattr(pa.ipc, "new_stream", full)
    with pytest.raises(UnwritableError, match=f"cannot write {tmp_path}/.*: No space left on device"):
        writer.write(iter(rows.to_batches()))
    writer.abort([])


def test_spark_writes_a_store(spark: Any, tmp_path: Path) -> None:
    """Ten thousand rows made by Spark, sorted over two partitions; Kafka's names do as well."""
    rows = spark.range(10_000).selectExpr(
        "concat('topic-', id % 3) AS topic", "CAST(concat('body ', id) AS BINARY) AS value",
        "CAST(concat('key-', id) AS BINARY) AS key", "CAST(id % 4 AS INT) AS partition",
        "timestamp_millis(1700000000000 + id * 10) AS timestamp",
        "map('a', CAST(id AS STRING)) AS properties",
    )  # fmt: skip
    path = tmp_path / "new"
    rows.orderBy("timestamp").write.format("rocketmq-store").options(**SMALL).mode("append").save(str(path))
    assert is_sound(path)
    assert beside(path) == []
    found = (
        spark.read.format("rocketmq-store").option("columnSet", "full").load(str(path)).toArrow().to_pylist()
    )
    assert [row["body"] for row in found] == [b"body %d" % number for number in range(10_000)]
    for number in (0, 1234, 9_999):
        row = found[number]
        assert (row["topic"], row["queueId"], row["keys"]) == (
            f"topic-{number % 3}",
            number % 4,
            [f"key-{number}"],
        )
        assert row["storeTimestampMs"] == 1_700_000_000_000 + number * 10
        assert dict(row["properties"])["a"] == str(number)
    falling = rows.orderBy(rows.timestamp.desc()).write.format("rocketmq-store").options(**SMALL)
    with pytest.raises((PythonException, PySparkException), match="orderBy"):
        falling.mode("append").save(str(tmp_path / "other"))
    assert beside(tmp_path / "new") == []
