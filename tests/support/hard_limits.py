"""A system that refuses: a limit on files, a small disk, a pipe nobody reads; and what comes of it."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rmqtool.errors import EXIT_INPUT, UnwritableError
from tests.support.ordinary_user import open_to_all

ROOT = os.geteuid() == 0


@pytest.fixture(autouse=True)
def reachable(tmp_path: Path) -> None:
    """The folders above are closed to other users as pytest makes them."""
    open_to_all(tmp_path.parent)


def refused(action: Callable[[], object], path: Path, reason: int | str) -> UnwritableError:
    """`action` must fail: with this path and with the system's reason in the text."""
    with pytest.raises(UnwritableError) as caught:
        action()
    assert caught.value.path == path
    assert caught.value.exit_code == EXIT_INPUT
    assert str(caught.value).startswith("cannot ")
    assert str(caught.value).endswith(os.strerror(reason) if isinstance(reason, int) else reason)
    return caught.value


def open_files() -> int:
    """The number of open descriptors, without those that other tests left to the garbage collector."""
    gc.collect()
    return len(list(Path("/dev/fd").iterdir()))


@contextmanager
def size_limit(size: int) -> Iterator[None]:
    """No file of this process may become longer than `size` bytes.

    Python is not to write byte code meanwhile: it would keep the cut file, which no later process can import.
    """
    old, writes = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        sys.dont_write_bytecode = writes


@contextmanager
def no_reader() -> Iterator[None]:
    """Standard output is a pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    stdout = sys.stdout
    sys.stdout = os.fdopen(writing, "w")
    try:
        yield
    finally:
        with suppress(BrokenPipeError):
            sys.stdout.close()
        sys.stdout = stdout


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A small file system in memory on `folder`, where that is permitted."""
    folder.mkdir(exist_ok=True)
    if not ROOT or sys.platform != "linux":
        pytest.skip("only root may mount")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"mounting is not permitted here: {made.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)
