"""A whole verification leaves the page cache as it found it: it belongs to the broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.formats import index
from rmqtool.scan.page_cache import PAGE, resident_bytes
from rmqtool.store import Store
from rmqtool.store.verify import verify
from tests.whole_store import keyed, write_whole

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the page cache is asked on Linux only")

LOG_FILE_SIZE = 1 << 20


def files_of(root: Path) -> Iterator[Path]:
    """The mapped files: what a broker wants to have in memory."""
    for folder in ("commitlog", "consumequeue", "index"):
        yield from sorted(path for path in (root / folder).rglob("*") if path.is_file())


def residency(root: Path) -> dict[str, int | None]:
    return {str(path.relative_to(root)): resident_bytes(path) for path in files_of(root)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of some megabytes of which no page is in the page cache."""
    store = tmp_path / "store"
    write_whole(store, keyed(3000, body=900), log_file_size=LOG_FILE_SIZE, queue_file_size=40_000,
                shape=index.Shape(1000, 15_000))  # fmt: skip
    for path in files_of(store):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    found = residency(store)
    if None in found.values():
        pytest.skip("this system does not tell which pages are in the page cache")
    if any(found.values()):
        pytest.skip("this file system does not drop pages")
    return store


def read_pages(path: Path, pages: range) -> None:
    """Bring some pages into the page cache, as a consumer's read does."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for page in pages:
            os.pread(file.fileno(), 1, page * PAGE)


@pytest.mark.parametrize("jobs", [1, 4])
def test_nothing_was_resident(root: Path, jobs: int) -> None:
    before = residency(root)
    assert main(["verify", str(root), "--jobs", str(jobs), "--quiet"]) == 0
    assert residency(root) == before == dict.fromkeys(before, 0)


def test_some_pages_were_resident(root: Path) -> None:
    """The newest file as a whole, some pages of another, a queue, the head of the index."""
    log = sorted((root / "commitlog").iterdir())
    read_pages(log[-1], range(LOG_FILE_SIZE // PAGE))
    read_pages(log[1], range(10, 200, 7))
    read_pages(root / "consumequeue/TopicTest/0/00000000000000000000", range(3))
    read_pages(next((root / "index").iterdir()), range(1))
    before = residency(root)
    assert before[str(log[-1].relative_to(root))] == LOG_FILE_SIZE
    assert main(["verify", str(root), "--quiet"]) == 0
    assert residency(root) == before


def test_keep_cache_keeps_the_log(root: Path) -> None:
    assert main(["verify", str(root), "--keep-cache", "--quiet"]) == 0
    found = residency(root)
    assert all(found[name] == LOG_FILE_SIZE for name in found if name.startswith("commitlog/"))


def test_after_an_interruption(root: Path) -> None:
    """Whoever stops in the middle leaves nothing behind either."""

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    before = residency(root)
    with Store.open(root) as store, pytest.raises(KeyboardInterrupt):
        list(verify(store, jobs=2, progress=stop))
    assert residency(root) == before
