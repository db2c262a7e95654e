"""Tiered storage and compacted topics: the broker's answers, segments of every form, damage, refusals."""

from __future__ import annotations

import json
import lzma
import os
import pickle
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqtool.cli import main
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, EXIT_REFUSED, EXIT_USAGE
from rmqtool.formats import tiered
from rmqtool.formats.consume_queue import BATCH_UNIT
from rmqtool.formats.message import BLANK_MAGIC
from rmqtool.message.rows import message_row
from rmqtool.read.access import plan_access
from rmqtool.read.messages import message_batches
from rmqtool.read.selection import Selection
from rmqtool.read.split import split
from rmqtool.read.store import Store
from rmqtool.report.copy import _sizes
from rmqtool.storage.queue_logs.log_file import LogFile
from rmqtool.storage.queue_logs.model import SPAN, Places, Segment
from rmqtool.storage.random_file import RandomFile
from rmqtool.storage.storage import StoragePath
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.support.build_store import patch
from tests.support.stores import Library, case
from tests.support.trees import unchanged
from tests.support.whole_store import codes_of, findings_of, report_of

Capture = pytest.CaptureFixture[str]

TIERED, COMPACTED = "kind_tiered_540", "kind_compaction_540"
FOLDERS = {TIERED: "tiered", COMPACTED: "compaction"}
BROKER = "tiered/212d6b50_DefaultCluster/b0"
FIRST = tiered.segment_name(0)
QUEUES = {
    TIERED: {
        ("TopicA", 0): 30, ("TopicA", 1): 30, ("TopicB", 0): 14, ("TopicTimer", 0): 3, ("TopicTrans", 0): 1,
    },
    COMPACTED: {("TopicCompact", 0): 18},
}  # fmt: skip


def answers_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress((case(name).folder / "answers.json.xz").read_bytes()))
    return found


def opened(cases: Library, name: str) -> Store:
    return Store.open(cases.path(name) / FOLDERS[name])


@pytest.fixture
def copy(cases: Library, tmp_path: Path) -> Path:
    """The store with a tiered copy, to be changed."""
    return cases.copy(TIERED, tmp_path / "store")


def rows_of(store: Store, selection: Selection) -> Iterator[dict[str, Any]]:
    for stored in store.messages(selection):
        yield message_row(stored.message, stored.physical_offset, stored.file)


@pytest.mark.parametrize("name", FOLDERS)
def test_messages_are_as_the_broker_sends_them(name: str, cases: Library) -> None:
    """Every message of every queue, in all fields; the offset in the log of the queue is the broker's."""
    topics = answers_of(name)["topics"]
    with unchanged(cases.path(name)), opened(cases, name) as store:
        logs = store.layout.queue_logs
        assert logs is not None
        counts = {key: store.messages(Selection(topics=(key[0],), queues=(key[1],))) for key in store.queues}
        assert {key: len(list(found)) for key, found in counts.items()} == QUEUES[name]
        for topic, queue_id in QUEUES[name]:
            answer = topics[f"{topic}-{queue_id}"]
            found = []
            for row in rows_of(store, Selection(topics=(topic,), queues=(queue_id,))):
                assert row["status"] == ["ok"] and row["topic"] == topic and row["queue_id"] == queue_id
                found.append([
                    row["queue_offset"], logs.offset_of(row["physical_offset"]), row["size"],
                    row["store_timestamp_ms"], row["tags"], " ".join(row["keys"]) or None, row["body_crc"],
                    row["uniq_key"],
                ])  # fmt: skip
            expected = [[*each[:5], each[5], *each[6:7], each[7]] for each in answer["messages"]]
            assert [each[:7] for each in found] == [each[:7] for each in expected]
            assert [each[7] for each in found if each[7]] == [each[7] for each in expected if each[7]][
                : len(found)
            ]
            if name == TIERED:
                assert (store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)) == (
                    answer["min"], answer["max"]
                )  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_every_queue_offset_is_found(name: str, cases: Library) -> None:
    """By its unit; of a compacted queue what was not kept is not there."""
    with opened(cases, name) as store:
        for topic, queue_id in QUEUES[name]:
            kept = {each[0] for each in answers_of(name)["topics"][f"{topic}-{queue_id}"]["messages"]}
            for offset in range(max(kept) + 2):
                stored = store.get_by_queue_offset(topic, queue_id, offset)
                assert (stored is not None) == (offset in kept), (topic, queue_id, offset)
                assert stored is None or stored.message.queue_offset == offset


def test_keys_are_looked_up_as_the_broker_does(cases: Library, capfd: Capture, json_lines: None) -> None:
    queries = {key: found for key, found in answers_of(TIERED)["query"].items() if isinstance(found, list)}
    assert len(queries) == 5
    path = cases.path(TIERED) / "tiered"
    with opened(cases, TIERED) as store:
        logs = store.layout.queue_logs
        assert logs is not None
        for query, expected in queries.items():
            topic, _, key = query.partition("#")
            capfd.readouterr()
            assert main(["lookup", str(path), "--topic", topic, "--key", key]) == EXIT_OK
            rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
            assert {row["found_by"] for row in rows} == {"index"}
            assert sorted(logs.offset_of(row["physical_offset"]) or 0 for row in rows) == sorted(expected)


@pytest.mark.parametrize("name", FOLDERS)
def test_verify_checks_every_record_unit_and_key(name: str, cases: Library) -> None:
    with unchanged(cases.path(name)):
        report = report_of(cases.path(name) / FOLDERS[name])
        whole = report_of(cases.path(name))
    total = sum(QUEUES[name].values())
    assert (report.records, report.units, whole.copied_records) == (total, total, total)
    assert report.index_entries == (166 if name == TIERED else 0)


def test_the_way_to_compacted_records(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """info, dump and verify of the store say how many there are, whether they agree, and how to read them."""
    store = cases.copy(COMPACTED, tmp_path / "store")
    line = f"rmqtool dump {store}/compaction"
    assert main(["info", str(store)]) in (EXIT_OK, EXIT_FINDINGS)
    shown = " ".join(capfd.readouterr().out.split())
    total = sum(QUEUES[COMPACTED].values())
    assert f"compacted TopicCompact queue 0: {total} records, compacted up to 1286 {line}" in shown
    assert main(["dump", str(store), "--what", "compaction"]) == EXIT_OK
    assert line in " ".join(capfd.readouterr().err.split())
    assert main(line.split()[1:]) == EXIT_OK
    assert "v1299" in capfd.readouterr().out
    main(["verify", str(store)])
    assert f"{total} compacted records agree with the log" in capfd.readouterr().err
    (newest,) = sorted((store / "compaction/compactionLog/TopicCompact/0").iterdir())[-1:]
    patch(newest, newest.read_bytes().index(b"v1299"), b"w")
    assert main(["verify", str(store)]) == EXIT_FINDINGS
    assert "compacted records do not all agree with the log" in capfd.readouterr().err


def divided(copy: Path, queue: str, *, coda: bool = False) -> None:
    """Divide log and queue of a queue into three segments each, as a small maximum size does."""
    folder = copy / BROKER / queue
    document = (copy / "config" / tiered.METADATA).read_text()
    units = (folder / "CONSUME_QUEUE" / FIRST).read_bytes()
    log = (folder / "COMMIT_LOG" / FIRST).read_bytes()
    count = len(units) // 20
    cuts = [count // 3, 2 * count // 3]
    table = json.loads(json.dumps(tiered_document(document)))
    for kind, data, ends in (
        ("CONSUME_QUEUE", units, [20 * cut for cut in cuts]),
        ("COMMIT_LOG", log, [int.from_bytes(units[20 * cut : 20 * cut + 8], "big") for cut in cuts]),
    ):
        name = {"COMMIT_LOG": "commitLogFileSegmentTable", "CONSUME_QUEUE": "consumeQueueFileSegmentTable"}[
            kind
        ]
        (folder / kind / FIRST).unlink()
        segments = {}
        for low, high in zip([0, *ends], [*ends, len(data)], strict=True):
            content = data[low:high]
            if coda and kind == "COMMIT_LOG" and high == len(data):
                content += tiered.CODA.pack(tiered.CODA.size, BLANK_MAGIC, 1)
            (folder / kind / tiered.segment_name(low)).write_bytes(content)
            segments[str(low)] = {"baseOffset": low, "size": len(content), "status": 1}
        table[name][f"b0/{queue}"] = segments
    (copy / "config" / tiered.METADATA).write_text(json.dumps(table))


def tiered_document(text: str) -> Any:
    from rmqtool.formats.fastjson import parse

    return parse(text)


@pytest.mark.parametrize("coda", [False, True])
def test_a_log_of_several_segments(copy: Path, cases: Library, coda: bool) -> None:
    """The same messages, at the same offsets of the log of their queue; nothing is damaged."""
    with opened(cases, TIERED) as store:
        before = [message for message in rows_of(store, Selection())]
        logs = store.layout.queue_logs
        assert logs is not None
        places = [logs.offset_of(row.pop("physical_offset")) for row in before]
    divided(copy, "TopicA/0", coda=coda)
    divided(copy, "TopicB/0")
    assert codes_of(copy) == [] == codes_of(copy / "tiered")
    with Store.open(copy / "tiered") as store:
        logs = store.layout.queue_logs
        assert logs is not None and len(logs.segments) == 9
        after = [message for message in rows_of(store, Selection())]
        assert [logs.offset_of(row.pop("physical_offset")) for row in after] == places
        for row in (*before, *after):
            del row["file"], row["offset_msg_id"]
        assert after == before
        assert store.max_offset("TopicA", 0) == 30


def test_segments_that_expired(copy: Path) -> None:
    """A broker deletes the oldest segments: of the log first, so the queue has units that lead nowhere."""
    divided(copy, "TopicA/0")
    folder = copy / BROKER / "TopicA/0/COMMIT_LOG"
    gone = sorted(folder.iterdir(), key=lambda path: path.name[8:])[0]
    document = tiered_document((copy / "config" / tiered.METADATA).read_text())
    del document["commitLogFileSegmentTable"]["b0/TopicA/0"]["0"]
    (copy / "config" / tiered.METADATA).write_text(json.dumps(document))
    gone.unlink()
    assert not [item for item in findings_of(copy / "tiered") if item.problem.severity == "error"
                and not item.problem.code.startswith("IX")]  # fmt: skip
    with Store.open(copy / "tiered") as store:
        assert len(list(store.messages(Selection(topics=("TopicA",), queues=(0,))))) == 20


READERS: dict[str, tuple[str, ...]] = {
    "dump": ("--stats-only",), "dump-rows": ("--gaps", "--format", "jsonl"),
    "dump-topic": ("--topic", "TopicB"), "export": ("--output", "NEW", "--output-format", "jsonl"),
    "stats": (), "tail": ("--topic", "TopicB"), "copy": ("--output", "NEW"),
    "lookup": ("--topic", "TopicB", "--queue", "0", "--queue-offset", "3"),
}  # fmt: skip


@pytest.mark.parametrize("command", READERS)
def test_readers_report_a_segment_that_is_missing(
    command: str, copy: Path, tmp_path: Path, capfd: Capture
) -> None:
    """As a missing file of a log: an error, and exit code 1. One that a broker has deleted is not missing."""
    (copy / BROKER / "TopicB/0/COMMIT_LOG" / FIRST).unlink()
    words = [str(tmp_path / "new") if word == "NEW" else word for word in READERS[command]]
    arguments = [command.partition("-")[0], str(copy / "tiered"), *words]
    with unchanged(copy):
        assert main(arguments) == EXIT_FINDINGS
    out, err = capfd.readouterr()
    assert "rmqtool: error: TS04 a segment of tiered storage is only in the metadata" in err
    assert f"(the metadata name it, and it is missing): {BROKER[7:]}/TopicB/0/COMMIT_LOG/{FIRST}" in err
    if command == "dump-rows":
        kinds = [json.loads(line)["kind"] for line in out.splitlines()]
        assert kinds.count("missing") == 1 and kinds.count("record") == 64
    if command in ("dump", "export", "stats"):
        metadata = copy / "config/tieredStoreMetadata.json"
        text = metadata.read_text()
        at = text.index('"status":0', text.index('"b0/TopicB/0"'))
        metadata.write_text(f'{text[:at]}"status":2{text[at + 10 :]}')
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        (tmp_path / "new").unlink(missing_ok=True) if (tmp_path / "new").is_file() else None
        assert main(arguments) == EXIT_OK
        assert "TS04" not in capfd.readouterr().err


def test_a_queue_without_its_units(copy: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tail leads to dump, verify names the path in the copy, and says why the index is not checked."""
    monkeypatch.setenv("COLUMNS", "1000")
    shutil.rmtree(copy / BROKER / "TopicTimer/0/CONSUME_QUEUE")
    shutil.rmtree(copy / "config")
    folder = copy / "tiered"
    assert main(["tail", str(folder), "--topic", "TopicTimer"]) == EXIT_FINDINGS
    err = capfd.readouterr().err
    line = f"rmqtool dump {folder} --topic TopicTimer"
    assert f"TopicTimer has lost units, which tail reads; its records: {line}" in err
    assert "no topic" not in err
    assert main(line.split()[1:]) == EXIT_OK
    assert main(["tail", str(folder), "--topic", "TopicA", "--limit", "1"]) == EXIT_OK
    found = {each.problem.code: each for each in findings_of(folder)}
    assert found["CQ13"].path == f"{BROKER.partition('/')[2]}/TopicTimer/0/CONSUME_QUEUE"
    assert "without the metadata of the broker" in found["UN01"].message


def test_a_queue_without_its_log(copy: Path, tmp_path: Path, capfd: Capture) -> None:
    """Without metadata only its units show that there was one: TS01, once."""
    (copy / BROKER / "TopicB/0/COMMIT_LOG" / FIRST).unlink()
    shutil.rmtree(copy / "config")
    export = ["export", "--output", str(tmp_path / "new"), "--output-format", "jsonl"]
    for command, code in ((["verify"], EXIT_INPUT), (export, EXIT_FINDINGS)):  # the index cannot be verified
        with unchanged(copy):
            assert main([*command, str(copy / "tiered")]) == code
        said = "".join(capfd.readouterr())
        assert said.count("TS01") - said.count("problems TS01") == 1
        assert "the log of a queue is missing, of which 14 units are there" in said


def test_readers_report_a_gap_between_segments(copy: Path, capfd: Capture) -> None:
    """TS01, once, also if the log is read in pieces, at the place of the segment after the gap."""
    folder = copy / BROKER / "TopicA/0/COMMIT_LOG"
    data = (folder / FIRST).read_bytes()
    second, third = (first_record_after(data, at) for at in (4000, 8000))
    (folder / FIRST).write_bytes(data[:second])
    (folder / tiered.segment_name(third)).write_bytes(data[third:])
    shutil.rmtree(copy / "config")  # without metadata
    with unchanged(copy):
        assert main(["dump", str(copy / "tiered"), "--stats-only"]) == EXIT_FINDINGS
    err = capfd.readouterr().err
    assert err.count("TS01 bytes between two segments of tiered storage are missing") == 1
    with Store.open(copy / "tiered") as store:
        access = plan_access(store, Selection())
        found: list[str] = []
        for piece in split(store, access, target_bytes=8000):
            batches = message_batches(
                store, access=piece, report=lambda each: found.append(each.problem.code)
            )
            assert sum(len(batch) for batch in batches) >= 0
        assert found.count("TS01") == 1


def first_record_after(data: bytes, start: int) -> int:
    """The position of the first record of a log that begins at `start` or later."""
    position = 0
    while position < start:
        position += int.from_bytes(data[position : position + 4])
    return position


def test_records_without_units_at_the_end_of_a_queue(copy: Path) -> None:
    """A broker commits the log before the queue: what lacks units at the end is a note."""
    path = copy / BROKER / "TopicA/1/CONSUME_QUEUE" / FIRST
    os.truncate(path, 400)
    assert sorted(codes_of(copy / "tiered")) == ["CQ01", "TS03"]  # TS03: the metadata say more


def test_messages_that_the_index_lacks_are_scanned(copy: Path, capfd: Capture, json_lines: None) -> None:
    """A key of a queue that no index segment holds is found in the log."""
    path = copy / BROKER / "rmq_sys_INDEX/0/INDEX" / FIRST
    data = path.read_bytes()
    items = np.frombuffer(data, tiered.INDEX_ITEM.dtype, 166, 28 + 8000).copy()
    items["topic_id"][items["topic_id"] == 0] = 77  # TopicA
    path.write_bytes(data[:8028] + items.tobytes())
    assert main(["lookup", str(copy / "tiered"), "--topic", "TopicA", "--key", "key7"]) == EXIT_OK
    (row,) = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (row["found_by"], row["queue_id"], row["queue_offset"]) == ("scan", 1, 3)


def test_times_select_in_every_queue(cases: Library) -> None:
    """The files of queues are in no order of times, and none is left out."""
    with opened(cases, TIERED) as store:
        times = sorted(stored.message.store_timestamp for stored in store.messages())
        middle = times[len(times) // 2]
        for selection, expected in (
            (Selection(since=middle), [time for time in times if time >= middle]),
            (Selection(until=middle), [time for time in times if time < middle]),
        ):
            batches = message_batches(store, selection, columns=["store_timestamp_ms"])
            found = [time for batch in batches for time in batch.column(0).to_pylist()]
            assert sorted(found) == expected


def test_the_folder_of_a_broker_and_of_several(copy: Path, capfd: Capture) -> None:
    with Store.open(copy / BROKER) as store:
        assert len(list(store.messages())) == 78 and store.layout.index_files
    shutil.copytree(copy / BROKER, copy / "tiered/212d6b50_DefaultCluster/b1")
    assert main(["info", str(copy / "tiered")]) == EXIT_INPUT
    error = capfd.readouterr().err
    assert "tiered copies of 2 brokers" in error and f"{copy / BROKER}" in error


def test_copy_makes_a_store_of_it(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    for name in FOLDERS:
        target = tmp_path / name
        assert main(["copy", str(cases.path(name) / FOLDERS[name]), "--output", str(target)]) == EXIT_OK
        assert report_of(target).records == sum(QUEUES[name].values())
        assert not codes_of(target)  # the last record of the last queue is not the newest


REFUSED = {
    "append": ("--topic", "TopicA", "--body", "x"), "recover": (), "rebuild": (), "expire": (),
    "deliver": ("--apply",),
}  # fmt: skip


@pytest.mark.parametrize("command", REFUSED)
@pytest.mark.parametrize("name", FOLDERS)
def test_nothing_writes_into_it(name: str, command: str, cases: Library, capfd: Capture) -> None:
    path = cases.path(name) / FOLDERS[name]
    with unchanged(cases.path(name)):
        code = main([command, str(path), *REFUSED[command]])
        assert code in ((EXIT_USAGE,) if command == "expire" else (EXIT_INPUT, EXIT_REFUSED, EXIT_USAGE))
    assert "Traceback" not in capfd.readouterr().err


def test_paths_go_to_other_processes(cases: Library) -> None:
    for name in FOLDERS:
        with opened(cases, name) as store:
            path = pickle.loads(pickle.dumps(store.layout.commit_log[0].path))  # noqa: S301
            assert isinstance(path, StoragePath) and path.stat().st_size == SPAN
            assert (
                path.read_bytes is not None
                and path.storage.open(path.inner).read(0, 8)[4:7] == b"\xda\xa3\x20"
            )


class Memory:
    """Bytes as a RandomFile."""

    is_near = True

    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def data_from(self, offset: int) -> int:
        return offset

    def hole_from(self, offset: int) -> int:
        return self.size

    def close(self) -> None:
        pass


def whole(file: RandomFile) -> int:
    return file.size


@pytest.mark.parametrize("seed", range(4))
def test_a_log_file_is_the_same_in_pieces(seed: int, cases: Library) -> None:
    """Read as a whole, compiled or plain, or in pieces that begin and end anywhere, also inside a head."""
    random = np.random.default_rng(seed)
    data = (cases.path(TIERED) / BROKER / "TopicA/0/COMMIT_LOG" / FIRST).read_bytes()
    base = int(random.integers(0, 1 << 40))
    patched = bytearray(data)
    position, starts = 0, []
    while position < len(data):
        starts.append(position)
        patched[position + 28 : position + 36] = (base + position).to_bytes(8, "big")
        position += int.from_bytes(data[position : position + 4], "big")
    foreign = starts[int(random.integers(len(starts)))]
    patched[foreign + 28 : foreign + 36] = (base + foreign + 1).to_bytes(8, "big")
    file = LogFile(Memory(bytes(patched)), base, 7 * SPAN, whole)
    expected = bytearray(patched)
    for start in starts:
        if start != foreign:
            expected[start + 28 : start + 36] = (7 * SPAN + start).to_bytes(8, "big")
    size = len(data)
    assert file.read(0, size) == expected
    many = bytearray(patched)
    file._patch_many(many, 0)
    assert many == expected
    tail = (SPAN - size).to_bytes(4, "big") + (BLANK_MAGIC & 0xFFFFFFFF).to_bytes(4, "big")
    expected += tail + bytes(64)
    for _ in range(200):
        low = int(random.integers(0, size + 16))
        length = int(random.integers(0, 600))
        assert file.read(low, length) == expected[low : low + length].ljust(length, b"\0")
    assert file.read(SPAN - 4, 100) == bytes(4)


def test_places() -> None:
    """One offset or many; before the first segment, between segments, and after all."""
    log = (Segment("a", 100, 50), Segment("b", 150, 50), Segment("c", 3 * SPAN, 50))
    places = Places(log, 4, 9 * SPAN)
    expected = {
        -5: -5, 0: 0, 99: 0, 100: 4 * SPAN, 149: 4 * SPAN + 49, 150: 5 * SPAN, 250: 5 * SPAN + 100,
        2 * SPAN: 9 * SPAN + (2 * SPAN - 150) % SPAN, 3 * SPAN + 1: 6 * SPAN + 1,
    }  # fmt: skip
    assert {offset: places.place(offset) for offset in expected} == expected
    assert places.places(np.array(list(expected), np.int64)).tolist() == list(expected.values())
    nothing = Places((), 1, SPAN)
    assert nothing.places(np.array([-1, 5])).tolist() == [nothing.place(-1), nothing.place(5)] == [-1, 0]


def test_names_of_segments() -> None:
    assert tiered.segment_name(0) == "cfcd208400000000000000000000"
    for name in (
        "cfcd208400000000000000000001",
        "cfcd20840000000000000000000",
        "x" * 28,
        "cfcd2084-0000000000000000000",
    ):
        assert tiered.base_offset_of(name) is None
    assert tiered.cluster_of("212d6b50_DefaultCluster") == "DefaultCluster"
    for name in (
        "212d6b50_Defaultcluster",
        "212d6b50",
        "212D6B50_DefaultCluster",
        "212d6b50_",
        "212d6b50_\udcff",
    ):
        assert tiered.cluster_of(name) is None


@pytest.mark.parametrize("seed", range(12))
def test_random_damage_gives_findings(
    seed: int, copy: Path, cases: Library, tmp_path: Path, capfd: Capture
) -> None:
    """Bytes of any file are changed: every command answers, nothing fails, and no byte changes."""
    random = np.random.default_rng(seed)
    store, name = (copy, TIERED) if seed % 2 else (cases.copy(COMPACTED, tmp_path / "compacted"), COMPACTED)
    files = [path for path in (store / FOLDERS[name]).rglob("*") if path.is_file()]
    files += [store / "config" / tiered.METADATA] * (name == TIERED)
    for _ in range(3):
        path = files[int(random.integers(len(files)))]
        size = path.stat().st_size
        match int(random.integers(3)):
            case 0:
                os.truncate(path, int(random.integers(size + 1)))
            case 1:
                patch(path, int(random.integers(max(size - 8, 1))), random.bytes(8))
            case _:
                patch(path, int(random.integers(min(max(size, 1), 300))), random.bytes(4))
    folder = store / FOLDERS[name]
    with unchanged(store):
        for arguments in (["info"], ["verify"], ["dump"], ["lookup", "--key", "key7"], ["stats"]):
            code = main([arguments[0], str(folder), *arguments[1:]])
            assert code in (EXIT_OK, EXIT_FINDINGS, EXIT_INPUT), (arguments, capfd.readouterr().err)
        assert main(["verify", str(store)]) in (EXIT_OK, EXIT_FINDINGS, EXIT_INPUT)
    assert "Traceback" not in capfd.readouterr().err


def compacted_store(root: Path, seed: int) -> tuple[Path, list[int]]:
    """A store with a compacted queue as the rule of a broker makes it, and the offsets that it keeps."""
    random = np.random.default_rng(seed)
    with StoreWriter.create(root, auto_create_queues=1) as writer:
        for number in range(120):
            keys = (
                [] if random.random() < 0.2 else [f"k{int(random.integers(9))}"] * int(random.integers(1, 3))
            )
            body = b"" if random.random() < 0.15 else f"body {number}".encode()
            writer.put(NewMessage("TopicC", body, keys=tuple(keys), queue_id=0))
    last = int(random.integers(40, 110))
    with Store.open(root) as store:
        stored = list(store.messages(Selection(topics=("TopicC",))))
        records = {each.message.queue_offset: store.commit_log.bytes_of(each) for each in stored}
        rows = {
            each.message.queue_offset: message_row(each.message, each.physical_offset, "") for each in stored
        }
    newest = {" ".join(row["keys"]): offset for offset, row in rows.items() if offset <= last and row["keys"]}
    kept = sorted(offset for offset in newest.values() if rows[offset]["body_length"])
    kept += range(last + 1, 120)
    log, units = bytearray(), bytearray()
    for offset in kept:
        row, data = rows[offset], records[offset]
        units += BATCH_UNIT.pack(len(log), len(data), 0, row["store_timestamp_ms"], offset, 1, -1, 0)
        log += data[:28] + len(log).to_bytes(8, "big") + data[36:]
    unit_size = len(units) + 460
    for kind, content in (("compactionLog", log), ("compactionCq", units)):
        folder = root / "compaction" / kind / "TopicC/0"
        folder.mkdir(parents=True)
        size = -(-(len(content) + 460) // unit_size) * unit_size
        (folder / f"{0:020}").write_bytes(bytes(content).ljust(size, b"\0"))
    (root / "compaction/position-checkpoint").write_text(json.dumps({"queueOffsetMap": {"TopicC_0": last}}))
    return root, kept


@pytest.mark.parametrize("seed", range(3))
def test_a_compaction_keeps_the_last_message_of_each_key(seed: int, tmp_path: Path) -> None:
    """With messages without keys, with several keys and with empty bodies; one that is lost is missed."""
    root, kept = compacted_store(tmp_path / "store", seed)
    assert codes_of(root, passes=["compaction"]) == []
    with Store.open(root / "compaction") as store:
        assert [stored.message.queue_offset for stored in store.messages()] == kept
        selection = Selection(topics=("TopicC",))
        assert [stored.message.queue_offset for stored in store.messages(selection)] == kept
        batches = message_batches(
            store, selection, columns=["queue_offset"], access=plan_access(store, selection, via="queue")
        )
        assert [offset for batch in batches for offset in batch.column(0).to_pylist()] == kept
        found = [store.get_by_queue_offset("TopicC", 0, offset) for offset in range(120)]
        assert [offset for offset, stored in enumerate(found) if stored is not None] == kept
    position = json.loads((root / "compaction/position-checkpoint").read_text())["queueOffsetMap"]["TopicC_0"]
    (root / "compaction/position-checkpoint").write_text(
        json.dumps({"queueOffsetMap": {"TopicC_0": position + 30}})
    )
    assert "CC03" in codes_of(root, passes=["compaction"])


def test_a_copy_has_the_file_size_of_a_broker(cases: Library, tmp_path: Path) -> None:
    """Not the span between the places of two segments."""
    with Store.open(cases.path(TIERED) / "tiered") as store:
        assert _sizes(store)["commit_log_file_size"] == 1 << 30


@pytest.mark.parametrize("sides", [("tiered", "tiered"), ("", "tiered"), ("tiered", "")])
def test_diff_refuses_a_copy(sides: tuple[str, str], cases: Library, capfd: Capture) -> None:
    """Its places are not physical offsets of any other log."""
    paths = [str(cases.path(TIERED) / side) for side in sides]
    assert main(["diff", *paths]) == EXIT_USAGE
    assert "diff does not read tiered storage" in capfd.readouterr().err
    assert main(["diff", str(cases.path(COMPACTED) / "compaction"), paths[0]]) == EXIT_USAGE
    assert "diff does not read" in capfd.readouterr().err


INDEX_FILE = f"{BROKER}/rmq_sys_INDEX/0/INDEX/{FIRST}"


@pytest.mark.parametrize("times", [(-(1 << 63), (1 << 63) - 1), (0, (1 << 63) - 1), (-(1 << 62), 0)])
def test_times_of_an_index_file_out_of_range(times: tuple[int, int], copy: Path) -> None:
    """One finding on this file; the other checks go on, and so do other commands."""
    patch(copy / INDEX_FILE, 4, b"".join(time.to_bytes(8, "big", signed=True) for time in times))
    os.truncate(copy / BROKER / "TopicA/1/CONSUME_QUEUE" / FIRST, 400)
    for path in (copy, copy / "tiered"):
        found = findings_of(path)
        assert [item.path for item in found if item.problem.code == "TS07"] == [
            str((copy / INDEX_FILE).relative_to(path))
        ]
        assert "TS03" in [item.problem.code for item in found]
    for command in ("info", "doctor"):
        assert main([command, str(copy / "tiered")]) in (EXIT_OK, EXIT_FINDINGS)


@pytest.mark.parametrize("items", [0, (1 << 31) - 1])
def test_an_index_file_of_any_size(items: int, copy: Path) -> None:
    """It is not read: neither its slots nor its items fit in memory."""
    size = 28 + (8 << 37) + 28 * items
    patch(copy / INDEX_FILE, 4, bytes(20) + items.to_bytes(4, "big"))
    os.truncate(copy / INDEX_FILE, size)
    for path in (copy, copy / "tiered"):
        (found,) = [item for item in findings_of(path) if item.problem.code in ("UN01", "TS07")]
        assert found.problem.code == "UN01" and "bytes" in json.dumps(found.row())


def test_metadata_with_shared_tables(copy: Path) -> None:
    """References in 60 KB that unfold to a million segments are an error, and nothing else fails."""
    path = copy / "config" / tiered.METADATA
    document = tiered_document(path.read_text())
    table = document["commitLogFileSegmentTable"]
    table["b0/X/0"] = {str(n): {"baseOffset": n, "size": 0, "status": 1} for n in range(1000)}
    table |= {f"b0/X/{n}": {"$ref": r"$.commitLogFileSegmentTable.b0\/X\/0"} for n in range(1, 1000)}
    path.write_text(json.dumps(document))
    (copy / "config" / f"{tiered.METADATA}.bak").unlink()
    (found,) = [item for item in findings_of(copy / "tiered") if item.problem.code.startswith("TS")]
    assert found.problem.code == "TS05" and "unfold" in json.dumps(found.row())


def with_queue_offsets(folder: Path, offsets: list[int]) -> None:
    """Set the queue offsets of the last units of a compacted queue."""
    path = sorted((folder / "compactionCq/TopicCompact/0").iterdir())[-1]
    units = np.frombuffer(path.read_bytes(), BATCH_UNIT.dtype).copy()
    (used,) = np.nonzero(units["size"])
    units["base_offset"][used[-len(offsets) :]] = offsets
    path.write_bytes(units.tobytes())


def test_a_far_queue_offset_costs_nothing(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """The numbers between units of a compacted queue are not walked, forwards or backwards."""
    folder = cases.copy(COMPACTED, tmp_path / "store") / "compaction"
    with_queue_offsets(folder, [10**12])
    assert main(["dump", str(folder), "--what", "consumequeue"]) == EXIT_FINDINGS
    assert capfd.readouterr().out.count("\n") == 20  # two lines of heads
    with Store.open(folder) as store:
        queue = store.queues["TopicCompact", 0]
        numbers = [number for number, _ in queue.numbered(0, 10**13)]
        assert len(numbers) == 18 and numbers[-1] == 10**12
        for block in (1, 7, 4096):
            for reverse in (False, True):
                found = [number for number, _ in queue.numbered(0, 10**13, reverse=reverse, block=block)]
                assert found == (numbers[::-1] if reverse else numbers)


def test_a_stray_segment_of_units_far_away(copy: Path, capfd: Capture) -> None:
    folder = copy / BROKER / "TopicA/0/CONSUME_QUEUE"
    (folder / tiered.segment_name(20 * 10**12)).write_bytes((folder / FIRST).read_bytes()[-60:])
    assert main(["dump", str(copy / "tiered"), "--what", "consumequeue"]) == EXIT_FINDINGS
    with Store.open(copy / "tiered") as store:
        queue = store.queues["TopicA", 0]
        numbers = [number for number, _ in queue.numbered(0, 10**13)]
        assert numbers == [*range(30), *range(10**12, 10**12 + 3)]
        assert [number for number, _ in queue.numbered(0, 10**13, reverse=True)] == numbers[::-1]


def test_queue_offsets_out_of_range(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """Units with them are left out, and verify says so; others are found as before."""
    folder = cases.copy(COMPACTED, tmp_path / "store") / "compaction"
    with_queue_offsets(folder, [0, (1 << 63) - 1, 1 << 62, -1, 5, 10**15])
    arguments = ["--topic", "TopicCompact", "--time", "2026-11-23T07:19:10Z"]
    assert main(["lookup", str(folder), *arguments]) == EXIT_OK
    (found,) = [item for item in findings_of(folder) if item.problem.code == "CC02"]
    assert found.detail["units"] == 3 and found.path.startswith("compactionCq/TopicCompact/0/")


@pytest.mark.parametrize("names", [(), ("",), ("", ".bak")])
def test_the_position_of_a_compaction(names: tuple[str, ...], cases: Library, tmp_path: Path) -> None:
    """A broker reads the .bak of a file that is missing; without both, all may be compacted."""
    root = cases.copy(COMPACTED, tmp_path / "store")
    for name in names:
        (root / f"compaction/position-checkpoint{name}").unlink()
    is_noted = ["CC01"] if len(names) == 2 else []
    assert codes_of(root) == is_noted
    for folder in ("compactionCq", "compactionLog"):
        path = root / "compaction" / folder / "TopicCompact/0" / f"{0:020}"
        path.write_bytes(bytes(path.stat().st_size))
    assert codes_of(root) == (is_noted or ["CC03"])  # the last messages of keys are gone


def test_units_of_a_compacted_topic_that_are_gone(cases: Library, tmp_path: Path) -> None:
    """Nothing dispatches them again: a start cuts the log at the end of its queue, and pulls get nothing."""
    root = cases.copy(COMPACTED, tmp_path / "store")
    folder = root / "compaction/compactionCq/TopicCompact/0"
    last = sorted(folder.iterdir())[-1]
    units = np.frombuffer(last.read_bytes(), BATCH_UNIT.dtype).copy()
    (used,) = np.nonzero(units["size"])
    units[used[-1]] = np.zeros(1, BATCH_UNIT.dtype)
    last.write_bytes(units.tobytes())
    (found,) = findings_of(root)
    assert (found.problem.code, found.detail["problem"]) == ("CC02", "CQ02")
    for path in folder.iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    (found,) = findings_of(root)
    assert (found.problem.code, found.detail["problem"]) == ("CC02", "CQ13")
    assert "CQ13" in codes_of(root / "compaction")


def test_a_compacted_log_that_is_one_hole(cases: Library, tmp_path: Path) -> None:
    """A sparse file of 1 TB after the records; what no place can name is reported."""
    folder = cases.copy(COMPACTED, tmp_path / "store") / "compaction"
    os.truncate(folder / "compactionLog/TopicCompact/0" / f"{0:020}", 1 << 40)
    assert "UN01" in codes_of(folder)
    with Store.open(folder) as store:
        assert len(list(store.messages())) == 18


def test_units_of_a_tiered_copy_that_are_one_hole(copy: Path) -> None:
    """A segment of 1 TB, all but its start a hole: it is skipped."""
    path = copy / BROKER / "TopicA/0/CONSUME_QUEUE" / FIRST
    os.truncate(path, 20 << 36)
    with Store.open(copy / "tiered") as store:
        queue = store.queues["TopicA", 0]
        assert [number for number, _ in queue.numbered(0, 1 << 40)] == list(range(30))
        assert [number for number, _ in queue.numbered(0, 1 << 40, reverse=True)] == [*range(29, -1, -1)]
    codes_of(copy / "tiered")


@pytest.mark.parametrize("content", [None, "", "{"])
def test_metadata_of_the_bak(content: str | None, copy: Path) -> None:
    """A broker reads them, and they may be older: a warning."""
    path = copy / "config" / tiered.METADATA
    path.unlink() if content is None else path.write_text(content)
    for store in (copy, copy / "tiered"):
        (found,) = [item for item in findings_of(store) if item.problem.severity != "note"]
        assert (found.problem.code, found.problem.severity) == ("TS05", "warning")
        assert found.message.endswith("but its .bak can")


@pytest.mark.parametrize("zeroed", [5, 30])
def test_committed_units_that_are_zero(zeroed: int, copy: Path) -> None:
    """The metadata say that they were written; without metadata the queue may lag behind the log."""
    patch(copy / BROKER / "TopicA/0/CONSUME_QUEUE" / FIRST, 20 * (30 - zeroed), bytes(20 * zeroed))
    (found,) = [item for item in findings_of(copy) if item.problem.severity != "note"]
    assert (found.problem.code, found.detail["problem"]) == ("TS06", "CQ02")
    assert (found.detail["queue_offset"], found.detail["last_queue_offset"]) == (30 - zeroed, 29)
    assert "CQ02" in codes_of(copy / "tiered")
    shutil.rmtree(copy / "config")
    assert "CQ01" in codes_of(copy / "tiered")


def test_a_view_lists_its_files_once(copy: Path) -> None:
    """The work for a copy of many queues rises with their number: no status lists a folder again."""
    with Store.open(copy / "tiered") as store:
        paths = [file.path for file in (*store.layout.commit_log, *store.layout.index_files)]
        paths += [file.path for queue in store.layout.unit_queues for file in queue.files]
        assert len(paths) == 15
        for path in paths:
            assert path.stat().st_size > 0 and path.stat() is path.stat(), path
        with pytest.raises(FileNotFoundError):
            paths[0].with_name("1").stat()


@pytest.mark.parametrize("scan", ["auto", "always"])
def test_a_lookup_counts_the_bytes_of_segments(scan: str, cases: Library, capfd: Capture) -> None:
    """Not those between places, which are more than a search for fillers reads by default."""
    folder = cases.path(TIERED) / "tiered"
    assert main(["lookup", str(folder), "--key", "nothing", "--scan", scan]) == EXIT_FINDINGS
    error = capfd.readouterr().err
    searched = re.search(r"([\d,]+) bytes of log files", error)
    assert searched is not None and int(searched[1].replace(",", "")) < 30_000
    assert "4 GiB" not in error and "expired" not in error
