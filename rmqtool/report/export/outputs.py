"""The targets of exports: a local folder, an object store, or any other file system with a URL.

A file appears only when it is complete:

    local files, hdfs, ...   written as `.NAME.rmqtool-part` (local ones flushed), then renamed
    object stores            uploaded; an object appears when its upload is complete

A killed run leaves at most the part file, or an upload that never appears. Credentials in a URL are never
shown.

Two runs cannot use the same part files (`storage.claim`).
"""

from __future__ import annotations

import ctypes
import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyarrow import fs

from rmqtool.errors import RmqtoolError, UnwritableError, UsageError
from rmqtool.storage import durable as disk
from rmqtool.storage.claim import claim_file
from rmqtool.storage.remote_url import RemoteUrl, is_url, local_path, mask, parse

OBJECT_STORES = frozenset({"s3", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "cos", "obs", "r2"})
PART = ".rmqtool-part"
Kind = Literal["local", "objects", "other"]


class OutputTarget:
    """A folder to write to.

    Attributes:
        shown: its name in messages, without secrets.
        local: its path; None for a URL.
    """

    def __init__(self, filesystem: Any, base: str, kind: Kind, shown: str | RemoteUrl) -> None:
        self._filesystem = filesystem
        self._base = base
        self._kind = kind
        self._mask = mask if isinstance(shown, str) else shown.mask
        self.shown = str(shown)
        self.local = Path(shown) if isinstance(shown, str) else None

    @classmethod
    def of_folder(cls, text: str) -> OutputTarget:
        """The folder that `text` names, a path or a URL; it need not exist.

        Raises:
            UsageError: an invalid URL.
            MissingCodecError: a package for it is not installed.
            UnwritableError: its file system cannot be reached, or its name is not UTF-8.
        """
        text = local_path(text) or text
        if not is_url(text):
            base = str(Path(text).absolute())
            _check_name(base)
            return cls(fs.LocalFileSystem(), base, "local", text)
        from rmqtool.storage.remote import arrow_filesystem

        url = parse(text)
        try:
            filesystem, base = arrow_filesystem(url)
        except (OSError, pa.ArrowException, ValueError) as error:
            if isinstance(error, RmqtoolError):
                raise
            raise UnwritableError(
                f"cannot be reached: {url.mask(_first_line(error))}", path=str(url)
            ) from None
        kind: Kind = "objects" if url.protocol in OBJECT_STORES else "other"
        return cls(filesystem, base.rstrip("/"), kind, url)

    @classmethod
    def of_file(cls, text: str) -> tuple[OutputTarget, str]:
        """The folder of a file, and the file's name in it. Raises as `of_folder` does."""
        text = local_path(text) or text
        if not is_url(text):
            path = Path(text)
            if not path.name:
                raise UsageError(f"--output {text!r} names no file")
            _check_name(text)
            return cls.of_folder(str(path.parent)), path.name
        head, mark, query = text.partition("?")
        folder, _, name = head.rpartition("/")
        if not name or "://" not in folder + "/" or folder.endswith(":/"):
            raise UsageError("--output: the URL names no file in a folder or bucket")
        return cls.of_folder(folder + mark + query), name

    def name_of(self, name: str) -> str:
        """A file's name in messages."""
        if self.local is not None:
            return str(self.local / name)
        return f"{self.shown}/{name}"

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder of that name."""
        with self._explained("look for", name):
            if self._kind == "local" and os.path.lexists(self._path(name)):
                return True  # also a link whose target is missing
            return bool(self._filesystem.get_file_info(self._path(name)).type != fs.FileType.NotFound)

    def is_folder(self, name: str) -> bool:
        """Whether there is a folder of that name; never in an object store, which has none."""
        with self._explained("look for", name):
            if self._kind == "objects":
                return False
            return bool(self._filesystem.get_file_info(self._path(name)).type == fs.FileType.Directory)

    def is_missing(self) -> bool:
        """Whether its own folder does not exist; never in an object store, which has none."""
        with self._explained("look for", ""):
            if self._kind == "objects":
                return False
            return bool(self._filesystem.get_file_info(self._base).type == fs.FileType.NotFound)

    def size_of(self, name: str) -> int | None:
        """Bytes of a file; None if there is no plain file of that name."""
        with self._explained("look for", name):
            found = self._filesystem.get_file_info(self._path(name))
            return int(found.size or 0) if found.type == fs.FileType.File else None

    def remove_all(self, name: str) -> int:
        """Delete every file `name` here and in the folders below, drafts included; returns their number."""
        wanted = {name, f".{name}{PART}"}
        found = [each for each in self.files() if posixpath.basename(each) in wanted]
        with self._explained("delete", name):
            for each in found:
                self._filesystem.delete_file(self._path(each))
        return len(found)

    def files(self) -> list[str]:
        """The names of all files here and in the folders below, drafts included. Raises UnwritableError."""
        with self._explained("list", ""):
            selector = fs.FileSelector(self._base, allow_not_found=True, recursive=True)
            found = self._filesystem.get_file_info(selector)
        return [
            posixpath.relpath(each.path, self._base or ".") for each in found if each.type == fs.FileType.File
        ]

    @contextmanager
    def reading(self, name: str) -> Iterator[Any]:
        """The bytes of a file as they are, in a `pyarrow.NativeFile`. Raises UnwritableError."""
        with self._explained("read", name):
            # To open a pipe would block until something writes into it.
            if self._kind == "local" and not stat.S_ISREG(Path(self._path(name)).stat().st_mode):
                raise UnwritableError("cannot read: it is not a plain file", path=self.name_of(name))
            with self._filesystem.open_input_stream(self._path(name), compression=None) as stream:
                yield stream

    def begin(self, name: str) -> Draft:
        """A new file, which appears when it is committed. Raises UnwritableError."""
        path = self._path(name)
        folder, base = posixpath.split(path)
        written = path if self._kind == "objects" else f"{folder}/.{base}{PART}"
        claim: int | None = None
        with self._explained("write", name):
            if self._kind != "objects":
                self._filesystem.create_dir(folder, recursive=True)
            if self._kind == "local":
                disk.check_replaceable(Path(path))
                claim = claim_file(written, self.name_of(name))
            try:
                # By default pyarrow compresses what has a name such as x.gz; the writers do that themselves.
                stream = self._filesystem.open_output_stream(written, compression=None)
                return Draft(self, name, stream, written, path, claim)
            except BaseException:
                if claim is not None:
                    os.close(claim)
                raise

    def finish(self, draft: Draft) -> None:
        """Make the draft appear, replacing a file of its name. Raises UnwritableError."""
        with self._explained("write", draft.name):
            draft.stream.close()
            if self._kind == "local":
                self._flush(draft.written)
                disk.rename(Path(draft.written), Path(draft.path))
                disk.sync_folder(posixpath.dirname(draft.path))
                draft.release()
            elif self._kind == "other":
                if self._filesystem.get_file_info(draft.path).type != fs.FileType.NotFound:
                    self._filesystem.delete_file(draft.path)
                self._filesystem.move(draft.written, draft.path)
            draft.size = int(self._filesystem.get_file_info(draft.path).size or 0)

    def drop(self, draft: Draft) -> None:
        """Remove a draft. It is called after a failure, so further errors are ignored."""
        streams = [draft.stream] if draft.compressing is None else [draft.compressing, draft.stream]
        if isinstance(self._filesystem, fs.S3FileSystem):
            # Closing a stream, or freeing it, would complete the upload: keep a reference for ever.
            for stream in streams:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))
            return
        for stream in streams:
            with suppress(Exception):
                stream.close()  # ends the upload
        with suppress(Exception):
            self._filesystem.delete_file(draft.written)
        draft.release()

    @staticmethod
    def _flush(path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            disk.sync(descriptor, path)
        finally:
            os.close(descriptor)

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}" if self._base else name

    @contextmanager
    def _explained(self, what: str, name: str) -> Iterator[None]:
        """Converts errors of the file system to UnwritableError without secrets."""
        shown = self.name_of(name) if name else self.shown
        try:
            yield
        except RmqtoolError:
            raise
        except (OSError, pa.ArrowException, ValueError) as error:
            raise UnwritableError(f"cannot {what}: {self._reason(error)}", path=shown) from None

    def _reason(self, error: Exception) -> str:
        if self._kind == "local" and isinstance(error, OSError) and error.errno:
            return os.strerror(error.errno)
        return self._mask(_first_line(error))


def _check_name(path: str) -> None:
    """Raises UnwritableError for a name that pyarrow cannot open."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UnwritableError(
            "cannot write: the name is not UTF-8", path=path, hint="name another file or folder"
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class Draft:
    """A file that is being written.

    Attributes:
        stream: the output stream, a `pyarrow.NativeFile`.
        compressing: the stream that compresses what is written and writes to `stream`; None without one.
        name: name of the file in its target.
        written: path of the part file.
        path: path of the file after the commit.
        size: bytes of the file after the commit.
    """

    def __init__(
        self, place: OutputTarget, name: str, stream: Any, written: str, path: str, claim: int | None = None
    ) -> None:
        self._place = place
        self.name = name
        self.stream = stream
        self.compressing: Any = None
        self.written = written
        self.path = path
        self.size = 0
        self._committed = False
        self._claim = claim

    @property
    def written_bytes(self) -> int:
        """Bytes written so far, before it is committed."""
        return 0 if self.stream.closed else int(self.stream.tell())

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Converts errors of writing inside the block to UnwritableError."""
        with self._place._explained("write", self.name):
            yield

    def commit(self) -> None:
        """Make the complete file appear. Raises UnwritableError."""
        self._place.finish(self)
        self._committed = True

    def release(self) -> None:
        """Allow other runs to write a file of this name."""
        if self._claim is not None:
            os.close(self._claim)
        self._claim = None

    def abort(self) -> None:
        """Remove the draft, unless it is committed."""
        if not self._committed:
            self._place.drop(self)
