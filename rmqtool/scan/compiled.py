"""The one way in which a kernel is compiled, and where the compiled code is kept.

numba keeps machine code beside the source and sees only the source file's own time and size: a
constant or a function that comes from another module is frozen into the cached code. So the folder
is named by a hash of the version and of every file of formats/ and scan/. Cache files are pickles:
who can write them runs code here. So the folder is never under a shared temporary folder, and one
that others may write is not used. Where there is none, kernels are compiled anew in every process.

Kernels allocate nothing: they are compiled without numba's reference counts, which would cost an
atomic operation per array and call.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., object])

_PACKAGE = Path(__file__).resolve().parent.parent
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}
_decorating = Lock()


def compiled(function: Function) -> Function:
    """A decorator: `function` compiled by numba on its first call, without the GIL, cached on disk."""
    import numba

    folder = cache_folder()
    if folder is None:
        kernel: Function = numba.njit(**_OPTIONS)(function)
        return kernel
    with _decorating:
        # numba reads the folder when the cache object is made, and knows no argument for it.
        config: Any = import_module("numba.core.config")
        before = config.CACHE_DIR
        config.CACHE_DIR = str(folder)
        try:
            kernel = numba.njit(cache=True, **_OPTIONS)(function)
        finally:
            config.CACHE_DIR = before
    return kernel


def inlined(function: Function) -> Function:
    """A decorator: `function` becomes a part of the kernels that call it."""
    import numba

    part: Function = numba.njit(forceinline=True, **_OPTIONS)(function)
    return part


@cache
def cache_folder() -> Path | None:
    """Where compiled kernels are kept, made when missing; None when no place is safe and writable."""
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
    """Candidates, best first: NUMBA_CACHE_DIR, the package's __pycache__, the user's cache folder."""
    parents = []
    if os.environ.get("NUMBA_CACHE_DIR"):
        parents.append(Path(os.environ["NUMBA_CACHE_DIR"]))
    parents.append(_PACKAGE / "scan" / "__pycache__")
    user = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not user.is_absolute():
        user = Path("~/.cache")
        try:
            user = user.expanduser()
        except RuntimeError:  # no home
            return parents
    if user.is_absolute():
        parents.append(user / "rmqtool")
    return parents


def _is_ours(folder: Path) -> bool:
    """Whether this user owns `folder`, can write it, and nobody else can."""
    try:
        status = folder.stat()
    except OSError:
        return False
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == os.geteuid() and not others_write and os.access(folder, os.W_OK | os.X_OK)


@cache
def source_hash() -> str:
    """16 hex digits over the version and the names and bytes of all sources of formats/ and scan/.

    Those that fetch bytes from elsewhere are left out: nothing of them is compiled.
    """
    from rmqtool import __version__

    digest = hashlib.sha256(__version__.encode())
    for folder in ("formats", "scan"):
        for path in sorted((_PACKAGE / folder).glob("*.py")):
            if path.name.startswith("remote"):
                continue
            data = path.read_bytes()
            digest.update(f"\0{folder}/{path.name}\0{len(data)}\0".encode())
            digest.update(data)
    return digest.hexdigest()[:16]
