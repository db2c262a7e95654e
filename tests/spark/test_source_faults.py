"""What the source says of stores, offsets and names that are not there, and of sizes that make no sense."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from rmqtool.errors import InputError, UsageError
from rmqtool.read.store import Store
from rmqtool.spark.bounds import DataLossError
from rmqtool.spark.options import parse_options
from rmqtool.spark.partitions import PIECE_BYTES_MIN, plan_scan
from rmqtool.spark.schema import columns_by_options
from rmqtool.spark.stream import StoreStreamReader
from tests.spark.frames import read, read_pieces, struct
from tests.support.stores import Library

SMALL = {"columns": "topic,queueId,queueOffset,physicalOffset"}


def test_a_log_that_is_gone_is_damage(cases: Library) -> None:
    """Queues without a commit log are no empty store."""
    given = {"path": str(cases.path("gap_cl26_log_missing"))}
    for chosen in ({}, {"startingTimestamp": "0"}, {"columns": "topic,status,file,_corrupt_record"}):
        (row,) = read({**given, **chosen})
        assert (row["status"], row["file"], row["topic"]) == (["CL26"], "commitlog", None)
    assert json.loads(row["_corrupt_record"])["problem"] == "CL26"
    assert read({**given, "mode": "DROPMALFORMED"}) == []
    with pytest.raises(InputError, match="CL26"):
        read({**given, **SMALL, "mode": "FAILFAST"})


def test_a_segment_that_was_added_since_the_plan(cases: Library, tmp_path: Path) -> None:
    """In queue logs records have other places then: an error, not the messages of another queue."""
    tiered = cases.copy("kind_tiered_540", tmp_path / "store") / "tiered"
    settings = parse_options({"path": str(tiered), **SMALL})
    plan = plan_scan(settings)
    (topic,) = tiered.glob("*/b0/TopicA")
    shutil.copytree(topic, topic.with_name("Another"))
    with pytest.raises(InputError, match="segments have been added since the read was planned"):
        read_pieces(plan, settings)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"subscribe": "nosuch"}, "no store has the topic nosuch"),
        ({"topic": "pubtx"}, "no store has the topic pubtx; nearest: pubTx"),
        ({"subscribe": "pubTx,nosuch"}, "no store has the topic nosuch"),
        ({"assign": '{"nosuch":[0]}'}, "option assign: no store has queue nosuch/0"),
        ({"assign": '{"pubTx":[0,99]}'}, "option assign: no store has queue pubTx/99"),
        ({"startingPhysicalOffset": "0"}, "option startingPhysicalOffset: the log has offsets"),
        ({"startingPhysicalOffset": "9000000000"}, "option startingPhysicalOffset"),
        ({"endingPhysicalOffset": "9000000000"}, "option endingPhysicalOffset"),
    ],
)  # fmt: skip
def test_what_no_store_has_is_data_loss(cases: Library, given: dict[str, str], words: str) -> None:
    """An error, or what there is with a warning."""
    path = cases.path("ok_540_expired" if "PhysicalOffset" in words else "ok_540_clean")
    there = [name for name in ("pubTx",) if name in "".join(given.values())]
    with pytest.raises(DataLossError, match=words):
        read({"path": str(path), **SMALL, **given})
    with pytest.warns(UserWarning, match=words):
        rows = read({"path": str(path), **SMALL, **given, "failOnDataLoss": "false"})
    if "PhysicalOffset" not in words:
        assert {row["topic"] for row in rows} == set(there)
    elif "9000000000" not in given.get("startingPhysicalOffset", ""):
        assert rows == read({"path": str(path), **SMALL})


def test_what_a_store_has_is_no_data_loss(cases: Library) -> None:
    """Nor a topic that one of several stores has, nor the ends of the log."""
    path = cases.path("ok_540_expired")
    with Store.open(path) as store:
        files = store.commit_log.files
    bounds = {
        "startingPhysicalOffset": str(files[0].file_from_offset), "endingPhysicalOffset": str(files[-1].end),
    }  # fmt: skip
    assert read({"path": str(path), **SMALL, **bounds}) == read({"path": str(path), **SMALL})
    both = json.dumps([str(cases.path("ok_540_clean")), str(cases.path("ok_497_small_ipv6"))])
    assert read({"path": both, **SMALL, "subscribe": "pubTx"})


def test_a_stream_waits_for_topics(cases: Library) -> None:
    """A topic, or a queue, may come later."""
    for given in ({"subscribe": "nosuch"}, {"assign": '{"nosuch":[0]}'}):
        settings = parse_options({"path": str(cases.path("ok_540_clean")), **given, **SMALL})
        reader = StoreStreamReader(settings, struct(columns_by_options(settings)))
        first = reader.initialOffset()
        reader.partitions(first, reader.latestOffset(first))


@pytest.mark.parametrize("given", [{"minPartitions": "100000"}, {"maxBytesPerPartition": "1"}])
def test_pieces_are_not_made_ever_smaller(cases: Library, given: dict[str, str]) -> None:
    """So many partitions cannot be: planning ends soon, with pieces that are worth a task."""
    settings = parse_options({"path": str(cases.path("ok_540_clean")), **SMALL, **given})
    begun = time.process_time()
    plan = plan_scan(settings)
    assert time.process_time() - begun < 5
    assert len(plan.pieces) * PIECE_BYTES_MIN <= 2 * plan.bytes_total
    assert len(plan.pieces) * PIECE_BYTES_MIN * 4 >= plan.bytes_total
    assert read_pieces(plan, settings).to_pylist() == read({"path": settings.paths[0], **SMALL})


def test_a_number_of_partitions_has_a_limit() -> None:
    with pytest.raises(UsageError, match="option minPartitions: 999999999999 is more than 100000"):
        parse_options({"minPartitions": "999999999999"})
