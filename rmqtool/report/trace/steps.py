"""The records of one message as steps: the kind of each, and whether it is finished.

    kind                state
    stored              -
    half                open, committed, rolled_back, put_back (stored again, or discarded)
    half_discarded      -
    committed           -
    delayed, timer      waiting, delivered; None if unknown
    delayed_delivered, timer_delivered, retry, dead_letter   -

Steps without a state are complete with their record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import tzinfo
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rmqtool import times
from rmqtool.errors import InputError, RmqtoolError
from rmqtool.formats import config_json, properties
from rmqtool.formats import message as form
from rmqtool.formats import timer as timer_format
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.events import StoredMessage
from rmqtool.message.system_topics import DISCARDED_TOPIC, OP_TOPIC_OF, describe
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.due_times import due_of
from rmqtool.read.half_checks import checked_until
from rmqtool.read.op_records import op_of
from rmqtool.read.store import Store
from rmqtool.storage import config_files
from rmqtool.storage.config_files import read_file

if TYPE_CHECKING:
    from rmqtool.read.timer_loss import TimerLoss
    from rmqtool.storage.rocksdb.messages import Timers


Offsets = Mapping[tuple[str, str], Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Step:
    """One record of the message; `detail` comes from `system_topics.describe`."""

    stored: StoredMessage
    kind: str
    state: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)


def steps_of(
    store: Store,
    records: Sequence[StoredMessage],
    offsets: Offsets,
    tz: tzinfo | None,
) -> list[Step]:
    """The steps for `records`, which are in the order of the log."""
    view = _View(store, records, offsets)
    found, due = [], due_of(store)
    for number, stored in enumerate(records):
        described = describe(stored.message, tz=tz, bodies=False, due_of=due) or {}
        detail = dict(described)
        kind = str(detail.pop("kind", "stored"))
        state = None
        if kind == "half":
            state, more = view.half(number)
            finished = more.get("finished_timestamp_ms")
            time = {} if finished is None else {"finished_time": times.format_time(finished, tz)}
            detail |= more | time
        elif kind == "delayed":
            state = view.delayed(number, detail)
        elif kind == "timer":
            state = view.timer(number, detail)
        found.append(Step(stored, kind, state, detail))
    return found


class _View:
    """The context that decides whether a step is finished."""

    def __init__(self, store: Store, records: Sequence[StoredMessage], offsets: Offsets) -> None:
        self.store, self.records, self.offsets = store, records, offsets

    def half(self, number: int) -> tuple[str | None, dict[str, Any]]:
        """The state of a half message, and fields about the op record that finished it."""
        stored = self.records[number]
        committed = any(
            each.message.transaction_type == form.TRANSACTION_COMMIT
            and each.message.prepared_transaction_offset == stored.physical_offset
            for each in self.records[number + 1 :]
        )
        op, whole = self._op_of(stored)
        detail: dict[str, Any] = {} if op is None else {
            "op_physical_offset": op.physical_offset, "finished_timestamp_ms": op.message.store_timestamp
        }  # fmt: skip
        if committed:
            return "committed", detail
        if op is not None:
            return "rolled_back", detail
        if self._has_copy(number) or self._is_checked(stored):
            return "put_back", detail
        return ("open" if whole else None), detail

    def _has_copy(self, number: int) -> bool:
        """Whether a half message was stored again, or given up, after a check."""
        first = self.records[number].message
        return any(
            each.message.topic in (first.topic, DISCARDED_TOPIC)
            and each.message.born_timestamp == first.born_timestamp
            for each in self.records[number + 1 :]
        )

    def _is_checked(self, stored: StoredMessage) -> bool:
        message = stored.message
        queue = self.store.queues.get((message.topic, message.queue_id))
        end = None if queue is None else queue.max_offset()
        return message.queue_offset < checked_until(self.offsets, message.topic, message.queue_id, end)

    def _op_of(self, stored: StoredMessage) -> tuple[StoredMessage | None, bool]:
        """The op record of a half message, and whether all possible op records were searched."""
        topic = OP_TOPIC_OF[stored.message.topic]
        queue = self.store.queues.get((topic, stored.message.queue_id))
        if not isinstance(queue, ConsumeQueue):
            return None, self.store.layout.has_files_of_queues
        return op_of(self.store, stored.message), True

    def delayed(self, number: int, detail: Mapping[str, Any]) -> str | None:
        if self._has_twin(number, detail):
            return "delivered"
        folder = self.store.layout.config_folder
        if folder is None or self.store.layout.kind != "store":
            return None
        try:
            document = config_files.read_config(folder, config_files.DELAY_OFFSETS).document
            offset = config_json.delay_offsets(document).get(int(detail["level"]), 0)
        except RmqtoolError:
            return None
        message = self.records[number].message
        return "delivered" if message.queue_offset < offset else "waiting"

    def timer(self, number: int, detail: Mapping[str, Any]) -> str | None:
        if self._has_twin(number, detail):
            return "delivered"
        path, due = self.store.layout.timer_check, detail.get("deliver_timestamp_ms")
        if self._timers is not None and due is not None:
            return self._timer_in_rocksdb(number, due, self._timers)
        if self._timer_loss is not None:
            waiting = {each.key for each in self._timer_loss.pending if each.key}
            return "waiting" if unique_key(self.records[number]) in waiting else None
        if path is None or due is None:
            return None
        try:
            check = timer_format.decode_check(read_file(path, timer_format.CHECK_FILE_SIZE))
        except InputError:
            return None
        # Due and not delivered: deleted on request, or with its file.
        return "waiting" if due >= check.last_read_time else None

    def _timer_in_rocksdb(self, number: int, due: int, timers: Timers) -> str | None:
        """None for a message that is not kept there any more: delivered long ago, or recalled."""
        stored = self.records[number]
        is_kept = any(each.physical_offset == stored.physical_offset for each in timers.entries)
        if is_kept or stored.message.queue_offset >= timers.next_offset:
            return "delivered" if due <= timers.delivered_ms else "waiting"
        return None

    @cached_property
    def _timers(self) -> Timers | None:
        """The timer messages of a broker that keeps them in RocksDB; None also if they cannot be read."""
        from rmqtool.storage.rocksdb.messages import read_timers

        database = self.store.layout.rocksdb_messages
        try:
            return None if database is None else read_timers(database)
        except InputError:
            return None

    @cached_property
    def _timer_loss(self) -> TimerLoss | None:
        """What the timer has lost: the log shows then what waits. None also if it cannot be read."""
        from rmqtool.read.timer_loss import find_loss

        try:
            return find_loss(self.store) if self.store.layout.kind == "store" else None
        except InputError:
            return None

    def _has_twin(self, number: int, detail: Mapping[str, Any]) -> bool:
        """Whether a later record is the delivered form of this one."""
        attempts = self.records[number].message.reconsume_times
        return any(
            each.message.topic == detail.get("real_topic") and each.message.reconsume_times == attempts
            for each in self.records[number + 1 :]
        )


def unique_key(stored: StoredMessage) -> str | None:
    """The unique key of a message; None if it has none."""
    return properties.decode(stored.message.properties_bytes).get(properties.UNIQ_KEY) or None
