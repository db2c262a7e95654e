"""`rmqtool.storage.durable` where space, permission to write or descriptors run out."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path
from random import Random
from types import FrameType

import pytest

from rmqtool.errors import UnwritableError
from rmqtool.storage import durable as disk
from tests.support.hard_limits import mounted, open_files, refused, size_limit

PAGE = 4096


class TestFullDisk:
    """A limit on the size of files stands for a full disk: the system writes what fits, then refuses."""

    def test_a_write_says_so_and_what_fits_is_written(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        descriptor = disk.create_file(path, 0)
        with size_limit(PAGE):
            disk.write(descriptor, b"a" * PAGE, 0, path)
            refused(lambda: disk.write(descriptor, b"bb", PAGE - 1, path), path, errno.EFBIG)
        os.close(descriptor)
        assert path.read_bytes() == b"a" * (PAGE - 1) + b"b"

    @pytest.mark.parametrize("reserve", [False, True])
    def test_a_file_that_does_not_fit_leaves_nothing(self, tmp_path: Path, reserve: bool) -> None:
        path = tmp_path / "file"
        with size_limit(PAGE):
            refused(lambda: disk.create_file(path, PAGE + 1, reserve=reserve), path, errno.EFBIG)
            refused(lambda: disk.write_new(path, bytes(PAGE + 1)), path, errno.EFBIG)
        assert not path.exists()

    def test_a_full_file_system(self, tmp_path: Path) -> None:
        folder = tmp_path / "small"
        with mounted(folder, "size=256k,nr_inodes=8"):
            log, queue, path = folder / "log", folder / "queue", folder / "new"
            reserved = disk.create_file(log, 200 * 1024, reserve=True)
            sparse = disk.create_file(queue, 100 * 1024)
            refused(lambda: disk.create_file(path, 100 * 1024, reserve=True), path, errno.ENOSPC)
            assert not path.exists()
            with pytest.raises(UnwritableError, match="cannot write: No space left"):
                disk.write(sparse, b"x" * (100 * 1024), 0, queue)
            disk.write(reserved, b"y" * (200 * 1024), 0, log)  # its space was taken before
            disk.sync(reserved, log)
            assert log.read_bytes() == b"y" * (200 * 1024)
            refused(lambda: disk.write_new(path, b"z" * PAGE * 20), path, errno.ENOSPC)
            assert not path.exists()
            while len(list(folder.iterdir())) < 7:  # the root of the file system is the eighth
                disk.make_folder(folder / f"folder{len(list(folder.iterdir()))}")
            refused(lambda: disk.create_file(path, 0), path, errno.ENOSPC)
            refused(lambda: disk.make_folder(path), path, errno.ENOSPC)
            os.close(reserved)
            os.close(sparse)

    def test_no_space_is_found_at_the_write_never_by_a_signal(self, tmp_path: Path) -> None:
        folder = tmp_path / "small"
        with mounted(folder, "size=64k"):
            queue = folder / "queue"
            descriptor = disk.create_file(queue, 1 << 20)
            for page in range(16):
                disk.write(descriptor, b"u" * 20, page * PAGE, queue)
            refused(lambda: disk.write(descriptor, b"u" * 20, 16 * PAGE, queue), queue, errno.ENOSPC)
            disk.write(descriptor, b"v" * 20, 100, queue)  # where a page is already
            os.close(descriptor)
            assert queue.read_bytes()[:120] == b"u" * 20 + bytes(80) + b"v" * 20

    def test_a_read_only_file_system(self, tmp_path: Path) -> None:
        folder = tmp_path / "small"
        with mounted(folder, "size=64k"):
            (folder / "file").write_bytes(b"1")
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            file, new = folder / "file", folder / "new"
            refused(lambda: disk.open_file(file), file, errno.EROFS)
            refused(lambda: disk.create_file(new, 1), new, errno.EROFS)
            refused(lambda: disk.make_folder(new), new, errno.EROFS)
            refused(lambda: disk.rename(file, new), file, errno.EROFS)
            refused(lambda: disk.remove(file), file, errno.EROFS)
            assert file.read_bytes() == b"1"

    def test_no_descriptor_is_left_open(self, tmp_path: Path) -> None:
        before = open_files()
        with size_limit(PAGE):
            for number in range(5):
                with pytest.raises(UnwritableError):
                    disk.create_file(tmp_path / str(number), PAGE + 1)
                with pytest.raises(UnwritableError):
                    disk.write_new(tmp_path / str(number), bytes(PAGE + 1))
        assert open_files() == before

    def test_no_descriptor_is_free(self, tmp_path: Path) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        path = tmp_path / "file"
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limit[1]))
        try:
            with pytest.raises(UnwritableError) as caught:
                disk.create_file(path, 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        assert str(caught.value) == "cannot make the file: Too many open files"
        assert not path.exists()


class TestShortWrites:
    def test_a_write_that_took_less_is_gone_on_with(self, tmp_path: Path) -> None:
        """The first call fills the file up to the limit, which is lifted before the second."""
        path = tmp_path / "file"
        data = Random(7).randbytes(5 * PAGE)
        sizes = []

        def lift(_frame: FrameType, event: str, function: object) -> None:
            if event == "c_return" and function is os.pwrite:
                sizes.append(path.stat().st_size)
                resource.setrlimit(resource.RLIMIT_FSIZE, free)

        free = resource.getrlimit(resource.RLIMIT_FSIZE)
        descriptor = disk.create_file(path, 0)
        with size_limit(2 * PAGE):
            sys.setprofile(lift)
            try:
                disk.write(descriptor, data, 0, path)
            finally:
                sys.setprofile(None)
        os.close(descriptor)
        assert sizes == [2 * PAGE, 5 * PAGE]
        assert path.read_bytes() == data
