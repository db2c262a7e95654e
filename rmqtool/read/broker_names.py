"""The names of brokers: a store does not know that of its own.

It is what broker.conf says, else the part of the path by which stores differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_PLAIN_NAMES = ("store", "rocketmq", "")


def broker_names(paths: Sequence[str], broker_conf: str | None) -> list[str]:
    """The names for the brokers of some stores; `broker_conf`, a path, is that of a single store."""
    name = None if broker_conf is None or len(paths) != 1 else name_of_conf(broker_conf)
    return different_parts(paths) if name is None else [name]


def name_of_conf(path: str) -> str | None:
    """The name that a broker.conf gives; None if it gives none."""
    from rmqtool.storage.broker_conf import read_broker_conf

    return read_broker_conf(Path(path)).text("brokerName")


def different_parts(paths: Sequence[str]) -> list[str]:
    """The last part of each path by which they all differ; of one path the last that says anything."""
    parts = [_parts(path) for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        chosen = [each[-depth] if depth <= len(each) else "" for each in parts]
        usual = len(paths) == 1 and chosen[0] in _PLAIN_NAMES and depth < len(parts[0])
        if all(chosen) and len(set(chosen)) == len(chosen) and not usual:
            return chosen
    return ["/".join(each) for each in parts]


def _parts(path: str) -> list[str]:
    if "://" in path:
        path = path.partition("://")[2].partition("?")[0].rpartition("@")[2]
    else:
        path = str(Path(path).absolute())
    return [part for part in path.split("/") if part not in ("", ".", "..")] or ["store"]
