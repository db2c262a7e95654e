"""The backup of a run: the former bytes and mtimes, so that all of them can be restored.

    manifest.json     what the run changes, and the state of each file before; written first
    files/PATH        whole files: copied here, or moved here when another takes their place
    ranges/PATH       the ranges of a file that change in place, each at its own offset, holes between them
    README.txt        how to read and to restore it, for a person
    copied.json       CRCs of every file and range that is kept; what is moved here and is not a file, as a
                      link or a folder, has none. From here on the store changes
    applied.json      the fingerprint of the store when all was done
    undoing, undone   how far an undo has come

copied.json and applied.json hold the CRC-32 of manifest.json's bytes. Everything is untrusted when it is
read again.
"""

from __future__ import annotations

import os
import stat
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rmqtool.command_line import command_line, on_store
from rmqtool.errors import InputError, NotAStoreError, RefusedError, UnreadableError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.repair.plan.action import IN_PLACE, Action
from rmqtool.repair.plan.documents import (
    LARGEST,
    convert,
    fingerprint_row,
    put_json,
    read_bytes,
    read_fingerprint,
    read_json,
)
from rmqtool.repair.plan.fingerprint import Fingerprint
from rmqtool.repair.plan.guard import OpenRuns, check_runs
from rmqtool.repair.plan.paths import LOG_RANK, Places
from rmqtool.storage import durable as disk

VERSION = 1
README = "README.txt"
_RANGES_NAMED = 20  # in the README
MANIFEST, _COPIED, _APPLIED, _UNDOING, _UNDONE = (
    "manifest.json", "copied.json", "applied.json", "undoing", "undone",
)  # fmt: skip
What = Literal["file", "folder", "other", "missing"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A path that a run changes, and its former state.

    Attributes:
        path: as `Action.path`.
        what: `other` is a link, pipe or the like.
        size: bytes; 0 for what is not a file.
        mtime_ns: ns since 1970; 0 where nothing was.
        ranges: half-open ranges of bytes that change in place; the file stays.
        moved: another file, or none, takes its place.
        after_ns: the mtime that the run gives to what is there then; None: whatever it gets.
        made: bytes of the file that the run makes where nothing was; else 0.
        database: as `Action.database`: the run makes the other files of the database as well.
    """

    path: str
    what: What
    size: int = 0
    mtime_ns: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    moved: bool = False
    after_ns: int | None = None
    made: int = 0
    database: bool = False

    @property
    def kept_ranges(self) -> tuple[tuple[int, int], ...]:
        """The changed ranges that were in the file; none if the file did not exist."""
        if self.what != "file" or self.moved:
            return ()
        return tuple((start, min(stop, self.size)) for start, stop in self.ranges if start < self.size)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The changes of a run.

    Attributes:
        run: a name for the run that no other has.
        command: `recover`, `rebuild` or `expire`.
        made_ms: when, ms since 1970.
        store: the store's root: a backup is for the store in that place.
        open: the killed runs before this one that could not be reverted, as in the journal.
        entries: what changes.
        folders: mtime in ns of every folder with changes in it; None for one that the run makes.
    """

    run: str
    command: str
    made_ms: int
    store: str
    open: tuple[tuple[str, str], ...]
    entries: tuple[Entry, ...]
    folders: dict[str, int | None]
    rmqtool_backup: int = VERSION


class Crcs(NamedTuple):
    """CRC-32 by path: of copies (whole files or ranges), and of files that were moved to the backup."""

    copied: dict[str, int]
    moved: dict[str, int]


def what_is(mode: int) -> What:
    """Return the kind of the entry with this mode; links are not followed."""
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "other"


def survey(places: Places, command: str, actions: Iterable[Action], open_runs: OpenRuns) -> Manifest:
    """Return the present state of everything that the actions will change.

    Raises:
        ValueError: they contradict each other.
        RefusedError, UnreadableError: as `Places.checked`; or a file is not what an action takes it for.
    """
    by_path: dict[str, list[Action]] = {}
    for action in actions:
        by_path.setdefault(action.path, []).append(action)
    entries = tuple(_entry(places, path, group) for path, group in by_path.items())
    folders: dict[str, int | None] = {}
    for path in ("journal", f"{places.name(places.log_folders[0])}/guard", *by_path):
        _add_folders(places, path, folders)
    return Manifest(
        uuid.uuid4().hex, command, time.time_ns() // 1_000_000, str(places.root.resolve()), open_runs,
        entries, folders,
    )  # fmt: skip


def _add_folders(places: Places, path: str, folders: dict[str, int | None]) -> None:
    """Add the folders above a checked path, the root as `.`."""
    names = path.split("/")[:-1]
    ways = ["/".join(names)] if path.startswith("/") else ["/".join(names[:n]) for n in range(len(names) + 1)]
    for way in ways:
        name = way or "."
        if name not in folders:
            try:
                folders[name] = os.lstat(places.root / way).st_mtime_ns
            except FileNotFoundError:
                folders[name] = None


def _entry(places: Places, path: str, actions: list[Action]) -> Entry:
    place = places.checked(path)
    kinds = [action.kind for action in actions]
    whole = [kind for kind in kinds if kind not in IN_PLACE]
    if (
        len(whole) > 1
        or (whole and kinds[0] != whole[0])
        or (len(kinds) > 1 and whole not in ([], ["create"]))
    ):
        raise ValueError(f"{path} is changed in ways that do not go together: {', '.join(kinds)}")
    try:
        status = place.lstat()
    except FileNotFoundError:
        what: What = "missing"
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=place) from error
    else:
        what = what_is(status.st_mode)
    if (kinds[0] == "create") != (what == "missing"):
        how = "already exists" if kinds[0] == "create" else "is gone"
        raise RefusedError(f"{path} {how}", path=place, hint="make the plan again")
    if what not in ("file", "missing") and kinds[0] != "delete":
        raise RefusedError(f"{path} is not a plain file", path=place)
    after_ns = next((one.mtime_ns for one in reversed(actions) if one.mtime_ns is not None), None)
    database = any(action.database for action in actions)
    if what == "missing":
        made = max(action.end for action in actions)
        return Entry(path, what, moved=True, after_ns=after_ns, made=made, database=database)
    if after_ns is None and places.is_timed(path):
        after_ns = status.st_mtime_ns
    size = status.st_size if what == "file" else 0
    ranges = tuple(sorted((a.offset, a.end) for a in actions if a.kind in IN_PLACE and a.length))
    moved = kinds[0] not in IN_PLACE
    return Entry(path, what, size, status.st_mtime_ns, ranges, moved, after_ns, database=database)


class Backup:
    """The folder of a backup. Raises UnwritableError if a file in it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def kept(self, places: Places, entry: Entry) -> Path:
        """The path of the former bytes of an entry, whether it exists or not."""
        return places.within(self.folder / ("files" if entry.moved else "ranges"), entry.path)

    # writing

    def set_manifest(self, manifest: Manifest) -> None:
        """Record the changes that the run will make."""
        self._put(MANIFEST, asdict(manifest))

    def set_readme(self, places: Places, manifest: Manifest) -> None:
        """Say in a file how to read the backup, and how to restore the store."""
        write_readme(self.folder / README, _readme(self, places, manifest))

    def set_copied(self, crcs: Crcs) -> None:
        """Record that all copies are made, with their CRCs and those of files that will be moved here."""
        self._put(_COPIED, {"manifest_crc32": self._manifest_crc(), **crcs._asdict()})

    def set_applied(self, found: Fingerprint) -> None:
        """Record that the run is complete, with the store's fingerprint after it."""
        self._put(_APPLIED, {"manifest_crc32": self._manifest_crc(), **fingerprint_row(found)})

    def set_undoing(self) -> None:
        """Record that an undo has begun."""
        self._put(_UNDOING, {})

    def set_undone(self) -> None:
        """Record that everything was restored."""
        self._put(_UNDONE, {})

    def _put(self, name: str, document: dict[str, Any]) -> None:
        put_json(self.folder / name, document)

    # reading

    def manifest(self) -> Manifest:
        """The manifest, checked: every path is one of the store's, every range lies in its file.

        Raises:
            NotAStoreError: the folder is not a backup.
            InputError: it cannot be understood.
        """
        document = read_json(self.folder / MANIFEST)
        if document is None:
            what = "this is not a backup of rmqtool" if self.folder.exists() else "no such folder"
            raise NotAStoreError(what, path=self.folder,
                                 hint="name the folder that holds manifest.json")  # fmt: skip
        found = convert(document, Manifest, self.folder / MANIFEST)
        if found.rmqtool_backup != VERSION:
            raise InputError("a backup of a newer rmqtool", path=self.folder)
        if not found.entries:
            raise InputError("the manifest has no entries", path=self.folder / MANIFEST)
        check_runs(found.open, self.folder / MANIFEST)
        if any(abs(mtime_ns or 0) >= LARGEST for mtime_ns in found.folders.values()):
            raise InputError("a folder's time in the manifest is not possible", path=self.folder / MANIFEST)
        seen = set()
        for entry in found.entries:
            if entry.path in seen or not _is_possible(entry):
                raise InputError(f"the manifest's entry for {entry.path!r} is not possible",
                                 path=self.folder / MANIFEST)  # fmt: skip
            seen.add(entry.path)
        return found

    def crcs(self) -> Crcs | None:
        """The CRCs of kept bytes; None if the run ended before its first change.

        Raises:
            InputError: it cannot be understood, is for another manifest, or is lost although the run ended.
        """
        document = self._sealed(_COPIED)
        if document is None:
            if os.path.lexists(self.folder / _APPLIED):
                raise InputError("the backup's copied.json is lost", path=self.folder / _COPIED)
            return None
        tables = (document.get(name) for name in Crcs._fields)
        return Crcs(*(convert(table, dict[str, int], self.folder / _COPIED) for table in tables))

    def applied(self) -> Fingerprint | None:
        """The store's fingerprint after the run; None if the run was not completed.

        Raises:
            InputError: it cannot be understood, or is for another manifest.
        """
        document = self._sealed(_APPLIED)
        return None if document is None else read_fingerprint(document, self.folder / _APPLIED)

    def _sealed(self, name: str) -> dict[str, Any] | None:
        """Read a document that holds the manifest's CRC, and check that CRC."""
        document = read_json(self.folder / name)
        if document is not None and document.get("manifest_crc32") != self._manifest_crc():
            raise InputError(f"manifest.json is damaged: {name} has another CRC for it",
                             path=self.folder / MANIFEST)  # fmt: skip
        return document

    def _manifest_crc(self) -> int:
        return zlib.crc32(read_bytes(self.folder / MANIFEST) or b"")

    @property
    def is_in_between(self) -> bool:
        """Whether entries may be as they were: the run was killed, or is being undone."""
        return not (self.folder / _APPLIED).is_file() or self.is_undoing

    @property
    def is_undoing(self) -> bool:
        """Whether an undo has begun."""
        return (self.folder / _UNDOING).is_file()

    @property
    def is_undone(self) -> bool:
        """Whether everything was restored."""
        return (self.folder / _UNDONE).is_file()

    @property
    def is_spent(self) -> bool:
        """Whether the folder belongs to a run with nothing left to restore."""
        begun = any(self.folder.glob(f"{MANIFEST}*"))
        return begun and (self.is_undone or not os.path.lexists(self.folder / _COPIED))


def write_readme(path: Path, lines: Iterable[str]) -> None:
    """Write the new file `path`, which says to a person what is in its folder and how to restore it.

    Raises UnwritableError.
    """
    text = "".join(f"{line}\n" for line in lines)
    disk.write_new(path, text.encode("utf-8", "surrogateescape"))


def from_anywhere(places: Places, command: str, *words: str) -> str:
    """Return the line that runs a command on the store, from any folder."""
    options = [each if each.startswith("--") else str(Path(each).absolute()) for each in places.options]
    return on_store(places.root, command, *options, *words)


_OF_RANGES = (
    "ranges/   files of which a part was changed: the former bytes of this part, each at its",
    "          own offset. The rest of such a file is zeros, and rmqtool reports it as damaged.",
)


def _readme(backup: Backup, places: Places, manifest: Manifest) -> Iterator[str]:
    """The lines of the README."""
    undo = from_anywhere(places, "recover", "--undo", str(backup.folder.absolute()))
    yield f"What rmqtool {manifest.command} replaced, cut or deleted in this store:"
    yield f"    {command_line(places.root)}"
    yield ""
    yield "To restore the store, as long as no broker has written to it:"
    yield f"    {undo}"
    yield ""
    yield "files/    whole files, under their paths in the store"
    if any(entry.kept_ranges for entry in manifest.entries):
        yield from _OF_RANGES
    yield ""
    yield "A backup has only what was changed: it is not a store. rmqtool dump reads its files one by one."
    log = [entry for entry in manifest.entries if places.rank(entry.path) == LOG_RANK]
    starts = [(entry, start) for entry in log for start, _ in entry.kept_ranges]
    if starts:
        yield ""
        yield "What was changed in the commit log, byte by byte:"
    for entry, start in starts[:_RANGES_NAMED]:
        offset = int(Path(entry.path).name) + start if Path(entry.path).name.isdecimal() else start
        yield f"    {_dump(backup.kept(places, entry), '--explain', str(offset))}"
    if len(starts) > _RANGES_NAMED:
        yield f"    and {len(starts) - _RANGES_NAMED} more: see ranges in {MANIFEST}"
    others = [entry for entry in manifest.entries if entry.what == "file" and entry.moved]
    for title, top in (
        ("A queue", "consumequeue/"),
        ("An index file", "index/"),
        ("A file of the log", "commitlog/"),
    ):
        found = next((entry for entry in others if entry.path.startswith(top)), None)
        if found is not None:
            yield f"{title}, for example:"
            yield f"    {_dump(backup.kept(places, found))}"


def _dump(path: Path, *words: str) -> str:
    return command_line("rmqtool", "dump", str(path), *words)


def _is_possible(entry: Entry) -> bool:
    numbers = [entry.size, entry.made, *(number for pair in entry.ranges for number in pair)]
    return (
        all(0 <= number < LARGEST for number in numbers)
        and abs(entry.mtime_ns) < LARGEST
        and abs(entry.after_ns or 0) < LARGEST
        and all(start < stop for start, stop in entry.ranges)
        and (entry.what == "file" or (entry.size == 0 and entry.moved))
        and (not entry.moved or not entry.ranges)
        and (entry.what == "missing" or not entry.made)
        and (not entry.database or (entry.moved and entry.path.endswith("/CURRENT")))
    )
