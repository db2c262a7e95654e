"""The differences between the starts of the three brokers, as one table, and settings that affect a start.

Source: spec 02 sections 1 to 5 and 17; BrokerController#initialize, #recoverAndInitService, TimerMessageStore
#load, DefaultMessageStore#load and #start, CommitLog#recoverNormally and #recoverAbnormally of 4.9.7, 5.3.3
and 5.4.0. Brokers before 4.9 are not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from rmqtool.errors import UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.system_topics import DEFAULT_DELAYS_MS
from rmqtool.read.delay_levels import configured
from rmqtool.storage.broker_conf import BrokerConf
from rmqtool.storage.profile import PROFILES, Profile

DEFAULT_HEAP_BYTES = 2 << 30
ARRAY_BYTES_MAX = (1 << 31) - 3
"""The longest byte array of a JVM."""


@dataclass(frozen=True, slots=True)
class StartRules:
    """The rules of one broker's start.

    Attributes:
        profile: its row in the version table; the other fields concern the start only.
        deletes_empty_last: an empty file at the end of a folder is deleted; 4.x does not start with one.
        normal_start: where the scan begins without abort: at the third-last file, at the last file whose
            name is not above the queues' end, or at the last one whose first record is sound and not
            above it.
        checks_first_record: with abort, the first record of a start file must be completely sound; otherwise
            its magic and store time suffice.
        limits_files_back: at most commitLogRecoverMaxNum files are tried.
        bounds_size: a record's size is compared with the remaining bytes before it is allocated.
        dispatches_normally: the scan dispatches records after the queues' end without abort too.
        measures_after_dispatch: whether queues are cut is decided by their end after the dispatch.
        dispatches_at_start: start() dispatches from the queues' end on, and returns after that.
        has_batch_queues: supports the folder batchconsumequeue and queue.type=BatchCQ.
        makes_delay_queues: load() creates a queue of SCHEDULE_TOPIC_XXXX without files for every delay level.
        knows_delays: the delay levels are known when the scan dispatches delayed messages.
        index_must_load: an index file that cannot be opened aborts the start.
        flushes_index: the index is flushed when the broker stops: empty files get an index_count of 1.
        reads_rocksdb: supports queues in RocksDB (storeType=defaultRocksDB).
        config_files: a broker that can parse neither one of these nor its .bak does not start.
        checks_config_blocks: a damaged block of a configuration in RocksDB (v1) ends a start; the others do
            not notice it.
        combines: supports queues that are written twice; the others ignore the database next to the files.
    """

    profile: Profile
    deletes_empty_last: bool
    normal_start: Literal["third_last", "queue_end", "first_record"]
    checks_first_record: bool
    limits_files_back: bool
    bounds_size: bool
    dispatches_normally: bool
    measures_after_dispatch: bool
    dispatches_at_start: bool
    has_batch_queues: bool
    makes_delay_queues: bool
    knows_delays: bool
    index_must_load: bool
    flushes_index: bool
    reads_rocksdb: bool
    config_files: tuple[str, ...]
    checks_config_blocks: bool = False
    combines: bool = False


TIMER_METRICS = "timermetrics"
"""The config file that is loaded with the timer: not with timerWheelEnable=false."""
_CONFIG_FILES = (
    "topics.json", "consumerOffset.json", "subscriptionGroup.json", "consumerFilter.json", "delayOffset.json",
)  # fmt: skip

_4_9 = StartRules(
    profile=PROFILES["4.9"], deletes_empty_last=False, normal_start="third_last",
    checks_first_record=False, limits_files_back=False, bounds_size=False, dispatches_normally=False,
    measures_after_dispatch=False, dispatches_at_start=True, has_batch_queues=False,
    makes_delay_queues=True, knows_delays=False,
    index_must_load=False, flushes_index=False, reads_rocksdb=False, config_files=_CONFIG_FILES,
)  # fmt: skip
_5_3 = StartRules(
    profile=PROFILES["5.3"], deletes_empty_last=True, normal_start="queue_end",
    checks_first_record=False, limits_files_back=False, bounds_size=True, dispatches_normally=True,
    measures_after_dispatch=False, dispatches_at_start=False, has_batch_queues=True,
    makes_delay_queues=False, knows_delays=True,
    index_must_load=True, flushes_index=True, reads_rocksdb=True,
    config_files=(*_CONFIG_FILES, "topicQueueMapping.json", "consumerOrderInfo.json", TIMER_METRICS),
)  # fmt: skip
_5_4 = replace(
    _5_3, profile=PROFILES["5.4"], normal_start="first_record", checks_first_record=True,
    limits_files_back=True, measures_after_dispatch=True, combines=True, checks_config_blocks=True,
)  # fmt: skip

RULES: dict[str, StartRules] = {"4.9": _4_9, "5.3": _5_3, "5.4": _5_4}


def rules_of(broker: str) -> StartRules:
    """The rules of a broker. Raises UsageError for one that is not modelled."""
    if broker not in RULES:
        raise UsageError(
            f"the start of broker {broker!r} is not modelled", hint="modelled are " + ", ".join(RULES)
        )
    return RULES[broker]


@dataclass(frozen=True, slots=True)
class StartSettings:
    """Settings of the broker that affect its start; the defaults are the broker's.

    Attributes:
        checks_crc: checkCRCOnRecover.
        checks_property_crc: forceVerifyPropCRC (5.x): the property CRC is checked, the body's is not.
        index_enabled: messageIndexEnable.
        index_safe: messageIndexSafe.
        files_back: commitLogRecoverMaxNum (5.4).
        is_master: brokerId is 0.
        delays_ms: messageDelayLevel, delay of level n at n - 1.
        dispatches_light: enableMultiDispatch: light queues get the units that records name. None: not
            configured; a record with offsets of light queues shows that its broker had it enabled.
        extends_units: enableConsumeQueueExt. None: not configured; extension files show that it is enabled.
        heap_bytes: the JVM's heap, -Xmx: 4.x allocates the value of a damaged size field, and the start fails
            if it cannot. No array is longer than 2^31 - 3 bytes, however large the heap.
        combines: rocksdbCQDoubleWriteEnable, and combineCQLoadingCQTypes has both types (5.4). None: not
            configured; a database next to queue files shows that it is enabled.
        is_combined: rocksdbCQDoubleWriteEnable, whichever types are loaded (5.4).
        wrong_types: why a broker of 5.4 ends on the types that it would load; None if it does not.
        serves_from_rocksdb: combineCQPreferCQType: queues that are written twice are read from RocksDB.
        assigns_from_rocksdb: combineAssignOffsetCQType: RocksDB gives the queue offsets.
        files_for_rocksdb: combineCQMaxExtraSearchCommitLogFiles: if the side lags that does not give the
            queue offsets, the scan begins at most this many files earlier.
        compacts: enableCompaction (5.x).
        accelerates: enableAcceleratedRecovery with storeType=defaultRocksDB (5.4): the scan begins at the
            noted end of dispatch, inside its file.
    """

    checks_crc: bool = True
    checks_property_crc: bool = False
    index_enabled: bool = True
    index_safe: bool = False
    files_back: int = 10
    is_master: bool = True
    delays_ms: Sequence[int] = DEFAULT_DELAYS_MS
    heap_bytes: int = DEFAULT_HEAP_BYTES
    dispatches_light: bool | None = None
    extends_units: bool | None = None
    combines: bool | None = None
    serves_from_rocksdb: bool = False
    assigns_from_rocksdb: bool = False
    is_combined: bool = False
    wrong_types: str | None = None
    files_for_rocksdb: int = 3
    compacts: bool = True
    accelerates: bool = False

    @classmethod
    def of(cls, conf: BrokerConf | None) -> StartSettings:
        """The settings of a broker.conf; without one the defaults.

        Raises:
            UsageError: messageDelayLevel cannot be parsed.
        """
        if conf is None:
            return cls()
        plain = cls()
        files_back, broker_id = conf.integer("commitLogRecoverMaxNum"), conf.integer("brokerId", bits=64)
        levels = configured(conf)
        sets_extension = conf.text("enableConsumeQueueExt") is not None
        types = conf.combined_types
        extra = conf.integer("combineCQMaxExtraSearchCommitLogFiles")
        sets_twice = conf.text("rocksdbCQDoubleWriteEnable") is not None
        sets_light = any(conf.text(name) is not None for name in ("enableMultiDispatch", "enableLmq"))
        return cls(
            checks_crc=conf.flag("checkCRCOnRecover", default=True),
            checks_property_crc=conf.flag("forceVerifyPropCRC"),
            index_enabled=conf.flag("messageIndexEnable", default=True),
            index_safe=conf.flag("messageIndexSafe"),
            files_back=plain.files_back if files_back is None or files_back <= 0 else files_back,
            is_master=broker_id in (None, 0),
            delays_ms=plain.delays_ms if levels is None else levels,
            dispatches_light=conf.flag("enableMultiDispatch") if sets_light else None,
            extends_units=conf.flag("enableConsumeQueueExt") if sets_extension else None,
            combines=types is not None and len(types) == 2 if sets_twice else None,
            is_combined=types is not None,
            wrong_types=None if types is None else _wrong_types(conf, types),
            serves_from_rocksdb=conf.is_rocksdb("combineCQPreferCQType"),
            assigns_from_rocksdb=conf.is_rocksdb("combineAssignOffsetCQType"),
            files_for_rocksdb=plain.files_for_rocksdb if extra is None else extra,
            compacts=conf.flag("enableCompaction", default=True),
            accelerates=conf.flag("enableAcceleratedRecovery") and conf.is_rocksdb("storeType"),
        )


def _wrong_types(conf: BrokerConf, types: frozenset[str]) -> str | None:
    """Why the broker cannot combine these types of queues; its message store is never made then.

    Source: CombineConsumeQueueStore of 5.4.0, the constructor.
    """
    if not types:
        return "combineCQLoadingCQTypes names no type of consume queues (default, defaultRocksDB)"
    for name in ("combineAssignOffsetCQType", "combineCQPreferCQType"):
        value = conf.values.get(name, "default").strip()
        if value.lower() not in types:
            return f"{name} is {value!r}, which is not a type that combineCQLoadingCQTypes loads"
    return None
