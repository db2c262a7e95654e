"""A whole verification leaves the page cache as it found it: it belongs to the broker."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqtool.check.verify import verify
from rmqtool.cli import main
from rmqtool.formats import index
from rmqtool.read.store import Store
from rmqtool.storage.page_cache import PAGE, resident_bytes
from tests.support.places import new_folder_on_disk
from tests.support.whole_store import keyed, write_whole

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the page cache is asked on Linux only")

LOG_FILE_SIZE = 16 << 20
SLACK = LOG_FILE_SIZE // 2
"""Bytes per file that may come or go besides: heads that are read, the system's own read-ahead (which can
arrive after the pages were given back), pages that it takes under pressure. A scan that gives nothing back
leaves whole files."""


def files_of(root: Path) -> list[Path]:
    """The log: what a broker wants to have in memory."""
    return sorted((root / "commitlog").iterdir())


def residency(root: Path) -> list[int]:
    """Resident bytes of every log file, in order; skips the test where the system does not tell."""
    found = [resident_bytes(path) for path in files_of(root)]
    known = [size for size in found if size is not None]
    if len(known) < len(found):
        pytest.skip("this system does not tell which pages are in the page cache")
    return known


@pytest.fixture(scope="module")
def store() -> Iterator[Path]:
    """Some 60 MB of log."""
    folder = new_folder_on_disk()
    path = folder / "store"
    write_whole(path, keyed(1000, body=60_000), log_file_size=LOG_FILE_SIZE, queue_file_size=40_000,
                shape=index.Shape(500, 5000))  # fmt: skip
    yield path
    shutil.rmtree(folder)


@pytest.fixture
def root(store: Path) -> Path:
    """The store, when no page of its log is in the page cache."""
    for path in files_of(store):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if any(residency(store)):
        pytest.skip("this file system does not drop pages")
    return store


def is_hole_from(path: Path, offset: int) -> bool:
    """Whether the system knows of no data behind the offset."""
    with path.open("rb") as file:
        try:
            return os.lseek(file.fileno(), offset, os.SEEK_DATA) < 0
        except OSError as error:
            return error.errno == errno.ENXIO


def read_pages(path: Path, pages: range) -> None:
    """Bring some pages into the page cache, as a consumer's read does."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for page in pages:
            os.pread(file.fileno(), 1, page * PAGE)


def check(before: list[int], after: list[int]) -> None:
    """What was there is there, and little has come."""
    for old, new in zip(before, after, strict=True):
        assert abs(new - old) <= SLACK, (before, after)


@pytest.mark.parametrize("jobs", [1, 4])
def test_nothing_was_resident(root: Path, jobs: int) -> None:
    before = residency(root)
    assert main(["verify", str(root), "--jobs", str(jobs), "--quiet"]) == 0
    check(before, residency(root))


def test_some_pages_were_resident(root: Path) -> None:
    """One file as a whole, every other page of the next one, a few of another."""
    log = files_of(root)
    read_pages(log[0], range(LOG_FILE_SIZE // PAGE))
    read_pages(log[1], range(0, LOG_FILE_SIZE // PAGE, 2))
    read_pages(log[2], range(1000, 1100))
    before = residency(root)
    assert before[0] > LOG_FILE_SIZE - SLACK and before[2] > 0
    assert main(["verify", str(root), "--quiet"]) == 0
    check(before, residency(root))


def test_keep_cache_keeps_the_log(root: Path) -> None:
    assert main(["verify", str(root), "--keep-cache", "--quiet"]) == 0
    assert residency(root)[0] > LOG_FILE_SIZE - SLACK


def test_after_an_interruption(root: Path) -> None:
    """Whoever stops in the middle leaves nothing behind either."""

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    before = residency(root)
    with Store.open(root) as store, pytest.raises(KeyboardInterrupt):
        list(verify(store, jobs=2, progress=stop))
    check(before, residency(root))


def test_reserved_space_is_not_read(disk_path: Path) -> None:
    """The last file is mostly reserved: a hole, until somebody reads it. Windows end inside of pages."""
    root, size = disk_path / "store", 256 << 20
    write_whole(root, keyed(100, body=60_000), log_file_size=size, queue_file_size=40_000,
                shape=index.Shape(500, 5000))  # fmt: skip
    (path,) = files_of(root)
    with path.open("r+b") as file:
        records = file.read(7 << 20)
        file.truncate(0)
        os.posix_fallocate(file.fileno(), 0, size)
        os.pwrite(file.fileno(), records, 0)
        os.fsync(file.fileno())
    if not is_hole_from(path, 8 << 20):
        pytest.skip("this file system does not tell reserved space from data")
    assert main(["verify", str(root), "--keep-cache", "--quiet"]) == 0
    assert is_hole_from(path, 16 << 20)
