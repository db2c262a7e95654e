"""Refuses output files inside a store, where only the store's own writers may write.

There a file could be mistaken for a part of the store, replace one, or be deleted when a run cleans up.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from rmqtool.errors import RefusedError
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.storage import StoragePath

_PARTS = frozenset({"commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index"})
_ABOVE = 3  # consumequeue/TOPIC/QUEUE/FILE


def keep_out(layout: StoreLayout, path: Path | str, what: str, *, location: Path | None = None) -> None:
    """Check that a file or folder at `path` would be outside of the store.

    Args:
        layout: the store's; if it is only a part of a store, such as its log, the whole store counts.
        path: the output; a text is a URL as `RemoteUrl` shows it, compared without options.
        what: the name of the output in the error.
        location: where the store was opened, if that is another place, such as the archive that holds it.

    Raises:
        RefusedError: `path` is inside the store, or is the file that holds it.
    """
    _check(_places(layout, location), path, what)


def keep_out_of(location: Path, path: Path | str, what: str) -> None:
    """The same check for a store that is not opened, based on its location only. Raises RefusedError."""
    _check(_around(location), path, what)


def _check(places: Iterable[Path], path: Path | str, what: str) -> None:
    real = path if isinstance(path, str) else real_path(path)
    for place in places:
        if _is_in(real, place):
            raise RefusedError(f"{what} would lie in the store {place}", path=path, hint="name another place")


def _is_in(path: Path | str, place: Path) -> bool:
    if isinstance(path, str):
        return isinstance(place, StoragePath) and f"{path}/".startswith(f"{place}/")
    return not isinstance(place, StoragePath) and path.is_relative_to(place)


def real_path(path: Path) -> Path:
    """`Path.resolve`, but circular links are resolved as far as possible: opening the path fails later."""
    return path if isinstance(path, StoragePath) else Path(os.path.realpath(path))


def _places(layout: StoreLayout, location: Path | None) -> Iterator[Path]:
    """All folders and single files that belong to the store, resolved."""
    # The folder of a single file counts only if it is a folder of a store (see `_around`).
    if layout.root is not None:
        yield from map(real_path, (layout.root, *layout.commit_log_folders))
    if location is not None:
        yield from _around(location)


def _around(location: Path) -> Iterator[Path]:
    """The folder or file at a location, and the store that it belongs to."""
    real = real_path(location)
    yield real
    for part in (real, *real.parents)[: _ABOVE + 1]:
        if part.name in _PARTS and (part.parent / "commitlog").is_dir():
            yield part.parent
