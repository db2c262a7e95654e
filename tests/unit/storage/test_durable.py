"""Every change of a store goes through `rmqtool.storage.durable`: what it does, and what it refuses."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from rmqtool.errors import UnwritableError
from rmqtool.storage import durable as disk
from tests.support.hard_limits import ROOT, open_files, reachable, refused, size_limit
from tests.support.ordinary_user import NOBODY, as_nobody

__all__ = ["reachable"]

PAGE = 4096
OFFICE = 4711  # a user id and a group id that nobody has


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """Space is reserved, copied and flushed on a disk."""
    return disk_path


class TestMaking:
    def test_a_new_file_is_all_zero_and_can_be_read_and_written(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        descriptor = disk.create_file(path, 3 * PAGE)
        disk.write(descriptor, b"abc", 10, path)
        disk.sync(descriptor, path)
        assert os.pread(descriptor, 5, 9) == b"\0abc\0"
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)
        assert path.read_bytes() == bytes(10) + b"abc" + bytes(3 * PAGE - 13)

    @pytest.mark.parametrize("size", [0, 1, PAGE, (1 << 20) + 5])
    def test_space_is_reserved_or_left_as_a_hole(self, tmp_path: Path, size: int) -> None:
        for reserve in (False, True):
            path = tmp_path / f"file-{reserve}"
            os.close(disk.create_file(path, size, reserve=reserve))
            status = path.stat()
            assert status.st_size == size
            assert path.read_bytes() == bytes(size)
            assert (status.st_blocks * 512 >= size) if reserve else (status.st_blocks * 512 <= PAGE)

    def test_an_existing_file_is_not_touched(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"old")
        refused(lambda: disk.create_file(path, 100), path, errno.EEXIST)
        refused(lambda: disk.write_new(path, b"new"), path, errno.EEXIST)
        assert path.read_bytes() == b"old"

    def test_write_new_holds_the_bytes(self, tmp_path: Path) -> None:
        for data in (b"", b"text", bytearray(b"x" * 100_000), memoryview(b"a view")):
            path = tmp_path / f"file{len(data)}"
            disk.write_new(path, data)
            assert path.read_bytes() == bytes(data)

    def test_folders_above_are_made_too(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b" / "c"
        disk.make_folder(path)
        assert path.is_dir()
        disk.make_folder(path)

    def test_a_file_in_the_place_of_a_folder(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"")
        refused(lambda: disk.make_folder(path), path, "something else has its name")
        refused(lambda: disk.make_folder(path / "below"), path / "below", errno.ENOTDIR)
        refused(lambda: disk.create_file(path / "below", 1), path / "below", errno.ENOTDIR)

    def test_a_missing_folder(self, tmp_path: Path) -> None:
        path = tmp_path / "gone" / "file"
        refused(lambda: disk.create_file(path, 1), path, errno.ENOENT)
        refused(lambda: disk.open_file(path), path, errno.ENOENT)
        refused(lambda: disk.sync_folder(path), path, errno.ENOENT)
        refused(lambda: disk.rename(path, tmp_path / "new"), path, errno.ENOENT)
        disk.remove(path)


class TestChanging:
    def test_rename_takes_the_place_of_what_has_the_name(self, tmp_path: Path) -> None:
        old, new = tmp_path / "old", tmp_path / "new"
        old.write_bytes(b"1")
        new.write_bytes(b"2")
        disk.rename(old, new)
        disk.sync_folder(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["new"]
        assert new.read_bytes() == b"1"

    def test_remove(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"1")
        disk.remove(path)
        assert not path.exists()
        disk.remove(path)
        path.mkdir()
        with pytest.raises(UnwritableError, match="cannot delete"):
            disk.remove(path)
        assert path.is_dir()

    def test_only_plain_files_are_opened(self, tmp_path: Path) -> None:
        folder, pipe = tmp_path / "folder", tmp_path / "pipe"
        folder.mkdir()
        os.mkfifo(pipe)
        refused(lambda: disk.open_file(folder), folder, errno.EISDIR)
        before = open_files()
        refused(
            lambda: disk.open_file(pipe), pipe, "it is not a plain file"
        )  # and does not wait for a reader
        assert open_files() == before

    def test_a_closed_descriptor_names_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        descriptor = disk.create_file(path, 1)
        os.close(descriptor)
        refused(lambda: disk.write(descriptor, b"x", 0, path), path, errno.EBADF)
        refused(lambda: disk.sync(descriptor, path), path, errno.EBADF)

    def test_a_whole_file_system_is_flushed_where_the_system_can(self, tmp_path: Path) -> None:
        assert disk.sync_all(tmp_path) == (sys.platform == "linux")
        if sys.platform == "linux":
            refused(lambda: disk.sync_all(tmp_path / "gone"), tmp_path / "gone", errno.ENOENT)

    def test_a_range_is_copied_to_the_same_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, new = tmp_path / "old", tmp_path / "new"
        data = Random(7).randbytes(3 * PAGE)
        old.write_bytes(data)
        source = os.open(old, os.O_RDONLY)
        for refusal in (None, errno.EXDEV, errno.ENOSYS, 0):  # 0: the call says that it copied nothing
            if refusal is not None and hasattr(os, "copy_file_range"):

                def refuse(*_: object, refusal: int = refusal) -> int:
                    if refusal:
                        raise OSError(refusal, os.strerror(refusal))
                    return 0

                monkeypatch.setattr(os, "copy_file_range", refuse)
            target = disk.create_file(new, 0)
            disk.copy_range(source, target, 100, 2 * PAGE, new)
            assert new.read_bytes() == bytes(100) + data[100 : 100 + 2 * PAGE]
            refused(lambda target=target: disk.copy_range(source, target, 0, 4 * PAGE, new), new,
                    f"ends at byte {3 * PAGE}, before {4 * PAGE}")  # fmt: skip
            refused(lambda: disk.copy_range(source, source, 0, PAGE, old), old, errno.EBADF)
            os.close(target)
            disk.remove(new)
        os.close(source)

    def test_a_file_gets_another_size(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"abc")
        descriptor = disk.open_file(path)
        for size in (5, 2, 0):
            disk.truncate(descriptor, size, path)
            assert path.read_bytes() == b"abc\0\0"[:size]
        os.close(descriptor)
        refused(lambda: disk.truncate(descriptor, 1, path), path, errno.EBADF)

    def test_times(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"")
        (tmp_path / "link").symlink_to("file")
        os.utime(path, ns=(1, 2))
        disk.set_mtime(tmp_path / "link", 77)
        assert (tmp_path / "link").lstat().st_mtime_ns == 77
        assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == (1, 2)
        for mtime_ns in (0, 10**18 + 123_456_789, -5):
            disk.set_mtime(path, mtime_ns)
            disk.set_mtime(tmp_path, mtime_ns)
            assert path.stat().st_mtime_ns == tmp_path.stat().st_mtime_ns == mtime_ns
        assert path.stat().st_atime_ns == 1
        descriptor = disk.open_file(path)
        disk.sync(descriptor, path, times=True)
        os.close(descriptor)
        refused(lambda: disk.set_mtime(tmp_path / "gone", 1), tmp_path / "gone", errno.ENOENT)

    def test_only_an_empty_folder_is_deleted(self, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        (folder / "below").mkdir(parents=True)
        refused(lambda: disk.remove_folder(folder), folder, errno.ENOTEMPTY)
        disk.remove_folder(folder / "below")
        disk.remove_folder(folder)
        disk.remove_folder(folder)
        assert not folder.exists()
        folder.write_bytes(b"")
        refused(lambda: disk.remove_folder(folder), folder, errno.ENOTDIR)


class TestSymbolicLinks:
    """What a link points to stays as it is."""

    @pytest.fixture
    def link(self, tmp_path: Path) -> Iterator[Path]:
        target = tmp_path / "elsewhere"
        target.write_bytes(b"mine")
        link = tmp_path / "link"
        link.symlink_to(target)
        yield link
        assert target.read_bytes() == b"mine"

    def test_none_is_opened_or_made_a_file(self, link: Path) -> None:
        refused(lambda: disk.open_file(link), link, "it is a symbolic link")
        refused(lambda: disk.create_file(link, 1), link, errno.EEXIST)
        refused(lambda: disk.write_new(link, b"x"), link, errno.EEXIST)
        assert link.is_symlink()

    def test_one_that_leads_nowhere_makes_no_file(self, tmp_path: Path) -> None:
        link = tmp_path / "link"
        link.symlink_to(tmp_path / "nowhere")
        refused(lambda: disk.create_file(link, 1), link, errno.EEXIST)
        refused(lambda: disk.open_file(link), link, "it is a symbolic link")
        refused(lambda: disk.make_folder(link), link, "something else has its name")
        assert [path.name for path in tmp_path.iterdir()] == ["link"]

    def test_one_to_a_folder_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        link = tmp_path / "link"
        link.symlink_to(tmp_path / "elsewhere")
        refused(lambda: disk.make_folder(link), link, "something else has its name")

    def test_rename_and_remove_mean_the_link(self, link: Path) -> None:
        new = link.with_name("new")
        new.write_bytes(b"new")
        disk.rename(new, link)
        assert not link.is_symlink()
        assert link.read_bytes() == b"new"
        link.unlink()
        link.symlink_to("elsewhere")
        disk.remove(link)
        assert not link.is_symlink()


class TestOwnerAndMode:
    @pytest.mark.parametrize(("folder", "file"), [(0o700, 0o600), (0o755, 0o644), (0o775, 0o664)])
    def test_the_mode_is_the_folders_whatever_the_umask(self, tmp_path: Path, folder: int, file: int) -> None:
        store = tmp_path / "store"
        store.mkdir()
        store.chmod(folder)
        for mask in (0, 0o022, 0o077):
            old = os.umask(mask)
            try:
                os.close(disk.create_file(store / f"file{mask}", 1))
                disk.write_new(store / f"new{mask}", b"1")
                disk.make_folder(store / f"folder{mask}" / "below")
            finally:
                os.umask(old)
            assert mode_of(store / f"file{mask}") == mode_of(store / f"new{mask}") == file
            assert mode_of(store / f"folder{mask}") == mode_of(store / f"folder{mask}" / "below") == folder

    def test_a_folder_hands_its_group_on(self, tmp_path: Path) -> None:
        store = tmp_path / "store"
        store.mkdir()
        store.chmod(0o2770)
        disk.make_folder(store / "below")
        assert mode_of(store / "below") == 0o2770
        store.chmod(0o1777)  # who may delete is not handed on
        disk.make_folder(store / "other")
        assert mode_of(store / "other") == 0o777

    def test_a_file_that_replaces_another_is_like_it(self, tmp_path: Path) -> None:
        old = tmp_path / "old"
        disk.write_new(tmp_path / "first", b"1", like=old)  # there is nothing to replace
        assert mode_of(tmp_path / "first") == mode_of(tmp_path) & 0o666
        old.write_bytes(b"1")
        for mode in (0o600, 0o640, 0o444, 0o755):
            old.chmod(mode)
            if ROOT:
                os.chown(old, OFFICE, OFFICE + 1)
            disk.write_new(tmp_path / "new", b"2", like=old)
            assert mode_of(tmp_path / "new") == mode
            new = (tmp_path / "new").stat()
            assert (new.st_uid, new.st_gid) == (old.stat().st_uid, old.stat().st_gid)
            disk.remove(tmp_path / "new")

    def test_owner_and_mode_are_taken_from_a_file_or_a_folder(self, tmp_path: Path) -> None:
        file, folder, model, above = (tmp_path / name for name in ("file", "folder", "model", "above"))
        for path in (file, model):
            path.write_bytes(b"")
        for path in (folder, above):
            path.mkdir()
        model.chmod(0o740)
        above.chmod(0o2751)
        if ROOT:
            os.chown(model, OFFICE, OFFICE + 1)
        disk.take_owner(file, model)
        assert mode_of(file) == 0o740
        assert (file.stat().st_uid, file.stat().st_gid) == (model.stat().st_uid, model.stat().st_gid)
        disk.take_owner(file, above)
        assert mode_of(file) == 0o640
        disk.take_owner(folder, above)
        assert mode_of(folder) == 0o2751
        refused(lambda: disk.take_owner(file, tmp_path / "gone"), file, errno.ENOENT)

    @pytest.mark.skipif(not ROOT, reason="only root may give files away")
    def test_root_gives_what_it_makes_to_the_folders_owner(self, tmp_path: Path) -> None:
        store = tmp_path / "store"
        store.mkdir()
        os.chown(store, OFFICE, OFFICE + 1)
        disk.make_folder(store / "below" / "deep")
        disk.write_new(store / "below" / "deep" / "file", b"1")
        for path in store.rglob("*"):
            assert (path.stat().st_uid, path.stat().st_gid) == (OFFICE, OFFICE + 1), path

    def test_a_new_store_belongs_to_who_makes_it(self, tmp_path: Path) -> None:
        """In a folder like /tmp, which is somebody else's and open to all."""
        tmp_path.chmod(0o1777)
        store = tmp_path / "new" / "store"

        def action() -> None:
            os.umask(0o027)
            disk.make_folder(store, own=True)
            disk.write_new(store / "file", b"1")

        as_nobody(action)
        assert mode_of(store) == mode_of(store.parent) == 0o750
        assert mode_of(store / "file") == 0o640
        assert store.stat().st_uid == (store / "file").stat().st_uid == (NOBODY if ROOT else os.getuid())

    @pytest.mark.skipif(not ROOT, reason="needs a folder of another user")
    def test_what_cannot_get_the_folders_owner_is_not_made(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o777)
        path = tmp_path / "new"

        def action() -> None:
            refused(lambda: disk.create_file(path, 1), path, errno.EPERM)

        as_nobody(action)
        assert not path.exists()


class TestPermission:
    @pytest.fixture
    def closed(self, tmp_path: Path) -> Path:
        """A folder that others may only read, with a file that is open to all."""
        store = tmp_path / "store"
        store.mkdir()
        (store / "file").write_bytes(b"1")
        (store / "file").chmod(0o444)
        store.chmod(0o555)
        return store

    def test_an_ordinary_user_is_refused(self, closed: Path, tmp_path: Path) -> None:
        file, new = closed / "file", closed / "new"

        tmp_path.chmod(0o755)

        def action() -> None:
            assert file.read_bytes() == b"1"
            refused(lambda: disk.open_file(file), file, errno.EACCES)
            refused(lambda: disk.create_file(new, 1), new, errno.EACCES)
            refused(lambda: disk.write_new(new, b"1"), new, errno.EACCES)
            refused(lambda: disk.make_folder(new), new, errno.EACCES)
            refused(lambda: disk.make_folder(new, own=True), new, errno.EACCES)
            refused(lambda: disk.rename(file, new), file, errno.EACCES)
            refused(lambda: disk.remove(file), file, errno.EACCES)

        as_nobody(action)
        assert [(path.name, path.read_bytes()) for path in closed.iterdir()] == [("file", b"1")]


def test_a_file_that_is_replaced_gets_its_folder(tmp_path: Path) -> None:
    """As every output does; an error names the file, not its draft."""
    disk.replace_file(tmp_path / "new" / "deep" / "file", b"1")
    assert (tmp_path / "new" / "deep" / "file").read_bytes() == b"1"
    path = tmp_path / "large"
    with size_limit(PAGE):
        refused(lambda: disk.replace_file(path, bytes(2 * PAGE)), path, errno.EFBIG)
    assert not path.exists()
