"""Configuration in RocksDB as a `Storage`: the folder `config` with the files that the database stands for.

topics.json, subscriptionGroup.json and consumerOffset.json are made from the database, v1 in three folders or
one, or v2; all other files are those of the folder. Where the folder has one of the three too, a broker of v1
starts with the database, and with the file on top if that has a larger version: then it has the committed
offsets of the file alone. A broker of v2 reads no file.

Of three databases those that can be read are read, whatever the others are. What was read is kept; it is read
again when a file is opened after the databases have changed.

Source: RocksDBConfigManager and its subclasses, ConfigStorage; spec 06 section 3.
"""

from __future__ import annotations

import errno
import os
from functools import cached_property
from pathlib import Path

from rmqtool.errors import FormatError, InputError
from rmqtool.formats import config_json
from rmqtool.formats import rocksdb_config as format_
from rmqtool.formats.fastjson import READ_LIMIT
from rmqtool.formats.rocksdb_config import GROUPS, NAMES, OFFSETS, TOPICS, Document
from rmqtool.storage.listing import Listing
from rmqtool.storage.open_files import open_file, read_head
from rmqtool.storage.random_file import RandomFile
from rmqtool.storage.rocksdb.database import Database
from rmqtool.storage.rocksdb.table import as_unreadable, split_key
from rmqtool.storage.storage import Entries, Recipe, Storage, StoragePath, mounted, status_of
from rmqtool.storage.unsupported import has_database

_SEPARATE = {TOPICS: "topics", GROUPS: "subscriptionGroups", OFFSETS: "consumerOffsets"}
_SINGLE, _V2 = "metadata", "rdb"
_FAMILIES = {
    TOPICS: ("topic", "topicVersion"), GROUPS: ("subscriptionGroup", "subscriptionGroupVersion"),
    OFFSETS: ("consumerOffset", "consumerOffsetVersion"),
}  # fmt: skip
_VERSION, _FORBIDDEN = "kvDataVersion", "forbidden"


class RocksdbConfig(Storage):
    """The folder `config` of a store, `folder`, with a configuration in RocksDB."""

    name = "RocksDB config"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failed: dict[Path, InputError] = {}
        """Folders of databases that cannot be read."""
        self.in_database: dict[str, Document] = {}
        """What the database holds, by the name of a file that wins over it."""
        self.databases: tuple[Database, ...] = ()
        """Those that were read."""
        self.ignored: frozenset[str] = frozenset()
        """Files of version 0 whose database is lost: a broker makes an empty one, of the same version."""
        self._state: tuple[object, ...] | None = None

    @cached_property
    def root(self) -> StoragePath:
        """The folder, with the three files."""
        return mounted(self, "")

    @property
    def is_v2(self) -> bool:
        """Whether it is in the form v2, which holds nothing that the broker makes by itself."""
        return has_database(self.folder / _V2)

    @cached_property
    def documents(self) -> dict[str, Document]:
        """The documents by the name of the file. Raises FormatError, UnreadableError."""
        self._state = self._changed()
        self.failed, self.in_database, self.databases, self.ignored = {}, {}, (), frozenset()
        if self.is_v2:
            return self._read_v2()
        if has_database(self.folder / _SINGLE):
            found = self._read_v1({name: (self.folder / _SINGLE, *_FAMILIES[name]) for name in NAMES})
        else:
            found = self._read_v1(
                {name: (self.folder / folder, "default", _VERSION) for name, folder in _SEPARATE.items()}
            )
            lost = (name for name, folder in _SEPARATE.items() if not has_database(self.folder / folder))
            self.ignored = frozenset(name for name in lost if self._has_no_version(name))
        return {name: self._with_file(name, document) for name, document in found.items()}

    def _read_v1(self, places: dict[str, tuple[Path, str, str]]) -> dict[str, Document]:
        found = {}
        for name, (folder, family, version) in places.items():
            if not has_database(folder):
                continue
            database = Database(folder)
            is_separate = folder.name in _SEPARATE.values()
            try:
                forbidden = list(database.scan(_FORBIDDEN)) if name == GROUPS else []
                found[name] = format_.document_v1(
                    name, database.scan(family), database.get(version, format_.VERSION_KEY), forbidden
                )
                self.databases += (database,)
            except InputError as error:
                error.path = error.path or folder
                if not is_separate:
                    raise
                self.failed[folder] = error
            finally:
                database.close()
        return found

    def _read_v2(self) -> dict[str, Document]:
        database = Database(self.folder / _V2)
        try:
            found = format_.documents_v2(database.scan("default"))
        except FormatError as error:
            error.path = error.path or database.folder
            raise
        finally:
            database.close()
        self.databases = (database,)
        return found

    def _with_file(self, name: str, document: Document) -> Document:
        texts = (read_head(self.folder / each, READ_LIMIT) for each in (name, f"{name}.bak"))
        try:
            found = format_.merged(name, document, config_json.load_with_bak(name, *texts).document)
        except FormatError as error:
            error.path = error.path or self.folder / name
            raise
        if found is not document:
            self.in_database[name] = document
        return found

    def _has_no_version(self, name: str) -> bool:
        texts = (read_head(self.folder / each, READ_LIMIT) for each in (name, f"{name}.bak"))
        loaded = config_json.load_with_bak(name, *texts)
        try:
            return loaded.source in ("file", "bak") and config_json.version_counter(loaded.document) <= 0
        except FormatError:  # the broker ends: a finding of its own
            return False

    def place_of(self, name: str) -> Path | None:
        """The database, of v1 in three folders, that stands for a file; None for other forms."""
        others = any(has_database(self.folder / each) for each in (_SINGLE, _V2))
        return None if others or name not in _SEPARATE else self.folder / _SEPARATE[name]

    @cached_property
    def _texts(self) -> dict[str, bytes]:
        return {name: config_json.dump(document, "5.4") for name, document in self.documents.items()}

    def _changed(self) -> tuple[object, ...]:
        """Names, sizes and times of the files that it depends on."""
        listing = Listing()
        folders = (self.folder, *(self.folder / name for name in (*_SEPARATE.values(), _SINGLE, _V2)))
        return tuple(
            (folder.name, name, status.st_size, status.st_mtime_ns)
            for folder in folders
            for name, status in listing.entries(folder)
        )

    def refresh(self) -> None:
        """Read the databases again if their files have changed. Raises UnreadableError."""
        if self._state is None or self._state != self._changed():
            for name in ("documents", "_texts", "_mtime"):
                self.__dict__.pop(name, None)
            try:
                _ = self.documents
            except FormatError as error:
                raise as_unreadable(error) from error

    @cached_property
    def _mtime(self) -> float:
        """When a file of the databases was last changed, in seconds since 1970."""
        folders = (*_SEPARATE.values(), _SINGLE, _V2)
        entries = (entry for name in folders for entry in Listing().entries(self.folder / name))
        return max((status.st_mtime for _, status in entries), default=0.0)

    # Storage

    def show(self, inner: str) -> str:
        """See Storage."""
        return f"{self.folder}/{inner}" if inner else str(self.folder)

    def recipe(self) -> Recipe:
        """See Storage."""
        return RocksdbConfig, (self.folder,)

    def entries(self, inner: str) -> Entries:
        """See Storage."""
        if inner:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.show(inner))
        others = [
            (name, status) for name, status in Listing().entries(self.folder) if not self._is_hidden(name)
        ]
        return [*others, *((name, self.status(name)) for name in self._texts)]

    def _is_hidden(self, name: str) -> bool:
        """Whether a broker does not read a file, or its .bak: it has a database instead, or makes one."""
        plain = name.removesuffix(".bak")
        return plain in self._texts or plain in self.ignored

    def status(self, inner: str) -> os.stat_result:
        """See Storage."""
        if inner in self._texts:
            return status_of(len(self._texts[inner]), self._mtime)
        self._must_be_file(inner)
        return status_of(None) if not inner else (self.folder / inner).stat()

    def _must_be_file(self, inner: str) -> None:
        if inner and self._is_hidden(inner):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.show(inner))

    def open(self, inner: str) -> RandomFile:
        """See Storage. A file is as the databases are now."""
        self.refresh()
        if inner in self._texts:
            return _Text(self._texts[inner])
        self._must_be_file(inner)
        return open_file(self.folder / inner)

    def close(self) -> None:
        """See Storage. Nothing stays open."""


def ending_error(folder: Path, *, checks_blocks: bool) -> InputError | None:
    """Why a broker ends that has the database of its configuration in `folder`; None if it starts.

    Args:
        folder: of one of the databases of v1, or of that of v2.
        checks_blocks: it notices damaged blocks of v1.
    """
    tables = [family for family, _ in _FAMILIES.values()]
    versions = {_SINGLE: [version for _, version in _FAMILIES.values()], _V2: []}
    scanned = {_SINGLE: [*tables, _FORBIDDEN], _V2: []}
    database = Database(folder)
    try:
        error = database.opening_error()
        if error is not None:
            return error
        for family in versions.get(folder.name, [_VERSION]):
            _read_version(database, family)
        for family in scanned.get(folder.name, ["default", _FORBIDDEN]) if checks_blocks else ():
            for _ in database.scan(family):
                pass
    except InputError as error:
        return error
    finally:
        database.close()
    return None


def _read_version(database: Database, family: str) -> None:
    """Read the version as RocksDB does: where the newest is. Raises FormatError, UnreadableError."""
    key = format_.VERSION_KEY
    if family not in database.families or database.changes(family, key, key + b"\0"):
        return
    files = database.families[family].files  # each holds this key alone
    newest = max(files, key=lambda file: split_key(file.smallest)[1], default=None)
    if newest is not None:
        table = database.table(newest)
        for number in table.blocks_of(key, key + b"\0"):
            database.entries(table, number)


class _Text:
    """Bytes in memory as a RandomFile."""

    is_near = True

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        """See RandomFile."""
        return self._data[offset : offset + length]

    def data_from(self, offset: int) -> int:
        """See RandomFile."""
        return offset

    def hole_from(self, offset: int) -> int:
        """See RandomFile."""
        return self.size

    def close(self) -> None:
        """See RandomFile."""
