"""The names of exported files, and the formats that names imply.

A file in a folder is named by the physical offset at which its part of the log begins. So a run that
restarts where another one was killed uses the same names. Folders of partitions are those of Hive:
`topic=T/date=2026-03-01`, values percent-encoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from pathlib import PurePosixPath
from typing import Any, Literal, get_args
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool import times
from rmqtool.errors import UsageError
from rmqtool.report.export.writers import Compression, Format

PartitionKey = Literal["topic", "date"]
PARTITION_KEYS: tuple[PartitionKey, ...] = get_args(PartitionKey)
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

_BY_SUFFIX: dict[str, Format] = {
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".orc": "orc", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv",
    ".records": "records",
}  # fmt: skip
_PACKED: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}
_PACKED_SUFFIX = {"gzip": ".gz", "zstd": ".zst"}
_NAME_BYTES = 240  # most bytes of a folder's name; file systems allow 255
_QUARTER_MS = 900_000  # no zone changes its offset within a quarter of an hour


def format_of(output: str) -> tuple[Format | None, Compression | None]:
    """(format, compression of the whole file) by the suffix of an output; None if it does not show them."""
    name = PurePosixPath(output.partition("?")[0] if "://" in output else output)
    suffix = name.suffix.lower()
    packed = _PACKED.get(suffix)
    if packed is not None:
        return _BY_SUFFIX.get(PurePosixPath(name.stem).suffix.lower()), packed
    return _BY_SUFFIX.get(suffix), None


def file_name(start: int, format: Format, compression: Compression) -> str:
    """The name of the file whose part of the log begins at physical offset `start`."""
    packed = _PACKED_SUFFIX.get(compression, "") if format in ("jsonl", "csv", "records") else ""
    return f"messages-{start:020}.{format}{packed}"


def check_keys(keys: Sequence[str]) -> tuple[PartitionKey, ...]:
    """The keys of `--partition-by`. Raises UsageError for unknown and repeated keys."""
    known = tuple(key for key in PARTITION_KEYS if key in keys)
    if set(keys) - set(known) or len(set(keys)) < len(keys) or not keys:
        raise UsageError(
            f"--partition-by {','.join(keys)}: it is a list of {', '.join(PARTITION_KEYS)}, each once"
        )
    return tuple(key for key in keys if key in known)


def folder_of(key: str, value: str | None) -> str:
    """The folder of one value: always a single, valid name.

    A name that is too long for a file system is cut and ends with a part of its SHA-256.
    """
    name = f"{key}={quote(value, safe='') if value else NO_VALUE}"
    if len(name) <= _NAME_BYTES:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{name[: _NAME_BYTES - 33]}~{digest}"


def partitions(
    batch: pa.RecordBatch, keys: Sequence[PartitionKey], zone: tzinfo | None
) -> Iterator[tuple[str, Any]]:
    """(folder, indices of its rows) of a batch with the columns topic and store_timestamp_ms.

    Folders are in the order of their names; indices are ascending, shape (rows of the folder,), i8.
    """
    codes = np.zeros(len(batch), np.int64)
    names: list[str] = [""]
    for key in keys:
        numbers, values = (_topics if key == "topic" else _dates)(batch, zone)
        codes, used = _joined(codes, numbers, len(values))
        names = [
            "/".join(filter(None, (names[code // len(values)], folder_of(key, values[code % len(values)]))))
            for code in used.tolist()
        ]
    order = np.argsort(codes, kind="stable")
    stops = np.cumsum(np.bincount(codes, minlength=len(names)))
    pieces = dict(zip(names, np.split(order, stops[:-1]), strict=True))
    yield from sorted(pieces.items())


def _joined(codes: Any, numbers: Any, count: int) -> tuple[Any, Any]:
    """Codes of pairs, numbered from 0 without gaps; and per new code `code * count + number`."""
    used, inverse = np.unique(codes * count + numbers, return_inverse=True)
    return inverse.reshape(-1), used


def _topics(batch: pa.RecordBatch, zone: tzinfo | None) -> tuple[Any, list[str | None]]:
    encoded = batch.column("topic").dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()


def _dates(batch: pa.RecordBatch, zone: tzinfo | None) -> tuple[Any, list[str | None]]:
    quarters = pc.cast(batch.column("store_timestamp_ms"), pa.int64()).to_numpy() // _QUARTER_MS
    used, inverse = np.unique(quarters, return_inverse=True)
    spelled = [times.format_time(int(quarter) * _QUARTER_MS, zone) for quarter in used]
    days = [text and text[:10] for text in spelled]
    values = sorted(set(days), key=lambda day: day or "")
    number_of = np.array([values.index(day) for day in days])
    return number_of[inverse.reshape(-1)], values
