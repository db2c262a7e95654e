"""The request of an export, with all checks that are possible before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path

from rmqtool.errors import UsageError
from rmqtool.report.export.columns import ColumnPlan
from rmqtool.report.export.names import PartitionKey, check_keys, format_of
from rmqtool.report.export.text import TextForm
from rmqtool.report.export.writers import TEXT_FORMATS, Compression, Format, WriterForm, check_format

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
        spreadsheet: guard CSV cells that a spreadsheet would evaluate as formulas.
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
            text = TextForm(columns.names, self.tz, shows_nulls=columns.asked, spreadsheet=self.spreadsheet)
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
        format: of the files; None: by the suffix of `output`, else `records` with `raw`.
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
    found: Format | None = format or named or ("records" if raw else None)
    if found is None and partition_by:
        raise UsageError(
            "--partition-by makes a folder, whose name has no format",
            hint="--output FOLDER/ --output-format parquet",
        )
    if found is None:
        raise UsageError(
            "the format of the output is unknown",
            hint="--output-format parquet, arrow, orc, jsonl, csv or records",
        )
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
        raise UsageError("records byte for byte have no columns", hint="name another format, or no --columns")
