"""Options of a writer: sizes, flush, limits; the broker's setting and default of each.

Source: MessageStoreConfig, BrokerConfig; spec 01 section 12.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal, get_args

from rmqtool.errors import UsageError
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, EXT_END_ROOM, EXT_HEAD, UNIT_SIZE
from rmqtool.formats.index import DEFAULT_SHAPE, Shape
from rmqtool.formats.java import java_utf8_decode
from rmqtool.formats.message import BLANK_SIZE, MIN_RECORD_SIZE, RECORD_SIZE_MAX
from rmqtool.formats.message_id import host_bytes
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.system_topics import BUILT_IN_PREFIX, DEFAULT_DELAYS_MS, RETRY_PREFIX, SCHEDULE_TOPIC
from rmqtool.storage.layout import (
    DEFAULT_BATCH_QUEUE_FILE_SIZE,
    DEFAULT_COMMIT_LOG_FILE_SIZE,
    DEFAULT_CONSUME_QUEUE_FILE_SIZE,
    DEFAULT_EXT_QUEUE_FILE_SIZE,
)
from rmqtool.storage.profile import NEWEST, Profile, WrittenBy

MAPPED_SIZE_MAX = (1 << 31) - 1
"""Bytes of the largest file that a broker can map."""
DEFAULT_MAX_MESSAGE_SIZE = 4 << 20
DEFAULT_STORE_HOST = host_bytes("127.0.0.1:10911")

Flush = Literal["async", "sync"]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The parameters for writing a store. Sizes are bytes, times ms; the broker's setting is in brackets.

    Attributes:
        profile: the broker version whose rules hold.
        written_by: which versions it may be, for a store that was there; None for a new one.
        commit_log_file_size: [mappedFileSizeCommitLog].
        consume_queue_file_size: a multiple of 20 [mappedFileSizeConsumeQueue].
        batch_queue_file_size: a multiple of 46 [mapperFileSizeBatchConsumeQueue].
        ext_queues: whether each unit has an extension unit [enableConsumeQueueExt].
        ext_queue_file_size: of an extension file [mappedFileSizeConsumeQueueExt].
        index_slots: of an index file [maxHashSlotNum].
        index_entries: places for entries in an index file, place 0 included [maxIndexNum].
        index: whether keys are indexed [messageIndexEnable].
        multi_dispatch: whether light queues are served [enableMultiDispatch, enableLmq].
        flush: `sync`: a put returns when its bytes are on the device [flushDiskType].
        flush_interval_ms: between two looks of the `async` flusher [flushIntervalCommitLog].
        flush_least_pages: dirty pages of 4 KiB it waits for [flushCommitLogLeastPages].
        flush_thorough_interval_ms: after which it flushes any rest [flushCommitLogThoroughInterval].
        sync_flush_timeout_ms: how long a `sync` put waits [syncFlushTimeout].
        checkpoint_interval_ms: between two flushes of queues, index and checkpoint
            [flushConsumeQueueThoroughInterval].
        write_buffer: appends go to locked memory first and to the file in batches
            [transientStorePoolEnable].
        commit_interval_ms: between two such batches [commitIntervalCommitLog].
        reserve: the space of a commit log file is taken when the file is made.
        warm: its pages are touched then, and locked where permitted [warmMapedFileEnable].
        max_message_size: of a body; 0 is 4 MiB or, where a commit log file is smaller, what fits
            [maxMessageSize].
        property_crc: records end with a CRC over all of them, 5.x only [enabledAppendPropCRC].
        delays_ms: delay by level; level n is element n - 1 [messageDelayLevel].
        store_host: what records say about the broker: 4 or 16 address bytes and port.
        cluster: value of the property CLUSTER that a broker adds; None adds none [brokerClusterName].
        region: value of MSG_REGION that a 5.x broker adds, with TRACE_ON; None adds neither [regionId].
        compress_over: bodies of that many bytes and more are compressed, when `compression` is not
            `none` [the client's compressMsgBodyOverHowmuch].

    Raises:
        UsageError: a size that a broker could not use, with the limit.
    """

    profile: Profile = NEWEST
    commit_log_file_size: int = DEFAULT_COMMIT_LOG_FILE_SIZE
    consume_queue_file_size: int = DEFAULT_CONSUME_QUEUE_FILE_SIZE
    batch_queue_file_size: int = DEFAULT_BATCH_QUEUE_FILE_SIZE
    ext_queues: bool = False
    ext_queue_file_size: int = DEFAULT_EXT_QUEUE_FILE_SIZE
    index_slots: int = DEFAULT_SHAPE.slots
    index_entries: int = DEFAULT_SHAPE.entries
    index: bool = True
    multi_dispatch: bool = False
    flush: Flush = "async"
    flush_interval_ms: int = 500
    flush_least_pages: int = 4
    flush_thorough_interval_ms: int = 10_000
    sync_flush_timeout_ms: int = 5_000
    checkpoint_interval_ms: int = 60_000
    write_buffer: bool = False
    commit_interval_ms: int = 200
    reserve: bool = True
    warm: bool = False
    max_message_size: int = 0
    property_crc: bool = False
    delays_ms: tuple[int, ...] = field(default=DEFAULT_DELAYS_MS)
    store_host: bytes = DEFAULT_STORE_HOST
    cluster: str | None = "DefaultCluster"
    region: str | None = "DefaultRegion"
    compress_over: int = 4096
    written_by: WrittenBy | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Refuse what a broker could not map or use."""
        smallest = MIN_RECORD_SIZE + BLANK_SIZE
        _check("commit log file size", self.commit_log_file_size, smallest, MAPPED_SIZE_MAX)
        _check("consume queue file size", self.consume_queue_file_size, UNIT_SIZE, MAPPED_SIZE_MAX, UNIT_SIZE)
        _check("batch queue file size", self.batch_queue_file_size, BATCH_UNIT_SIZE, MAPPED_SIZE_MAX,
               BATCH_UNIT_SIZE)  # fmt: skip
        _check("extension file size", self.ext_queue_file_size, EXT_HEAD.size + EXT_END_ROOM, MAPPED_SIZE_MAX)
        _check("index slots", self.index_slots, 1, MAPPED_SIZE_MAX)
        _check("index entries", self.index_entries, 2, MAPPED_SIZE_MAX)
        _check("index file size", self.index_shape.size, 1, MAPPED_SIZE_MAX)
        fits = self.commit_log_file_size - smallest
        _check("largest message", self.body_limit, 0, min(fits, RECORD_SIZE_MAX >> 1))
        if self.flush not in get_args(Flush):
            raise UsageError(f"flush {self.flush!r}: it must be {' or '.join(get_args(Flush))}")
        if self.property_crc and not self.profile.writes_version_2:
            raise UsageError(f"a broker {self.profile.name} does not support property CRCs")

    @property
    def index_shape(self) -> Shape:
        """The number of slots and entries of an index file."""
        return Shape(self.index_slots, self.index_entries)

    @property
    def body_limit(self) -> int:
        """Bytes that a body may have."""
        fits = self.commit_log_file_size - MIN_RECORD_SIZE - BLANK_SIZE
        return self.max_message_size or min(DEFAULT_MAX_MESSAGE_SIZE, fits)

    def may_be_light(self, topic: bytes) -> bool:
        """Whether records of `topic` may belong to light queues too.

        Source: MultiDispatchUtils, MultiDispatch.
        """
        if not self.multi_dispatch:
            return False
        name = java_utf8_decode(topic)
        excluded = name.startswith((RETRY_PREFIX, BUILT_IN_PREFIX)) or name == SCHEDULE_TOPIC
        return not (excluded and self.profile.writes_version_2)


def _check(what: str, value: int, smallest: int, largest: int, multiple: int = 1) -> None:
    if type(value) is not int or not smallest <= value <= largest:
        raise UsageError(f"{what} {value!r}: it must be an integer from {smallest} to {largest}")
    if value % multiple:
        raise UsageError(f"{what} {value}: it must be a multiple of {multiple}")
