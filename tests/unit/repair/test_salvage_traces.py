"""Salvage: lost records that no unit has, of which the header or the end is left."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.formats import message
from rmqtool.formats.message import Message
from rmqtool.read.store import Store
from rmqtool.repair.salvage import LostRecord, traces
from tests.support.build_store import LOG_FILE_SIZE, patch
from tests.support.records import record
from tests.support.salvage_stores import identity, log_path, made, names
from tests.support.whole_store import keyed
from tests.unit.repair.test_salvage import check_mended, salvaged

HEAD = message.HEAD_SIZE_V4


@pytest.fixture
def stored(tmp_path: Path) -> list[Message]:
    """60 records of two queues, without units."""
    records = made(tmp_path / "store", keyed(60))
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    return records


def overwrite(root: Path, start: int, data: bytes) -> None:
    patch(log_path(root, start), start % LOG_FILE_SIZE, data)


def place(one: LostRecord) -> tuple[int, int, str]:
    return one.physical_offset, one.size, one.known_from


def topic_at(one: Message) -> int:
    return one.physical_offset + HEAD + one.body_length


def rows(root: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The lost records of recover."""
    main(["recover", str(root), "--json"])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["lost"]
    return found


def fields(root: Path, offset: int, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["dump", str(root), "--explain", str(offset), "--body", "hex", "--format", "jsonl"]) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {each["field"]: each for each in found}


@pytest.mark.parametrize("left", [0, 3, 10])
def test_a_header_and_the_body(
    tmp_path: Path, stored: list[Message], capsys: pytest.CaptureFixture[str], left: int
) -> None:
    """Its topic is lost, or a part or all of it is left; other records follow in the hole."""
    root, (one, *others) = tmp_path / "store", stored[5:8]
    start = topic_at(one) + left
    overwrite(root, start, bytes(others[-1].physical_offset + others[-1].total_size - start))
    result = salvaged(root)
    assert sorted(names(result.lost)) == sorted(identity(stored[5:8]))
    assert place(result.lost[0]) == (one.physical_offset, one.total_size, "header")
    assert names(result.lost[:1]) == identity([one]) and result.lost[0].sure
    (row, *rest) = rows(root, capsys)
    assert not any(each["remains"] for each in rest)
    assert row["remains"]["header"] and row["remains"]["body_bytes"] == one.body_length
    shown = fields(root, one.physical_offset, capsys)
    assert bytes.fromhex(shown["body"]["hex"]) == one.body
    check_mended(root, result)


def test_a_header_before_others_of_its_queue_that_are_lost(tmp_path: Path) -> None:
    """The number in the header says which of them it is; the others share what is left of the hole."""
    root = tmp_path / "store"
    stored = made(root, keyed(60, queues=1))
    shutil.rmtree(root / "consumequeue")
    overwrite(root, stored[5].physical_offset, bytes(stored[5].total_size))
    overwrite(root, topic_at(stored[6]), bytes(stored[7].physical_offset - topic_at(stored[6])))
    overwrite(root, stored[7].physical_offset, bytes(stored[7].total_size))
    result = salvaged(root)
    assert names(result.lost) == identity(stored[5:8])
    assert [place(one)[:2] for one in result.lost] == [
        (one.physical_offset, one.total_size) for one in stored[5:8]
    ]
    assert [one.known_from for one in result.lost] == ["gap", "header", "gap"]


@pytest.mark.parametrize("hole", ["zeros", "noise"])
def test_the_end_behind_a_header_that_is_lost(
    tmp_path: Path, stored: list[Message], capsys: pytest.CaptureFixture[str], hole: str
) -> None:
    """The length of the body and the fields before it say where it begins."""
    root, first, one = tmp_path / "store", stored[5], stored[6]
    size = first.total_size + 64
    overwrite(
        root, first.physical_offset, bytes(size) if hole == "zeros" else random.Random(1).randbytes(size)
    )
    result = salvaged(root)
    assert names(result.lost) == identity([first, one])
    assert [place(each) for each in result.lost] == [
        (first.physical_offset, first.total_size, "gap"),
        (one.physical_offset, one.total_size, "end"),
    ]
    lost, row = rows(root, capsys)
    assert lost["remains"] is None
    assert row["keys"] == ["order6", "user0"] and row["uniq_key"] == "U00000006"
    assert row["remains"]["body_bytes"] == row["remains"]["body_length"] == one.body_length
    for offset in (one.physical_offset, one.physical_offset + 100):
        shown = fields(root, offset, capsys)
        assert bytes.fromhex(shown["body"]["hex"]) == one.body
        assert shown["properties.UNIQ_KEY"]["value"] == "U00000006"
    check_mended(root, result)


def test_the_end_behind_a_body_that_is_lost_in_part(
    tmp_path: Path, stored: list[Message], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing says where it begins, but topic and properties are left: it is the last one of the hole."""
    root, first, one = tmp_path / "store", stored[5], stored[6]
    start = first.physical_offset
    overwrite(root, start, bytes(one.physical_offset + HEAD + 50 - start))
    result = salvaged(root)
    assert sorted(names(result.lost)) == sorted(identity([first, one]))
    row = rows(root, capsys)[-1]
    assert (row["known_from"], row["remains"]["body_length"]) == ("end", None)
    assert row["remains"]["properties"] and row["keys"] == ["order6", "user0"]
    assert fields(root, row["physical_offset"], capsys)["properties.KEYS"]["value"] == "order6 user0"
    check_mended(root, result)


def test_the_header_of_the_last_record(
    tmp_path: Path, stored: list[Message], capsys: pytest.CaptureFixture[str]
) -> None:
    """It was not written in full, and no queue has it: the log itself says which topic lacks the number."""
    root, one = tmp_path / "store", stored[-1]
    start = topic_at(one) - 10
    overwrite(root, start, bytes(one.physical_offset + one.total_size - start))
    overwrite(root, stored[5].physical_offset, bytes(stored[5].total_size))
    row = rows(root, capsys)[-1]
    assert (row["topic"], row["queue_id"], row["queue_offset"]) == identity([one])[0]
    assert (row["fate"], row["known_from"]) == ("cut", "header")
    assert row["remains"]["body_bytes"] == one.body_length - 10
    overwrite(root, stored[5].physical_offset, message.encode(stored[5]))
    (row,) = rows(root, capsys)  # without a hole the order of the queues is not read
    assert row["topic"] is None and row["remains"]["body_bytes"] == one.body_length - 10


def test_each_place_holds_a_record(tmp_path: Path) -> None:
    """Two numbers are missing in two places: neither place gets both."""
    root = tmp_path / "store"
    other = made(root, [*keyed(6, queues=1), record("Other", b"x" * 400), *keyed(6, queues=1, first=6)])
    shutil.rmtree(root / "consumequeue/TopicTest")
    overwrite(root, other[5].physical_offset, bytes(sum(each.total_size for each in other[5:8])))
    result = salvaged(root)
    assert [place(one)[:2] for one in result.lost] == [
        (one.physical_offset, one.total_size) for one in other[5:8]
    ]
    assert names(result.lost) == identity(other[5:8])
    assert [one.sure for one in result.lost] == [False, True, False]


@pytest.mark.parametrize("has_units", [True, False])
def test_a_place_that_is_guessed_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, has_units: bool
) -> None:
    """Three lost records share a hole: only units, or what is left of one, say where each began."""
    monkeypatch.setenv("COLUMNS", "200")
    root = tmp_path / "store"
    stored = made(root, keyed(60))
    if not has_units:
        shutil.rmtree(root / "consumequeue")
    start = topic_at(stored[5])
    overwrite(root, start, bytes(stored[8].physical_offset - start))
    main(["recover", str(root), "--format", "text"])
    lines = capsys.readouterr().out.splitlines()
    marked = [int(line.split()[3]) for line in lines if " guessed " in line]
    assert stored[5].physical_offset not in marked and len(marked) == (0 if has_units else 2)
    (columns,) = [line for line in lines if line.startswith("topic ") and " size " in line]
    assert (" place " in columns) is not has_units


@pytest.mark.parametrize("kind", ["zeros", "noise", "text"])
def test_nothing_is_invented(
    tmp_path: Path, stored: list[Message], capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Of zeros, of noise, and of a hole that holds another record's header and text."""
    root = tmp_path / "store"
    start, size = stored[5].physical_offset, sum(each.total_size for each in stored[5:8])
    foreign = message.encode(stored[20])[:HEAD] + b"\1T\0\3A\1b" * size
    data = {"zeros": bytes(size), "noise": random.Random(2).randbytes(size), "text": foreign[: size - 9]}
    overwrite(root, start, data[kind].ljust(size, b"x"))
    found = rows(root, capsys)
    assert len(found) == 3 and not any(each["remains"] for each in found)
    assert {each["known_from"] for each in found} == {"gap"}


def test_many_lost_records_before_it_do_not_hide_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of which nothing is there, as those of a missing file, are not counted as read."""
    monkeypatch.setattr("rmqtool.repair.recover.lost.READ_MAX", 1)
    root = tmp_path / "store"
    stored = made(root, keyed(60))
    for each in stored[5:8]:
        overwrite(root, each.physical_offset, bytes(each.total_size))
    one = stored[9]
    overwrite(root, one.physical_offset + HEAD + 20, bytes(one.total_size - HEAD - 20))
    row = rows(root, capsys)[-1]
    assert row["remains"]["body_bytes"] == 20
    with Store.open(root) as store:
        assert store.remains(one.physical_offset) is not None


def test_the_header_before_other_units_after_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Units of a queue after the log's end are one row, without a record of which something is left."""
    root = tmp_path / "store"
    stored = made(root, keyed(60, queues=1))
    one, others = stored[-4], stored[-3:]
    start = topic_at(one) - 10
    overwrite(root, start, bytes(one.physical_offset + one.total_size - start))
    for each in others:
        overwrite(root, each.physical_offset, bytes(each.total_size))
    first, second = rows(root, capsys)
    assert (first["queue_offset"], first["count"], second["count"]) == (one.queue_offset, 1, 3)
    assert first["remains"]["body_bytes"] == one.body_length - 10 and second["remains"] is None


def test_a_header_after_a_file_that_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that the file lacks are not searched again and again until no more may be read."""
    root = tmp_path / "store"
    monkeypatch.setattr(traces, "_BYTES_MAX", 2 * LOG_FILE_SIZE)
    stored = made(root, keyed(400))
    shutil.rmtree(root / "consumequeue")
    one = next(each for each in stored[5:] if each.physical_offset > 2 * LOG_FILE_SIZE)
    overwrite(root, topic_at(one), bytes(one.physical_offset + one.total_size - topic_at(one)))
    os.truncate(log_path(root, 0), stored[5].physical_offset + 10)
    found = {each.physical_offset: place(each) for each in salvaged(root).lost}
    assert found[one.physical_offset] == (one.physical_offset, one.total_size, "header")
