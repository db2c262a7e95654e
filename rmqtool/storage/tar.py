"""The files of a tar, read in place: nothing is unpacked, and none of its names reaches a disk.

A tar is untrusted. The whole archive is refused if it was cut short, or contains a name that leads out of
it, a link, a device, or a name twice; the error gives the name. Sparse files (`tar -S`, every format) keep
their holes. A compressed tar is unpacked first, see `spool`.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING, cast

from rmqtool.errors import FormatError, RmqtoolError, UnreadableError
from rmqtool.storage.decompress import pieces, stem
from rmqtool.storage.open_files import descriptor_of
from rmqtool.storage.remote_file import CachedFile, LocalFile, RandomFile
from rmqtool.storage.remote_path import Entries, FileSystem, Recipe, RemotePath, status_of
from rmqtool.storage.segments import PartFile, Segment
from rmqtool.storage.spool import UNPACKED_LIMIT, Spool

if TYPE_CHECKING:
    import os

BLOCK = 512
MEMBERS_MAX = 1_000_000
NAME_MAX = 4096
"""Most characters of a member's path (PATH_MAX of Linux). Every folder of a path is stored separately."""
_HEADER_MAX = 64 << 20  # most bytes read at once for a header with its extensions
_MAGIC_AT, _MAGIC = 257, b"ustar"


def is_tar(head: bytes) -> bool:
    """Whether `head`, the first bytes of a file, begins a tar in POSIX, GNU or pax format."""
    return head[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] == _MAGIC


def open_file(path: Path) -> RandomFile:
    """Open the file `path`, local or remote. Raises OSError."""
    return path.place.open(path.inner) if isinstance(path, RemotePath) else LocalFile(descriptor_of(path))


class TarPlace(FileSystem):
    """The tar `archive`, compressed or not; it is read on first use."""

    name = "a tar archive"

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._lock = Lock()  # threads ask for files side by side
        self._base: RandomFile | None = None
        self._folders: dict[str, dict[str, os.stat_result]] = {}
        self._files: dict[str, tuple[Segment, ...]] = {}

    def show(self, inner: str) -> str:
        """See FileSystem."""
        return f"{self._archive}/{inner}" if inner else str(self._archive)

    def recipe(self) -> Recipe:
        """See FileSystem."""
        return TarPlace, (self._archive,)

    def folders(self) -> list[str]:
        """The names of all folders, parents before their children. Raises as `entries` does."""
        self._read()
        return sorted(self._folders)

    def entries(self, inner: str) -> Entries:
        """See FileSystem.

        Raises:
            FormatError: the tar is damaged or refused.
            UnreadableError: it cannot be read.
        """
        self._read()
        if inner not in self._folders:
            raise (NotADirectoryError if inner in self._files else FileNotFoundError)(2, "not in the archive")
        return list(self._folders[inner].items())

    def status(self, inner: str) -> os.stat_result:
        """See FileSystem."""
        self._read()
        folder, _, name = inner.rpartition("/")
        if not inner:
            return status_of(None)
        found = self._folders.get(folder, {}).get(name)
        if found is None:
            raise FileNotFoundError(2, "not in the archive", self.show(inner))
        return found

    def open(self, inner: str) -> RandomFile:
        """See FileSystem."""
        status, base = self.status(inner), self._read()
        if inner not in self._files:
            raise IsADirectoryError(21, "it is not a plain file", self.show(inner))
        return PartFile(base, status.st_size, self._files[inner])

    def close(self) -> None:
        """See FileSystem. The archive is opened, and unpacked, again when it is needed."""
        if self._base is not None:
            self._base.close()
        self._base = None

    def _read(self) -> RandomFile:
        """The file with the archive's uncompressed bytes; opens it and lists its members on first use."""
        with self._lock:
            if self._base is None:
                self._base = self._opened()
            return self._base

    def _opened(self) -> RandomFile:
        try:
            base = open_file(self._archive)
            if stem(self._archive.name) is not None:
                base = _unpacked(base, self._archive)
            if not self._folders:
                try:
                    self._list(base)
                except BaseException:
                    base.close()
                    raise
        except OSError as error:
            if isinstance(error, RmqtoolError):
                raise
            raise UnreadableError(f"cannot read: {error.strerror or error}", path=self._archive) from error
        return base

    def _list(self, base: RandomFile) -> None:
        folders: dict[str, dict[str, os.stat_result]] = {"": {}}
        files: dict[str, tuple[Segment, ...]] = {}
        for member in _members(base, self._archive):
            name = self._checked(member)
            if not name:
                continue
            above, _, last = name.rpartition("/")
            for folder in _above(name):
                if folder in files:
                    raise self._refused(member, "is inside an entry that is not a folder")
                if folder not in folders:
                    folders[folder] = {}
                    parent, _, own = folder.rpartition("/")
                    folders[parent][own] = status_of(None)
            if member.isdir():
                if name in files:
                    raise self._refused(member, "appears twice")
                folders.setdefault(name, {})
                folders[above][last] = status_of(None, member.mtime)
                continue
            if name in files or name in folders:
                raise self._refused(member, "appears twice")
            files[name] = self._segments(member, base.size)
            folders[above][last] = status_of(member.size, member.mtime)
        self._folders, self._files = folders, files

    def _checked(self, member: tarfile.TarInfo) -> str:
        """The member's name, without `./`; empty for the root itself. Raises FormatError if it is refused."""
        if len(member.name) > NAME_MAX:
            raise self._refused(member, f"has a path of more than {NAME_MAX} characters")
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if member.name.startswith("/") or ".." in parts or "\0" in member.name:
            raise self._refused(member, "leads out of the archive")
        if member.issym() or member.islnk():
            raise self._refused(member, "is a link", hint="pack the files that links lead to: tar -h")
        if not (member.isdir() or member.isfile()):
            raise self._refused(member, "is neither a file nor a folder")
        if not 0 <= member.size <= UNPACKED_LIMIT or member.offset_data < 0:
            raise self._refused(member, "has a size that no file of a store has")
        return "/".join(parts)

    def _segments(self, member: tarfile.TarInfo, archive_size: int) -> tuple[Segment, ...]:
        """The places of a member's bytes in the archive."""
        sparse: list[tuple[int, int]] | None = getattr(member, "sparse", None)
        data = [(0, member.size)] if sparse is None else sparse
        found: list[Segment] = []
        end, place = 0, member.offset_data
        for start, count in data:
            if not count:  # fills up a block in old GNU tars
                continue
            if start < end or count < 0 or start + count > member.size:
                raise self._refused(member, "has holes that overlap")
            end = start + count
            found.append((start, count, place))
            place += count
        if place > archive_size:
            raise FormatError("the archive was cut short", path=self._archive, physical_offset=archive_size)
        return tuple(found)

    def _refused(self, member: tarfile.TarInfo, why: str, hint: str | None = None) -> FormatError:
        name = member.name if len(member.name) <= 200 else f"{member.name[:200]}..."
        return FormatError(f"the archive is refused: {name!r} {why}", path=self._archive, hint=hint)


def _above(name: str) -> Iterator[str]:
    parts = name.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))


def _unpacked(base: RandomFile, archive: Path) -> RandomFile:
    spool = Spool()
    try:
        spool.add(pieces(base, archive))
        return spool.file()
    finally:
        spool.close()
        base.close()


def _members(base: RandomFile, archive: Path) -> Iterator[tarfile.TarInfo]:
    """The members, in their order; the archive's end mark must be there."""
    reader = _Reader(base)
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", reader), mode="r:", encoding="utf-8") as tar:
            for count, member in enumerate(iter(_next(tar), None)):
                if count >= MEMBERS_MAX:
                    break
                yield member
                tar.members.clear()  # type: ignore[attr-defined]  # else it keeps all members
            else:
                count = 0
            end = tar.offset
    except (RmqtoolError, OSError):
        raise
    except Exception as error:  # tarfile answers hostile bytes with errors of every kind
        reason = f"{error}" or type(error).__name__
        raise FormatError(f"the archive is not a valid tar: {reason}", path=archive) from error
    if count:
        raise FormatError(f"the archive has more than {MEMBERS_MAX} members", path=archive)
    mark = base.read(end, BLOCK)
    if len(mark) < BLOCK:
        raise FormatError("the archive was cut short: it has no end mark", path=archive, physical_offset=end)
    if mark.count(0) != BLOCK:
        raise FormatError("the archive has a damaged header", path=archive, physical_offset=end)


def _next(tar: tarfile.TarFile) -> Callable[[], tarfile.TarInfo | None]:
    """A function that returns the next member; headers must be in ascending order."""
    last = -1

    def member() -> tarfile.TarInfo | None:
        nonlocal last
        found = tar.next()
        if found is not None:
            if found.offset <= last:
                raise ValueError("a member precedes the previous one")
            last = found.offset
        return found

    return member


class _Reader(io.RawIOBase):
    """A RandomFile for tarfile; it bounds every read, whatever a header claims."""

    def __init__(self, base: RandomFile) -> None:
        self._file = CachedFile(base)
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """The offset of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the offset of the next read. Raises ValueError if it is negative."""
        place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        if place < 0:
            raise ValueError("a place before the archive's start")
        self._at = place
        return place

    def read(self, size: int = -1) -> bytes:
        """Read from the current offset. Raises ValueError for a negative size or more than `_HEADER_MAX`."""
        if not 0 <= size <= _HEADER_MAX:
            raise ValueError("a header without bounds")
        data = self._file.read(self._at, size)
        self._at += len(data)
        return data
