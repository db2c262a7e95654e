"""The broker's config files, read by its rule and replaced so that no crash loses them.

A write leaves the same files in all versions: the new text in `<name>`, the previous one in
`<name>.bak`. The way differs (4.9 deletes and renames, 5.3 writes in place, 5.4 renames the old file
first), and each way has a moment in which a crash leaves a cut file or none. Here both files come by
rename of a flushed `<name>.tmp`, the name that 4.9 uses, so `<name>` is complete at every moment, old or
new. A text that no broker could read does not replace a `.bak`.

Source: ConfigManager#load, #persist, MixAll#string2File; spec 01 section 9.1.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import config_change, config_json
from rmqtool.formats.config_json import Loaded
from rmqtool.formats.fastjson import READ_LIMIT
from rmqtool.storage import durable as disk
from rmqtool.storage.open_files import read_head, reading
from rmqtool.storage.profile import Profile

FOLDER = "config"
TOPICS = "topics.json"
DELAY_OFFSETS = "delayOffset.json"
GROUPS_FILE = "subscriptionGroup.json"
CONFIG_FILES = (
    TOPICS, GROUPS_FILE, "consumerOffset.json", DELAY_OFFSETS, "consumerFilter.json",
    "lmqConsumerOffset.json", "consumerOrderInfo.json", "topicQueueMapping.json", "messageRequestMode.json",
    "timermetrics", "transactionMetrics",
)  # fmt: skip
"""The files that a broker reads when it starts; not every version has all of them."""
_COMPACT = frozenset({"timermetrics", "transactionMetrics"})


def now_ms() -> int:
    """The time now, ms since 1970, as `System.currentTimeMillis`."""
    return time.time_ns() // 1_000_000


def read_config(folder: Path, name: str) -> Loaded:
    """Read the file `name` of `folder` as a broker does, with its .bak; source `none` if both are missing.

    Raises:
        UnreadableError: a file exists but cannot be read.
        FormatError: neither can be parsed, or has the right types; a broker would not start.
    """
    loaded = config_json.load_with_bak(name, _content(folder / name), _content(folder / f"{name}.bak"))
    if loaded.source == "failed":
        reason = loaded.bak_error or loaded.file_error
        raise FormatError(
            f"neither this file nor its .bak can be parsed: {reason}",
            path=folder / name,
            hint="a broker does not start with it: put a good copy there",
        )
    return loaded


def delay_offsets(folder: Path) -> dict[int, int]:
    """The next offset to deliver by delay level, as a broker reads it from delayOffset.json and its .bak.

    Raises:
        UnreadableError: a file exists but cannot be read.
        FormatError: as `read_config`.
    """
    return config_json.delay_offsets(read_config(folder, DELAY_OFFSETS).document)


def write_config(folder: Path, name: str, document: Any, profile: Profile) -> None:
    """Write a document as a broker of `profile` does, with the previous text in the .bak, and flush both.

    A text that does not change is not written.

    Args:
        folder: the folder; created if it is missing.
        name: the name of the file.
        document: as from `read_config`, changed.
        profile: the version whose JSON is written; 4.9 and 5.3 write the same.

    Raises:
        FormatError: a value that JSON cannot hold.
        UnreadableError: the previous text cannot be read.
        UnwritableError: the write failed; the file is unchanged.
    """
    data = config_json.dump(document, profile.name, compact=name in _COMPACT)
    before = _content(folder / name)
    if before == data:
        return
    disk.make_folder(folder)
    if before and config_json.load_with_bak(name, before, None).source == "file":
        _replace(folder, f"{name}.bak", f"{name}.tmp", before)
    _replace(folder, name, f"{name}.tmp", data)


def create_config(root: Path, profile: Profile) -> None:
    """Give a new store its topics.json and delayOffset.json, both without entries.

    A broker adds its built-in topics to them, and writes the other files when it needs them. Existing files
    stay.

    Raises:
        UnreadableError: a file exists but cannot be read.
        FormatError: a file exists but cannot be parsed.
        UnwritableError: they cannot be written.
    """
    folder, time_ms = root / FOLDER, now_ms()
    for name, new in (
        (TOPICS, config_change.new_topics),
        (DELAY_OFFSETS, config_change.new_delay_offsets),
    ):
        if read_config(folder, name).source == "none":
            write_config(folder, name, new(profile.name, time_ms), profile)


def replace_file(folder: Path, name: str, data: bytes) -> None:
    """Put a small file in the place of another, so that at every moment one of them is there, complete.

    Raises UnwritableError.
    """
    _replace(folder, name, f"{name}.tmp", data)


def _replace(folder: Path, name: str, temporary: str, data: bytes) -> None:
    path = folder / temporary
    disk.remove(path)  # left by a crash
    disk.write_new(path, data, like=folder / name)
    disk.rename(path, folder / name)
    disk.sync_folder(folder)


def _content(path: Path) -> bytes | None:
    """The bytes of a config file, at most READ_LIMIT; None if it is missing."""
    return read_head(path, READ_LIMIT)


def read_or_none(path: Path | None) -> bytes | None:
    """The bytes of a config file; None for the path None. Raises UnreadableError."""
    return None if path is None else read_file(path)


def read_file(path: Path, limit: int = READ_LIMIT) -> bytes:
    """The first `limit` bytes of a small file. Raises UnreadableError."""
    data = bytearray()
    try:
        with reading(path) as file:
            while len(data) < limit and (piece := file.read(len(data), min(limit - len(data), 1 << 20))):
                data += piece
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error
    return bytes(data)
