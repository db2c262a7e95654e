"""This package as one zip for the executors of a cluster, whose Python then needs its dependencies only.

Executors so run the very code of the driver, whatever version is installed there. The zip goes through
`addPyFile`, as `spark-submit --py-files` would send it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark import SparkContext

NAME = "rmqtool.zip"
REGISTRATION = "pyspark_rocketmq_store.py"
_TIME = (1980, 1, 1, 0, 0, 0)  # the same sources give the same bytes
_CODE = (".py", ".typed", ".properties")


class _Entry(Protocol):
    """A file or folder of a package, on disk or in a zip."""

    @property
    def name(self) -> str: ...

    def is_dir(self) -> bool: ...

    def is_file(self) -> bool: ...

    def iterdir(self) -> Iterator[_Entry]: ...

    def read_bytes(self) -> bytes: ...


def write_package(path: Path) -> Path:
    """Write a zip of all modules of this package, and of Spark's registration module; returns `path`."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(_modules(files("rmqtool"), "rmqtool")):
            archive.writestr(zipfile.ZipInfo(name, _TIME), data, zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo(REGISTRATION, _TIME), _registration(), zipfile.ZIP_DEFLATED)
    return path


def ship(context: SparkContext, folder: Path) -> None:
    """Send the package to every executor of `context`, those that start later included.

    The zip is made in `folder`, from which it is served as long as the context lives.
    """
    context.addPyFile(str(write_package(folder / NAME)))


def _modules(folder: _Entry, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _modules(entry, f"{name}/{entry.name}")
        elif entry.is_file() and entry.name.endswith(_CODE):
            yield f"{name}/{entry.name}", entry.read_bytes()


def _registration() -> bytes:
    import pyspark_rocketmq_store

    return Path(pyspark_rocketmq_store.__file__).read_bytes()
