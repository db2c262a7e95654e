"""Streams: every message once, over limits, restarts and a writer that goes on; and what was lost is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rmqtool import NewMessage, Store
from rmqtool.errors import InputError, UsageError
from rmqtool.spark.bounds import DataLossError
from rmqtool.spark.options import parse_options
from rmqtool.spark.schema import columns_by_options
from rmqtool.spark.stream import StoreStreamReader
from rmqtool.write.store_writer import StoreWriter
from tests.spark.frames import Row, struct
from tests.support.stores import Library

SIZES: dict[str, Any] = {
    "commit_log_file_size": 1 << 15, "consume_queue_file_size": 2_000,
    "index_slots": 50, "index_entries": 200,
}  # fmt: skip
MODES = ("commitlog", "queue")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StoreWriter]:
    """A store that is being written."""
    with StoreWriter.create(tmp_path / "broker-a", auto_create_queues=3, **SIZES) as opened:
        yield opened


def put(writer: StoreWriter, count: int, topic: str = "T") -> None:
    for number in range(count):
        writer.put(NewMessage(topic, b"x" * 100, keys=[f"{topic}-{number}"]))
    writer.dispatch()


def stream_of(path: Path, **options: str) -> StoreStreamReader:
    settings = parse_options({"path": str(path), "columnSet": "minimal", **options})
    return StoreStreamReader(settings, struct(columns_by_options(settings)))


def rows_of(stream: StoreStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
    return [
        row
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    ]


def run(stream: StoreStreamReader, start: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[Row]]]:
    """Batches as Spark runs them, until nothing is new; offsets travel as JSON."""
    while True:
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        if json.dumps(end) == json.dumps(start):
            return
        yield end, rows_of(stream, json.loads(json.dumps(start)), json.loads(json.dumps(end)))
        start = json.loads(json.dumps(end))


def places(rows: list[Row]) -> list[int]:
    return sorted(row["physicalOffset"] for row in rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "limits",
    [{}, {"maxOffsetsPerTrigger": "70"}, {"maxBytesPerTrigger": "9K"},
     {"maxOffsetsPerTrigger": "70", "maxBytesPerTrigger": "1K"}],
)  # fmt: skip
def test_every_message_once(writer: StoreWriter, mode: str, limits: dict[str, str]) -> None:
    """Over files of the log, with a topic that appears on the way, while the writer goes on."""
    put(writer, 150)
    given = {"streamOffsets": mode, "startingOffsets": "earliest", **limits}
    stream = stream_of(writer.root, **given)
    start, seen, batches = stream.initialOffset(), [], []
    for end, rows in run(stream, start):
        assert rows or not limits
        seen += rows
        batches.append((start, end, places(rows)))
        start = end
        if len(batches) in (1, 3):
            put(writer, 40, f"T{len(batches)}")
        if "maxOffsetsPerTrigger" in limits:
            assert len(rows) <= 70
        if "maxBytesPerTrigger" in limits and mode == "commitlog" and len(rows) > 1:
            assert sum(row["size"] for row in rows) <= int(limits["maxBytesPerTrigger"][:-1]) << 10
    with writer.read() as store:
        expected = [stored.physical_offset for stored in store.messages()]
    assert places(seen) == expected
    assert len(batches) > (3 if limits else 1)
    # A batch that Spark runs again, in another process and later, has the same rows.
    again = stream_of(writer.root, **given)
    for first, last, found in batches:
        assert places(rows_of(again, first, last)) == found


@pytest.mark.parametrize("mode", MODES)
def test_available_now_stops_at_what_was_there(writer: StoreWriter, mode: str) -> None:
    put(writer, 50)
    stream = stream_of(writer.root, streamOffsets=mode, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    stream.prepareForTriggerAvailableNow()
    seen = []
    for _, rows in run(stream, stream.initialOffset()):
        seen += rows
        put(writer, 10)
    assert len(seen) == 50
    assert stream.reportLatestOffset() != stream.latestOffset()


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_waits_for_enough(writer: StoreWriter, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until there are minOffsetsPerTrigger, or maxTriggerDelay has passed since the last batch."""
    now = 1000.0
    monkeypatch.setattr("rmqtool.spark.stream.time.monotonic", lambda: now)
    stream = stream_of(writer.root, streamOffsets=mode, startingOffsets="earliest",
                       minOffsetsPerTrigger="30", maxTriggerDelay="10m")  # fmt: skip
    start = stream.initialOffset()
    put(writer, 29)
    assert not list(run(stream, start))
    put(writer, 1)
    ((end, rows),) = run(stream, start)
    assert len(rows) == 30
    put(writer, 5)
    assert not list(run(stream, end))
    now += 601
    assert [len(rows) for _, rows in run(stream, end)] == [5]
    available = stream_of(writer.root, streamOffsets=mode, minOffsetsPerTrigger="30")
    available.prepareForTriggerAvailableNow()
    assert [len(rows) for _, rows in run(available, end)] == [5]


def test_where_a_stream_starts(writer: StoreWriter) -> None:
    """At the end, as with Kafka; or where options say."""
    put(writer, 40)
    with writer.read() as store:
        end, offsets = store.end_offset(), [stored.physical_offset for stored in store.messages()]
        middle = next(stored for stored in store.messages() if stored.physical_offset == offsets[20])
    path = writer.root
    name = path.name
    assert stream_of(path).initialOffset() == {"commitlog": {name: end}}
    assert stream_of(path, startingOffsets="earliest").initialOffset() == {"commitlog": {name: 0}}
    assert stream_of(path, startingPhysicalOffset="500").initialOffset() == {"commitlog": {name: 500}}
    since = stream_of(path, startingTimestamp=str(middle.message.store_timestamp))
    found = [row for _, rows in run(since, since.initialOffset()) for row in rows]
    assert {row["physicalOffset"] for row in found} >= set(offsets[20:])
    queues = json.dumps({"T": {"0": 5, "1": -2, "2": -1}})
    assert stream_of(path, subscribe="T", startingOffsets=queues).initialOffset() == {
        "queues": {"T": {name: {"0": 5, "1": 0, "2": 13}}}
    }
    assert stream_of(path, assign='{"T":[1]}', streamOffsets="queue").initialOffset() == {
        "queues": {"T": {name: {"1": 13}}}
    }
    since = middle.message.store_timestamp
    times = json.dumps({"T": dict.fromkeys(("0", "1", "2"), since)})
    with writer.read() as store:
        starts = {
            str(queue_id): min(
                each.message.queue_offset
                for each in store.messages()
                if each.message.queue_id == queue_id and each.message.store_timestamp >= since
            )
            for queue_id in range(3)
        }
    assert stream_of(path, subscribe="T", startingOffsetsByTimestamp=times).initialOffset() == {
        "queues": {"T": {name: starts}}
    }
    only = stream_of(path, assign='{"T":[1]}', startingOffsets="earliest")
    assert [len(rows) for _, rows in run(only, only.initialOffset())] == [13]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets"),
        ({"endingTimestamp": "5"}, "endingTimestamp"),
        ({"subscribe": "T", "startingOffsets": '{"T":{"0":1}}', "streamOffsets": "commitlog"},
         "streamOffsets"),
        ({"startingPhysicalOffset": "5", "streamOffsets": "queue"}, "startingPhysicalOffset"),
    ],
)  # fmt: skip
def test_options_that_no_stream_has(tmp_path: Path, given: dict[str, str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        stream_of(tmp_path, **given)


@pytest.mark.parametrize("mode", MODES)
def test_what_expired_before_it_was_read_is_data_loss(writer: StoreWriter, mode: str) -> None:
    """An error that says so; or the rest, with a warning."""
    put(writer, 400)
    given = {"streamOffsets": mode, "startingOffsets": "earliest"}
    start = stream_of(writer.root, **given).initialOffset()
    writer.close()
    with Store.open(writer.root) as store:
        first, low = store.layout.commit_log[0].path, store.layout.commit_log[1].file_from_offset
        left = [stored.physical_offset for stored in store.messages() if stored.physical_offset >= low]
    first.unlink()
    stream = stream_of(writer.root, **given)
    with pytest.raises(DataLossError, match="starts at"):
        stream.partitions(start, stream.latestOffset(start))
    loose = stream_of(writer.root, **given, failOnDataLoss="false")
    with pytest.warns(UserWarning, match="starts at"):
        assert places(rows_of(loose, start, loose.latestOffset(start))) == left


@pytest.mark.parametrize("name", ["kind_tiered_540/tiered", "kind_compaction_540/compaction"])
def test_queue_logs_are_read_by_queue_offsets(cases: Library, name: str) -> None:
    """Physical offsets in them change, so these do not count for a stream."""
    folder, _, inner = name.partition("/")
    path = cases.path(folder) / inner
    given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
    with pytest.raises(UsageError, match="physical offsets in it change"):
        stream_of(path, **given).initialOffset()
    stream = stream_of(path, streamOffsets="queue", **given)
    batches = [rows for _, rows in run(stream, stream.initialOffset())]
    with Store.open(path) as store:
        expected = [each.physical_offset for each in store.messages()]
    assert places([row for rows in batches for row in rows]) == expected and len(batches) > 1


def test_another_log_in_the_place_of_the_one_that_was_read(writer: StoreWriter, tmp_path: Path) -> None:
    """It is longer, and its records lie otherwise."""
    put(writer, 60)
    end = stream_of(writer.root).initialOffset()
    other = tmp_path / "other" / writer.root.name
    other.parent.mkdir()
    with StoreWriter.create(other, auto_create_queues=3, **SIZES) as longer:
        put(longer, 90, "Longer")
    assert stream_of(writer.root).latestOffset(end) == end
    with pytest.raises(DataLossError, match="inside a record"):
        stream_of(other).latestOffset(end)
    with pytest.warns(UserWarning, match="inside a record"):
        found = stream_of(other, failOnDataLoss="false").latestOffset(end)
    assert found == stream_of(other).initialOffset()


@pytest.mark.parametrize("mode", MODES)
def test_a_log_that_is_shorter_than_what_was_read(writer: StoreWriter, mode: str, tmp_path: Path) -> None:
    """After a recovery that cut it, or another store in its place."""
    put(writer, 60)
    end = stream_of(writer.root, streamOffsets=mode).initialOffset()
    other = tmp_path / "other" / writer.root.name
    other.parent.mkdir()
    with StoreWriter.create(other, auto_create_queues=3, **SIZES) as shorter:
        put(shorter, 30)
    with pytest.raises(DataLossError, match="ends at"):
        stream_of(other, streamOffsets=mode).latestOffset(end)
    with pytest.warns(UserWarning, match="ends at"):
        found = stream_of(other, streamOffsets=mode, failOnDataLoss="false").latestOffset(end)
    assert found == stream_of(other, streamOffsets=mode).initialOffset()
    with pytest.raises(InputError, match="streamOffsets"):
        stream_of(other, streamOffsets="queue" if mode == "commitlog" else "commitlog").latestOffset(end)


def test_spark_restarts_from_a_checkpoint(spark: Any, writer: StoreWriter, tmp_path: Path) -> None:
    """Three runs of AvailableNow with limits, the writer appends between and during them: no row twice."""
    put(writer, 300)

    def run_once(during: int = 0) -> None:
        frame = (
            spark.readStream.format("rocketmq-store")
            .options(columns="topic,queueId,queueOffset,physicalOffset,body", maxOffsetsPerTrigger="200",
                     startingOffsets="earliest")
            .load(str(writer.root))
        )  # fmt: skip
        query = (
            frame.where("queueId <> 1").writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )  # fmt: skip
        put(writer, during, "During")
        query.awaitTermination()
        assert query.exception() is None

    def rows() -> list[int]:
        files = [file for file in (tmp_path / "out").glob("*.parquet")]
        return sorted(
            place for file in files for place in pq.read_table(file).column("physicalOffset").to_pylist()
        )

    def expected() -> list[int]:
        with writer.read() as store:
            return [each.physical_offset for each in store.messages() if each.message.queue_id != 1]

    run_once(during=30)
    assert set(rows()) <= set(expected())
    put(writer, 250)
    run_once()
    assert rows() == expected()
    run_once()  # nothing is new
    assert rows() == expected()
    log = sorted(
        int(entry.name) for entry in (tmp_path / "checkpoint" / "offsets").iterdir() if entry.name.isdigit()
    )
    assert len(log) >= 4
    last = (tmp_path / "checkpoint" / "offsets" / str(log[-1])).read_text().splitlines()[-1]
    assert json.loads(last) == {"commitlog": {writer.root.name: writer.log.end}}
