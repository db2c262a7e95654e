"""The version table: in what the brokers that rmqtool knows differ, and which one wrote a store.

Source: spec 01 section 16 and spec 02 sections 16, 17.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rmqtool.errors import UsageError
from rmqtool.formats.checkpoint import CHECKPOINT
from rmqtool.store.layout import StoreLayout
from rmqtool.store.open_files import head_of

ProfileName = Literal["4.9", "5.3", "5.4"]


@dataclass(frozen=True, slots=True)
class Profile:
    """One broker version.

    Attributes:
        name: the version: 4.9 stands for all of 4.x, 5.3 for 5.0 to 5.3.
        searches_min_offset: a queue's minimum is found by ConsumeQueue#correctMinOffset of 5.x.
        writes_version_2: records of long topics get the second magic; 4.x takes them for damage.
        indexes_tags: the index also holds topic#T#tags.
        skips_stray_folders: a folder beside the log's files does no harm; 4.x does not start with one.
        checkpoint_fields: how many fields of the checkpoint are in use.
    """

    name: ProfileName
    searches_min_offset: bool
    writes_version_2: bool
    indexes_tags: bool
    skips_stray_folders: bool
    checkpoint_fields: Literal[3, 5]


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("4.9", False, False, False, False, 3),
        Profile("5.3", True, True, False, True, 5),
        Profile("5.4", True, True, True, True, 5),
    )
}
NEWEST = PROFILES["5.4"]

# Only 5.x makes these; abort.bak is left by MixAll#string2File.
_FOLDERS_OF_5 = frozenset({"batchconsumequeue", "timerlog", "compaction", "kvStore"})
_CONFIG_OF_5 = frozenset({
    "timercheck", "timermetrics", "transactionMetrics", "consumerOrderInfo.json",
    "topicQueueMapping.json", "messageRequestMode.json",
})  # fmt: skip
_FOLDERS_OF_5_4 = frozenset({"rocksdbstore"})

# fastjson 2 (5.4) breaks the line behind every opening brace of a map, fastjson 1 never does so for
# an empty map or one with whole numbers as keys.
_FASTJSON_2 = re.compile(rb"\{\n\t+(?:\n|\d+:)")
_FASTJSON_1 = re.compile(rb":\{(?:\}|\d+:)")
_CONFIG_HEAD = 64 << 10


def profile_named(name: str) -> Profile:
    """The profile called `name`. Raises UsageError for another name."""
    if name not in PROFILES:
        raise UsageError(f"there is no profile {name!r}", hint="the profiles are " + ", ".join(PROFILES))
    return PROFILES[name]


def detect_profile(layout: StoreLayout) -> Profile:
    """The version whose broker used the store last, as far as its files tell.

    A single file or a bare commit log tells nothing: the newest version then.
    """
    if layout.kind != "store":
        return NEWEST
    dialect = _json_dialect(layout)
    if dialect == "5.4" or (dialect is None and layout.folders & _FOLDERS_OF_5_4):
        return PROFILES["5.4"]
    if _is_of_5(layout):
        return PROFILES["5.3"]
    if dialect is None and not layout.consume_queues and not layout.index_files:
        return NEWEST  # a log and nothing else
    return PROFILES["4.9"]


def _is_of_5(layout: StoreLayout) -> bool:
    if layout.folders & (_FOLDERS_OF_5 | _FOLDERS_OF_5_4) or not _CONFIG_OF_5.isdisjoint(layout.config):
        return True
    if layout.abort_bak or layout.timer_wheel or layout.epoch:
        return True
    if layout.abort is not None and head_of(layout.abort, 1):
        return True  # 5.x writes its process id, 4.x nothing
    first = CHECKPOINT.offsets["master_flushed_offset"]
    fields = head_of(layout.checkpoint, CHECKPOINT.size) if layout.checkpoint is not None else b""
    return any(fields[first:])


def _json_dialect(layout: StoreLayout) -> Literal["4.9", "5.4"] | None:
    """Which library wrote the config files: `4.9` stands for fastjson 1, of 5.3 and before."""
    found: Literal["4.9"] | None = None
    for name, path in layout.config.items():
        if not name.endswith(".json"):
            continue
        head = head_of(path, _CONFIG_HEAD)
        if _FASTJSON_2.search(head):
            return "5.4"
        if _FASTJSON_1.search(head):
            found = "4.9"
    return found
