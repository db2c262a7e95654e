"""The version table: how the broker versions differ, and which of them wrote a store.

Source: spec 01 section 16 and spec 02 sections 16, 17.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rmqtool.errors import UsageError
from rmqtool.formats.checkpoint import CHECKPOINT
from rmqtool.formats.message import BLANK, BLANK_SIZE, MIN_RECORD_SIZE, VERSION_BY_MAGIC
from rmqtool.formats.properties import BUCKETS_4X, BUCKETS_5X, Dialect
from rmqtool.formats.versions import BROKERS, Broker
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.open_files import head_of, reading

ProfileName = Broker


@dataclass(frozen=True, slots=True)
class Profile:
    """One broker version. The defaults are those of the newest.

    Attributes:
        name: the version, see `formats.versions`.
        searches_min_offset: a queue's minimum is found by ConsumeQueue#correctMinOffset of 5.x.
        writes_version_2: records of long topics get the second magic; 4.x treats them as damage.
        indexes_tags: the index also holds topic#T#tags.
        skips_stray_folders: a folder next to the log's files does no harm; 4.x does not start with one.
        checkpoint_fields: how many fields of the checkpoint are in use.
        abort_holds_pid: the abort file holds the process id.
        dialect: whether 0x02 ends the property string.
        property_buckets: size of the HashMap into which a request's properties are read.
        stores_wait: the property WAIT is stored; 4.x leaves it out unless it rewrites the message.
        adds_region: MSG_REGION and TRACE_ON are added.
        names_transaction: a half message gets `__transactionId__`.
        retry_topic_bytes: how long a %RETRY% topic may be; all others 127.
        checks_properties_early: more than 32767 UTF-16 units of properties are MESSAGE_ILLEGAL.
        has_timer: TIMER_DELAY_SEC and its like make a timer message; 4.x stores them as they are.
        has_inner_batch: a batch for a BatchCQ topic becomes one record.
        batch_uniq_key: the client gives the batch itself a UNIQ_KEY.
        appends_batch_properties: the properties of the batch are appended to those of each item.
        committed_keeps_real: REAL_TOPIC and REAL_QID stay in a committed message.
        op_separator: follows every offset in an op message.
        has_topic_attributes: topics.json holds attributes.
        skips_dispatched: after a clean stop the record at the end of dispatch is not dispatched again unless
            it begins a file (spec 02 section 2, point 3).
        start_files_max: how many of the last files a start after a crash tries as start file
            (commitLogRecoverMaxNum); None for all.
        limits_pull_bytes: DefaultMessageStore#getMessage obeys the caller's limit of bytes, and ends a pull
            at records whose file is gone; 4.x passes them.
        light_only_lmq: only light queues called %LMQ%... take part in INNER_MULTI_DISPATCH, and only
            of ordinary topics.
    """

    name: ProfileName
    searches_min_offset: bool = True
    writes_version_2: bool = True
    indexes_tags: bool = True
    skips_stray_folders: bool = True
    checkpoint_fields: Literal[3, 5] = 5
    abort_holds_pid: bool = True
    dialect: Dialect = "5.x"
    property_buckets: int = BUCKETS_5X
    stores_wait: bool = True
    adds_region: bool = True
    names_transaction: bool = True
    retry_topic_bytes: int = 255
    checks_properties_early: bool = False
    has_timer: bool = True
    has_inner_batch: bool = True
    batch_uniq_key: bool = True
    appends_batch_properties: bool = False
    committed_keeps_real: bool = False
    op_separator: str = ","
    has_topic_attributes: bool = True
    skips_dispatched: bool = True
    start_files_max: int | None = 10
    limits_pull_bytes: bool = True
    light_only_lmq: bool = True


_4_9 = Profile(
    name="4.9", searches_min_offset=False, writes_version_2=False, indexes_tags=False,
    skips_stray_folders=False, checkpoint_fields=3, abort_holds_pid=False, dialect="4.x",
    property_buckets=BUCKETS_4X, stores_wait=False, adds_region=False, names_transaction=False,
    retry_topic_bytes=127, checks_properties_early=True, has_timer=False, has_inner_batch=False,
    batch_uniq_key=False, appends_batch_properties=True, committed_keeps_real=True, op_separator="",
    has_topic_attributes=False, skips_dispatched=False, start_files_max=None, limits_pull_bytes=False,
    light_only_lmq=False,
)  # fmt: skip
_5_3 = Profile(
    name="5.3", indexes_tags=False, appends_batch_properties=True, committed_keeps_real=True,
    start_files_max=None,
)  # fmt: skip
_5_4 = Profile(name="5.4")

NOT_WRITTEN_BY: dict[str, Any] = {
    "written_by": None, "written_by_candidates": [], "written_by_reason": None,
}  # fmt: skip
"""`WrittenBy.row` for anything but a whole store."""

PROFILES: dict[str, Profile] = {profile.name: profile for profile in (_4_9, _5_3, _5_4)}
NEWEST = PROFILES[BROKERS[-1]]

# Only 5.x makes these; abort.bak is left by MixAll#string2File.
_FOLDERS_OF_5 = frozenset({"batchconsumequeue", "timerlog", "compaction", "kvStore"})
_CONFIG_OF_5 = frozenset({
    "timercheck", "timermetrics", "transactionMetrics", "consumerOrderInfo.json",
    "topicQueueMapping.json", "messageRequestMode.json",
})  # fmt: skip
_FOLDERS_OF_5_4 = frozenset({"rocksdbstore"})

# fastjson 2 (5.4) breaks the line after every opening brace of a map, fastjson 1 never does so for
# an empty map or one with integers as keys.
_FASTJSON_2 = pattern(rb"\{\n\t+(?:\n|\d+:)")
_FASTJSON_1 = pattern(rb":\{(?:\}|\d+:)")
# Neither writes white space behind a colon, as other writers of JSON do, whose text shows no version.
_BEGIN_OF_BROKERS = b"{\n\t"
_OF_OTHERS = pattern(rb'(?<!\\)":\s')
_CONFIG_HEAD = 64 << 10
_BACKUP = ".bak"
_FILES_LOOKED_AT = 8

_OF_5 = tuple(name for name in BROKERS if not name.startswith("4."))


def profile_named(name: str) -> Profile:
    """The profile called `name`. Raises UsageError for another name."""
    if name not in PROFILES:
        raise UsageError(f"there is no profile {name!r}", hint="the profiles are " + ", ".join(PROFILES))
    return PROFILES[name]


@dataclass(frozen=True, slots=True)
class WrittenBy:
    """Which version used a store last, as far as its files show.

    Attributes:
        profile: the assumed version.
        candidates: names of the possible versions; a single one if the files show it.
        reason: why they do not show it; None if they do.
    """

    profile: Profile
    candidates: tuple[ProfileName, ...]
    reason: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether the files show the version."""
        return len(self.candidates) == 1

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> WrittenBy:
        """The inverse of `row`."""
        candidates = tuple(profile_named(name).name for name in row["written_by_candidates"])
        return cls(profile_named(row["written_by"]), candidates, row["written_by_reason"])

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "written_by": self.profile.name,
            "written_by_candidates": list(self.candidates),
            "written_by_reason": self.reason,
        }

    def __str__(self) -> str:
        if self.is_known:
            return self.profile.name
        either = " or ".join((", ".join(self.candidates[:-1]), self.candidates[-1]))
        known = "unknown" if "4.9" in self.candidates else "5.x"
        return f"{known} ({either}; {self.reason})"


def named(name: str) -> WrittenBy:
    """The version that the user names. Raises UsageError for one that does not exist."""
    profile = profile_named(name)
    return WrittenBy(profile, (profile.name,))


def written_by(layout: StoreLayout) -> WrittenBy:
    """The version whose broker used the store last.

    The config files show it: 5.4 writes them with fastjson 2, older versions with fastjson 1. A file that
    something else has written, an editor or a script, shows nothing. Without them 5.3 and 5.4 leave the same
    files. If there are only a log and queues, the records distinguish 5.x from 4.x: only 5.x ends a property
    string with 0x02 (MessageDecoder#messageProperties2String).
    """
    if layout.queue_logs is not None:
        return WrittenBy(NEWEST, _OF_5, "copies of messages do not say")
    if layout.kind != "store":
        return WrittenBy(NEWEST, BROKERS, "part of a store does not say")
    dialect = _json_dialect(layout)
    if dialect == "5.4" or (dialect is None and layout.folders & _FOLDERS_OF_5_4):
        return named("5.4")
    reason = "config/ does not say" if layout.config else "config/ is missing"
    if _is_of_5(layout):
        return named("5.3") if dialect else WrittenBy(PROFILES["5.3"], _OF_5, reason)
    if dialect is not None:
        return named("4.9")
    is_of_5 = _has_records_of_5(layout)
    candidates = _OF_5 if is_of_5 else BROKERS
    if not layout.consume_queues and not layout.index_files:
        return WrittenBy(NEWEST, candidates, reason)  # a log and nothing else
    return WrittenBy(PROFILES["5.3" if is_of_5 else "4.9"], candidates, reason)


def _has_records_of_5(layout: StoreLayout) -> bool:
    """Whether the property string of a record at the start of one of the newest log files ends in 0x02."""
    for file in reversed(layout.commit_log[-_FILES_LOOKED_AT:]):
        try:
            with reading(file.path) as opened:
                head = opened.read(0, BLANK_SIZE)  # a record begins with the same two
                size, magic = BLANK.unpack(head) if len(head) == BLANK_SIZE else (0, 0)
                if magic in VERSION_BY_MAGIC and MIN_RECORD_SIZE < size <= file.size:
                    return opened.read(size - 1, 1) == b"\x02"
        except OSError:
            continue  # the command that reads the log reports it
    return False


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


def _is_made(layout: StoreLayout, name: str) -> bool:
    """Whether the file is made here from a database."""
    made = layout.rocksdb_config
    return made is not None and name in made.documents


def _json_dialect(layout: StoreLayout) -> Literal["4.9", "5.4"] | None:
    """Which library wrote the config files: `4.9` for fastjson 1 (up to 5.3), `5.4` for fastjson 2."""
    found: Literal["4.9"] | None = None
    names = sorted(layout.config, key=lambda name: (name.endswith(_BACKUP), name))
    for name in names:
        if not name.removesuffix(_BACKUP).endswith(".json") or _is_made(layout, name):
            continue
        if name.endswith(_BACKUP) and found is not None:
            break  # an older state: used only if the files themselves do not show it
        path = layout.config[name]
        head = head_of(path, _CONFIG_HEAD)
        if not head.startswith(_BEGIN_OF_BROKERS) or _OF_OTHERS.search(head):
            continue
        if _FASTJSON_2.search(head):
            return "5.4"
        if _FASTJSON_1.search(head):
            found = "4.9"
    return found
