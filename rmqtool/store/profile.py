"""The version table: in what the brokers that rmqtool knows differ, and which one wrote a store.

Source: spec 01 section 16 and spec 02 sections 16, 17.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from rmqtool.errors import UsageError
from rmqtool.formats.checkpoint import CHECKPOINT
from rmqtool.formats.properties import BUCKETS_4X, BUCKETS_5X, Dialect
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
        abort_holds_pid: the abort file holds the process id.
        dialect: whether 0x02 ends the property string.
        property_buckets: size of the HashMap into which a request's properties are read.
        stores_wait: WAIT is stored; 4.x leaves it out unless it rewrites the message.
        adds_region: MSG_REGION and TRACE_ON are added.
        names_transaction: a half message gets `__transactionId__`.
        retry_topic_bytes: how long a %RETRY% topic may be; all others 127.
        checks_properties_early: more than 32767 UTF-16 units of properties are MESSAGE_ILLEGAL.
        has_timer: TIMER_DELAY_SEC and its like make a timer message; 4.x stores them as they are.
        has_inner_batch: a batch for a BatchCQ topic becomes one record.
        batch_uniq_key: the client gives the batch itself a UNIQ_KEY.
        appends_batch_properties: what the batch says is appended to the properties of each item.
        committed_keeps_real: REAL_TOPIC and REAL_QID stay in a committed message.
        op_separator: follows every offset in an op message.
        light_only_lmq: only light queues called %LMQ%... take part in INNER_MULTI_DISPATCH, and only
            of ordinary topics.
    """

    name: ProfileName
    searches_min_offset: bool
    writes_version_2: bool
    indexes_tags: bool
    skips_stray_folders: bool
    checkpoint_fields: Literal[3, 5]
    abort_holds_pid: bool
    dialect: Dialect
    property_buckets: int
    stores_wait: bool
    adds_region: bool
    names_transaction: bool
    retry_topic_bytes: int
    checks_properties_early: bool
    has_timer: bool
    has_inner_batch: bool
    batch_uniq_key: bool
    appends_batch_properties: bool
    committed_keeps_real: bool
    op_separator: str
    light_only_lmq: bool


_4_9 = Profile(
    name="4.9", searches_min_offset=False, writes_version_2=False, indexes_tags=False,
    skips_stray_folders=False, checkpoint_fields=3, abort_holds_pid=False, dialect="4.x",
    property_buckets=BUCKETS_4X, stores_wait=False, adds_region=False, names_transaction=False,
    retry_topic_bytes=127, checks_properties_early=True, has_timer=False, has_inner_batch=False,
    batch_uniq_key=False, appends_batch_properties=True, committed_keeps_real=True, op_separator="",
    light_only_lmq=False,
)  # fmt: skip
_5_3 = Profile(
    name="5.3", searches_min_offset=True, writes_version_2=True, indexes_tags=False,
    skips_stray_folders=True, checkpoint_fields=5, abort_holds_pid=True, dialect="5.x",
    property_buckets=BUCKETS_5X, stores_wait=True, adds_region=True, names_transaction=True,
    retry_topic_bytes=255, checks_properties_early=False, has_timer=True, has_inner_batch=True,
    batch_uniq_key=True, appends_batch_properties=True, committed_keeps_real=True, op_separator=",",
    light_only_lmq=True,
)  # fmt: skip
_5_4 = replace(
    _5_3, name="5.4", indexes_tags=True, appends_batch_properties=False, committed_keeps_real=False
)

PROFILES: dict[str, Profile] = {profile.name: profile for profile in (_4_9, _5_3, _5_4)}
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
