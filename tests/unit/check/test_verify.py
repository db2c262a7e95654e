"""`verify` as a function: its passes one by one, its bounds, its report, its threads, its order.

That each kind of damage is found is shown by the cases (test_fixtures) and by the variants of real
stores (test_variants); here is what they do not show.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqtool.check.verify import DEFAULT_PASSES, PASSES, Bounds, Report, verify
from rmqtool.cli import main
from rmqtool.errors import UsageError
from rmqtool.formats import checkpoint, epoch, fastjson, index
from rmqtool.formats.consume_queue import UNIT
from rmqtool.formats.index import decode_header
from rmqtool.problems import Finding
from rmqtool.read.consumer_offsets import consumer_offsets
from rmqtool.read.store import Store
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.support.build_store import LOG_FILE_SIZE, file_name, patch, write_log
from tests.support.ordinary_user import as_nobody, open_to_all
from tests.support.stores import Library, case, real_cases
from tests.support.sweep import sample
from tests.support.whole_store import codes_of, findings_of, keyed, report_of, write_config, write_whole

pytestmark = pytest.mark.sweep

OK_CASES = tuple(name for name in real_cases() if name.startswith("ok_"))
QUEUE_FILE = f"consumequeue/TopicTest/1/{file_name(0)}"


def test_a_lost_page_of_a_body_has_the_same_code_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`verify`, `doctor`, `dump` and `recover` find one damage, of one kind, at one place."""
    root = tmp_path / "store"
    with StoreWriter.create(root, commit_log_file_size=1 << 16, auto_create_queues=1) as writer:
        results = [writer.put(NewMessage("T", body)) for body in (b"a", b"b" * 20_000, b"c")]
    place = results[1].physical_offset
    patch(root / "commitlog" / file_name(0), 8192, bytes(4096))
    (found,) = (each for each in findings_of(root) if each.problem.severity == "error")
    assert (found.problem.code, found.physical_offset) == ("CL03", place)
    assert found.message == "the body does not match its CRC: whole pages of it are zero"
    for words, code in ((("doctor",), 1), (("dump", "--json"), 1), (("recover", "--json"), 1)):
        assert main([words[0], str(root), *words[1:]]) == code
        text = "".join(capsys.readouterr())
        assert "CL03" in text and "CL08" not in text, words


def test_an_offset_past_missing_units_is_no_finding(store_copy: Callable[[str], Path]) -> None:
    """The log has the messages: what the queue lacks is the finding. Past the log's end the offset is one."""
    root = store_copy("ok_540_clean")
    with Store.open(root) as store:
        ends = {key: store.max_offset(*key) for key in store.queues}
        (topic, group), queue_id = next(
            (owner, queue_id) for owner, queues in consumer_offsets(store).items()
            for queue_id, offset in queues.items() if 0 < offset == ends.get((owner[0], queue_id))
        )  # fmt: skip
        queue = store.queues[topic, queue_id]
        number = queue.end() - 1
        file = queue.file_of(number)
        assert file is not None
    patch(Path(file.path), number * UNIT.codec.size - file.file_from_offset, bytes(UNIT.codec.size))
    found = codes_of(root)
    assert "CF04" not in found and any(code.startswith("CQ") for code in found)
    path = root / "config" / "consumerOffset.json"
    document = fastjson.parse(path.read_bytes())
    document["offsetTable"][f"{topic}@{group}"][queue_id] = ends[topic, queue_id] + 1
    path.write_bytes(fastjson.dump(document, "5.4"))
    assert "CF04" in codes_of(root)


def test_epochs_that_a_slave_of_5_4_leaves(tmp_path: Path) -> None:
    """It cuts its log, but not the list: entries begin after the end of the log, or do not rise."""
    root = tmp_path / "store"
    write_whole(root, keyed(9))
    with Store.open(root) as store:
        end = store.end_offset()
    for entries, codes in (
        ([(1, 0), (3, end)], []),
        ([(1, 0), (3, end + 1)], ["EP01"]),
        ([(1, 0), (3, 900), (4, 800)], ["EP01"]),
        ([(2, 0), (2, 900)], ["EP01"]),
    ):
        data = epoch.encode([epoch.Entry(*entry) for entry in entries])
        (root / "epochFileCheckpoint").write_bytes(data)
        assert codes_of(root) == codes, entries


def rows_of(findings: list[Finding]) -> list[dict[str, object]]:
    return [item.row() for item in findings]


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store with one problem, or two, for each of the passes but `bodies`."""
    root = tmp_path / "damaged"
    stored = write_whole(root, keyed(40))
    (root / "commitlog" / "notes.txt").write_text("mine")
    body = stored[3].body_offset if hasattr(stored[3], "body_offset") else stored[3].physical_offset + 88
    patch(root / "commitlog" / file_name(0), body + 4, b"\xff")
    patch(root / QUEUE_FILE, 2 * UNIT.size + UNIT.offsets["tags_code"], b"\x01")
    index_file = next((root / "index").iterdir())
    patch(index_file, index.HEADER.offsets["index_count"], (7).to_bytes(4))
    values = checkpoint.decode((root / "checkpoint").read_bytes())
    newer = checkpoint.Checkpoint(values.physic_msg_timestamp + 60_000, values.logics_msg_timestamp)
    (root / "checkpoint").write_bytes(checkpoint.encode(newer))
    write_config(root, "consumerOffset.json", {"offsetTable": {"TopicTest@group": {"0": 20, "1": 5000}}})
    (root / "config" / "timercheck").write_bytes(b"short")
    for folder in (
        "tiered/212d6b50_DefaultCluster/b0/TopicA/0/COMMIT_LOG",
        "compaction/compactionLog/TopicA/0",
    ):
        (root / folder).mkdir(parents=True)
        (root / folder / "notes.txt").write_text("mine")
    return root


EXPECTED = {
    "files": ["CL22"],
    "log": ["CL03"],
    "queues": ["CQ06"],
    "index": ["IX01"],
    "checkpoint": ["CP03"],
    "config": ["CF04"],
    "timer": ["TM01"],
    "tiered": ["TS02"],
    "compaction": ["CC04", "CC01"],
    "bodies": ["CL03"],  # of `log`, which it runs
}


class TestPasses:
    @pytest.mark.parametrize("name", PASSES)
    def test_one_alone_tells_its_own_findings_and_no_others(self, damaged: Path, name: str) -> None:
        assert codes_of(damaged, passes=[name]) == EXPECTED[name]

    def test_together_they_tell_all_in_the_order_of_the_passes(self, damaged: Path) -> None:
        assert codes_of(damaged) == [code for name in DEFAULT_PASSES for code in EXPECTED[name]]
        assert codes_of(damaged, passes=tuple(reversed(PASSES))) == codes_of(damaged)

    def test_none_finds_nothing_and_reads_no_log(self, damaged: Path) -> None:
        report = Report()
        assert findings_of(damaged, passes=(), report=report) == []
        assert (report.records, report.bytes, report.passes) == (0, 0, ())

    def test_bodies_is_not_among_the_default_ones(self) -> None:
        assert set(PASSES) - set(DEFAULT_PASSES) == {"bodies"}

    def test_an_unknown_one_is_a_usage_error_before_anything_is_read(self, damaged: Path) -> None:
        with (
            Store.open(damaged) as store,
            pytest.raises(UsageError, match="unknown pass 'colour'") as caught,
        ):
            next(verify(store, passes=["log", "colour"]), None)
        assert caught.value.hint is not None and "checkpoint" in caught.value.hint


class TestReport:
    @pytest.mark.parametrize("name", OK_CASES)
    def test_counts_of_real_stores(self, cases: Library, name: str) -> None:
        """Every record and file that the Java library tells of was checked, and no more."""
        facts = case(name).facts()
        records = [fact for fact in facts if "physicalOffset" in fact]
        report = report_of(cases.path(name))
        with Store.open(cases.path(name)) as store:
            files = [file for file in store.layout.commit_log if file.size]
            assert report.log_end == store.end_offset()
            heads = [decode_header(file.path.read_bytes()) for file in store.layout.index_files]
        assert report.records == len(records)
        assert (report.files, report.bytes) == (len(files), sum(file.size for file in files))
        assert report.index_entries == sum(head.index_count - 1 for head in heads)
        assert report.keys >= len(records)  # all of them have a unique key
        assert report.keys == report.index_entries or "expired" in name  # entries of expired records stay
        assert report.seconds > 0 and not report.live

    def test_counts_of_a_small_store(self, tmp_path: Path) -> None:
        write_whole(tmp_path / "store", keyed(30))
        report = report_of(tmp_path / "store")
        assert (report.records, report.units, report.keys, report.index_entries) == (30, 30, 120, 120)
        assert report.passes == PASSES
        assert report.files == len(list((tmp_path / "store" / "commitlog").iterdir()))

    def test_it_says_what_ran_only(self, tmp_path: Path) -> None:
        write_whole(tmp_path / "store", keyed(5))
        report = Report()
        findings_of(tmp_path / "store", passes=["config"], report=report)
        assert report == Report(passes=("config",), seconds=report.seconds)


class TestJobs:
    @pytest.mark.parametrize(
        "name",
        ["torn_540_killed_burst", "torn_497_killed", "ok_533_clean", "bad_cl04_wrong_length",
         "gap_cl20_missing_file", "bad_cl07_zombie_tail", "gap_cq13_queue_missing"],
    )  # fmt: skip
    def test_one_and_four_threads_find_the_same_in_the_same_order(self, cases: Library, name: str) -> None:
        reports = [Report(), Report()]
        one, four = (
            rows_of(findings_of(cases.path(name), jobs=jobs, report=report))
            for jobs, report in zip((1, 4), reports, strict=True)
        )
        assert one == four
        reports[1].seconds = reports[0].seconds
        assert reports[0] == reports[1]

    def test_damage_in_every_file(self, tmp_path: Path) -> None:
        """Many files of which each has a finding: still the order of the log."""
        root = tmp_path / "store"
        write_whole(root, keyed(120), shape=index.Shape(50, 800))
        for path in (root / "commitlog").iterdir():
            patch(path, 0, b"\0\0\0\0")
        one, four = (rows_of(findings_of(root, jobs=jobs)) for jobs in (1, 4))
        assert one == four
        offsets = [row["physical_offset"] for row in one if row["problem"] == "CL04"]
        assert offsets == [n * LOG_FILE_SIZE for n in range(len(offsets))] and len(offsets) > 8

    def test_a_verification_can_be_given_up(self, tmp_path: Path) -> None:
        """Who stops after the first finding leaves no thread and no open file behind."""
        root = tmp_path / "store"
        write_whole(root, keyed(120), shape=index.Shape(50, 800))
        for path in (root / "commitlog").iterdir():
            patch(path, 0, b"\0\0\0\0")
        before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
        with Store.open(root) as store:
            findings = verify(store)
            assert next(iter(findings)).problem.code == "CL04"
            findings.close()  # type: ignore[attr-defined]
        after = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
        assert after == before


# Bounds never make a sound store look damaged. Times are taken from the store itself.
def bounds_of(first_ms: int, last_ms: int, size: int) -> list[Bounds]:
    middle = (first_ms + last_ms) // 2
    return [
        *(Bounds(since_ms=time) for time in (first_ms + 1, middle, last_ms + 3_600_000)),
        *(Bounds(limit_bytes=limit) for limit in (1, 4096, size // 2 + 77, size - 1, size * 10)),
        *(Bounds(sample=sample) for sample in ((1, 2), (2, 2), (7, 9))),
        Bounds(since_ms=first_ms + 1, limit_bytes=size // 2, sample=(1, 2)),
    ]


class TestBounds:
    @pytest.mark.parametrize("name", sample(OK_CASES, 5))
    def test_never_a_false_finding(self, cases: Library, name: str) -> None:
        facts = [fact for fact in case(name).facts() if "physicalOffset" in fact]
        times = [fact["storeTimestamp"] for fact in facts]
        known = set(case(name).codes or ())
        with Store.open(cases.path(name)) as store:
            size = sum(file.size for file in store.layout.commit_log)
        for bounds in bounds_of(min(times), max(times), size):
            found = findings_of(cases.path(name), bounds=bounds)
            assert {item.problem.code for item in found} <= known, (bounds, rows_of(found))

    def test_a_sample_is_every_nth_file(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        write_whole(root, keyed(120), shape=index.Shape(50, 800))
        for path in (root / "commitlog").iterdir():
            patch(path, 0, b"\0\0\0\0")
        for part in ((1, 3), (2, 3), (3, 3), (1, 1)):
            found = findings_of(root, passes=["log"], bounds=Bounds(sample=part))
            numbers = [(item.physical_offset or 0) // LOG_FILE_SIZE for item in found]
            assert numbers == list(range(part[0] - 1, numbers[-1] + 1, part[1]))

    def test_since_leaves_out_files_that_are_older(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        stored = write_whole(root, keyed(120), shape=index.Shape(50, 800))
        chosen = stored[70]
        report = report_of(root, bounds=Bounds(since_ms=chosen.store_timestamp))
        first = chosen.physical_offset // LOG_FILE_SIZE * LOG_FILE_SIZE
        assert report.records == sum(item.physical_offset >= first for item in stored)

    @pytest.mark.parametrize("limit", [1, 500, 5000, 20_000, 1 << 30])
    def test_a_limit_takes_the_newest_records(self, tmp_path: Path, limit: int) -> None:
        """The zeros behind the log's end do not count, nor does an unused next file."""
        root = tmp_path / "store"
        stored = write_whole(root, keyed(120), shape=index.Shape(50, 800))
        last = stored[-1]
        (root / "commitlog" / file_name((last.physical_offset // LOG_FILE_SIZE + 1) * LOG_FILE_SIZE)
         ).write_bytes(bytes(LOG_FILE_SIZE))  # fmt: skip
        end = last.physical_offset + last.total_size
        report = report_of(root, bounds=Bounds(limit_bytes=limit))
        wanted = sum(item.physical_offset + item.total_size > end - limit for item in stored)
        assert report.log_end == end
        assert report.records == wanted

    def test_damage_outside_is_not_looked_at(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        stored = write_whole(root, keyed(60), shape=index.Shape(50, 400))
        patch(root / "commitlog" / file_name(0), 100, b"\xff\xff\xff\xff")
        assert "CL03" in codes_of(root)
        assert codes_of(root, bounds=Bounds(limit_bytes=3000)) == []
        assert codes_of(root, bounds=Bounds(since_ms=stored[-1].store_timestamp)) == []
        assert codes_of(root, bounds=Bounds(sample=(2, 2))) == []


class TestParts:
    """Parts of a store, and a log in several folders."""

    def test_log_in_several_folders(self, tmp_path: Path) -> None:
        root, old = tmp_path / "store", tmp_path / "old"
        write_whole(root, keyed(60), shape=index.Shape(50, 400))
        whole = report_of(root)
        old.mkdir()
        for path in sorted((root / "commitlog").iterdir())[:3]:
            shutil.move(path, old / path.name)
        report = Report()
        assert findings_of(root, read_only_paths=[old], report=report) == []
        assert (report.records, report.files, report.log_end) == (whole.records, whole.files, whole.log_end)
        paths = [root / "commitlog", old]
        assert findings_of(root, commitlog_paths=paths) == []

    def test_damage_in_another_folder_is_named_by_its_whole_path(self, tmp_path: Path) -> None:
        root, old = tmp_path / "store", tmp_path / "old"
        write_whole(root, keyed(60), shape=index.Shape(50, 400))
        old.mkdir()
        first = root / "commitlog" / file_name(0)
        patch(first, 100, b"\xff\xff\xff\xff")
        shutil.move(first, old / first.name)
        (found,) = findings_of(root, read_only_paths=[old])
        assert (found.problem.code, found.path) == ("CL03", str(old / first.name))

    def test_a_bare_folder_of_log_files(self, tmp_path: Path) -> None:
        stored = write_log(tmp_path / "saved", keyed(60), start=5 * LOG_FILE_SIZE)
        report = Report()
        assert findings_of(tmp_path / "saved", report=report) == []
        assert report.records == 60 and report.log_end == stored[-1].physical_offset + stored[-1].total_size

    @pytest.mark.parametrize("offset", [0, 2 * LOG_FILE_SIZE])
    def test_a_single_log_file(self, tmp_path: Path, offset: int) -> None:
        stored = write_whole(tmp_path / "store", keyed(60), shape=index.Shape(50, 400))
        path = tmp_path / "store" / "commitlog" / file_name(offset)
        report = Report()
        with Store.open(path) as store:
            assert list(verify(store, passes=PASSES, report=report)) == []
        inside = [item for item in stored if offset <= item.physical_offset < offset + LOG_FILE_SIZE]
        assert (report.files, report.records) == (1, len(inside))

    def test_a_part_of_a_log_file(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        """As fsck leaves it: its records are at their offsets, and only its start is damaged."""
        stored = write_whole(tmp_path / "store", keyed(60), shape=index.Shape(50, 400))
        start = stored[3].physical_offset - 90
        path = tmp_path / "#131074"
        path.write_bytes((tmp_path / "store/commitlog" / file_name(0)).read_bytes()[start:])
        inside = [item for item in stored[3:] if item.physical_offset < LOG_FILE_SIZE]
        report = Report()
        with Store.open(path) as store:
            (found,) = verify(store, passes=PASSES, report=report)
        assert (found.physical_offset, found.length) == (start, 90)
        assert (report.files, report.records) == (1, len(inside))
        assert main(["dump", str(path), "--json"]) == 1
        out, err = capfd.readouterr()
        assert out.count("\n") == len(inside) and f'"physical_offset":{stored[3].physical_offset},' in out
        assert (
            f"#131074 is a part of a commit log file, from physical offset {start} up to {LOG_FILE_SIZE}; to"
            " join it with the rest of a log, see rmqtool help recovery\n"
        ) in err

    @pytest.mark.parametrize("folder", ["consumequeue/TopicTest/1", "index"])
    def test_a_single_queue_or_index_file(self, tmp_path: Path, folder: str) -> None:
        """There is no log to compare with, so its own shape is all that can be judged."""
        write_whole(tmp_path / "store", keyed(60), shape=index.Shape(50, 400))
        path = min((tmp_path / "store" / folder).iterdir())
        report = Report()
        with Store.open(path) as store:
            assert list(verify(store, passes=PASSES, report=report)) == []
        assert report.records == 0 and max(report.units, report.index_entries) > 0


def test_damage_comes_with_the_next_command(cases: Library, capfd: pytest.CaptureFixture[str]) -> None:
    """Ready to paste, for a store that `recover` can repair; a sound store and a single file need none."""
    damaged, sound = cases.path("bad_cl03_body_crc"), cases.path("ok_540_clean")
    file = next((damaged / "commitlog").iterdir())
    for path, code, wanted in ((damaged, 1, True), (sound, 0, False), (file, 1, False)):
        assert main(["verify", str(path)]) == code
        assert capfd.readouterr().err.endswith(f": rmqtool recover {path}\n") == wanted


@pytest.mark.parametrize("name", ["consumequeue", "consumequeue/pubOrder", "consumequeue/pubOrder/0"])
def test_a_queue_folder_that_cannot_be_listed_is_no_lost_queue(
    name: str, store_copy: Callable[[str], Path]
) -> None:
    """Unreadable is not gone: rebuild could only fail there."""
    root = store_copy("ok_540_clean")
    with Store.open(root) as opened:
        assert "CQ13" not in {each.problem.code for each in verify(opened, jobs=1)}  # loads the kernels too
    open_to_all(root)
    mode = (root / name).stat().st_mode
    (root / name).chmod(0)

    def action() -> None:
        with Store.open(root) as store:
            found = list(verify(store, jobs=1))
        assert "CQ13" not in {each.problem.code for each in found}
        assert name in {each.path for each in found}

    as_nobody(action)
    (root / name).chmod(mode)
