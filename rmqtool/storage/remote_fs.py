"""The file systems of URLs: S3 through pyarrow, which every installation has, all others through fsspec.

S3 takes its credentials, in this order, from the URL or the options given by the program, from the
environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), from AWS's own files and
from the machine's role; the endpoint from `endpoint`, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL; the
region from `region`, AWS_REGION, AWS_DEFAULT_REGION or, without an endpoint, from the bucket.
"""

from __future__ import annotations

import errno
import importlib
import os
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from rmqtool.errors import MissingCodecError, UsageError
from rmqtool.storage.remote_path import Entries, status_of
from rmqtool.storage.remote_url import RemoteUrl, plain

if TYPE_CHECKING:
    import pyarrow.fs

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
_SECONDS = (_CONNECT_SECONDS, 60)  # to connect, and between two pieces of an answer


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
