"""Repairs small files next to log, queues and index: the epoch file and the compaction checkpoint.

Source: EpochFileCache#truncateSuffixByOffset, CheckpointFile, ConfigManager#load; spec 02 sections 12.3
and 15.3.
"""

from __future__ import annotations

from pathlib import Path

from rmqtool.check.verify.context import CONFIG_LIMIT
from rmqtool.errors import FormatError
from rmqtool.formats import compaction, config_json, epoch
from rmqtool.read.store import Store
from rmqtool.repair.plan import Action
from rmqtool.repair.recover.after import After
from rmqtool.storage.open_files import read_head


def epoch_actions(store: Store, after: After) -> tuple[list[Action], list[str]]:
    """Remove epochs that begin after the log's end from the epoch file, or replace a damaged one by its .bak.

    Raises:
        UnreadableError: it cannot be read.
    """
    path = store.layout.epoch
    if path is None:
        return [], []
    entries, content = _epochs(path)
    backup, text = _epochs(path.with_name(f"{path.name}.bak"))
    if entries is None and backup is None:
        return [], ["epochFileCheckpoint is damaged and has no sound .bak: a slave then skips its truncation"]
    if entries is None:
        entries, content = backup, text
        reason = "it is damaged, its .bak is sound"
    else:
        reason = "epochs that start after the end of the log are removed"
    kept = [entry for entry in entries or () if entry.start_offset <= after.log_end]
    if len(kept) != len(entries or ()):
        if not kept:
            return [], [
                "every epoch of epochFileCheckpoint starts after the end of the log; it is left as it is"
            ]
        content = epoch.encode(kept)
    if content is None or content == read_head(path, CONFIG_LIMIT):
        return [], []
    return [Action("replace", path.name, 0, len(content), reason, "EP01", {"epochs": len(kept)}, content)], []


def _epochs(path: Path) -> tuple[list[epoch.Entry] | None, bytes | None]:
    """The entries of an epoch file and its bytes; None for both if it is missing or damaged."""
    data = read_head(path, CONFIG_LIMIT)
    try:
        entries = epoch.decode(data) if data is not None else None
    except FormatError:
        return None, None
    return (entries, data) if entries and epoch.is_ordered(entries) else (None, None)


def compaction_actions(store: Store) -> list[Action]:
    """Replace a compaction checkpoint that cannot be parsed by its .bak, or delete it.

    Without one a broker compacts from the start again.

    Raises:
        UnreadableError: it cannot be read.
    """
    path = store.layout.compaction_checkpoint
    if path is None:
        return []
    data = read_head(path, CONFIG_LIMIT) or b""
    backup = read_head(path.with_name(f"{path.name}.bak"), CONFIG_LIMIT)
    if _is_position_file(data):
        return []
    name = store.layout.relative(path)
    if backup is not None and _is_position_file(backup):
        return [
            Action("replace", name, 0, len(backup), "it cannot be read, its .bak can", "CC01", {}, backup)
        ]
    return [Action("delete", name, 0, len(data), "it cannot be read; compaction starts again", "CC01")]


def _is_position_file(data: bytes) -> bool:
    loaded = config_json.load_with_bak("position-checkpoint", data, None)
    try:
        compaction.positions(loaded.document)
    except FormatError:
        return False
    return loaded.source == "file"
