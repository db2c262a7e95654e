"""The request of an export, with all checks that are possible before anything is read.

The names of the files imply their format. A file in a folder is named by the physical offset at which its
part of the log begins. So a run that restarts where another one was killed uses the same names. Folders of
partitions are those of Hive: `topic=T/date=2026-03-01`, values percent-encoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, tzinfo
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool import times
from rmqtool.command_line import command_line
from rmqtool.errors import UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.report.export.columns import ColumnPlan
from rmqtool.report.export.text import TextForm
from rmqtool.report.export.writers import TEXT_FORMATS, Compression, Format, WriterForm, check_format

PartitionKey = Literal["topic", "date"]
PARTITION_KEYS: tuple[PartitionKey, ...] = get_args(PartitionKey)
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

_BY_SUFFIX: dict[str, Format] = {
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".orc": "orc", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv",
    ".records": "records",
}  # fmt: skip
_PACKED: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}
_SPREADSHEETS = ("xlsx", "xls", "ods")  # suffixes of programs that read CSV, too
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
        topic, date = PARTITION_KEYS
        raise UsageError(f"--partition-by {','.join(keys)}: it must be {topic}, {date} or {topic},{date}")
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


GROUP_BYTES = 64 << 20
"""Default bytes, in memory, of rows that are written together: the row group of Parquet."""
FILE_BYTES = 1 << 30
"""Default size at which a file in a folder ends and the next one begins, approximately."""


@dataclass(frozen=True)
class ExportRequest:
    """One export.

    Attributes:
        output: path or URL of a file, or of a folder, which gets as many files as needed.
        is_folder: whether `output` is a folder.
        format: format of the files.
        compression: compression of columns, or of whole files of lines.
        columns: columns of the files, and what is read for them.
        partition_by: keys of folders within the folder.
        file_bytes: approximate size of a file in a folder.
        group_bytes: bytes, in memory, of rows that are written together.
        tz: zone of the times in lines; None is the local zone.
        date_tz: zone of the dates of partitions.
        spreadsheet: write CSV for Excel; see `text.TextForm`.
        force: replace existing files.
        cursor_file: see `cursor`.
    """

    output: str
    is_folder: bool
    format: Format
    compression: Compression
    columns: ColumnPlan
    partition_by: tuple[PartitionKey, ...] = ()
    file_bytes: int = FILE_BYTES
    group_bytes: int = GROUP_BYTES
    tz: tzinfo | None = UTC
    date_tz: tzinfo | None = UTC
    spreadsheet: bool = False
    force: bool = False
    cursor_file: Path | None = None

    @property
    def writer_form(self) -> WriterForm:
        """The parameters of the file writers."""
        columns, text = self.columns, None
        if self.format in TEXT_FORMATS:
            text = TextForm(
                columns.names, self.tz, shows_nulls=columns.requested, spreadsheet=self.spreadsheet
            )
        group = min(self.group_bytes, self.file_bytes) if self.is_folder else self.group_bytes
        # Lines are written at once: there is no reason to collect them.
        return WriterForm(self.format, columns.schema, self.compression, 1 if text else group, text)


def export_request(
    output: str,
    *,
    format: Format | None = None,
    compression: Compression | None = None,
    columns: Sequence[str] | None = None,
    body: str = "plain",
    raw: bool = False,
    partition_by: Sequence[str] | None = None,
    file_bytes: int | None = None,
    group_bytes: int = GROUP_BYTES,
    tz: tzinfo | None = UTC,
    date_tz: tzinfo | None = UTC,
    spreadsheet: bool = False,
    force: bool = False,
    cursor_file: Path | None = None,
) -> ExportRequest:
    """The request for these values; see `ExportRequest`.

    Args:
        output: path or URL; a folder ends with `/` or exists already.
        format: of the files; None: by the suffix of `output`, else `parquet` with `partition_by`,
            else `records` with `raw`.
        compression: None: zstd for columns, by the suffix for lines.
        columns: names, to which `body_encoding` is added if bodies become text; None is the default columns.
        body: `plain`, `stored`, `both` or `none`.
        raw: add the whole record.
        partition_by: keys of partitions, Parquet only.
        file_bytes: see `ExportRequest`; None is FILE_BYTES.
        group_bytes: see `ExportRequest`.
        tz: zone of the times in lines.
        date_tz: zone of the dates of partitions.
        spreadsheet: see `ExportRequest`.
        force: see `ExportRequest`.
        cursor_file: see `ExportRequest`.

    Raises:
        UsageError: values that cannot be combined.
        MissingCodecError: pyarrow has no ORC.
    """
    if output == "-":
        raise UsageError("export writes files, not to standard output", hint="rmqtool dump prints messages")
    is_folder = output.partition("?")[0].endswith("/") or bool(partition_by) or _is_there(output)
    named, packed = (None, None) if is_folder else format_of(output)
    found: Format | None = format or named or ("parquet" if partition_by else "records" if raw else None)
    if found is None:
        hint = "--output-format parquet, arrow, orc, jsonl, csv or records"
        stem, _, suffix = output.rpartition(".")
        if suffix.lower() in _SPREADSHEETS:
            hint = f"for Excel: {command_line('--output', f'{stem}.csv', '--spreadsheet')}"
        raise UsageError("the format of the output is unknown", hint=hint)
    whole_file = found in TEXT_FORMATS or found == "records"
    chosen: Compression = compression or (packed or "none" if whole_file else "zstd")
    if packed is not None and (not whole_file or chosen != packed):
        raise UsageError(f"the suffix of the output means {packed}, but the output is compressed differently")
    check_format(found, chosen)
    if columns is not None and found in TEXT_FORMATS:
        columns = _with_encoding(columns)
    keys = check_keys(partition_by) if partition_by else ()
    _check(found, columns, keys, file_bytes, is_folder=is_folder, raw=raw, spreadsheet=spreadsheet)
    return ExportRequest(
        output, is_folder, found, chosen,
        ColumnPlan.of(columns, body, found, raw=raw, partition_by=keys),  # type: ignore[arg-type]
        keys, file_bytes or FILE_BYTES, group_bytes, tz, date_tz, spreadsheet, force, cursor_file,
    )  # fmt: skip


def _with_encoding(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of text files: a body in base64 looks like text, so its encoding is added."""
    names = list(columns)
    if "body" in names and "body_encoding" not in names:
        names.insert(names.index("body") + 1, "body_encoding")
    return tuple(names)


def _is_there(output: str) -> bool:
    return "://" not in output and Path(output).is_dir()


def _check(
    format: Format,
    columns: Sequence[str] | None,
    keys: Sequence[str],
    file_bytes: int | None,
    *,
    is_folder: bool,
    raw: bool,
    spreadsheet: bool,
) -> None:
    """Raises UsageError for values that cannot be combined."""
    if keys and format != "parquet":
        raise UsageError("--partition-by is for Parquet")
    if file_bytes is not None and not is_folder:
        raise UsageError("--file-size needs a folder", hint="end --output with /")
    if spreadsheet and format != "csv":
        raise UsageError("--spreadsheet is for CSV")
    if format == "records" and columns is not None:
        raise UsageError("records byte for byte have no columns", hint="name another format, or no columns")
