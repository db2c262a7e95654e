"""Kernels: functions that numba compiles, and the machine code that stays on disk for later processes.

A kernel is compiled for the types of its arguments on its first call with them. Only this imports numba,
which takes longer than most commands: `compiler` returns an object file, which is kept in the cache folder,
and every later process adds the object file to an execution engine of LLVM (`llvmlite.binding`).

An object file depends on the sources, the compiler, the processor and the types. The folder is named by a
hash of the version and of every file in the rooms with kernels, because numba freezes constants and functions
of other modules into the code; a file is named by a hash of the rest. Neither depends on the location of the
package, which may be in a zip, as in Spark's executors.

Whoever can write the files runs code in this process. So the folder is never under a shared temporary folder,
and a folder that others may write is not used. Without a usable folder every process compiles the kernels
again.

Kernels allocate nothing: they are compiled without numba's reference counts, which would cost an atomic
operation per array and call. They run without the GIL.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from rmqtool.compile_notice import announce

Function = TypeVar("Function", bound=Callable[..., object])

COMPILED_ROOMS = ("formats", "log", "queue", "index", "message", "write", "write/ingest")
"""The rooms with kernels, or with constants and functions for kernels, without their subfolders."""

SUFFIX = ".kernel"
"""The end of the names of files in the cache folder."""

HEAD = object.__basicsize__
DATA_AT, DIMENSIONS_AT, STRIDES_AT = HEAD, HEAD + 16, HEAD + 24
"""Where an array object holds these pointers: PyArrayObject_fields, a part of numpy's C interface."""

_PACKAGE = Path(__file__).resolve().parent.parent
_C_ORDER, _FORTRAN_ORDER, _ALIGNED, _WRITEABLE = 0x001, 0x002, 0x100, 0x400  # numpy's NPY_ARRAY_ flags
_TYPE_FLAGS = _C_ORDER | _FORTRAN_ORDER | _ALIGNED | _WRITEABLE
_DIGEST_SIZE = hashlib.sha256().digest_size
_loading = Lock()


class Kernel:
    """A compiled function of arrays, integers and tuples of these, which returns an integer or nothing.

    Args:
        function: what is compiled.
        last: its last arguments, if every call has the same.
        codes: its machine code by the types of all arguments.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        last: tuple[Any, ...] = (),
        codes: dict[tuple[object, ...], _Code] | None = None,
    ) -> None:
        kinds: list[object] = []
        words: list[int] = []
        _describe(last, kinds, words)
        self.function = function
        self._last, self._last_kinds = last, tuple(kinds)
        self._last_words = struct.pack(f"{len(words)}q", *words)
        self._codes = {} if codes is None else codes
        self._calls: dict[tuple[object, ...], _Call] = {}

    def bound(self, *last: Any) -> Kernel:
        """The kernel with its last arguments fixed: a call looks only at the others."""
        return Kernel(self.function, (*last, *self._last), self._codes)

    def __call__(self, *arguments: Any) -> int:
        """Run it; 0 if it returns nothing. Raise RuntimeError if it ends with an exception."""
        kinds: list[object] = []
        words: list[int] = []
        _describe(arguments, kinds, words)
        key = tuple(kinds)
        run, pack = self._calls.get(key) or self._call(key, arguments, len(words))
        result = ctypes.c_int64()
        status = run(pack(*words) + self._last_words, ctypes.byref(result))
        if status:
            raise RuntimeError(f"{self.function.__qualname__} ended with the status {status}")
        return result.value

    def _call(self, key: tuple[object, ...], arguments: tuple[Any, ...], words: int) -> _Call:
        """How arguments of these types, which have `words` words, are passed to the code for them."""
        whole = (*key, *self._last_kinds)
        with _loading:
            if whole not in self._codes:
                self._codes[whole] = _Code(self.function, whole, (*arguments, *self._last))
            self._calls[key] = _Call(self._codes[whole].run, struct.Struct(f"{words}q").pack)
            return self._calls[key]


class _Call(NamedTuple):
    """The machine code, and what packs the words of the arguments that are not fixed."""

    run: Any
    pack: Callable[..., bytes]


class Inlined:
    """A function that becomes a part of the kernels that call it; Python cannot call it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


class Intrinsic:
    """A function that emits LLVM code into the kernels that call it: see numba.extending.intrinsic."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


class NumbaModule:
    """A module of numba that is imported on its first use, in a process that compiles."""

    def __init__(self, name: str) -> None:
        self._name = f"numba.{name}"

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


def compiled(function: Function) -> Function:
    """A decorator: `function` becomes a kernel."""
    return cast("Function", Kernel(function))


def inlined(function: Function) -> Function:
    """A decorator: `function` becomes a part of the kernels that call it."""
    return cast("Function", Inlined(function))


class _Code:
    """The machine code of one kernel for one choice of types."""

    def __init__(
        self, function: Callable[..., Any], key: tuple[object, ...], arguments: tuple[Any, ...]
    ) -> None:
        identity = "\n".join([function.__module__, function.__qualname__, _text(key), *_machine()])
        symbol = f"kernel_{hashlib.sha256(identity.encode()).hexdigest()[:32]}"
        # a kernel of another package is not covered by the hash that names the folder
        is_ours = function.__module__.startswith(f"{__package__.partition('.')[0]}.")
        folder = cache_folder() if is_ours else None
        file = folder / f"{function.__name__}-{symbol[-16:]}{SUFFIX}" if folder else None
        data = file and _read(file)
        if not data:
            announce()
            from rmqtool.log.compiler import object_file

            data = object_file(function, arguments, symbol)
            if file:
                _write(file, data)
        self.run: Any = _RUN(_add(data, symbol))


_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64))


def _describe(values: tuple[Any, ...], kinds: list[object], words: list[int]) -> None:
    """Append the types of `values`, and one word for each: an integer, or the address of an array object.

    An array in both orders, as one with a single row, is of the type of the same array with more rows.
    """
    for value in values:
        kind = type(value)
        if kind is int or kind is bool:
            kinds.append(kind)
            words.append(value)
        elif isinstance(value, np.ndarray):
            flags = value.flags.num & _TYPE_FLAGS
            if flags & _C_ORDER:
                flags &= ~_FORTRAN_ORDER
            kinds += (value.dtype, value.ndim, flags)
            words.append(id(value))
        elif isinstance(value, tuple):
            kinds += (kind, len(value))
            _describe(value, kinds, words)
        elif isinstance(value, np.integer):
            kinds.append(value.dtype)
            words.append(int(value.astype(np.int64)))
        else:
            raise TypeError(f"a kernel takes no {kind.__name__}")


def _text(key: tuple[object, ...]) -> str:
    """The types as a text that is the same in every process."""
    return ", ".join(
        f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind) for kind in key
    )


@cache
def _machine() -> list[str]:
    """What the code depends on besides its source: the processor, the compiler, its settings, Python."""
    import llvmlite
    from llvmlite import binding

    compiler = b""
    spec = find_spec("numba")  # which does not import it
    if spec and spec.origin:
        with suppress(OSError):
            compiler = Path(spec.origin).with_name("_version.py").read_bytes()
    settings = (
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("NUMBA_") and name != "NUMBA_CACHE_DIR"
    )
    return [
        binding.get_default_triple(), binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten(),
        llvmlite.__version__, hashlib.sha256(compiler).hexdigest(), str(HEAD), *settings,
    ]  # fmt: skip


@cache
def _engine() -> Any:
    """The engine that holds all code of this process."""
    from llvmlite import binding

    _check_arrays()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)


def _check_arrays() -> None:
    """Raise RuntimeError if numpy's arrays are not laid out as the code expects."""
    array = np.zeros((3, 5), np.uint8)
    pointers = [
        ctypes.c_void_p.from_address(id(array) + at).value or 0 for at in (DATA_AT, DIMENSIONS_AT, STRIDES_AT)
    ]
    integers = [list((ctypes.c_int64 * 2).from_address(pointer)) for pointer in pointers[1:] if pointer]
    if pointers[0] != array.ctypes.data or integers != [[3, 5], [5, 1]]:
        raise RuntimeError("this version of numpy lays out its arrays in an unknown way")


def _add(data: bytes, symbol: str) -> int:
    """Add an object file to the engine; the address of the function `symbol` in it."""
    from llvmlite import binding

    engine = _engine()
    engine.add_object_file(binding.ObjectFileRef.from_data(data))
    engine.finalize_object()
    address: int = engine.get_function_address(symbol)
    return address


def _read(file: Path) -> bytes | None:
    """The object file in a file of the cache folder; None if there is none, or not a whole one.

    LLVM ends the process if it reads a damaged object file, so the file begins with a digest.
    """
    try:
        data = file.read_bytes()
    except OSError:
        return None
    digest, data = data[:_DIGEST_SIZE], data[_DIGEST_SIZE:]
    return data if hashlib.sha256(data).digest() == digest else None


def _write(file: Path, data: bytes) -> None:
    """Keep an object file for other processes; where that fails, they compile it again."""
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        partial.write_bytes(hashlib.sha256(data).digest() + data)
        partial.replace(file)
    except OSError:
        partial.unlink(missing_ok=True)


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
