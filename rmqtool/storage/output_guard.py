"""Where nothing may be written but by the store's own writers: inside the store.

There it would be taken for a part of the store, take the place of one, or go with what a run tidies up.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from rmqtool.errors import RefusedError
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.remote_path import RemotePath

_PARTS = frozenset({"commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index"})
_ABOVE = 3  # consumequeue/TOPIC/QUEUE/FILE


def keep_out(layout: StoreLayout, path: Path | str, what: str, *, location: Path | None = None) -> None:
    """Nothing where a file or folder at `path` would lie outside the store.

    Args:
        layout: of the store; where it is a part of one, as its log alone, the whole store counts.
        path: of what would be written; a text is a URL as `RemoteUrl` shows it, compared without options.
        what: how it is called in the error.
        location: where the store was opened, as an archive that holds it, if that is another place.

    Raises:
        RefusedError: it lies in the store, or is the file that holds it.
    """
    _check(_places(layout, location), path, what)


def keep_out_of(location: Path, path: Path | str, what: str) -> None:
    """The same of a store that is not opened, as far as its location tells. Raises RefusedError."""
    _check(_around(location), path, what)


def _check(places: Iterable[Path], path: Path | str, what: str) -> None:
    real = path if isinstance(path, str) else real_path(path)
    for place in places:
        if _is_in(real, place):
            raise RefusedError(f"{what} would lie in the store {place}", path=path, hint="name another place")


def _is_in(path: Path | str, place: Path) -> bool:
    if isinstance(path, str):
        return isinstance(place, RemotePath) and f"{path}/".startswith(f"{place}/")
    return not isinstance(place, RemotePath) and path.is_relative_to(place)


def real_path(path: Path) -> Path:
    """`Path.resolve`, but of links that lead in a circle what can be said: who opens it then tells."""
    return path if isinstance(path, RemotePath) else Path(os.path.realpath(path))


def _places(layout: StoreLayout, location: Path | None) -> Iterator[Path]:
    """All folders and single files that belong to the store, resolved."""
    # A file alone says nothing of the folder that it lies in, unless that is one of a store.
    if layout.root is not None:
        yield from map(real_path, (layout.root, *layout.commit_log_folders))
    if location is not None:
        yield from _around(location)


def _around(location: Path) -> Iterator[Path]:
    """The folder or file at a location, and the store that it is a part of."""
    real = real_path(location)
    yield real
    for part in (real, *real.parents)[: _ABOVE + 1]:
        if part.name in _PARTS and (part.parent / "commitlog").is_dir():
            yield part.parent
