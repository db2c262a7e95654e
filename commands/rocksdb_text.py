"""Which parts of a store are in RocksDB, as lines of `info` and `doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_LABELS = {
    "consume queues": "queues", "second consume queues": "queues", "index entries": "index",
    "second index entries": "index", "timer messages": "timer", "half messages": "transactions",
    "pop records": "POP records", "config": "config",
}  # fmt: skip


def rocksdb_parts(info: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (part, where it is) for each part of the overview `info` that is in RocksDB."""
    places: dict[tuple[str, str], list[str]] = {}
    more: dict[str, str] = {}
    for row in info["in_rocksdb"]:
        label = _LABELS[row["what"]]
        is_twice = row["what"] == "second consume queues" or (label == "index" and info["index"] is not None)
        where = "in files and in RocksDB" if is_twice else "in RocksDB"
        places.setdefault((label, where), []).append(row["path"])
        if row.get("entries") is not None:
            more[label] = f": {row['entries']} entries, {row['pending']} pending"
    for (label, where), paths in places.items():
        place = paths[0] if len(paths) == 1 else paths[0].partition("/")[0]  # databases of one folder
        yield label, f"{where} ({place}){more.get(label, '')}"
