"""The small files as rows: the checkpoint, and the configuration as a broker would load it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, tzinfo
from fnmatch import fnmatchcase
from pathlib import Path

from rmqtool import times
from rmqtool.errors import FormatError, UnreadableError, UsageError
from rmqtool.formats import checkpoint, config_json
from rmqtool.formats.fastjson import READ_LIMIT
from rmqtool.problems import finding
from rmqtool.store.dump import Report, tell_out_of_reach
from rmqtool.store.explain import Explanation, explain_structure
from rmqtool.store.layout import StoreLayout
from rmqtool.store.open_files import pread, reading
from rmqtool.store.rows import Row
from rmqtool.store.system_topics import is_system_topic

CHECKPOINT_FIELDS = (
    "physic_msg_timestamp_ms", "physic_msg_time", "logics_msg_timestamp_ms", "logics_msg_time",
    "index_msg_timestamp_ms", "index_msg_time", "master_flushed_offset", "confirm_phy_offset", "file",
)  # fmt: skip
CONFIG_FIELDS = ("name", "source", "content", "status", "file")
_BAK = ".bak"
_QUEUES_MAX = 65_536  # queue ids have 16 bits on the command line
_BINARY = ("timercheck",)  # written by the timer, no configuration


def checkpoint_rows(layout: StoreLayout, report: Report, *, tz: tzinfo | None = UTC) -> Iterator[Row]:
    """The checkpoint's row; none where there is no checkpoint. A time of 0 is one never set."""
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
        report: told about files that cannot be read.
        names: globs over the file names, such as `topics.json`; empty for all.
    """
    tell_out_of_reach(layout, "config", report)
    for name in sorted({name.removesuffix(_BAK) for name in layout.config} - set(_BINARY)):
        if names and not any(fnmatchcase(name, each) for each in names):
            continue
        main, bak = layout.config.get(name), layout.config.get(name + _BAK)
        loaded = config_json.load_with_bak(_read_or_none(main), _read_or_none(bak))
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


def _read_or_none(path: Path | None) -> bytes | None:
    return None if path is None else read_file(path)


def read_file(path: Path, limit: int = READ_LIMIT) -> bytes:
    """The first `limit` bytes of a small file. Raises UnreadableError."""
    data = bytearray()
    try:
        with reading(path) as file:
            while len(data) < limit and (piece := pread(file, min(limit - len(data), 1 << 20), len(data))):
                data += piece
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error
    return bytes(data)


def topic_names(layout: StoreLayout) -> set[str]:
    """The topics that the store knows: those with a queue, and those of topics.json."""
    return {topic for topic, _ in (*layout.consume_queues, *layout.batch_queues)} | _topics(layout).keys()


def queue_ids(layout: StoreLayout, matches: Callable[[str], bool]) -> set[int] | None:
    """The queue ids that the matching topics have, in files or by topics.json; None where nobody knows."""
    ids = {queue_id for topic, queue_id in (*layout.consume_queues, *layout.batch_queues) if matches(topic)}
    for topic, config in _topics(layout).items():
        if matches(topic) and not is_system_topic(topic):  # some of these have 1024 queues on paper
            ids |= set(range(min(max(config.read_queue_nums, config.write_queue_nums), _QUEUES_MAX)))
    return ids or None


def _topics(layout: StoreLayout) -> dict[str, config_json.TopicConfig]:
    main, bak = layout.config.get("topics.json"), layout.config.get("topics.json" + _BAK)
    try:
        loaded = config_json.load_with_bak(_read_or_none(main), _read_or_none(bak))
        return config_json.topics(loaded.document)
    except (FormatError, UnreadableError):
        return {}  # what cannot be read knows no further topic; --what config and verify tell it
