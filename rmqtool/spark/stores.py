"""The stores of a read, by paths, globs and URLs, and the broker that each of them belongs to.

A store does not know its broker's name. It is what the option `brokerName` says, else what broker.conf
says, else the part of the path by which the stores differ.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rmqtool.errors import NotAStoreError, UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern
from rmqtool.read.broker_names import different_parts, name_of_conf
from rmqtool.storage.remote_url import local_path

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.spark.options import SourceOptions

_MAGIC = pattern(r"[*?[]")


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A store as the driver and the workers find it; `path` is text, for it may be a URL."""

    path: str
    broker_name: str


def parse_paths(name: str, text: str) -> tuple[str, ...]:
    """One path, or a JSON list of paths, as Spark passes several on, without `file:`. Raises UsageError."""
    paths: object = [text]
    if text.lstrip().startswith("["):
        try:
            paths = json.loads(text)
        except (ValueError, RecursionError):
            paths = [text]  # a path may begin with a bracket, as a glob does
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
        raise UsageError(f"option {name}: it names no store")
    return tuple(local_path(path) or path for path in paths)


@dataclass(frozen=True, slots=True)
class BrokerNames:
    """Names of brokers: in the order of the paths, or by path."""

    in_order: tuple[str, ...] = ()
    by_path: tuple[tuple[str, str], ...] = ()


def parse_broker_names(name: str, text: str) -> BrokerNames:
    """Names in the order of the paths, `broker-a,broker-b`, or by path, `{"/data/a": "broker-a"}`."""
    if not text.lstrip().startswith("{"):
        names = tuple(part.strip() for part in text.split(","))
        if not all(names) or len(set(names)) < len(names):
            raise UsageError(f"option {name}: names must be there, each once")
        return BrokerNames(in_order=names)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) and value for value in found.values()):
        raise UsageError(f"option {name}: it is not a JSON object of names by path")
    if len(set(found.values())) < len(found):
        raise UsageError(f"option {name}: two stores have one name")
    return BrokerNames(by_path=tuple(found.items()))


def find_places(options: SourceOptions) -> tuple[StoreLocation, ...]:
    """The stores of a read, globs expanded, each once, in order.

    Raises:
        UsageError: no path, a glob without a store, or names that do not fit the stores.
        NotAStoreError: nothing exists at a path that is not a glob.
    """
    if not options.paths:
        raise UsageError("option path is missing", hint='.load("/data/store")')
    paths = tuple(dict.fromkeys(path for given in options.paths for path in _expand(given)))
    real = [path if "://" in path else os.path.realpath(path) for path in paths]
    if len(set(real)) < len(real):
        twice = next(path for path, place in zip(paths, real, strict=True) if real.count(place) > 1)
        raise UsageError("the same store is named twice", hint=f"once as {twice}")
    names = _names(options, paths)
    return tuple(StoreLocation(path, name) for path, name in zip(paths, names, strict=True))


def open_place(place: StoreLocation, options: SourceOptions) -> Store:
    """The store at `place`, opened for reading. Raises as `Store.open` does."""
    from rmqtool.read.store import Store

    return Store.open(
        place.path,
        commitlog_paths=options.commitlog_paths,
        read_only_paths=options.read_only_paths,
        broker_conf=options.broker_conf,
        storage_options=dict(options.storage) if options.storage and "://" in place.path else None,
    )


def _expand(path: str) -> Iterator[str]:
    if "://" in path or not _MAGIC.search(path) or Path(path).exists():
        yield path
        return
    whole = Path(path).absolute()
    found = sorted(map(str, Path(whole.anchor).glob(str(whole.relative_to(whole.anchor)))))
    stores = [each for each in found if _is_store(each)]
    if not stores:
        what = "names no store" if found else "matches nothing"
        raise NotAStoreError(f"the pattern {what}", path=path)
    yield from stores


def _is_store(path: str) -> bool:
    from rmqtool.storage.layout import detect

    try:
        detect(path)
    except NotAStoreError:
        return False
    return True


def _names(options: SourceOptions, paths: Sequence[str]) -> Sequence[str]:
    in_order = options.broker_names.in_order
    by_path = {str(PurePosixPath(path)): name for path, name in options.broker_names.by_path}
    if in_order:
        if len(in_order) != len(paths):
            raise UsageError(f"option brokerName: {len(in_order)} names for {len(paths)} stores")
        return in_order
    found = [by_path.pop(str(PurePosixPath(path)), None) for path in paths]
    if by_path:
        raise UsageError(f"option brokerName: {min(by_path)} is not one of the stores")
    if options.broker_conf is not None and len(paths) == 1 and found[0] is None:
        found[0] = name_of_conf(options.broker_conf)
    default = different_parts(paths)
    names = [own or part for own, part in zip(found, default, strict=True)]
    if len(set(names)) < len(names):
        raise UsageError("option brokerName: two stores have one name", hint=f"they are {', '.join(names)}")
    return names
