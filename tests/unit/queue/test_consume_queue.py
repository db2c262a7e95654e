"""Queue minimum and maximum by the broker's rules, and units by queue offset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import UnsupportedStoreError
from rmqtool.formats.consume_queue import PRE_BLANK, BatchUnit, Unit, encode_unit
from rmqtool.queue import consume_queue
from rmqtool.queue.consume_queue import BatchConsumeQueue, ConsumeQueue
from rmqtool.read.store import Store
from rmqtool.storage import open_files
from rmqtool.storage.layout import QueueFiles, StoreFile
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.profile import PROFILES
from tests.support.build_store import (
    file_name,
    patch,
    two_queues,
    write_log,
    write_queue,
    write_sparse,
)
from tests.support.records import STORE_TIMESTAMP


def queue_of(tmp_path: Path, units: Any, **options: int) -> Path:
    kind = "batchconsumequeue" if isinstance(units[0], BatchUnit) else "consumequeue"
    write_queue(tmp_path / kind / "T" / "0", units, **options)
    return tmp_path


def bounds(root: Path, profile: str, log_starts_at: int) -> tuple[int, int]:
    """Minimum and maximum of queue T/0 for a log that begins at an offset."""
    with Store.open(root) as store:
        queue = store.queues["T", 0]
        return queue.min_offset(log_starts_at, PROFILES[profile]), queue.max_offset()


UNITS = [Unit(100 * n, 100, 0) for n in range(45)]


class TestQueueOffsets:
    @pytest.mark.parametrize("profile", PROFILES)
    @pytest.mark.parametrize(
        ("log_starts_at", "expected"), [(0, 0), (-1, 0), (1, 1), (100, 1), (101, 2), (1850, 19), (1900, 19)]
    )
    def test_minimum_in_the_first_file(
        self, tmp_path: Path, profile: str, log_starts_at: int, expected: int
    ) -> None:
        assert bounds(queue_of(tmp_path, UNITS), profile, log_starts_at) == (expected, 45)

    def test_minimum_behind_the_first_file(self, tmp_path: Path) -> None:
        """Neither version looks into the second file."""
        queue_of(tmp_path, UNITS)
        assert {profile: bounds(tmp_path, profile, 2500)[0] for profile in PROFILES} == dict.fromkeys(
            PROFILES, 0
        )

    def test_all_expired(self, tmp_path: Path) -> None:
        """4.x leaves the minimum where it was, 5.x says that the queue is empty."""
        queue_of(tmp_path, UNITS)
        assert bounds(tmp_path, "4.9", 1 << 40) == (0, 45)
        assert bounds(tmp_path, "5.3", 1 << 40) == bounds(tmp_path, "5.4", 1 << 40) == (45, 45)

    def test_first_files_deleted(self, tmp_path: Path) -> None:
        queue_of(tmp_path, UNITS[20:], first=20)
        assert bounds(tmp_path, "4.9", 0) == bounds(tmp_path, "5.4", 0) == (20, 45)
        assert bounds(tmp_path, "4.9", 2150) == bounds(tmp_path, "5.4", 2150) == (22, 45)

    def test_fillers_before_a_late_start(self, tmp_path: Path) -> None:
        """They are skipped while the log starts above 0, and are the minimum when it starts at 0."""
        queue_of(tmp_path, [PRE_BLANK] * 7 + UNITS[7:12])
        for profile in PROFILES:
            assert bounds(tmp_path, profile, 0) == (0, 12)
            assert bounds(tmp_path, profile, 50) == (7, 12)
        with Store.open(tmp_path) as store:
            queue = store.queues["T", 0]
            assert [number for number, _ in queue.units()] == list(range(7, 12))
            assert store.get_by_queue_offset("T", 0, 3) is None

    def test_a_queue_without_files(self, tmp_path: Path) -> None:
        (tmp_path / "consumequeue/T/0").mkdir(parents=True)
        for profile in PROFILES:
            assert bounds(tmp_path, profile, 0) == (0, 0)

    def test_a_queue_without_units(self, tmp_path: Path) -> None:
        write_sparse(tmp_path / "consumequeue/T/0" / file_name(800), 400)
        assert bounds(tmp_path, "4.9", 0) == (0, 40)
        assert bounds(tmp_path, "5.4", 0) == (0, 40)

    def test_the_end_is_looked_for_in_the_last_three_files(self, tmp_path: Path) -> None:
        queue_of(tmp_path, [Unit(100 * n, 100, 0) for n in range(90)])
        files = sorted((tmp_path / "consumequeue/T/0").iterdir())
        patch(files[0], 100, bytes(20))
        assert bounds(tmp_path, "5.4", 0)[1] == 90
        patch(files[3], 100, bytes(20))
        assert bounds(tmp_path, "5.4", 0)[1] == 65

    def test_a_full_last_file(self, tmp_path: Path) -> None:
        assert bounds(queue_of(tmp_path, UNITS[:40]), "5.4", 0) == (0, 40)

    @given(present=st.integers(0, 900), hole=st.booleans())
    def test_bisection_finds_what_a_walk_finds(self, present: int, hole: bool, tmp_path_factory: Any) -> None:
        root = tmp_path_factory.mktemp("long")
        units = b"".join(encode_unit(Unit(100 * n, 100, 0)) for n in range(present))
        path = write_sparse(root / file_name(0), 20_000, (0, units))
        if not hole:
            path.write_bytes(path.read_bytes())
        files = QueueFiles("T", 0, root, (StoreFile(path, 0, 20_000),))
        with OpenFiles() as opened, pytest.MonkeyPatch.context() as patched:
            for limit, tail in ((1 << 20, 256), (0, 256), (0, 3)):
                patched.setattr(consume_queue, "WALK_LIMIT", limit)
                patched.setattr(consume_queue, "TAIL_UNITS", tail)
                queue = ConsumeQueue(files, opened)
                assert queue.max_offset() == present
                for log_starts_at in (0, 5050, 89_900):
                    expected = -(-log_starts_at // 100)
                    expected = expected if expected < present else 0
                    assert queue.min_offset(log_starts_at, PROFILES["4.9"]) == expected

    def test_before(self, tmp_path: Path) -> None:
        with Store.open(queue_of(tmp_path, UNITS)) as store:
            queue = store.queues["T", 0]
            assert queue.before(2050) == UNITS[20]
            assert queue.before(1 << 40) == UNITS[44]
            assert queue.before(-1) is None

    def test_blocks_of_units(self, tmp_path: Path) -> None:
        with Store.open(queue_of(tmp_path, UNITS)) as store:
            queue = store.queues["T", 0]
            for block in (1, 3, 4096):
                assert [unit for _, unit in queue.units(block=block)] == UNITS
                assert [unit for _, unit in queue.units(7, 33, reverse=True, block=block)] == UNITS[7:33][
                    ::-1
                ]

    def test_more_queues_than_open_files(self, tmp_path: Path) -> None:
        for number in range(2 * open_files.OPEN_LIMIT):
            write_queue(tmp_path / f"consumequeue/T/{number}", UNITS[: number % 40 + 1])
        before = len(list(Path("/dev/fd").iterdir()))
        with Store.open(tmp_path) as store:
            assert [store.max_offset("T", n) for n in range(len(store.queues))] == [
                n % 40 + 1 for n in range(len(store.queues))
            ]
            assert len(list(Path("/dev/fd").iterdir())) <= before + open_files.OPEN_LIMIT
        assert len(list(Path("/dev/fd").iterdir())) == before

    def test_queues_in_rocksdb(self, tmp_path: Path) -> None:
        write_log(tmp_path / "commitlog", two_queues(3))
        write_sparse(tmp_path / "consumequeue/CURRENT", 16)
        with Store.open(tmp_path) as store:
            assert len(list(store.messages())) == 3
            with pytest.raises(UnsupportedStoreError):
                store.max_offset("TopicTest", 0)


class TestBatchQueues:
    UNITS = [BatchUnit(1000 * n, 1000, 0, STORE_TIMESTAMP, 10 * n, 10) for n in range(25)]

    @pytest.mark.parametrize("profile", ["5.3", "5.4"])
    def test_bounds(self, tmp_path: Path, profile: str) -> None:
        queue_of(tmp_path, self.UNITS, file_size=460)
        assert bounds(tmp_path, profile, 0) == (0, 250)
        assert bounds(tmp_path, profile, 4500) == (50, 250)

    def test_minimum_behind_the_last_live_record(self, tmp_path: Path) -> None:
        """It moves behind each unit of the first file whose record is gone, seen on 5.4.0."""
        queue_of(tmp_path, self.UNITS[:10], file_size=460)
        assert [bounds(tmp_path, "5.4", at) for at in (9000, 9001)] == [(90, 100), (100, 100)]
        queue_of(tmp_path, self.UNITS, file_size=460)
        assert bounds(tmp_path, "5.4", 24_001) == (100, 250)

    def test_the_unit_that_holds_an_offset(self, tmp_path: Path) -> None:
        with Store.open(queue_of(tmp_path, self.UNITS, file_size=460)) as store:
            queue = store.queues["T", 0]
            assert isinstance(queue, BatchConsumeQueue)
            assert [queue.unit(n) for n in (0, 9, 10, 249, 250, -1)] == [
                self.UNITS[0], self.UNITS[0], self.UNITS[1], self.UNITS[24], None, None,
            ]  # fmt: skip
            assert [base for base, _ in queue.units(15, 31)] == [10, 20, 30]
            assert [base for base, _ in queue.units(15, 31, reverse=True)] == [30, 20, 10]

    def test_without_units(self, tmp_path: Path) -> None:
        write_sparse(tmp_path / "batchconsumequeue/T/0" / file_name(0), 460)
        assert bounds(tmp_path, "5.4", 0) == (-1, 0)
