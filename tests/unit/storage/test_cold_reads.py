"""Windows of a file that is not in the page cache: the same bytes, and the cache stays as it is."""

from __future__ import annotations

import os
import random
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqtool.storage.cold_reads import CHUNK
from rmqtool.storage.page_cache import PAGE, resident_bytes
from rmqtool.storage.source import ByteSource, open_source
from tests.support.ordinary_user import NOBODY, as_nobody, open_to_all

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the page cache is asked on Linux only")

SIZE = 5 * CHUNK + 12_345
CONTENT = random.Random(7).randbytes(1 << 20) * (SIZE // (1 << 20) + 1)


def drop(path: Path) -> None:
    """Take a file out of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident_bytes(path):
        pytest.skip("this file system does not drop pages")


@pytest.fixture
def path(disk_path: Path) -> Path:
    """A file of which no page is resident; its end is inside of a page."""
    path = disk_path / "file"
    path.write_bytes(CONTENT[:SIZE])
    drop(path)
    return path


@pytest.fixture
def source(path: Path) -> Iterator[ByteSource]:
    """A source over it."""
    source = open_source(path)
    yield source
    source.close()


@pytest.mark.parametrize("length", [CHUNK, CHUNK + PAGE + 1, 4 * CHUNK])
@pytest.mark.parametrize("overlap", [0, 777, 3 * PAGE])
def test_windows_that_follow_each_other(path: Path, source: ByteSource, length: int, overlap: int) -> None:
    offset = 0
    while offset < SIZE:
        window = source.window(offset, length)
        assert window.tobytes() == CONTENT[offset : min(offset + length, SIZE)]
        offset += len(window) - (overlap if offset + len(window) < SIZE else 0)
    assert resident_bytes(path) == 0


def test_windows_anywhere(source: ByteSource) -> None:
    """Small ones and huge ones too, which go through the page cache."""
    choose = random.Random(11)
    for _ in range(60):
        offset, length = choose.randrange(SIZE), choose.choice((100, CHUNK - 1, 3 * CHUNK, 6 * CHUNK))
        assert source.window(offset, length).tobytes() == CONTENT[offset : min(offset + length, SIZE)]


@pytest.mark.parametrize("drops", [False, True])
def test_what_was_written_meanwhile_is_seen(path: Path, source: ByteSource, drops: bool) -> None:
    """Behind the window, where was read in advance; and, for who looks again, in the window."""
    source.window(0, CHUNK)
    with path.open("r+b") as file:
        for at in (100, CHUNK + 100, 3 * CHUNK):
            file.seek(at)
            file.write(b"new")
    if drops:
        drop(path)
        assert source.window(0, CHUNK)[100:103].tobytes() == b"new"
    assert source.window(CHUNK, CHUNK)[100:103].tobytes() == b"new"
    assert source.window(2 * CHUNK, 3 * CHUNK)[CHUNK : CHUNK + 3].tobytes() == b"new"


def test_a_file_that_becomes_shorter(path: Path, source: ByteSource) -> None:
    """What it has lost is zeros, and named."""
    source.window(0, CHUNK)
    os.truncate(path, 4 * CHUNK + 10)
    found = b"".join(source.window(offset, CHUNK).tobytes() for offset in range(CHUNK, SIZE, CHUNK))
    assert found.rstrip(b"\0") == CONTENT[CHUNK : 4 * CHUNK + 10].rstrip(b"\0")
    assert len(found) == SIZE - CHUNK
    assert source.unreadable == [(4 * CHUNK + 10, SIZE)]


def test_a_range_that_a_consumer_has_read(path: Path, source: ByteSource) -> None:
    """Its pages stay, and only they."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), PAGE, 2 * CHUNK + PAGE)
    assert resident_bytes(path) == PAGE
    for offset in range(0, SIZE, CHUNK):
        assert source.window(offset, CHUNK).tobytes() == CONTENT[offset : offset + CHUNK][: SIZE - offset]
    source.close()
    assert resident_bytes(path) == PAGE


def test_no_thread_can_begin(path: Path) -> None:
    """A service or container may limit them: the windows are read through the page cache."""
    open_to_all(path.parent)
    os.chown(path, NOBODY if os.getuid() == 0 else -1, -1)

    def scan() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        source = open_source(path)
        try:
            parts = [source.window(offset, CHUNK).tobytes() for offset in range(0, SIZE, CHUNK)]
            assert b"".join(parts) == CONTENT[:SIZE] and not source.unreadable
        finally:
            source.close()

    as_nobody(scan)
