"""The small files as rows: the checkpoint, and the configuration as a broker would load it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, tzinfo
from fnmatch import fnmatchcase

from rmqtool import times
from rmqtool.errors import UsageError
from rmqtool.findings import Report
from rmqtool.formats import checkpoint, config_json
from rmqtool.message.explain import Explanation, explain_structure
from rmqtool.message.rows import Row
from rmqtool.problems import finding
from rmqtool.storage.config_files import read_file, read_or_none
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.out_of_reach import report_out_of_reach

CHECKPOINT_FIELDS = (
    "physic_msg_timestamp_ms", "physic_msg_time", "logics_msg_timestamp_ms", "logics_msg_time",
    "index_msg_timestamp_ms", "index_msg_time", "master_flushed_offset", "confirm_phy_offset", "file",
)  # fmt: skip
CONFIG_FIELDS = ("name", "source", "content", "status", "file")
_BAK = ".bak"
_BINARY = ("timercheck",)  # written by the timer, no configuration


def checkpoint_rows(layout: StoreLayout, report: Report, *, tz: tzinfo | None = UTC) -> Iterator[Row]:
    """The checkpoint's row; none without a checkpoint. A time of 0 is one never set."""
    if layout.checkpoint is None:
        report(finding("CP01", "checkpoint"))
        return
    data, name = read_file(layout.checkpoint, checkpoint.FILE_SIZE + 1), layout.relative(layout.checkpoint)
    if len(data) != checkpoint.FILE_SIZE:
        report(finding("CP02", name, 0, len(data)))
    if not any(data):
        report(finding("CP01", name))
    found = checkpoint.decode(data.ljust(checkpoint.FILE_SIZE, b"\0"))
    row: Row = {}
    for field in ("physic_msg", "logics_msg", "index_msg"):
        timestamp = getattr(found, f"{field}_timestamp")
        row[f"{field}_timestamp_ms"] = timestamp
        row[f"{field}_time"] = times.format_time(timestamp, tz) if timestamp else None
    row["master_flushed_offset"] = found.master_flushed_offset
    row["confirm_phy_offset"] = found.confirm_phy_offset
    yield row | {"file": name}


def explain_checkpoint(layout: StoreLayout, tz: tzinfo | None = UTC) -> Explanation:
    """The checkpoint field by field. Raises UsageError where there is none."""
    if layout.checkpoint is None:
        raise UsageError("there is no checkpoint", path=layout.root)
    data = read_file(layout.checkpoint, checkpoint.FILE_SIZE)
    return explain_structure(checkpoint.CHECKPOINT.declaration, data, 0, tz)


def config_rows(layout: StoreLayout, report: Report, names: tuple[str, ...] = ()) -> Iterator[Row]:
    """One row per configuration file, with what a broker would load: the file, else its .bak.

    Args:
        layout: the store's files.
        report: called for files that cannot be read.
        names: globs over the file names, such as `topics.json`; empty for all.
    """
    report_out_of_reach(layout, "config", report)
    for name in sorted({name.removesuffix(_BAK) for name in layout.config} - set(_BINARY)):
        if names and not any(fnmatchcase(name, each) for each in names):
            continue
        main, bak = layout.config.get(name), layout.config.get(name + _BAK)
        loaded = config_json.load_with_bak(read_or_none(main), read_or_none(bak))
        path = main if loaded.source != "bak" and main is not None else bak
        file = layout.relative(path) if path is not None else name
        code = {"failed": "CF02", "bak": "CF01"}.get(loaded.source)
        if code is not None:
            main_name = layout.relative(main) if main is not None else name
            report(finding(code, main_name, reason=loaded.file_error, bak_reason=loaded.bak_error))
        yield {
            "name": name,
            "source": loaded.source,
            "content": loaded.document,
            "status": ["ok" if code is None else code],
            "file": file,
        }
