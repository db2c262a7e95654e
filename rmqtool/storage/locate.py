"""Find the store that a path, URL or archive on the command line means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rmqtool.errors import NotAStoreError, RmqtoolError, UnreadableError, UsageError
from rmqtool.storage.layout import StoreLayout, detect
from rmqtool.storage.single_file import offset_of_name
from rmqtool.storage.storage import StoragePath

Announce = Callable[[str], None]

_TAR = ".tar"
_COMPRESSED = (".zst", ".zstd", ".gz", ".tgz", ".tzst")
_OTHERS = (".bz2", ".tbz2", ".xz", ".txz", ".lz4", ".zip", ".7z", ".rar", ".br", ".lzma", ".Z")
_FORMS_HINT = "rmqtool reads .tar, .tar.gz, .tar.zst, and files compressed with gzip or zstd"
_PARENTS = 3  # folders above a file whose names identify it: consumequeue/TOPIC/QUEUE/
_HEAD = 512


def located(place: Path | str, storage_options: Mapping[str, Any] | None = None) -> Path:
    """The path that `place` names: local, or a RemotePath for a URL. No connection is made yet.

    Raises:
        UsageError: an invalid URL, or storage options for a local path.
    """
    text = "" if isinstance(place, Path) else place
    if ":/" not in text or not _is_url(text):
        if storage_options:
            raise UsageError("storage options go with a URL")
        return place if isinstance(place, Path) else Path(place)
    from rmqtool.storage.remote_url import local_path

    local = local_path(text)
    if local is not None:
        return Path(local)
    from rmqtool.storage.remote import url_path

    return url_path(text, dict(storage_options or {}))


def _is_url(text: str) -> bool:
    from rmqtool.storage.remote_url import is_url  # a local path needs nothing of it

    return is_url(text)


def writable(place: Path | str) -> Path:
    """The local path of a store to write. Raises UsageError for a remote URL."""
    path = located(place)
    if isinstance(path, StoragePath):
        raise UsageError(f"stores are written on a disk of this machine, not at {path}")
    return path


def is_elsewhere(path: Path) -> bool:
    """Whether a path is remote, an archive or a compressed file, where nothing can be written."""
    return isinstance(path, StoragePath) or (path.name.endswith((_TAR, *_COMPRESSED)) and path.is_file())


def find_layout(path: Path, announce: Announce, **arguments: Any) -> StoreLayout:
    """The layout of the store at `path`: a folder or file, an archive, or files compressed one by one.

    Args:
        path: from `located`.
        announce: called with a short text before something large is unpacked, and about a part of a file.
        arguments: see `layout.detect`; paths are from `located`.

    Raises:
        FormatError: the archive is damaged, cut short, or refused.
        UnwritableError: there is too little space to unpack it.
        NotAStoreError, UnreadableError, InputError: see `layout.detect`.
    """
    if path.name.endswith((_TAR, *_COMPRESSED, *_OTHERS)) and path.is_file():
        return _closed_on_error(_inside(path, announce), arguments)
    if isinstance(path, StoragePath):
        _check_there(path)
    try:
        layout = detect(path, **arguments)
    except NotAStoreError:
        if not _holds_compressed(_names(path)):
            raise
    else:
        if not _holds_compressed(_strays(layout)):
            _announce_fragment(layout, announce)
            return layout
    return _closed_on_error(_folder(path, announce), arguments)


def _closed_on_error(path: StoragePath, arguments: Mapping[str, Any]) -> StoreLayout:
    try:
        return detect(_root(path), **arguments)
    except BaseException:
        path.storage.close()
        raise


def _check_there(path: StoragePath) -> None:
    """Raises NotAStoreError if nothing exists at `path`, UnreadableError if its place does not answer."""
    try:
        path.stat()
    except RmqtoolError:
        raise
    except FileNotFoundError:
        raise NotAStoreError("no such file or folder", path=path) from None
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror or error}", path=path) from error


def _inside(path: Path, announce: Announce) -> StoragePath:
    """The root of the archive `path`, or the decompressed form of the compressed file `path`."""
    from rmqtool.storage.archive import TarStorage, is_tar
    from rmqtool.storage.decompress import pieces
    from rmqtool.storage.open_files import open_file
    from rmqtool.storage.storage import mounted

    if path.name.endswith(_OTHERS):
        raise NotAStoreError("this archive is of a form that is not read", path=path, hint=_FORMS_HINT)
    if path.name.endswith(_TAR):
        return mounted(TarStorage(path), "")
    try:
        file = open_file(path)
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror or error}", path=path) from error
    try:
        head = b""
        for piece in pieces(file, path):
            head += piece
            if len(head) >= _HEAD:
                break
    finally:
        file.close()
    _announce(path, announce)
    return mounted(TarStorage(path), "") if is_tar(head) else _folder(path, None, is_file=True)


def _announce(path: Path, announce: Announce) -> None:
    from rmqtool.storage.archive import temporary_folder

    announce(f"unpacking {path} into a temporary file in {temporary_folder()}")


def _announce_fragment(layout: StoreLayout, announce: Announce) -> None:
    """Say where a single file belongs that is a part of a commit log file, by the records in it."""
    for file in layout.commit_log if layout.kind == "commitlog" else ():
        name, start = file.path.name, file.file_from_offset
        if offset_of_name(name) != start and start % file.size:
            announce(
                f"{name} is a part of a commit log file, from physical offset {start} up to"
                f" {start + file.size}; to join it with the rest of a log, see rmqtool help recovery"
            )


def _folder(path: Path, announce: Announce | None, *, is_file: bool = False) -> StoragePath:
    """`path` with its compressed files unpacked and shown under their names before compression."""
    from rmqtool.storage.archive import CompressedFiles
    from rmqtool.storage.decompress import stem
    from rmqtool.storage.storage import mounted

    if announce is not None:
        _announce(path, announce)
    path = path.absolute()
    above = [each for each in path.parents if not isinstance(each, StoragePath) or each.is_absolute()]
    base = above[min(_PARENTS, len(above) - 1)]
    inner = "/".join(path.parts[len(base.parts) :])
    place = CompressedFiles(base, inner, inner if is_file else "")
    if is_file:
        before = stem(path.name)
        assert before is not None, "compressed by its name"
        inner = "/".join((*inner.split("/")[:-1], before))
    return mounted(place, inner)


def _root(path: StoragePath) -> StoragePath:
    """The store in an archive: the archive's root, or the only folder in it that is or contains a store."""
    from rmqtool.storage.archive import TarStorage

    place = path.storage
    if not isinstance(place, TarStorage):
        return path
    try:
        folders = place.folders()
    except OSError as error:
        if isinstance(error, RmqtoolError):
            raise
        raise UnreadableError(f"cannot read: {error.strerror or error}", path=path) from error
    marks = ("commitlog", "consumequeue", "batchconsumequeue")
    roots = dict.fromkeys(name.rpartition("/")[0] for name in folders if name.rpartition("/")[2] in marks)
    outer = [root for root in roots if not any(_is_below(root, other) for other in roots)]
    if len(outer) > 1:
        names = ", ".join(root or "." for root in outer[:8]) + (", ..." if len(outer) > 8 else "")
        raise NotAStoreError(
            f"the archive holds {len(outer)} stores: {names}",
            path=path,
            hint="unpack it, and name one of them",
        )
    if outer:
        return path.joinpath(outer[0])
    while len(entries := path.entries()) == 1 and path.joinpath(entries[0][0]).is_dir():
        path = path.joinpath(entries[0][0])
    entries = path.entries()
    # A single file in the archive is opened as such.
    return path.joinpath(entries[0][0]) if len(entries) == 1 else path


def _is_below(name: str, other: str) -> bool:
    return name != other and (not other or name.startswith(f"{other}/"))


def _names(path: Path) -> list[str]:
    from rmqtool.storage.listing import Listing

    return [name for name, _ in Listing().entries(path)]


def _strays(layout: StoreLayout) -> Iterable[str]:
    """The names of stray entries among the files of the log, the queues and the index."""
    for strays in (layout.commit_log_strays, layout.index_strays):
        yield from (stray.name for stray in strays)
    for queue in layout.unit_queues:
        yield from (stray.name for stray in queue.strays)


def _holds_compressed(names: Iterable[str]) -> bool:
    found = [name for name in names if name.endswith(_COMPRESSED)]
    if not found:
        return False
    from rmqtool.storage.archive import is_compressed_file

    return any(map(is_compressed_file, found))
