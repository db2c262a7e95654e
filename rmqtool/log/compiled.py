"""The compilation of kernels, and the cache for compiled code.

numba caches machine code next to the source and checks only the source file itself: constants and functions
from other modules are frozen into the cached code. So the cache folder is named by a hash of the version and
of every file in the rooms with kernels. The hash does not depend on the location of the package, which may
be in a zip, as in Spark's executors. Cache files are pickles: whoever can write them runs code in this
process. So the folder is never under a shared temporary folder, and a folder that others may write is not
used. Without a usable folder every process compiles the kernels again.

Kernels allocate nothing: they are compiled without numba's reference counts, which would cost an atomic
operation per array and call.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., object])

COMPILED_ROOMS = ("formats", "log", "queue", "index", "write")
"""The rooms with kernels, or with constants and functions for kernels, without their subfolders."""

_PACKAGE = Path(__file__).resolve().parent.parent
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}
_decorating = Lock()


def compiled(function: Function) -> Function:
    """A decorator: numba compiles `function` on its first call, without the GIL, cached on disk."""
    import numba

    folder = cache_folder()
    if folder is None:
        kernel: Function = numba.njit(**_OPTIONS)(function)
        return kernel
    with _decorating:
        # numba determines the place when it creates the cache object, and has no argument for it.
        config: Any = import_module("numba.core.config")
        before = config.CACHE_LOCATOR_CLASSES
        config.CACHE_LOCATOR_CLASSES = f"{__name__}.{KernelPlace.__name__}"
        try:
            kernel = numba.njit(cache=True, **_OPTIONS)(function)
        finally:
            config.CACHE_LOCATOR_CLASSES = before
    return kernel


class KernelPlace:
    """Tells numba where to cache one kernel: a cache locator in numba's documentation.

    numba's own locators need an existing source file, or name the folder by the path of the zip, which is
    another one in every Spark application.
    """

    def __init__(self, function: Callable[..., object], file: str) -> None:
        self._py_file = file  # numba's warnings name it
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., object], file: str) -> KernelPlace:
        """The place of a kernel that was defined in `file`."""
        return cls(function, file)

    def get_cache_path(self) -> str:
        """The folder."""
        return str(cache_folder())

    def ensure_cache_path(self) -> None:
        """Do nothing: `cache_folder` has created the folder."""

    def get_source_stamp(self) -> str:
        """The stamp of the sources; cached code is used only if it is equal."""
        return source_hash()

    def get_disambiguator(self) -> str:
        """Distinguishes functions of the same name in one module; a part of file names."""
        return str(self._line)


def inlined(function: Function) -> Function:
    """A decorator: `function` becomes a part of the kernels that call it."""
    import numba

    part: Function = numba.njit(forceinline=True, **_OPTIONS)(function)
    return part


@cache
def cache_folder() -> Path | None:
    """The folder for compiled kernels, created if missing; None if no place is safe and writable."""
    name = f"kernels-{source_hash()}"
    for parent in _parents():
        folder = parent / name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if _is_ours(folder):
            return folder
    return None


def _parents() -> list[Path]:
    """Candidates, best first: NUMBA_CACHE_DIR, the package's __pycache__, the user's cache folder.

    For a package in a zip, also the folder of the zip, which the processes of an executor share.
    """
    parents = []
    if os.environ.get("NUMBA_CACHE_DIR"):
        parents.append(Path(os.environ["NUMBA_CACHE_DIR"]))
    parents.append(_PACKAGE / "log" / "__pycache__")
    user = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not user.is_absolute():
        user = Path("~/.cache")
        try:
            user = user.expanduser()
        except RuntimeError:  # no home
            pass
    if user.is_absolute():
        parents.append(user / "rmqtool")
    beside_zip = _PACKAGE.parent.parent
    if not _PACKAGE.is_dir() and _is_ours(beside_zip):
        parents.append(beside_zip)
    return parents


def _is_ours(folder: Path) -> bool:
    """Whether this user owns `folder`, and only this user can write it."""
    try:
        status = folder.stat()
    except OSError:
        return False
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == os.geteuid() and not others_write and os.access(folder, os.W_OK | os.X_OK)


@cache
def source_hash() -> str:
    """A hash, 16 hex digits, of the names and bytes of the sources in `COMPILED_ROOMS`."""
    digest = hashlib.sha256()
    for folder in COMPILED_ROOMS:
        for name, data in sorted(_sources(folder)):
            digest.update(f"\0{folder}/{name}\0{len(data)}\0".encode())
            digest.update(data)
    return digest.hexdigest()[:16]


def _sources(name: str) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of the sources in a folder of the package, on disk or in a zip."""
    folder: Any = _PACKAGE / name
    if not folder.is_dir():
        import zipfile

        folder = zipfile.Path(_PACKAGE.parent, f"{_PACKAGE.name}/{name}/")
    for entry in folder.iterdir():
        if entry.name.endswith(".py"):
            yield entry.name, entry.read_bytes()
