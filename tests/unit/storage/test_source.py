"""Sources of bytes, the page cache, CRC inside kernels, and where compiled kernels are kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqtool.formats import message
from rmqtool.log import compiled, crc
from rmqtool.log.crc import crc_of
from rmqtool.log.events import CorruptRange, Reason, TrailingZeros
from rmqtool.log.frames import Frames, walk
from rmqtool.log.python_scan import walk_reference
from rmqtool.spark.package import write_package
from rmqtool.storage.page_cache import PAGE, resident_bytes
from rmqtool.storage.ranges import Unreadable, inside, merged
from rmqtool.storage.source import (
    WINDOW,
    BytesSource,
    FileSource,
    RateLimiter,
    first_nonzero,
    nonzero_end,
    open_source,
)
from tests import ROOT
from tests.support.programs import PATIENCE_S
from tests.support.records import record
from tests.support.scan_logs import log
from tests.support.sweep import paired

pytestmark = pytest.mark.sweep
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the page cache is asked on Linux only")


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """Pages and holes are those of a disk."""
    return disk_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of some pages and a bit."""
    file = tmp_path / "file"
    file.write_bytes(bytes(n * 7 % 251 for n in range(10 * PAGE + 100)))
    return file


@pytest.mark.parametrize("opener", [open_source, lambda path: open_source(path, keep_cache=True),
                                    lambda path: BytesSource(bytearray(path.read_bytes()))])  # fmt: skip
def test_windows_and_reads_are_the_file(path: Path, opener: type[FileSource]) -> None:
    data = path.read_bytes()
    source = opener(path)
    size = len(data)
    ranges = [
        (0, 10),
        (5, PAGE),
        (PAGE, 3 * PAGE),
        (size - 5, 100),
        (0, 1 << 30),
        (size, 9),
        (size + 50, 9),
        (3, 0),
    ]
    for offset, length in ranges:
        window = source.window(offset, length)
        assert window.tobytes() == data[offset : offset + length] == source.read(offset, length)
        assert not window.flags.writeable
    assert source.size == len(data)
    assert source.unreadable == []
    source.close()
    source.close()


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    source = open_source(tmp_path / "empty")
    assert (source.size, source.read(0, 5), len(source.window(0, 5))) == (0, b"", 0)
    assert list(walk(source, file_from_offset=0)) == []
    source.close()


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        open_source(tmp_path / "none")


def test_pages_that_cannot_be_read_are_listed_and_read_as_zeros(path: Path) -> None:
    data = path.read_bytes()
    source = open_source(path)
    size = source.size
    source.window(0, size)
    os.truncate(path, 2 * PAGE + 50)  # where a plain map would be a SIGBUS
    want = data[: 2 * PAGE + 50].ljust(size, b"\0")
    assert source.read(0, size) == want
    assert source.window(PAGE, size).tobytes() == want[PAGE:]
    assert source.unreadable == [(2 * PAGE + 50, size)]
    source.close()


@pytest.mark.parametrize("size", [PAGE, 2 << 20, WINDOW + 1])
def test_a_window_that_is_held_stays_as_it_was_read(tmp_path: Path, size: int) -> None:
    """Whatever becomes of the file and of later windows, in parts of it as well."""
    path = tmp_path / "file"
    path.write_bytes(b"1" * size)
    source = open_source(path)
    held = source.window(0, size)
    part = memoryview(source.window(0, size)[size // 2 :])
    for byte in b"2", b"3":
        path.write_bytes(byte * size)
        for _ in range(5):
            assert source.window(0, size).tobytes() == byte * size
    os.truncate(path, 0)
    assert source.window(0, size).tobytes() == bytes(size)
    assert (held.tobytes(), part.tobytes()) == (b"1" * size, b"1" * (size - size // 2))
    assert source.unreadable == [(0, size)]
    source.close()


def test_windows_take_turns_in_the_same_memory(tmp_path: Path) -> None:
    """Also over files: fresh memory costs more than the copy."""
    places: set[int] = set()
    for number in range(6):
        path = tmp_path / str(number)
        path.write_bytes(bytes(WINDOW))
        source = open_source(path)
        window = source.window(0, WINDOW)
        for offset in range(0, WINDOW, 1 << 20):
            window = source.window(offset, 1 << 20)
            places.add(window.ctypes.data)
        source.close()
    assert len(places) <= 4


def test_a_walk_sees_a_file_of_zeros_where_it_became_shorter_between_two_looks(tmp_path: Path) -> None:
    """The plain walk looks at the head of a record and then reads all of it: two reads for a long one."""
    one = record("T", bytes(range(256)) * 4096)
    path = tmp_path / "00000000000000000000"
    path.write_bytes(log(*[one] * 2))

    class Shrinking(FileSource):
        def read(self, offset: int, length: int) -> bytes:
            data = super().read(offset, length)
            os.truncate(path, 4)
            return data

    source = Shrinking(path)
    size = source.size
    (found,) = walk_reference(source, file_from_offset=0)
    assert isinstance(found, CorruptRange)  # its head was there
    assert (found.physical_offset, found.length, found.reason) == (0, size, Reason.LENGTHS)
    assert merged(source.unreadable) == [(4, size)]
    assert sum(stop - start for start, stop in source.unreadable) == size - 4  # each byte once
    source.close()


def test_a_magic_that_has_gone_between_two_looks(tmp_path: Path) -> None:
    """The plain walk finds a magic in a block and then looks at the head: here the magic goes in between."""
    path = tmp_path / "00000000000000000000"
    start = 70_000  # behind the first block
    sound = message.encode(replace(record("T", b"x"), physical_offset=start))
    path.write_bytes(b"\1" * start + sound + b"\1" * 60_000)  # so that blocks and heads are read apart

    class Changing(FileSource):
        def read(self, offset: int, length: int) -> bytes:
            data = super().read(offset, length)
            if offset <= start < offset + len(data):
                with path.open("r+b") as file:
                    file.seek(start + 4)
                    file.write(bytes(4))
            return data

    source = Changing(path)
    found = list(walk_reference(source, file_from_offset=0))
    assert len(found) == 1, found
    assert isinstance(found[0], CorruptRange)
    assert (found[0].physical_offset, found[0].length) == (0, source.size)
    source.close()


def test_a_hole_up_to_an_end_that_has_moved_is_unreadable(path: Path) -> None:
    """Of a file that was cut SEEK_DATA says what it says of one that ends in a hole."""
    source = open_source(path)
    size = source.size
    assert source.data_from(size) == size and source.unreadable == []
    os.truncate(path, PAGE + 10)
    assert source.data_from(2 * PAGE) == size
    assert source.unreadable == [(2 * PAGE, size)]
    assert first_nonzero(source, PAGE + 10, size) == size
    assert sum(stop - start for start, stop in source.unreadable) == size - PAGE - 10
    source.close()


def test_a_walk_lists_all_that_a_cut_took(tmp_path: Path) -> None:
    """Up to the size that the file had, not up to the last window that was asked for."""
    path = tmp_path / "00000000000000000000"
    path.write_bytes(log(*[record("T", bytes(range(256)) * 64, queue_offset=n) for n in range(900)]))
    source = open_source(path)
    size = source.size
    assert size > 3 * WINDOW
    events = walk(source, file_from_offset=0)
    next(events)
    os.truncate(path, WINDOW + 100)
    list(events)
    assert source.unreadable[-1][1] == size
    assert source.unreadable == [(WINDOW + 100, size)]
    source.close()


def test_a_file_that_was_cut_after_it_was_listed(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, PAGE)
    source = open_source(path, listed_size=size)
    assert (source.size, source.data_from(PAGE)) == (size, size)
    assert source.unreadable == [(PAGE, size)]
    assert source.read(0, size) == path.read_bytes().ljust(size, b"\0")
    assert source.unreadable == [(PAGE, size)]
    source.close()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=30))
def test_unreadable_ranges_hold_each_byte_once(ranges: list[tuple[int, int]]) -> None:
    unreadable = Unreadable()
    for start, stop in ranges:
        unreadable.note(start, stop)
    found = [each for low, high in unreadable.ranges for each in range(low, high)]
    wanted = {each for low, high in ranges for each in range(low, high)}
    assert len(found) == len(set(found)) and set(found) == wanted
    for start in range(41):
        for stop in range(start + 1, 41):
            assert unreadable.touches(start, stop) == bool(wanted.intersection(range(start, stop)))


def test_a_walk_goes_on_behind_what_cannot_be_read(tmp_path: Path) -> None:
    one = record("T", bytes(range(256)) * 4)
    data = log(*[one] * 30)
    path = tmp_path / "00000000000000000000"
    path.write_bytes(data)
    source = open_source(path)
    events = walk(source, file_from_offset=0, window=PAGE)
    first = next(events)
    os.truncate(path, 3 * PAGE)
    found = [first, *events]
    assert sum(len(event.rows) for event in found if isinstance(event, Frames)) == 3 * PAGE // one.total_size
    assert isinstance(found[-1], (CorruptRange, TrailingZeros))
    assert source.unreadable[0][0] == 3 * PAGE
    assert source.unreadable[-1][1] == len(data)
    source.close()


def test_holes_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(100 << 30)
        os.pwrite(file.fileno(), b"x", 60 << 30)
    source = open_source(path)
    assert source.data_from(0) == 60 << 30
    assert source.data_from((60 << 30) + PAGE) == source.size
    started = time.process_time()
    assert first_nonzero(source, 5, source.size) == 60 << 30
    assert nonzero_end(source, 50 << 30, (60 << 30) + 9) == (60 << 30) + 1
    for found in (walk(source, file_from_offset=0), walk_reference(source, file_from_offset=0)):
        (bad,) = found
        assert isinstance(bad, CorruptRange)
        assert (bad.length, bad.nonzero_end, bad.to_end) == (100 << 30, (60 << 30) + 1, True)
    assert time.process_time() - started < 30
    source.close()


@given(seed=st.integers(0, 1 << 32))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reads_across_holes_are_the_file(tmp_path: Path, seed: int) -> None:
    random, path = Random(seed), tmp_path / "holes"
    with path.open("wb") as file:
        file.truncate(random.randrange(1, 2 << 20))
        for _ in range(random.randrange(6)):
            piece = random.choice((b"x", bytes(3 * PAGE), bytes(range(256)) * 200))
            os.pwrite(file.fileno(), piece, random.randrange(2 << 20))
    data = path.read_bytes()
    source = open_source(path)
    for _ in range(5):
        start, length = random.randrange(len(data) + 1), random.randrange(2 << 20)
        assert source.read(start, length) == data[start : start + length]
    assert source.unreadable == []
    os.truncate(path, cut := random.randrange(len(data) + 1))
    assert source.read(0, len(data)) == data[:cut] + bytes(len(data) - cut)
    assert source.unreadable == ([(cut, len(data))] if cut < len(data) else [])
    source.close()


@on_linux
def test_no_pages_are_made_for_a_hole(tmp_path: Path) -> None:
    path = tmp_path / "hole"
    with path.open("wb") as file:
        file.truncate(8 << 20)
        os.pwrite(file.fileno(), b"x", 5 << 20)
    cold(path)
    source = open_source(path, keep_cache=True)
    assert len(source.read(0, 8 << 20).strip(b"\0")) == 1
    source.close()
    assert resident_bytes(path) == PAGE


def test_holes_on_tmpfs_stay_holes(tmp_path: Path) -> None:
    """There a page that is mapped and touched is given memory: a sparse log would grow by being read."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else tmp_path) as folder:
        path = Path(folder) / "sparse"
        for last in (0, 100 << 20):
            with path.open("wb") as file:
                file.truncate(256 << 20)
                os.pwrite(file.fileno(), b"\0" if not last else b"x", last)
            source = open_source(path)
            assert len(list(walk(source, file_from_offset=0, window=1 << 20))) == 1
            source.close()
            assert path.stat().st_blocks * 512 < 8 << 20


def cold(path: Path) -> None:
    """Have no page of the file in the page cache, or skip the test."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident_bytes(path) != 0:
        pytest.skip("this file system does not drop pages")


@on_linux
@pytest.mark.parametrize("window", [3 * PAGE, 64 * PAGE, 4 << 20])
@pytest.mark.parametrize("walker", ["compiled", "plain", "windows only"])
def test_the_page_cache_is_left_as_it_was(tmp_path: Path, window: int, walker: str) -> None:
    path = tmp_path / "00000000000000000000"
    data = log(*[record("T", bytes(1000), queue_offset=n) for n in range(1000)])
    path.write_bytes(data)
    cold(path)
    with path.open("rb") as file:  # some pages are the broker's
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for page in (0, 1, 7, 100, 101, 102):
            os.pread(file.fileno(), 1, page * PAGE)
    before = resident_bytes(path)
    assert before is not None
    assert 0 < before < len(data) // 2
    source = open_source(path)
    if walker == "compiled":
        assert sum(len(event.rows) for event in walk(source, file_from_offset=0, window=window)
                   if isinstance(event, Frames)) == 1000  # fmt: skip
    elif walker == "plain":
        assert len(list(walk_reference(source, file_from_offset=0))) == 1000
    else:
        for offset in range(len(data) - window, -1, -window // 2):
            source.window(offset, window)
    source.close()
    assert resident_bytes(path) == before


@on_linux
def test_keep_cache_keeps(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(50 * PAGE))
    cold(path)
    source = open_source(path, keep_cache=True)
    source.window(0, source.size)
    source.close()
    assert resident_bytes(path) == 50 * PAGE


def test_the_limiter_is_shared() -> None:
    limiter = RateLimiter(1_000_000)
    started = time.monotonic()
    for _ in range(4):
        limiter.take(50_000)  # the first is free at once, each of the others waits for the one before
    assert 0.14 < time.monotonic() - started < PATIENCE_S


@compiled.compiled
def crc_in_kernel(data: Any, start: int, length: int, address: int, tables: Any) -> Any:
    return crc_of(data, start, length, address, tables)


@given(st.binary(max_size=1500), st.integers(0, 70))
def test_crc_in_kernels_is_zlib_s(data: bytes, start: int) -> None:
    start = min(start, len(data))
    array = np.frombuffer(data, np.uint8)
    want = zlib.crc32(data[start:])
    for address in {crc.crc_address(), 0}:
        assert crc_in_kernel(array, start, len(data) - start, address, crc.crc_tables()) == want


def test_crc_of_every_length() -> None:
    data = np.random.default_rng(1).integers(0, 256, 1200, np.uint8)
    data.flags.writeable = False
    for length in range(1100):
        for start in (0, 64, 91):
            got = crc_in_kernel(data, start, length, crc.crc_address(), crc.crc_tables())
            assert got == zlib.crc32(data[start : start + length]), (start, length)


def test_isal_is_found_on_this_platform() -> None:
    if sys.platform == "linux":
        assert crc.crc_address() != 0


# kernels on disk


def test_the_cache_folder_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, own, file = tmp_path / "shared", tmp_path / "own", tmp_path / "file"
    name = f"kernels-{compiled.source_hash()}"
    (shared / name).mkdir(parents=True)
    (shared / name).chmod(0o777)
    file.touch()
    monkeypatch.setattr(compiled, "_parents", lambda: [file, shared, own])
    assert compiled.cache_folder.__wrapped__() == own / name
    assert (own / name).stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(compiled, "_parents", lambda: [file, shared])
    assert compiled.cache_folder.__wrapped__() is None


def test_no_candidate_is_a_shared_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", "/home/someone")
    assert compiled._parents() == [ROOT / "rmqtool/log/__pycache__", Path("/home/someone/.cache/rmqtool")]


# A program that needs a small kernel, compiled for three types; most of its time is that of its start.
USES_A_KERNEL = """
import sys
import numpy as np
from rmqtool import compile_notice
from rmqtool.log import compiled
from rmqtool.log.string_ranges_kernel import gather
said = []
compile_notice.show_by(said.append)
out, still = np.zeros(5, np.uint8), np.arange(9, dtype=np.uint8)
still.flags.writeable = False
for data, starts in [(still.copy(), [6, 1]), (still, [6, 1]), (still, np.array([6, 1], np.int32))]:
    out[:] = 0
    gather(data, np.asarray(starts), np.array([0, 3, 5]), out)
print(bytes(out).hex(), "numba" in sys.modules, len(said), compiled.cache_folder())
"""
ITS_RESULT = "0607080102"


def use_a_kernel(cache: Path) -> list[str]:
    """What the program prints whose kernels lie below `cache`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", USES_A_KERNEL]
    run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return run.stdout.split()


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the program has left its kernels, for reading only."""
    cache = tmp_path_factory.mktemp("kernels")
    assert use_a_kernel(cache) == [ITS_RESULT, "True", "1", str(cache / f"kernels-{compiled.source_hash()}")]
    return cache


def test_kernels_are_cached_between_processes(kernels: Path) -> None:
    """The second process compiles nothing; the first one says once that it does."""
    assert use_a_kernel(kernels)[:3] == [ITS_RESULT, "False", "0"]


def test_a_package_in_a_zip_shares_the_kernels(tmp_path: Path) -> None:
    """Wherever the zip lies; where there is no other place, the kernels lie beside it."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from rmqtool.index import index_file_kernel\n"
        "from rmqtool.log import compiled\n"
        "print(compiled._PACKAGE, compiled.cache_folder())\n"
    )
    name = f"kernels-{compiled.source_hash()}"
    packed = write_package(tmp_path / "rmqtool.zip")
    for folder, cache, want in [
        ("one", tmp_path / "cache", tmp_path / "cache/rmqtool" / name),
        ("two", tmp_path / "cache", tmp_path / "cache/rmqtool" / name),
        ("three", Path("/dev/null"), tmp_path / "three" / name),
    ]:
        (tmp_path / folder).mkdir()
        path = Path(shutil.copy(packed, tmp_path / folder))
        ours = ("PYTHONPATH", "NUMBA_CACHE_DIR")
        environment = {key: value for key, value in os.environ.items() if key not in ours}
        environment["XDG_CACHE_HOME"] = str(cache)
        run = subprocess.run(
            [sys.executable, "-c", script, str(path)], env=environment, check=True, capture_output=True,
            text=True, cwd=tmp_path,
        )  # fmt: skip
        assert run.stdout.split() == [str(path / "rmqtool"), str(want)]


def test_a_changed_source_changes_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in compiled.COMPILED_ROOMS:
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(compiled, "_PACKAGE", tmp_path)
    hashes = [compiled.source_hash.__wrapped__()]
    for path, text in [("formats/a.py", "X = 1"), ("formats/a.py", "X = 2"), ("log/b.py", "X = 2")]:
        (tmp_path / path).write_text(text)
        hashes.append(compiled.source_hash.__wrapped__())
    assert len(set(hashes)) == 4


@on_linux
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_file_of_somebody_else_is_read_without_asking_about_pages(path: Path) -> None:
    path.chmod(0o644)
    fd = os.open(path, os.O_RDONLY)  # a way to the file that asks for no right on the folders above
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        again = Path(f"/proc/self/fd/{fd}")
        source = open_source(again)
        good = source.window(0, source.size).tobytes() == source.read(0, source.size)
        os._exit(0 if good and resident_bytes(again) is None else 1)
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@compiled.compiled
def wide_sum(numbers: Any, weight: Any) -> Any:
    total = np.uint64(0)
    for row in range(numbers.shape[0]):
        for column in range(numbers.shape[1]):
            total += np.uint64(numbers[row, column]) * np.uint64(weight)
    return total


def test_a_kernel_takes_arrays_of_every_layout() -> None:
    """Views with strides, Fortran order, read-only and unaligned arrays, numbers of every width."""
    numbers = np.arange(60, dtype=np.int64).reshape(6, 10)
    still = numbers.copy()
    still.flags.writeable = False
    shifted = np.zeros(481, np.uint8)[1:].view(np.int64).reshape(6, 10)
    shifted[:] = numbers
    assert not shifted.flags.aligned
    arrays = [numbers, numbers[::2, 1::3], numbers.T, still, shifted, numbers[:0], numbers.astype(np.int16)]
    weights = (3, True, np.uint8(200), np.int32(7), np.uint64(2))  # each type is compiled
    for array, weight in paired(arrays, weights):
        assert wide_sum(array, weight) == int(array.sum()) * int(weight)
    codes = len(wide_sum._codes)
    for one in (numbers[:1], numbers[:1, :1]):  # in both orders: the code of more rows
        assert wide_sum(one, weights[0]) == int(one.sum()) * 3
    assert len(wide_sum._codes) == codes
    top = np.uint64(1 << 63)
    assert wide_sum(np.ones((1, 1), np.int64), top) == -(1 << 63)  # a result is a signed word
    with pytest.raises(TypeError, match="takes no str"):
        wide_sum(numbers, "3")


def test_a_damaged_kernel_file_is_compiled_again(kernels: Path, tmp_path: Path) -> None:
    """An empty one, a cut one, one with another byte: LLVM would end the process."""
    cache = Path(shutil.copytree(kernels, tmp_path / "kernels"))
    files = list(cache.rglob(f"*{compiled.SUFFIX}"))
    ways = (lambda data: b"", lambda data: data[:-1], lambda data: data[:500] + b"\x55\xaa" + data[502:])
    for path, damaged in zip(files, ways, strict=True):
        assert compiled._read(path)
        path.write_bytes(damaged(path.read_bytes()))
        assert not compiled._read(path)
    assert use_a_kernel(cache)[0] == ITS_RESULT
    assert all(compiled._read(path) for path in files)


def test_every_kernel_is_in_the_hash() -> None:
    package = ROOT / "rmqtool"
    rooms = {
        path.parent.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "import compiled" in path.read_text("utf-8") and "@compiled" in path.read_text("utf-8")
    }
    assert rooms
    assert rooms <= set(compiled.COMPILED_ROOMS)


@pytest.mark.parametrize("seed", range(3))
def test_numbers_inside_of_ranges(seed: int) -> None:
    """As each number by itself; ranges far from the numbers are not looked at."""
    random = np.random.default_rng(seed)
    for _ in range(200):
        edges = random.integers(-5, 60, (int(random.integers(0, 6)), 2))
        ranges = merged((int(min(pair)), int(max(pair)) + 1) for pair in edges)
        numbers = random.integers(-10, 70, int(random.integers(0, 5)))
        expected = [any(low <= number < high for low, high in ranges) for number in numbers.tolist()]
        assert inside(ranges, numbers).tolist() == expected
