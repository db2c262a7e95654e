"""`store_info`: what it says is what the Java library says, and it reads next to nothing for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.commands.info import _lines
from rmqtool.commands.verdicts import span
from rmqtool.formats import checkpoint, epoch, index, message
from rmqtool.formats.consume_queue import UNIT_SIZE, Unit, encode_unit
from rmqtool.formats.index import decode_header
from rmqtool.read.store import Store
from rmqtool.report.info import store_info
from rmqtool.report.residency import extent_count, residency_rows
from rmqtool.storage.page_cache import resident_bytes
from rmqtool.times import format_time
from tests.support.build_store import file_name, placed, write_sparse
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.replication import make_master
from tests.support.stores import Library, case, real_cases
from tests.support.trees import unchanged
from tests.support.whole_store import keyed, write_whole

pytestmark = pytest.mark.usefixtures("unbroken")

GIB = 1 << 30
Info = dict[str, Any]


def info_of(store: Path, **arguments: Any) -> Info:
    with Store.open(store, **arguments) as opened:
        return store_info(opened)


@pytest.fixture(scope="module", params=real_cases())
def name(request: pytest.FixtureRequest) -> str:
    """Each real store in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def found(cases: Library, name: str) -> Info:
    return info_of(cases.path(name))


class TestRealStores:
    """Against the facts of the Java library."""

    def test_log(self, cases: Library, name: str, found: Info) -> None:
        records = [fact for fact in case(name).facts() if "physicalOffset" in fact]
        log, last = found["commit_log"], records[-1]
        assert log["end_offset"] == last["physicalOffset"] + last["storeSize"]
        assert log["first_store_timestamp"] == records[0]["storeTimestamp"]
        assert log["last_store_timestamp"] == last["storeTimestamp"]
        files = list((cases.path(name) / "commitlog").iterdir())
        assert (log["files"], log["size_bytes"]) == (len(files), sum(path.stat().st_size for path in files))
        assert log["min_offset"] == min(int(path.name) for path in files)
        assert found["written_by"] == case(name).profile
        assert set(found["record_versions"]) <= {1, 2}

    def test_queues(self, name: str, found: Info) -> None:
        """Minimum, maximum and count of every queue, and the sums of every topic.

        Java answered after its own recovery, which brought the queues of a burst level with the log.
        """
        rows = {(row["topic"], row["queueId"]): row for row in case(name).queues}
        queues = {
            (topic["topic"], queue["queue_id"]): queue
            for topic in found["topics"]
            for queue in topic["queues"]
        }
        is_burst = case(name).state == "killed-burst"
        assert all(rows[key]["maxOffset"] == 0 or is_burst for key in set(rows) - set(queues))
        for key, queue in queues.items():
            low, high = rows[key]["minOffset"], rows[key]["maxOffset"]
            assert queue["min_offset"] == low and queue["max_offset"] <= high
            assert queue["max_offset"] == high or is_burst, key
            assert queue["messages"] == max(queue["max_offset"] - low, 0)
        for topic in found["topics"]:
            assert topic["messages"] == sum(queue["messages"] for queue in topic["queues"])
            assert topic["queue_count"] == len(topic["queues"])

    def test_index_and_checkpoint(self, cases: Library, name: str, found: Info) -> None:
        heads = [decode_header(path.read_bytes()) for path in (cases.path(name) / "index").iterdir()]
        assert found["index"]["files"] == len(heads)
        assert found["index"]["entries"] == sum(max(head.index_count - 1, 0) for head in heads)
        assert found["index"]["last_physical_offset"] == max(head.end_physical_offset for head in heads)
        values = checkpoint.decode((cases.path(name) / "checkpoint").read_bytes())
        assert found["checkpoint"]["physic_msg_timestamp"] == values.physic_msg_timestamp

    def test_sizes_are_detected(self, name: str, found: Info) -> None:
        settings, sizes = case(name).settings, found["sizes"]
        assert {sizes[key]["from"] for key in ("commit_log_file_size", "index_slots")} == {"detected"}
        assert sizes["commit_log_file_size"]["value"] == settings["mappedFileSizeCommitLog"]
        assert sizes["consume_queue_file_size"]["value"] == settings["mappedFileSizeConsumeQueue"]
        assert sizes["index_slots"]["value"] == settings["maxHashSlotNum"]
        assert sizes["index_entries"]["value"] == settings["maxIndexNum"]

    def test_state(self, cases: Library, name: str, found: Info) -> None:
        assert found["state"]["abort"] == (cases.path(name) / "abort").exists()
        assert found["state"]["clean"] != found["state"]["abort"]
        assert found["state"]["lock"] == "free"
        assert (found["behind"]["queues_bytes"] > 0) == (case(name).state == "killed-burst")


class TestPowerFailure:
    """What is newer than the checkpoint's flush time."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        write_whole(tmp_path / "store", keyed(40))
        return tmp_path / "store"

    def test_records_newer_than_the_checkpoint(self, root: Path) -> None:
        flushed = STORE_TIMESTAMP + 29
        (root / "checkpoint").write_bytes(checkpoint.encode(checkpoint.Checkpoint(flushed, flushed)))
        found = info_of(root)
        assert found["power_failure"] == {"seconds": 0.01, "records": 10, "records_exact": True}
        risk = "up to 10 records of the last 10ms may be in memory only; a power failure now could lose them"
        line = f"unflushed    {risk}"
        for lock, shown in (("free", []), ("held", [line]), ("unknown", [line])):
            state = {**found["state"], "lock": lock, "lock_holder_pid": None, "lock_note": ""}
            assert [each for each in _lines({**found, "state": state}, UTC) if "power" in each] == shown

    def test_everything_is_flushed(self, root: Path) -> None:
        assert info_of(root)["power_failure"]["records"] == 0

    def test_a_checkpoint_of_zeros_covers_nothing(self, root: Path) -> None:
        (root / "checkpoint").write_bytes(bytes(checkpoint.FILE_SIZE))
        assert info_of(root)["power_failure"] == {"seconds": None, "records": 40, "records_exact": True}

    def test_without_checkpoint_nobody_knows(self, root: Path) -> None:
        (root / "checkpoint").unlink()
        assert info_of(root)["power_failure"] is None


# -- huge stores -----------------------------------------------------------------------------------

QUEUES = 1000
FILES = 100
QUEUE_FILE = 300_000 * UNIT_SIZE
END = 300_200  # queue offset behind the last message of every queue


def write_huge(root: Path) -> int:
    """A log of 100 GiB and 1,000 queues, sparse but for heads and tails; returns the log's end.

    The queues' older files have expired; the last ones have 200 units, of which the last two name
    records that are there.
    """
    size = record("TopicHuge", b"x" * 100, {"TAGS": "A"}).total_size
    last_file = position = (FILES - 1) * GIB
    tail: list[tuple[int, bytes]] = []
    newest: dict[int, int] = {}
    for number in range(2 * QUEUES):
        made = record(
            "TopicHuge", b"x" * 100, {"TAGS": "A"}, queue_id=number % QUEUES,
            queue_offset=END - 2 + number // QUEUES, store_timestamp=STORE_TIMESTAMP + number,
        )  # fmt: skip
        tail.append((position - last_file, message.encode(placed(made, position))))
        newest[number % QUEUES] = position
        position += size
    for number in range(FILES):
        head = record("TopicHuge", b"h", store_timestamp=STORE_TIMESTAMP - 10_000 + number)
        pieces = [(0, message.encode(placed(head, number * GIB)))]
        pieces = tail if number == FILES - 1 else pieces
        write_sparse(root / "commitlog" / file_name(number * GIB), GIB, *pieces)
    for queue_id in range(QUEUES):
        units = [Unit(n * (GIB // 2) + queue_id * size, size, 0) for n in range(198)]
        units += [Unit(newest[queue_id] - QUEUES * size, size, 0), Unit(newest[queue_id], size, 0)]
        path = root / "consumequeue/TopicHuge" / str(queue_id) / file_name(QUEUE_FILE)
        write_sparse(path, QUEUE_FILE, (0, b"".join(map(encode_unit, units))))
    header = index.Header(STORE_TIMESTAMP, STORE_TIMESTAMP + 9, 0, newest[0], 1, 2)
    shape = index.DEFAULT_SHAPE
    write_sparse(root / "index/20231114221320123", shape.size, (0, index.encode_header(header)),
                 (shape.slot_offset(7), index.encode_slot(1)),
                 (shape.entry_offset(1), index.encode_entry(index.Entry(7, newest[0], 0, 0))))  # fmt: skip
    values = checkpoint.Checkpoint(STORE_TIMESTAMP + 1000, STORE_TIMESTAMP + 1000, STORE_TIMESTAMP)
    (root / "checkpoint").write_bytes(checkpoint.encode(values))
    return position


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """How many bytes have been read through os.pread and os.preadv; no other call reads here."""
    total = [0]
    real_pread, real_preadv = os.pread, os.preadv

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        data = real_pread(descriptor, length, offset)
        total[0] += len(data)
        return data

    def preadv(descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        count = real_preadv(descriptor, buffers, offset, flags)
        total[0] += count
        return count

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(os, "preadv", preadv)
    yield lambda: total[0]


class TestHugeStores:
    def test_heads_and_tails_only(self, tmp_path: Path, counted: Callable[[], int]) -> None:
        """100 GiB of log, 1,000 queues: some kilobytes for each queue, whatever the log holds."""
        end = write_huge(tmp_path / "store")
        before = counted()
        found = info_of(tmp_path / "store")
        read = counted() - before
        assert found["commit_log"]["end_offset"] == end
        assert found["commit_log"]["size_bytes"] == FILES * GIB
        (topic,) = found["topics"]
        assert (topic["queue_count"], topic["min_offset"], topic["max_offset"]) == (QUEUES, 300_000, END)
        assert found["behind"]["queues_bytes"] == 0
        assert found["power_failure"]["records"] == 999
        assert 0 < read < QUEUES * 65_536, read

    def test_a_longer_log_costs_its_heads(self, tmp_path: Path, counted: Callable[[], int]) -> None:
        costs = []
        for files in (2, 40):
            root = tmp_path / str(files)
            for offset in range(0, files * GIB, GIB):
                head = message.encode(placed(record(body=b"z"), offset))
                write_sparse(root / "commitlog" / file_name(offset), GIB, (0, head))
            before = counted()
            info_of(root)
            costs.append(counted() - before)
        assert costs[1] - costs[0] < 40 * 16_384


# -- parts and options -----------------------------------------------------------------------------


class TestParts:
    def test_broker_conf_says_where_values_come_from(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        write_whole(root, keyed(20))
        conf = tmp_path / "broker.conf"
        conf.write_text(f"storePathRootDir={root}\nmappedFileSizeCommitLog=4096\nmaxHashSlotNum=50\n")
        sizes = info_of(root, broker_conf=conf)["sizes"]
        assert sizes["commit_log_file_size"] == {"value": 4096, "from": "file"}
        assert sizes["index_slots"] == {"value": 50, "from": "file"}
        assert sizes["consume_queue_file_size"] == {"value": 400, "from": "detected"}
        assert sizes["batch_queue_file_size"]["from"] == "default"

    @pytest.mark.parametrize(
        ("path", "kind"),
        [("commitlog/{}", "commitlog"), ("consumequeue/TopicTest/0/{}", "consumequeue"),
         ("index/{}", "index"), ("commitlog", "commitlog")],
    )  # fmt: skip
    def test_single_files(self, tmp_path: Path, path: str, kind: str) -> None:
        write_whole(tmp_path / "store", keyed(20))
        target = tmp_path / "store" / path
        if target.name == "{}":
            target = min(target.parent.iterdir())
        found = info_of(target)
        assert found["kind"] == kind and found["path"] == str(target)
        assert found["written_by"] is None and found["power_failure"] is None
        assert (found["commit_log"] is not None) == (kind == "commitlog")
        assert bool(found["topics"]) == (kind == "consumequeue")
        assert (found["index"] is not None) == (kind == "index")

    def test_what_is_out_of_reach_ends_with_3(
        self, cases: Library, capfdbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        path = cases.path("old_un01_tiered")
        with unchanged(path):
            assert main(["info", str(path), "--format", "json"]) == 3
        found = json.loads(capfdbinary.readouterr().out)
        assert found["unsupported"] and found["commit_log"]["end_offset"] > 0

    def test_empty_store(self, tmp_path: Path) -> None:
        (tmp_path / "store/commitlog").mkdir(parents=True)
        (tmp_path / "store/consumequeue").mkdir()
        found = info_of(tmp_path / "store")
        assert found["commit_log"] is None and found["topics"] == [] and found["index"] is None

    def test_json_and_text_say_the_same(
        self, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        root = tmp_path / "store"
        write_whole(root, keyed(20))
        assert main(["info", str(root), "--format", "json", "--tz", "UTC"]) == 0
        log = json.loads(capfdbinary.readouterr().out)["commit_log"]
        assert main(["info", str(root), "--tz", "UTC"]) == 0
        text = capfdbinary.readouterr().out.decode()
        for value in (log["end_offset"], span(log["first_store_time"], log["last_store_time"]), "TopicTest"):
            assert str(value) in text


def test_the_newest_record_is_not_the_last(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As after `append` of messages with their old times: the end of the span is called what it is."""
    root = tmp_path / "store"
    write_whole(root, keyed(20))
    (path,) = (root / "index").iterdir()
    data = path.read_bytes()
    head = decode_header(data)
    late = head.end_timestamp + 3_600_000
    path.write_bytes(data[:8] + late.to_bytes(8, "big") + data[16:])
    assert main(["info", str(root), "--tz", "UTC"]) == 0
    (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("messages ")]
    assert line.endswith(f" (last record); earlier records have times up to {format_time(late, UTC)}")


@pytest.mark.parametrize(
    ("queues", "words"), [(1, "1 queue of pubBatchCQ has"), (2, "2 queues of pubBatchCQ have")]
)
def test_a_queue_without_files(
    cases: Library, tmp_path: Path, capfd: pytest.CaptureFixture[str], queues: int, words: str
) -> None:
    """It has no message, and the verdict names it."""
    root = cases.copy("ok_540_clean", tmp_path / "store")
    folders = sorted((root / "batchconsumequeue/pubBatchCQ").iterdir())
    for folder in folders[:queues]:
        (path,) = folder.iterdir()
        path.unlink()
    found = info_of(root)
    (topic,) = [each for each in found["topics"] if each["topic"] == "pubBatchCQ"]
    empty = [each for each in topic["queues"] if each["max_offset"] == 0]
    assert [each["messages"] for each in empty] == [0] * queues
    main(["info", str(root)])
    assert f"no damage, but {words} no files; records were not read" in capfd.readouterr().out


class TestResidency:
    @pytest.fixture
    def tmp_path(self, disk_path: Path) -> Path:
        """Not every file system in memory tells the extents of a file."""
        return disk_path

    def test_sums(self, tmp_path: Path) -> None:
        """One row per file; sizes and allocated bytes are what the file system says."""
        root = tmp_path / "store"
        write_whole(root, keyed(60), shape=index.Shape(50, 400))
        with Store.open(root) as store:
            rows = {row["path"]: row for row in residency_rows(store)}
        files = [*root.glob("commitlog/*"), *root.glob("consumequeue/*/*/*"), *root.glob("index/*")]
        assert set(rows) == {path.relative_to(root).as_posix() for path in files}
        for path in files:
            row, status = rows[path.relative_to(root).as_posix()], path.stat()
            assert (row["size_bytes"], row["allocated_bytes"]) == (status.st_size, status.st_blocks * 512)
            assert row["resident_bytes"] is None or 0 <= row["resident_bytes"] <= row["size_bytes"]
            assert row["extents"] is None or row["extents"] >= 0

    def test_a_hole_is_not_allocated(self, tmp_path: Path) -> None:
        path = write_sparse(tmp_path / "saved" / file_name(0), 64 << 20, (0, message.encode(record())))
        with Store.open(path) as store:
            (row,) = residency_rows(store)
        assert row["size_bytes"] == 64 << 20 and row["allocated_bytes"] < 1 << 20
        assert row["extents"] == extent_count(path) and row["resident_bytes"] == resident_bytes(path)

    def test_an_empty_file(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        write_whole(root, keyed(5))
        (root / "commitlog" / file_name(8192)).touch()
        with Store.open(root) as store:
            (row,) = (row for row in residency_rows(store) if row["path"].endswith("8192"))
        assert (row["size_bytes"], row["resident_bytes"]) == (0, 0)


def test_epochs_of_controller_mode(tmp_path: Path) -> None:
    """As the epoch file has them; None without one, and where it cannot be read."""
    root = make_master(tmp_path / "store", 3)
    assert info_of(root)["epochs"] is None
    entries = [epoch.Entry(1, 0), epoch.Entry(3, 500)]
    (root / "epochFileCheckpoint").write_bytes(epoch.encode(entries))
    found = info_of(root)
    assert found["epochs"] == [{"epoch": 1, "start_offset": 0}, {"epoch": 3, "start_offset": 500}]
    assert any(line.endswith("the newest is 3 from offset 500") for line in _lines(found, UTC))
    state = checkpoint.Checkpoint(confirm_phy_offset=700)
    (root / "checkpoint").write_bytes(checkpoint.encode(state, 5))
    lines = list(_lines(info_of(root), UTC))
    assert any(line.endswith("from offset 500; the log is confirmed up to 700") for line in lines)
    (root / "epochFileCheckpoint").write_bytes(b"2\n0\n1-0\n")
    assert info_of(root)["epochs"] is None
