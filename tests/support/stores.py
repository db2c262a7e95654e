"""The stores in `fixtures/`: unpacked, and damaged anew at test time.

A case is a folder with `case.toml`; adding one needs no code. Either it holds `store.tar.gz`, or
it names another case as `base` and the `[[edit]]` tables that damage it. A `store.tar.gz` may
have a `base` too: then a hole in one of its files stands for the bytes of the base's file.

    python -m tests.support.stores ok_540_clean /tmp/store      unpack one case by hand
    python -m tests.support.stores 5.4.0:clean:flip-body-last-file:abort /tmp/store
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

from msgspec.json import Decoder

from tests import ROOT
from tests.support.trees import copy_sparse, copy_tree, make_private, tree_digest

FIXTURES = ROOT / "fixtures"
Edits = Sequence[dict[str, Any]]
VERSIONS = ("4.9.7", "5.3.3", "5.4.0")


@dataclass(frozen=True)
class Case:
    """One folder of `fixtures/`, described by its `case.toml`.

    `codes` are all the problems that `verify` finds, notes included; None: not stated.
    """

    folder: Path
    says: str
    origin: str
    profile: str
    base: str | None = None
    version: str | None = None
    state: str | None = None
    codes: tuple[str, ...] | None = None
    edits: tuple[dict[str, Any], ...] = ()
    tree: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    as_user: bool = False

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def archive(self) -> Path | None:
        """`store.tar.gz`, or None for a case that is only edits."""
        path = self.folder / "store.tar.gz"
        return path if path.exists() else None

    @cached_property
    def queues(self) -> list[dict[str, Any]]:
        """What the Java store answers: topic, queueId, minOffset, maxOffset of every queue."""
        rows: list[dict[str, Any]] = json.loads((self.folder / "queues.json").read_text("utf-8"))
        return rows

    def facts(self) -> Sequence[dict[str, Any]]:
        """What the Java library says about every record, blank and end of the log, in order; for reading."""
        return _facts(self.name)


@lru_cache(maxsize=4)  # a case and its base, and those of another test that takes turns
def _facts(name: str) -> tuple[dict[str, Any], ...]:
    base = _facts(this.base) if (this := case(name)).base else ()
    rows: list[dict[str, Any]] = []
    for row in Decoder().decode_lines(lzma.decompress((this.folder / "facts.jsonl.xz").read_bytes())):
        rows += base[row["base"][0] : row["base"][1]] if "base" in row else [row]
    return tuple(rows)


@cache
def case(name: str) -> Case:
    """The case in the folder `name` of `fixtures/`."""
    folder = FIXTURES / name
    values = tomllib.loads((folder / "case.toml").read_text("utf-8"))
    values["edits"] = tuple(values.pop("edit", ()))
    if "codes" in values:
        values["codes"] = tuple(values["codes"])
    return Case(folder=folder, **values)


@cache
def case_names() -> tuple[str, ...]:
    """Every case, sorted by name."""
    return tuple(sorted(path.parent.name for path in FIXTURES.glob("*/case.toml")))


def real_cases() -> tuple[str, ...]:
    """The cases that are stores of real brokers with the Java library's answers."""
    return tuple(name for name in case_names() if (FIXTURES / name / "facts.jsonl.xz").exists())


def real_case(version: str, state: str) -> Case:
    """The case of one state of a broker's version, e.g. ("5.4.0", "killed-burst")."""
    return next(c for c in map(case, real_cases()) if (c.version, c.state) == (version, state))


def is_large(name: str) -> bool:
    """Whether a case has thousands of messages: the stores of real brokers that worked for some time."""
    while (base := case(name).base) is not None:
        if name.endswith("_clean"):
            return True
        name = base
    return False


@cache
def variants(version: str) -> tuple[dict[str, Any], ...]:
    """Every damaged variant: base (a state), edits, abortFile, and what the real store did."""
    with gzip.open(FIXTURES / "damage" / f"{version}.json.gz", "rt", encoding="utf-8") as file:
        return tuple(json.load(file))


def variant_id(variant: dict[str, Any]) -> str:
    """A short name of a variant: `clean:flip-body-last-file:abort`."""
    return ":".join((variant["base"], variant["variant"], "abort" if variant["abortFile"] else "noabort"))


def find_variant(name: str) -> tuple[str, dict[str, Any]]:
    """(version, variant) for `5.4.0:clean:flip-body-last-file:abort`."""
    version, _, rest = name.partition(":")
    return version, next(variant for variant in variants(version) if variant_id(variant) == rest)


# -- unpacking -------------------------------------------------------------------------------------


def members(tar: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, list[tuple[int, bytes]]]]:
    """Every member with the (offset, bytes) of its data; sparse members have several."""
    source: Any = tar.fileobj
    for member in tar:
        sparse: Any = getattr(member, "sparse", None)
        ranges = [(0, member.size)] if sparse is None else list(sparse)
        data, position = [], member.offset_data
        for offset, length in ranges if member.isreg() else []:
            source.seek(position)
            data.append((offset, source.read(length)))
            position += length
        yield member, data


def unpack(archive: BytesIO, target: Path, *, base: Path | None = None, prefix: str = "") -> None:
    """Unpack a tar below the new folder `target`: holes stay holes, times are exact.

    Args:
        archive: the tar's bytes, uncompressed.
        target: made, with its parents.
        base: the folder that gives the bytes of holes, for files that it has too.
        prefix: take only what lies in this folder of the tar, without its name.
    """
    folders = []
    with tarfile.open(fileobj=archive, mode="r:") as tar:
        for member, data in members(tar):
            path = Path(member.name)
            if not path.is_relative_to(prefix):
                continue
            below = path.relative_to(prefix)
            assert not below.is_absolute() and ".." not in below.parts, member.name
            if member.isdir():
                (target / below).mkdir(parents=True, exist_ok=True)
                folders.append((target / below, member))
                continue
            origin = base / below if base else None
            if origin and origin.exists():
                copy_sparse(origin, target / below)
            _write(target / below, data, member.size)
            _set_status(target / below, member)
    for folder, member in reversed(folders):
        _set_status(folder, member)


def _write(path: Path, data: list[tuple[int, bytes]], size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        for offset, segment in data:
            os.pwrite(descriptor, segment, offset)
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def mtime_ns(member: tarfile.TarInfo) -> int:
    """The member's time in ns; tarfile itself rounds it to a float."""
    return int(Decimal(member.pax_headers.get("mtime", str(member.mtime))) * 10**9)


def _set_status(path: Path, member: tarfile.TarInfo) -> None:
    path.chmod(member.mode)
    os.utime(path, ns=(mtime_ns(member), mtime_ns(member)))


class Library:
    """Cases unpacked below one folder, which processes may share, each once; to be read only."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.digests: dict[str, str] = {}

    def path(self, name: str) -> Path:
        """The unpacked store of the case `name`. Nobody may change it: use `copy` for that."""
        target, this = self.root / name, case(name)
        if target.exists():
            return target
        base = self.path(this.base) if this.base else None
        part = target.with_name(f"{name}.{os.getpid()}.part")
        if this.archive:
            unpack(BytesIO(gzip.decompress(this.archive.read_bytes())), part, base=base)
        else:
            assert base is not None, f"{name} has neither store.tar.gz nor a base"
            damage(base, part, this.edits)
        digest = tree_digest(part)
        try:
            part.rename(target)
        except OSError:  # another process of the run was faster
            assert target.is_dir()
            shutil.rmtree(part)
        else:
            self.digests[name] = digest
        return target

    def check_untouched(self) -> None:
        """Every unpacked store is still what it was when it was unpacked."""
        changed = [name for name, digest in self.digests.items() if tree_digest(self.root / name) != digest]
        assert not changed, f"stores that were to be read only have changed: {changed}"

    def copy(self, name: str, target: Path) -> Path:
        """A copy of the case's store as the new folder `target`, free to be changed."""
        return copy_tree(self.path(name), target)

    def variant(self, name: str, target: Path) -> Path:
        """A damaged variant as the new folder `target`, for reading only; see `find_variant`."""
        version, variant = find_variant(name)
        return damage(self.path(real_case(version, variant["base"]).name), target, variant["edits"])


# -- damage ----------------------------------------------------------------------------------------


def damage(base: Path, target: Path, edits: Edits) -> Path:
    """Make the new folder `target`: `base` with the edits. For reading only: the rest is linked."""
    _apply(copy_tree(base, target, linked=True), edits)
    return target


def _apply(root: Path, edits: Edits) -> None:
    """Do the edits below `root`, whose files may be links.

    What is touched keeps its times, so that nothing depends on when a test runs.
    """
    for edit in edits:
        path = root / edit["path"]
        family = [path, *(parent for parent in path.parents if parent.is_relative_to(root))]
        times = {member: member.stat().st_mtime_ns for member in family if member.exists()}
        if path.is_file():
            make_private(path)
        apply_edit(root, edit)
        for member in family:
            if member.exists():
                time = times.get(member, min(times.values()))
                os.utime(member, ns=(time, time))


class Bench:
    """One linked copy of a store that is damaged and mended again and again: cheaper than copies."""

    def __init__(self, base: Path, root: Path) -> None:
        self.base = base
        self.root = copy_tree(base, root, linked=True)

    @contextmanager
    def damaged(self, edits: Edits) -> Iterator[Path]:
        """The store with `edits`, for reading only; afterwards it is the base again."""
        _apply(self.root, edits)
        try:
            yield self.root
        finally:
            for name in {edit[key] for edit in edits for key in ("path", "to") if key in edit}:
                self._mend(Path(name))

    def _mend(self, name: Path) -> None:
        while name.parent.name and not (self.base / name.parent).exists():
            name = name.parent
        path, origin = self.root / name, self.base / name
        if path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if origin.is_dir():
            copy_tree(origin, path, linked=True)
        elif origin.exists():
            path.hardlink_to(origin)
        for parent in name.parents:
            shutil.copystat(self.base / parent, self.root / parent)


def apply_edit(root: Path, edit: dict[str, Any]) -> None:
    """Do one edit below `root`.

    write (offset, hex), zero (offset, length), delete, truncate (size; longer: zeros),
    create (hex or text, size), mkdir, rename (to), copy (to), chmod (mode), link (to), pipe.
    """
    path, op = root / edit["path"], edit["op"]
    if op == "write" or op == "zero":
        data = bytes.fromhex(edit["hex"]) if op == "write" else bytes(edit["length"])
        assert edit["offset"] + len(data) <= path.stat().st_size, edit
        _patch(path, edit["offset"], data)
    elif op == "delete":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif op == "truncate":
        os.truncate(path, edit["size"])
    elif op == "create":
        path.parent.mkdir(parents=True, exist_ok=True)
        data = edit["text"].encode() if "text" in edit else bytes.fromhex(edit["hex"])
        path.write_bytes(data)
        os.truncate(path, edit.get("size", len(data)))
    elif op == "mkdir":
        path.mkdir(parents=True, exist_ok=True)
    elif op == "rename" or op == "copy":
        target = root / edit["to"]
        path.rename(target) if op == "rename" else copy_sparse(path, target)
    elif op == "link":
        path.symlink_to(edit["to"])
    elif op == "pipe":
        os.mkfifo(path)
    elif op == "chmod":
        path.chmod(int(edit["mode"], 8))
    else:
        raise ValueError(f"unknown edit {op!r}")


def _patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def main(arguments: Sequence[str]) -> int:
    """Unpack the named case; the exit code. Without a known name, list the names."""
    name, *folders = arguments or ("",)
    names = {*case_names(), *(f"{each}:{variant_id(row)}" for each in VERSIONS for row in variants(each))}
    if name not in names or len(folders) != 1 or Path(folders[0]).exists():
        is_taken = name in names and len(folders) == 1
        reason = f"{folders[0]} exists" if is_taken else f"no case {name!r}" if name else "no name"
        reason = "name one new folder" if name in names and not is_taken else reason
        asked = name in ("-h", "--help")
        usage = ["usage: python -m tests.support.stores NAME FOLDER", "", "names:"]
        if not asked:
            usage.insert(0, f"tests.support.stores: {reason}")
        damaged = (f"{each}:STATE:DAMAGE:abort|noabort, as in fixtures/damage" for each in VERSIONS)
        usage += [*case_names(), *damaged]
        print("\n".join(usage), file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    folder = Path(folders[0])
    shelf = Library(folder.with_name(f"{folder.name}.cases"))
    shelf.root.mkdir()
    try:
        shelf.variant(name, folder) if ":" in name else shelf.copy(name, folder)
    finally:
        shutil.rmtree(shelf.root)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
