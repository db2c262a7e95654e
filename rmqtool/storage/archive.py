"""Stores inside a tar, and stores whose files are compressed one by one.

A plain tar is read where it lies: nothing is unpacked, and no name in it reaches a disk. A tar comes from
anywhere, so one is refused as a whole, with the name, when a member's name leads out of its folder or
appears twice, when a member is a link or a device, and when the archive was cut short. Sparse members, as
`tar -S` makes them in every format, keep their holes.

A compressed tar, and a file such as `commitlog/00000000000000000000.zst`, is unpacked into a temporary file
(`Spool`). Compressed files are listed under the names that they had before. All of a folder's are unpacked
when the folder is listed, because only then their sizes are known. A file that also lies there uncompressed
is read uncompressed. What lies outside the store's folder is not listed.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING, cast

from rmqtool.command_line import typed
from rmqtool.errors import FormatError, RmqtoolError, UnreadableError, UnwritableError
from rmqtool.storage.decompress import pieces, stem
from rmqtool.storage.listing import Listing
from rmqtool.storage.open_files import open_file
from rmqtool.storage.random_file import CachedFile, LocalFile, PartFile, RandomFile, Segment
from rmqtool.storage.single_file import is_index_name, offset_of_name
from rmqtool.storage.storage import Entries, Recipe, Storage, status_of

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


class TarStorage(Storage):
    """The tar `archive`, compressed or not; it is read on first use."""

    name = "a tar archive"

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._lock = Lock()  # threads ask for files side by side
        self._base: RandomFile | None = None
        self._folders: dict[str, dict[str, os.stat_result]] = {}
        self._files: dict[str, tuple[Segment, ...]] = {}

    def show(self, inner: str) -> str:
        """See Storage."""
        return f"{self._archive}/{inner}" if inner else str(self._archive)

    def typed(self, inner: str) -> str:
        """See Storage. The store in an archive is found by the archive alone."""
        return typed(self._archive)

    def recipe(self) -> Recipe:
        """See Storage."""
        return TarStorage, (self._archive,)

    def folders(self) -> list[str]:
        """The names of all folders, parents before their children. Raises as `entries` does."""
        self._read()
        return sorted(self._folders)

    def entries(self, inner: str) -> Entries:
        """See Storage.

        Raises:
            FormatError: the tar is damaged or refused.
            UnreadableError: it cannot be read.
        """
        self._read()
        if inner not in self._folders:
            raise (NotADirectoryError if inner in self._files else FileNotFoundError)(2, "not in the archive")
        return list(self._folders[inner].items())

    def status(self, inner: str) -> os.stat_result:
        """See Storage."""
        self._read()
        folder, _, name = inner.rpartition("/")
        if not inner:
            return status_of(None)
        found = self._folders.get(folder, {}).get(name)
        if found is None:
            raise FileNotFoundError(2, "not in the archive", self.show(inner))
        return found

    def open(self, inner: str) -> RandomFile:
        """See Storage."""
        status, base = self.status(inner), self._read()
        if inner not in self._files:
            raise IsADirectoryError(21, "it is not a plain file", self.show(inner))
        return PartFile(base, status.st_size, self._files[inner])

    def close(self) -> None:
        """See Storage. The archive is opened, and unpacked, again when it is needed."""
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


def is_compressed_file(name: str) -> bool:
    """Whether this is the name of a compressed file of a log, a queue or an index."""
    before = stem(name)
    return before is not None and (offset_of_name(before) is not None or is_index_name(before))


class CompressedFiles(Storage):
    """The files of the folder `base / root`, or only the file `base / only`, whatever its name."""

    name = "compressed files"

    def __init__(self, base: Path, root: str, only: str = "") -> None:
        self._base = base
        self._root = root
        self._only = only
        self._lock = Lock()  # threads ask for files side by side
        self._spool: Spool | None = None
        self._parts: dict[str, tuple[int, int, Path]] = {}

    def show(self, inner: str) -> str:
        """See Storage."""
        return str(self._base / inner)

    def recipe(self) -> Recipe:
        """See Storage."""
        return CompressedFiles, (self._base, self._root, self._only)

    def entries(self, inner: str) -> Entries:
        """See Storage.

        Raises:
            FormatError: a compressed file is damaged, or cut short.
            UnwritableError: there is too little space to unpack it.
        """
        if self._only or not f"{inner}/".startswith(f"{self._root}/"):
            raise PermissionError(errno.EACCES, "outside of the store", self.show(inner))
        listing = Listing()
        listed = listing.entries(self._base / inner)
        if not listed and listing.unreadable:
            raise OSError(errno.EIO, listing.unreadable[0][1], self.show(inner))
        plain = {name for name, _ in listed}
        found: Entries = []
        for name, status in listed:
            before = stem(name)
            if before is None or before in plain or not stat.S_ISREG(status.st_mode):
                found.append((name, status))
            else:
                size = self._unpacked(f"{inner}/{before}".lstrip("/"), self._base / inner / name)[1]
                found.append((before, status_of(size, status.st_mtime)))
        return found

    def status(self, inner: str) -> os.stat_result:
        """See Storage."""
        path = self._compressed(inner)
        if path is None:
            return (self._base / inner).stat()
        return status_of(self._unpacked(inner, path)[1], path.stat().st_mtime)

    def open(self, inner: str) -> RandomFile:
        """See Storage."""
        path = self._compressed(inner)
        if path is None:
            return open_file(self._base / inner)
        start, size, _ = self._unpacked(inner, path)
        assert self._spool is not None, "the part was just unpacked"
        base: LocalFile = self._spool.file()
        return PartFile(base, size, [(0, size, start)] if size else [], owns_base=True)

    def close(self) -> None:
        """See Storage. Files that are read again are unpacked again."""
        if self._spool is not None:
            self._spool.close()
        self._spool = None
        self._parts.clear()

    def _compressed(self, inner: str) -> Path | None:
        """The compressed file that is shown as `inner`; None if there is none, or an uncompressed one."""
        if self._only:
            path = self._base / self._only
            before = stem(path.name)
            return path if before is not None and inner == _sibling(self._only, before) else None
        if inner in self._parts:
            return self._parts[inner][2]
        plain = self._base / inner
        if plain.exists():
            return None
        names = {name for name, _ in Listing().entries(plain.parent) if stem(name) == plain.name}
        return plain.parent / min(names) if names else None

    def _unpacked(self, inner: str, path: Path) -> tuple[int, int, Path]:
        """(offset in the spool, size, compressed file) of `inner`; unpacks it on first use."""
        with self._lock:
            if inner not in self._parts:
                if self._spool is None:
                    self._spool = Spool()
                file = open_file(path)
                try:
                    self._parts[inner] = (*self._spool.add(pieces(file, path), FILE_LIMIT), path)
                except FormatError as error:
                    error.path = error.path or path
                    raise
                finally:
                    file.close()
            return self._parts[inner]


def _sibling(inner: str, name: str) -> str:
    return "/".join((*inner.split("/")[:-1], name))


FILE_LIMIT = 1 << 31
"""Most bytes of one file of a store: a broker maps each file as a whole (DefaultMappedFile#init)."""
UNPACKED_LIMIT = 1 << 40
"""Most bytes, zeros included, that one input may unpack to; more is treated as an attack."""

_ALIGNMENT = 4096
_STEP = 64 << 10
_ZEROS = bytes(_STEP)
_ROOM = 64 << 20  # bytes left free on the device
_CHECKED_EVERY = 64 << 20


def temporary_folder() -> str:
    """The folder for temporary files: RMQTOOL_TMPDIR, otherwise the system's folder (TMPDIR)."""
    return os.environ.get("RMQTOOL_TMPDIR") or tempfile.gettempdir()


class Spool:
    """An anonymous temporary file: it is gone when the process ends, however it ends.

    Parts are added at its end and stay where they are. Runs of zeros become holes, so the unused end of a log
    file takes no space.
    """

    def __init__(self) -> None:
        place = temporary_folder()
        try:
            with tempfile.TemporaryFile(prefix="rmqtool-", dir=place) as file:
                self._descriptor = os.dup(file.fileno())
        except OSError as error:
            reason = error.strerror or str(error)
            raise UnwritableError(
                f"cannot make a temporary file: {reason}",
                path=place,
                hint="RMQTOOL_TMPDIR names another folder",
            ) from error
        self._end = 0
        self._checked_at = -_CHECKED_EVERY
        self._written = 0

    def add(self, pieces: Iterable[bytes], limit: int | None = None) -> tuple[int, int]:
        """Append a part of at most `limit` bytes (default UNPACKED_LIMIT); returns its offset and its bytes.

        Raises:
            FormatError: the part is larger.
            UnwritableError: there is too little space.
        """
        limit = UNPACKED_LIMIT if limit is None else limit
        start = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        at = start
        try:
            for piece in pieces:
                if at - start + len(piece) > limit:
                    raise FormatError(f"it unpacks to more than {limit} bytes, which no store needs")
                self._write(piece, at)
                at += len(piece)
            os.ftruncate(self._descriptor, at)
        except UnwritableError:
            raise
        except OSError as error:
            raise self._full(error.strerror or str(error)) from error
        self._end = at
        return start, at - start

    def _write(self, piece: bytes, at: int) -> None:
        view = memoryview(piece)
        for begin in range(0, len(piece), _STEP):
            part = view[begin : begin + _STEP]
            if part == _ZEROS[: len(part)]:
                continue
            if self._written - self._checked_at >= _CHECKED_EVERY:
                self._ask()
            done = 0
            while done < len(part):
                done += os.pwrite(self._descriptor, part[done:], at + begin + done)
            self._written += len(part)

    def _ask(self) -> None:
        self._checked_at = self._written
        found = os.fstatvfs(self._descriptor)
        if found.f_blocks and found.f_bavail * found.f_frsize < _ROOM + _CHECKED_EVERY:
            raise self._full("too little space is left")

    def _full(self, reason: str) -> UnwritableError:
        return UnwritableError(
            f"cannot unpack into a temporary file: {reason}",
            path=temporary_folder(),
            hint="RMQTOOL_TMPDIR names another folder",
        )

    def file(self) -> LocalFile:
        """The whole file for reading, also parts that are added later."""
        return LocalFile(os.dup(self._descriptor))

    def close(self) -> None:
        """Release its space."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
