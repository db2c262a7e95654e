"""Where the scan of a starting broker begins: the start file.

Source: CommitLog#recoverNormally, #recoverAbnormally, #isMappedFileMatchedRecover; spec 02 sections 2, 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmqtool.broker.rules import StartRules, StartSettings
from rmqtool.errors import UnreadableError
from rmqtool.formats import message as form
from rmqtool.formats.checkpoint import Checkpoint
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.source import open_source

_THIRD_LAST = 3


class FirstRecord(NamedTuple):
    """The fields that a broker reads of a file's first record."""

    physical_offset: int  # as stored
    store_timestamp: int


def start_file(
    files: Sequence[StoreFile],
    open_files: OpenFiles,
    rules: StartRules,
    settings: StartSettings,
    *,
    abort: bool,
    queue_end: int,
    checkpoint: Checkpoint,
) -> int:
    """The index of the first file that is scanned; 0 without files.

    Args:
        files: of the log, as loaded.
        open_files: reads them.
        rules: the broker's.
        settings: the broker's.
        abort: whether the abort file exists.
        queue_end: the largest `max_physical` of all queues; -1 if all are empty.
        checkpoint: of the store; zeros without one.

    Raises:
        UnreadableError: a file cannot be read.
    """
    last = len(files) - 1
    if not abort and rules.normal_start == "third_last":
        return max(0, len(files) - _THIRD_LAST)
    if not abort and rules.normal_start == "queue_end":
        while last > 0 and files[last].file_from_offset > queue_end:
            last -= 1
        return max(last, 0)
    left = settings.files_back if rules.limits_files_back else len(files)
    for number in range(last, -1 if abort else 0, -1):
        left -= 1
        if left <= 0:  # only 5.4 has a limit; for the others this is file 0
            return number
        found = _first_record(files[number], open_files, rules, settings)
        if found is not None and _matches(found, settings, abort, queue_end, checkpoint, rules):
            return number
    return 0


def _matches(
    found: FirstRecord,
    settings: StartSettings,
    abort: bool,
    queue_end: int,
    checkpoint: Checkpoint,
    rules: StartRules,
) -> bool:
    if found.store_timestamp == 0:
        return False
    is_safe = settings.index_enabled and settings.index_safe
    if rules.checks_first_record:
        if is_safe and found.store_timestamp > checkpoint.index_msg_timestamp:
            return False
        if not abort:
            return found.physical_offset <= queue_end
        return found.store_timestamp <= checkpoint.min_timestamp
    limit = checkpoint.min_timestamp_index if is_safe else checkpoint.min_timestamp
    return found.store_timestamp <= limit


def _first_record(
    file: StoreFile, open_files: OpenFiles, rules: StartRules, settings: StartSettings
) -> FirstRecord | None:
    """The first record of a file; None if the broker does not start at this file."""
    if rules.checks_first_record:
        return _checked(file, rules, settings)
    size = form.HEAD_SIZE_V4 + form.HOST_V6_SIZE
    head = open_files.read(file.path, 0, size).ljust(size, b"\0")
    version = form.VERSION_BY_MAGIC.get(form.BLANK.unpack(head[: form.BLANK_SIZE])[1])
    if version is None or (version == 2 and not rules.profile.writes_version_2):
        return None
    sys_flag = int.from_bytes(head[form.SYS_FLAG_OFFSET : form.SYS_FLAG_OFFSET + 4], signed=True)
    at = form.HEADS[sys_flag & form.BORN_HOST_V6].offsets["store_timestamp"]
    stored = int.from_bytes(head[form.PHYSICAL_OFFSET_OFFSET : form.PHYSICAL_OFFSET_OFFSET + 8], signed=True)
    return FirstRecord(stored, int.from_bytes(head[at : at + 8], signed=True))


def _checked(file: StoreFile, rules: StartRules, settings: StartSettings) -> FirstRecord | None:
    """The first record if it passes the checks of the scan, else None."""
    from rmqtool.broker.log_scan import Batch, file_events, first_unsound

    try:
        source = open_source(file.path, keep_cache=True)
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
    try:
        event = next(file_events(source, file, crc=settings.checks_crc, stop=1))
        if not isinstance(event, Batch) or first_unsound(event, rules, settings) == 0:
            return None
        row = event.rows[0]
        return FirstRecord(int(row["physical_offset"]), int(row["store_timestamp"]))
    finally:
        source.close()
