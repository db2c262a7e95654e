"""The tables `units` and `index_entries` of the source: their rows are what struct finds in the files."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmqtool.errors import UsageError
from rmqtool.formats import index
from rmqtool.spark.bounds import DataLossError
from rmqtool.spark.options import parse_options
from rmqtool.spark.schema import arrow_schema_of, columns_by_options, columns_by_schema
from rmqtool.spark.stream import StoreStreamReader
from rmqtool.spark.tables import plan_files, read_files
from rmqtool.storage.layout import StoreLayout, detect
from tests.spark.frames import struct as schema_of
from tests.support.stores import Library

UNIT, BATCH_UNIT, ENTRY = struct.Struct(">qiq"), struct.Struct(">qiqqqhii"), struct.Struct(">iqii")
STORES = ("ok_540_clean", "ok_540_ext", "ok_497_expired")
Row = dict[str, Any]


def read(options: Mapping[str, str], schema: Sequence[tuple[str, str]] | None = None) -> list[Row]:
    """The rows that tasks give for these options; files travel as pickles."""
    settings = parse_options(options)
    asked = columns_by_options(settings) if schema is None else columns_by_schema(schema, "", settings.table)
    wanted = arrow_schema_of(schema_of(asked))
    batches = []
    for files in plan_files(settings):
        for batch in read_files(pickle.loads(pickle.dumps(files)), asked, wanted):
            assert batch.schema.equals(wanted, check_metadata=True) and len(batch)
            batch.validate(full=True)
            batches.append(batch)
    rows: list[Row] = pa.Table.from_batches(batches, wanted).to_pylist()
    return rows


def units_of(layout: StoreLayout) -> Iterator[Row]:
    """The units of all queue files in Spark's names."""
    for queues, form in ((layout.consume_queues, UNIT), (layout.batch_queues, BATCH_UNIT)):
        for (topic, queue_id), queue in queues.items():
            for file in queue.files:
                data = Path(file.path).read_bytes()
                for start in range(0, len(data) - form.size + 1, form.size):
                    found = form.unpack_from(data, start)
                    offset, size, tags_code, *rest = found
                    if size <= 0 or (form is UNIT and (offset, size, tags_code) == (0, (1 << 31) - 1, 0)):
                        continue
                    number = (file.file_from_offset + start) // form.size
                    yield {
                        "brokerName": "broker", "topic": topic, "queueId": queue_id,
                        "queueOffset": rest[1] if rest else number, "physicalOffset": offset, "size": size,
                        "tagsCode": tags_code, "batchSize": rest[2] if rest else None,
                        "storeTimestampMs": rest[0] if rest else None, "file": layout.relative(file.path),
                    }  # fmt: skip


def entries_of(layout: StoreLayout) -> Iterator[Row]:
    """The entries in use of all index files in Spark's names."""
    for file in layout.index_files:
        data = Path(file.path).read_bytes()
        header = index.decode_header(data[: index.HEADER_SIZE])
        start = index.HEADER_SIZE + layout.index_slots * index.SLOT_SIZE
        for number in range(1, header.index_count):
            key_hash, offset, wait, previous = ENTRY.unpack_from(data, start + number * ENTRY.size)
            yield {
                "brokerName": "broker", "entry": number, "keyHash": key_hash, "physicalOffset": offset,
                "timeDiffSeconds": wait, "storeTimestampMs": header.begin_timestamp + wait * 1000,
                "previous": previous, "file": layout.relative(file.path),
            }  # fmt: skip


@pytest.mark.parametrize("name", STORES)
def test_rows_are_what_the_files_hold(cases: Library, name: str) -> None:
    """Row by row, in the order of the files, also where each task has one file."""
    path = cases.path(name)
    for table, rows_of in (("units", units_of), ("index_entries", entries_of)):
        given = {"path": str(path), "table": table, "brokerName": "broker"}
        expected = list(rows_of(detect(path)))
        assert expected and read(given) == expected
        assert read({**given, "maxBytesPerPartition": "1"}) == expected
        assert len(plan_files(parse_options({**given, "maxBytesPerPartition": "1"}))) > 1 or name != STORES[0]


def test_units_are_chosen_by_topic_and_queue(cases: Library) -> None:
    """By every option that names topics, and by queue id; a topic that no store has is data loss."""
    given = {"path": str(cases.path(STORES[0])), "table": "units", "brokerName": "broker"}
    rows = read(given)
    for options, chosen in (
        ({"topics": "pub*", "excludeTopics": "pubTx", "queueId": "0,2"},
         lambda row: row["topic"] != "pubTx" and row["topic"].startswith("pub") and row["queueId"] in (0, 2)),
        ({"subscribe": "pubTx"}, lambda row: row["topic"] == "pubTx"),
        ({"subscribePattern": "pub[RT].*"}, lambda row: row["topic"][:4] in ("pubR", "pubT")),
    ):  # fmt: skip
        assert read({**given, **options}) == list(filter(chosen, rows))
    with pytest.raises(DataLossError, match="no store has the topic nope"):
        read({**given, "subscribe": "nope"})


def test_columns_are_chosen(cases: Library) -> None:
    """By option or schema, in wider types too; a name or a type that a table does not have is an error."""
    given = {"path": str(cases.path(STORES[0])), "table": "units"}
    rows = read(given)
    assert read({**given, "columns": "tagsCode,QUEUEID"}) == [
        {"tagsCode": row["tagsCode"], "queueId": row["queueId"]} for row in rows
    ]
    sizes = read(given, [("batchSize", "bigint"), ("size", "bigint")])
    assert sizes == [{"batchSize": row["batchSize"], "size": row["size"]} for row in rows]
    assert any(row["batchSize"] for row in rows) and any(row["batchSize"] is None for row in rows)
    with pytest.raises(UsageError, match="no column 'entry'"):
        read({**given, "columns": "entry"})
    with pytest.raises(UsageError, match="column tagsCode cannot be int"):
        read(given, [("tagsCode", "int")])
    with pytest.raises(UsageError, match="no column '_corrupt_record'"):
        read({**given, "columns": "_corrupt_record"})


def test_streams_read_messages_only(cases: Library) -> None:
    options = parse_options({"path": str(cases.path(STORES[0])), "table": "units"})
    with pytest.raises(UsageError, match="option table is for batch reads"):
        StoreStreamReader(options, schema_of(columns_by_options(options)))


def test_spark_has_the_tables(spark: Any, cases: Library) -> None:
    """With groupBy; a store without such files has no rows."""
    path = cases.path(STORES[0])
    frame = spark.read.format("rocketmq-store").option("table", "units").load(str(path))
    found = {(row[0], row[1]): row["count"] for row in frame.groupBy("topic", "queueId").count().collect()}
    expected: dict[tuple[str, int], int] = {}
    for row in units_of(detect(path)):
        key = (row["topic"], row["queueId"])
        expected[key] = expected.get(key, 0) + 1
    assert found == expected
    entries = spark.read.format("rocketmq-store").options(table="index_entries", columns="entry")
    assert entries.load(str(path)).count() == len(list(entries_of(detect(path))))
    assert entries.load(str(cases.path("gap_ix10_index_missing"))).count() == 0
