"""The place of a URL: lists folders in parallel, reads files in parts, retries failed requests."""

from __future__ import annotations

import errno
import importlib
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rmqtool.errors import MissingCodecError, RmqtoolError, UsageError
from rmqtool.storage.remote_url import RemoteUrl, parse, plain
from rmqtool.storage.storage import Entries, Recipe, Storage, StoragePath, restored, status_of

if TYPE_CHECKING:
    import pyarrow.fs

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


def url_path(text: str, storage_options: dict[str, object] | None = None) -> StoragePath:
    """The path that a URL names. The connection is made on first use. Raises UsageError."""
    url = parse(text, storage_options)
    return restored(UrlStorage, (url.root,), url.inner)


class UrlStorage(Storage):
    """All files of one protocol, authority and set of options."""

    def __init__(self, root: RemoteUrl) -> None:
        self.name = root.protocol
        self._root = root

    def show(self, inner: str) -> str:
        """See Storage."""
        return f"{self._root.protocol}://{inner}"

    def typed(self, inner: str) -> str:
        """See Storage."""
        return self._root.typed(inner)

    def recipe(self) -> Recipe:
        """See Storage."""
        return UrlStorage, (self._root,)

    @cached_property
    def _backend(self) -> Backend:
        return connect(self._root)

    @property
    def _tries(self) -> int:
        backend = self.__dict__.get("_backend")
        return 1 if backend is None else backend.tries

    def entries(self, inner: str) -> Entries:
        """See Storage."""
        if not inner:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return _sound(self._retried(inner, lambda: self._backend.entries(inner)))

    def tree(self, inner: str) -> dict[str, Entries]:
        """See Storage. Folders of queues are listed together with all folders below them."""
        if inner.rpartition("/")[2] in _DEEP:
            return {inner: [], **self._retried(inner, lambda: self._walked(inner))}
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
        """See Storage."""
        size, mtime = self._retried(inner, lambda: self._backend.size(inner))
        return status_of(size, mtime)

    def open(self, inner: str) -> FetchedFile:
        """See Storage."""
        opened, size = self._retried(inner, lambda: self._backend.opened(inner))
        if size is None:
            raise OSError(errno.EINVAL, "it is not a plain file", self.show(inner))

        def part(offset: int, length: int) -> bytes:
            data = self._backend.read(opened, offset, length)
            if len(data) != length:
                raise OSError(errno.EIO, f"{len(data)} bytes were received instead of {length}")
            return data

        def fetch(offset: int, length: int) -> bytes:
            return self._retried(inner, lambda: part(offset, length))

        return FetchedFile(fetch, size)

    def close(self) -> None:
        """See Storage. Connections are kept for the next store."""

    def _retried(self, inner: str, request: Callable[[], T]) -> T:
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
    """A RandomFile of a UrlStorage."""

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


# remote_fs: The file systems of URLs: S3 by pyarrow, which every installation has, others by fsspec.

EXTRA_HINT = "pip install 'rmqtool[remote]'"
_OF_EXTRA = ("fsspec", "requests")
# The option names of pyarrow, s3fs and Hadoop, and the names that pyarrow uses.
_S3_OPTIONS = {
    "endpoint": "endpoint", "endpoint_override": "endpoint", "endpoint_url": "endpoint",
    "region": "region", "region_name": "region", "scheme": "scheme",
    "access_key": "access_key", "key": "access_key", "access_key_id": "access_key",
    "secret_key": "secret_key", "secret": "secret_key", "secret_access_key": "secret_key",
    "session_token": "session_token", "token": "session_token",
    "anonymous": "anonymous", "anon": "anonymous",
    "role_arn": "role_arn", "session_name": "session_name", "external_id": "external_id",
    "request_timeout": "request_timeout", "connect_timeout": "connect_timeout",
    "force_virtual_addressing": "force_virtual_addressing", "tls_ca_file_path": "tls_ca_file_path",
    "allow_bucket_creation": "allow_bucket_creation",
}  # fmt: skip
_CONNECT_SECONDS = 10
_REQUEST_SECONDS = 60  # without a byte; pyarrow allows a busy server 3 seconds
_SECONDS = (_CONNECT_SECONDS, _REQUEST_SECONDS)  # to connect, and between two pieces of an answer


class Backend(Protocol):
    """The interface of a file system; names are `authority/path` of a URL. Raises OSError and others.

    `tries` is how often a failing request is made.
    """

    tries: int

    def entries(self, name: str) -> Entries:
        """Name and status of the entries of a folder."""
        ...

    def tree(self, name: str) -> dict[str, Entries] | None:
        """The entries of a folder and of all folders below it; None if that takes more than one call."""
        ...

    def size(self, name: str) -> tuple[int | None, float]:
        """Bytes (None: a folder) and mtime in seconds."""
        ...

    def opened(self, name: str) -> tuple[Any, int | None]:
        """A handle for `read`, and the file's size; the size is None for a folder."""
        ...

    def read(self, opened: Any, offset: int, length: int) -> bytes:
        """A part of a file."""
        ...


def connect(url: RemoteUrl) -> Backend:
    """The file system of a URL.

    Raises:
        MissingCodecError: a library that it needs is not installed.
        UsageError: an unknown option or protocol.
        OSError: the place cannot be reached.
    """
    if url.protocol == "s3":
        return ArrowBackend(s3_filesystem(url))
    return FsspecBackend(url)


def arrow_filesystem(url: RemoteUrl) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a URL as a pyarrow file system, for pyarrow's writers, and the path in it.

    Raises as `connect` does.
    """
    import pyarrow.fs

    if url.protocol == "s3":
        return s3_filesystem(url), "/".join(part for part in (url.authority, url.path) if part)
    backend = FsspecBackend(url)
    handler = pyarrow.fs.FSSpecHandler(backend.system)
    return pyarrow.fs.PyFileSystem(handler), backend.path("/".join((url.authority, url.path)).strip("/"))


def s3_filesystem(url: RemoteUrl) -> pyarrow.fs.S3FileSystem:
    """The S3 file system of pyarrow; see the module for the sources of its settings."""
    from pyarrow import fs

    given = _s3_options(url)
    endpoint = str(given.pop("endpoint", "") or os.environ.get("AWS_ENDPOINT_URL_S3", ""))
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL", "")
    if endpoint:
        scheme, separator, host = endpoint.rpartition("://")
        given["endpoint_override"] = host.rstrip("/")
        if separator:
            given["scheme"] = scheme.lower()
    elif "region" not in given and not any(map(os.environ.get, ("AWS_REGION", "AWS_DEFAULT_REGION"))):
        given["region"] = fs.resolve_s3_region(url.authority)
    if "region" not in given:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        given["region"] = region
    given.setdefault("connect_timeout", _CONNECT_SECONDS)
    given.setdefault("request_timeout", _REQUEST_SECONDS)
    return fs.S3FileSystem(**given)


def _s3_options(url: RemoteUrl) -> dict[str, Any]:
    """The options by pyarrow's names. Raises UsageError for an unknown one."""
    given: dict[str, Any] = {}
    if url.user:
        from urllib.parse import unquote

        access_key, _, secret_key = url.user.partition(":")
        given |= {"access_key": unquote(access_key), "secret_key": unquote(secret_key)}
    for name, value in url.options:
        if name == "client_kwargs" and isinstance(value, tuple):
            pairs: Mapping[str, Any] = dict(value)
        else:
            pairs = {name: value}
        for each, setting in pairs.items():
            if each not in _S3_OPTIONS:
                known = ", ".join(dict.fromkeys(_S3_OPTIONS.values()))
                raise UsageError(f"{each!r} is not an option of s3://", hint=f"use one of {known}")
            keeps_text = "key" in each or "secret" in each or "token" in each
            given[_S3_OPTIONS[each]] = setting if keeps_text else plain(setting)
    return given


class ArrowBackend:
    """A file system of pyarrow, which retries by itself."""

    tries = 1

    def __init__(self, system: pyarrow.fs.FileSystem) -> None:
        self._system = system

    def entries(self, name: str) -> Entries:
        """See Backend."""
        return self._listed(name, recursive=False).get(name, [])

    def tree(self, name: str) -> dict[str, Entries] | None:
        """See Backend."""
        return self._listed(name, recursive=True)

    def _listed(self, name: str, *, recursive: bool) -> dict[str, Entries]:
        from pyarrow import fs

        found: dict[str, Entries] = {name: []}
        for info in self._system.get_file_info(fs.FileSelector(name, recursive=recursive)):
            folder, _, last = info.path.rstrip("/").rpartition("/")
            is_folder = info.type == fs.FileType.Directory
            if is_folder:
                found.setdefault(f"{folder}/{last}", [])
            size = None if is_folder else info.size or 0
            found.setdefault(folder, []).append((last, status_of(size, (info.mtime_ns or 0) / 1e9)))
        return found

    def size(self, name: str) -> tuple[int | None, float]:
        """See Backend."""
        from pyarrow import fs

        info = self._system.get_file_info(name)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return (None if info.type == fs.FileType.Directory else info.size or 0), (info.mtime_ns or 0) / 1e9

    def opened(self, name: str) -> tuple[Any, int | None]:
        """See Backend."""
        file = self._system.open_input_file(name)
        return file, file.size()

    def read(self, opened: Any, offset: int, length: int) -> bytes:
        """See Backend."""
        data: bytes = opened.read_at(length, offset)
        return data


class FsspecBackend:
    """A file system of fsspec."""

    tries = 3

    def __init__(self, url: RemoteUrl) -> None:
        self._url = url
        self._query = str(dict(url.options).get("query", "")) if url.protocol in ("http", "https") else ""
        try:
            fsspec = importlib.import_module("fsspec")
            kind = fsspec.get_filesystem_class(url.protocol)
            shown = f"{url.protocol}://{f'{url.user}@' if url.user else ''}{url.authority}/{url.path}"
            options = dict(kind._get_kwargs_from_urls(shown))
            options |= {name: plain(value) for name, value in url.options if name != "query"}
            self.system = kind(**options)
        except ImportError as error:
            raise MissingCodecError(
                f"{url.protocol}:// needs a library that is not installed: {url.mask(str(error))}",
                hint=EXTRA_HINT if (error.name or "") in _OF_EXTRA else None,
            ) from None
        except (ValueError, TypeError) as error:
            reason = url.mask(str(error))
            raise UsageError(f"{url.protocol}:// cannot be used: {reason}") from None
        self._is_hdfs = url.protocol == "webhdfs"
        if self._is_hdfs:  # by default its requests wait for ever
            session = self.system.session
            session.request = partial(session.request, timeout=_SECONDS)

    def path(self, name: str) -> str:
        """The path in the file system of `authority/path`."""
        text = f"{self._url.protocol}://{name}" + (f"?{self._query}" if self._query else "")
        found = self.system._strip_protocol(text)
        return str(found)

    def entries(self, name: str) -> Entries:
        """See Backend."""
        path = self.path(name)
        self.system.invalidate_cache(path)
        return [
            (str(info["name"]).rstrip("/").rpartition("/")[2], _status(info))
            for info in self.system.ls(path, detail=True)
            if str(info["name"]).rstrip("/") != path.rstrip("/")
        ]

    def tree(self, name: str) -> dict[str, Entries] | None:
        """See Backend."""
        return None

    def size(self, name: str) -> tuple[int | None, float]:
        """See Backend."""
        path = self.path(name)
        self.system.invalidate_cache(path)
        status = _status(self.system.info(path))
        return (None if status.st_mode & 0o040000 else status.st_size), status.st_mtime

    def opened(self, name: str) -> tuple[Any, int | None]:
        """See Backend."""
        path, size = self.path(name), self.size(name)[0]
        return self.system.open(path) if self._is_hdfs and size is not None else path, size

    def read(self, opened: Any, offset: int, length: int) -> bytes:
        """See Backend."""
        stop = offset + length
        data: bytes
        if self._is_hdfs:  # its file object would read 5 MiB more each time
            data = opened._fetch_range(offset, stop)
        else:
            data = self.system.cat_file(opened, start=offset, end=stop)
        return data


def _status(info: Mapping[str, Any]) -> os.stat_result:
    """The status of an entry of fsspec. Each file system has other names for the times."""
    names = ("mtime", "LastModified", "modified", "created")
    found = next((info[name] for name in names if info.get(name)), None)
    time = found.timestamp() if isinstance(found, datetime) else 0.0
    if not time and isinstance(info.get("modificationTime"), int):  # HDFS: milliseconds
        time = info["modificationTime"] / 1000
    if info.get("type") == "directory":
        return status_of(None, time)
    size = info.get("size")
    return status_of(int(size) if size is not None else 0, time)
