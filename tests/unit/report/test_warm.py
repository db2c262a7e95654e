"""The newest part of a store in the page cache: what is chosen, what is resident then, what is left out."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.formats import index
from rmqtool.read.store import Store
from rmqtool.report.warm import Section, sections, warm
from rmqtool.storage.page_cache import PAGE, available_memory, resident_bytes
from tests.support.places import new_folder_on_disk
from tests.support.stores import Library
from tests.support.whole_store import keyed, write_whole

LOG_FILE_SIZE = 4 << 20


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """Four log files, queues of two files, one index file; on a disk."""
    folder = new_folder_on_disk()
    write_whole(folder / "store", keyed(700, body=20_000), log_file_size=LOG_FILE_SIZE,
                queue_file_size=4_000, shape=index.Shape(100, 3000))  # fmt: skip
    yield folder / "store"
    shutil.rmtree(folder)


@pytest.fixture
def cold(made: Path) -> Path:
    """The store, when none of it is in the page cache."""
    for path in made.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if any(resident_bytes(path) != 0 for path in (made / "commitlog").iterdir()):
        pytest.skip("this system does not say which pages are in the page cache, or does not drop them")
    return made


def chosen(root: Path, last: int, *, queues: bool = False, in_index: bool = False) -> list[Section]:
    """The sections of a store."""
    with Store.open(root) as store:
        return list(sections(store, last, queues=queues, index=in_index))


@pytest.mark.parametrize("last", [0, 1, 5_000_000, 1 << 62])
def test_the_newest_bytes_of_the_log_are_chosen(made: Path, last: int) -> None:
    """From the end backwards, file by file."""
    with Store.open(made) as store:
        end, files = store.commit_log.end_offset(), store.layout.commit_log
    starts = {Path(str(file.path)): file.file_from_offset for file in files}
    ranges = [
        (starts[Path(str(each.place))] + each.start, starts[Path(str(each.place))] + each.stop)
        for each in chosen(made, last)
    ]
    assert ranges == sorted(ranges, reverse=True)
    covered = [offset for low, high in ranges for offset in (low, high)]
    if last == 0:
        assert not covered
    else:
        assert (min(covered), max(covered)) == (max(end - last, 0), end)
        assert sum(high - low for low, high in ranges) == min(last, end)


def test_the_newest_bytes_are_beyond_damage(cases: Library) -> None:
    """A hole ends the log for a scan; the units of the queues lead to the records after it."""
    root = cases.path("gap_cl02_zero_hole")
    (part,) = chosen(root, 1000)
    assert (part.start, part.stop) == (174265 - 1000, 174265)


def test_the_units_of_the_chosen_messages_come_first(made: Path) -> None:
    """Exactly those that point at or after the start."""
    last = 3_000_000
    with Store.open(made) as store:
        start = store.commit_log.end_offset() - last
        wanted = {
            (key, number)
            for key, queue in store.queues.items()
            for number, unit in queue.units()
            if unit.physical_offset >= start
        }
        paths = {
            file.path: (key, file.file_from_offset)
            for key, queue in store.queues.items()
            for file in queue.files
        }
    found = chosen(made, last, queues=True)
    parts = [each.part for each in found]
    assert parts == sorted(parts, key=["queues", "log"].index)
    units = set()
    for each in found[: parts.index("log")]:
        key, first = paths[Path(str(each.place))]
        units |= {(key, (first + at) // 20) for at in range(each.start, each.stop, 20)}
    assert units == wanted and wanted


def test_index_files_are_chosen_from_the_newest(cases: Library) -> None:
    """Down to the first that holds no key of the messages."""
    root = cases.path("ok_540_clean")
    with Store.open(root) as store:
        files = [str(file.path) for file in store.layout.index_files]
    assert len(files) == 3
    for last, count in ((1000, 1), (1 << 40, 3)):
        found = [str(each.place) for each in chosen(root, last, in_index=True) if each.part == "index"]
        assert found == files[::-1][:count]


def test_what_is_chosen_is_resident_then(cold: Path) -> None:
    with Store.open(cold) as store:
        parts = warm(store, sections(store, 1 << 40, queues=True, index=True), available_memory())
    assert [part.part for part in parts] == ["queues", "log", "index"]
    for part in parts:
        assert part.resident_bytes == part.bytes > 0
        assert part.left_out_bytes == 0
    log = parts[1]
    assert log.files == 4
    assert log.resident_before_bytes is not None and log.resident_before_bytes < log.bytes // 4


def test_the_bound_keeps_the_newest(cold: Path) -> None:
    bound = 1 << 20
    with Store.open(cold) as store:
        end = store.commit_log.end_offset()
        newest = store.layout.commit_log[-1]
        (part,) = warm(store, sections(store, 1 << 40, queues=False, index=False), bound)
    assert part.left_out_bytes == part.bytes - bound
    stop = end - newest.file_from_offset
    assert resident_bytes(newest.path, stop - bound, stop) == bound
    oldest = cold / "commitlog" / f"{0:020d}"
    assert (resident_bytes(oldest) or 0) <= 64 * PAGE, "only what opening a store reads"


def test_a_bound_of_nothing_reads_nothing(cold: Path) -> None:
    with Store.open(cold) as store:
        chosen = list(sections(store, 1 << 40, queues=False, index=False))
        (part,) = warm(store, chosen, 0)
    assert part.left_out_bytes == part.bytes
    assert part.resident_bytes == part.resident_before_bytes


def test_the_command(cold: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warm", str(cold), "--last", "2M", "--fields", "part,bytes", "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["part,bytes", "log,2097152"]
    assert "2.0 MiB of 2.0 MiB are in the page cache" in err
    assert main(["warm", str(cold), "--at-most", "1M", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full, and root's rights, as Linux has them")
def test_a_file_that_cannot_be_read_is_named(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are read."""
    root = tmp_path / "store"
    shutil.copytree(made, root)
    broken = root / "commitlog" / f"{LOG_FILE_SIZE:020d}"
    broken.unlink()
    broken.mkdir()
    assert main(["warm", str(root), "--format", "csv", "--fields", "part,files"]) != 0
    out, err = capsys.readouterr()
    assert "log," in out
    assert broken.name in err


def test_a_store_that_is_elsewhere_is_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = shutil.make_archive(str(tmp_path / "store"), "tar", made)
    assert main(["warm", archive]) == 2
    assert "not in files of this machine" in capsys.readouterr().err


def test_a_store_without_a_log_has_nothing_to_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "consumequeue").mkdir()
    assert main(["warm", str(tmp_path), "--queues", "--index"]) == 0
    assert "nothing to read" in capsys.readouterr().err


def test_files_that_a_broker_deletes_meanwhile_are_passed_over(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("ok_540_clean")
    with Store.open(root) as store:
        chosen = list(sections(store, 1 << 40, queues=False, index=False))
        (root / "commitlog" / f"{0:020d}").unlink()
        (part,) = warm(store, chosen, 1 << 40)
        assert not store.failures
    assert part.files == 4
