"""The place of a URL: lists folders in parallel, reads files in parts, retries failed requests."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TypeVar

from rmqtool.errors import RmqtoolError
from rmqtool.storage.remote_fs import Backend, connect
from rmqtool.storage.remote_path import Entries, FileSystem, Recipe, RemotePath, restored, status_of
from rmqtool.storage.remote_url import RemoteUrl, parse

_WAIT_SECONDS = 0.2  # before the second try; each further wait is four times as long
_GIVE_UP = 2  # failed requests after which a file is not read any more
_WALKERS = 8  # folders listed at once
_FOLDERS_MAX = 1_000_000
_TEXT_MAX = 200  # characters of a library's own message
# Below these lie two levels of folders, tens of thousands of them in a large store.
_DEEP = frozenset({"consumequeue", "batchconsumequeue", "consumequeue_ext"})
# A second try would give the same answer.
_FINAL = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, NotImplementedError)

T = TypeVar("T")


def url_path(text: str, storage_options: dict[str, object] | None = None) -> RemotePath:
    """The path that a URL names. The connection is made on first use. Raises UsageError."""
    url = parse(text, storage_options)
    return restored(UrlPlace, (url.root,), url.inner)


class UrlPlace(FileSystem):
    """All files of one protocol, authority and set of options."""

    def __init__(self, root: RemoteUrl) -> None:
        self.name = root.protocol
        self._root = root

    def show(self, inner: str) -> str:
        """See FileSystem."""
        return f"{self._root.protocol}://{inner}"

    def recipe(self) -> Recipe:
        """See FileSystem."""
        return UrlPlace, (self._root,)

    @cached_property
    def _backend(self) -> Backend:
        return connect(self._root)

    @property
    def _tries(self) -> int:
        backend = self.__dict__.get("_backend")
        return 1 if backend is None else backend.tries

    def entries(self, inner: str) -> Entries:
        """See FileSystem."""
        if not inner:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return _sound(self._asked(inner, lambda: self._backend.entries(inner)))

    def tree(self, inner: str) -> dict[str, Entries]:
        """See FileSystem. Folders of queues are listed together with all folders below them."""
        if inner.rpartition("/")[2] in _DEEP:
            return {inner: [], **self._asked(inner, lambda: self._walked(inner))}
        return {inner: self.entries(inner)}

    def _walked(self, inner: str) -> dict[str, Entries]:
        """The entries of a folder and of two levels below; folders that cannot be listed are left out."""
        found = self._backend.tree(inner)
        if found is not None:
            return {folder: _sound(entries) for folder, entries in found.items()}
        found = {inner: _sound(self._backend.entries(inner))}
        level = [inner]

        def listed(folder: str) -> Entries | None:
            try:
                return _sound(self._backend.entries(folder))
            except OSError:
                return None  # listed again later, where the error is reported

        with ThreadPoolExecutor(_WALKERS) as pool:
            for _ in range(2):
                level = [
                    f"{up}/{name}" for up in level for name, each in found.get(up, ()) if _is_folder(each)
                ]
                if len(found) + len(level) > _FOLDERS_MAX:
                    break
                parts = zip(level, pool.map(listed, level), strict=True)
                found.update((folder, entries) for folder, entries in parts if entries is not None)
        return found

    def status(self, inner: str) -> os.stat_result:
        """See FileSystem."""
        size, mtime = self._asked(inner, lambda: self._backend.size(inner))
        return status_of(size, mtime)

    def open(self, inner: str) -> FetchedFile:
        """See FileSystem."""
        opened, size = self._asked(inner, lambda: self._backend.opened(inner))
        if size is None:
            raise OSError(errno.EINVAL, "it is not a plain file", self.show(inner))

        def part(offset: int, length: int) -> bytes:
            data = self._backend.read(opened, offset, length)
            if len(data) != length:
                raise OSError(errno.EIO, f"{len(data)} bytes were received instead of  {length}")
            return data

        def fetch(offset: int, length: int) -> bytes:
            return self._asked(inner, lambda: part(offset, length))

        return FetchedFile(fetch, size)

    def close(self) -> None:
        """See FileSystem. Connections are kept for the next store."""

    def _asked(self, inner: str, request: Callable[[], T]) -> T:
        """The result of a request, retried if that may help.

        Raises:
            OSError: with errno and a text that shows no secret.
        """
        tried, wait = 0, _WAIT_SECONDS
        while True:
            tried += 1
            try:
                return request()
            except RmqtoolError:
                raise
            except Exception as error:  # every library has its own types
                if tried >= self._tries or isinstance(error, _FINAL):
                    raise self._explained(inner, error) from None
            time.sleep(wait)
            wait *= 4

    def _explained(self, inner: str, error: Exception) -> OSError:
        number = error.errno if isinstance(error, OSError) and error.errno else 0
        if not number:
            kinds = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES}
            number = next((code for kind, code in kinds.items() if isinstance(error, kind)), errno.EIO)
        if number in (errno.ENOENT, errno.EACCES, errno.ENOTDIR):
            text = os.strerror(number)
        else:
            text = (self._root.mask(str(error)).strip() or type(error).__name__).splitlines()[0]
            text = text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."
        return OSError(number, text, self.show(inner))


class FetchedFile:
    """A RandomFile of a UrlPlace."""

    is_near = False

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self.size = size
        self._fetch = fetch
        self._failed = 0

    def read(self, offset: int, length: int) -> bytes:
        """See RandomFile. A file that failed `_GIVE_UP` times is not read any more."""
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        if self._failed >= _GIVE_UP:
            raise OSError(errno.EIO, "it could not be read before")
        try:
            return self._fetch(offset, length)
        except OSError:
            self._failed += 1
            raise

    def data_from(self, offset: int) -> int:
        """See RandomFile."""
        return offset

    def hole_from(self, offset: int) -> int:
        """See RandomFile."""
        return self.size

    def close(self) -> None:
        """See RandomFile. The connection belongs to the place."""


def _is_folder(status: os.stat_result) -> bool:
    return bool(status.st_mode & 0o040000)


def _sound(entries: Entries) -> Entries:
    """The entries whose names are valid names of files."""
    return [entry for entry in entries if entry[0] not in ("", ".", "..") and not {"/", "\0"} & set(entry[0])]
