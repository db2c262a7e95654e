"""Pulls: what a consumer gets of a queue, and pulls that wait until there is something.

Source: PullMessageProcessor#processRequest, DefaultPullMessageResultHandler, PullRequestHoldService.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import lru_cache

from rmqtool.errors import FilterError, UsageError
from rmqtool.formats import message as form
from rmqtool.formats.remoting import Command
from rmqtool.formats.remoting_codes import Response
from rmqtool.lazy_dataclass import dataclass
from rmqtool.net.clients import Peer
from rmqtool.net.context import Context, Refusal, int_of, long_of, text_of
from rmqtool.net.records import Checked, checked_records
from rmqtool.net.view import ServedQueue, View
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.report.tail.get_message import (
    PULL_BYTES_MAX,
    PULL_BYTES_MIN,
    GetMessageResult,
    GetMessageStatus,
    Window,
    answer_pull,
)
from rmqtool.report.tail.subscription import Subscription, split_tags

COMMIT_OFFSET, SUSPEND, SUBSCRIPTION = 1, 2, 4
"""Bits of `sysFlag` (PullSysFlag)."""
SUSPEND_MAX_MS = 60_000
LATE_S = 2.0
"""How long a unit of a live store may be there before its record."""
_VERSION_5 = 412  # MQVersion V5_0_0_SNAPSHOT: older clients cannot read records of version 2
_EXPRESSION_MAX = 64 << 10  # as many as the header of a pull may have
_ANY_DISTANCE = 1 << 60  # bytes of memory: no record counts as on disk

_CODES = {
    GetMessageStatus.FOUND: Response.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: Response.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: Response.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: Response.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: Response.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: Response.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: Response.PULL_OFFSET_MOVED,
}


@dataclass(eq=False, slots=True)
class Pull:
    """One pull with its fields read; `offset` moves on past messages that do not match while it waits."""

    request: Command
    peer: Peer
    group: str
    topic: str
    queue_id: int
    offset: int
    most: int
    most_bytes: int
    suspend_ms: int
    wanted: Subscription
    deadline: float = 0.0
    is_waiting: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether all messages of an ordinary topic are wanted."""
        return not self.wanted.looks_inside and not self.topic.startswith("%")


@dataclass(slots=True)
class Outcome:
    """The answer to a pull; `may_wait`: there is nothing yet, and the client lets it wait."""

    answer: Command
    may_wait: bool = False
    next_offset: int = 0


@lru_cache(maxsize=1024)
def parsed_subscription(expression_type: str, text: str) -> Subscription:
    """The subscription that a client means.

    Raises:
        UsageError: it cannot be read.

    Source: FilterAPI#build.
    """
    if len(text) > _EXPRESSION_MAX:
        raise UsageError(f"an expression of {len(text)} characters; the most is {_EXPRESSION_MAX}")
    if expression_type in ("", "TAG"):
        return Subscription(split_tags(text))
    from rmqtool.read.filter import parse

    if expression_type != "SQL92":
        raise UsageError(f"unknown type of expression {expression_type!r}")
    return Subscription(filter=parse(text))


def read_pull(context: Context, view: View, request: Command, peer: Peer) -> Pull:
    """The pull of a request, in the order of a broker's checks.

    Raises:
        Refusal: the topic or queue is not there, or the subscription is not known.
        FormatError: a field is missing.
    """
    group, name, queue_id = (
        text_of(request, "consumerGroup"),
        text_of(request, "topic"),
        int_of(request, "queueId"),
    )
    topic = context.needed_topic(view, name)
    if not 0 <= queue_id < topic.queues:
        code = Response.INVALID_PARAMETER if context.names.is_5 else Response.SYSTEM_ERROR
        raise Refusal(code, f"queueId[{queue_id}] is illegal, topic:[{name}] readQueueNums:[{topic.queues}]")
    flags = int_of(request, "sysFlag")
    wanted = _wanted(context, request, group, name, is_given=bool(flags & SUBSCRIPTION))
    if flags & COMMIT_OFFSET and (commit := long_of(request, "commitOffset", -1)) >= 0:
        context.offsets.commit(group, name, queue_id, commit)
    suspend_ms = min(long_of(request, "suspendTimeoutMillis", 0), SUSPEND_MAX_MS) if flags & SUSPEND else 0
    return Pull(
        request,
        peer,
        group,
        name,
        queue_id,
        long_of(request, "queueOffset"),
        min(max(int_of(request, "maxMsgNums", 32), 1), context.limits.memory_count),
        int_of(request, "maxMsgBytes", PULL_BYTES_MAX),
        suspend_ms,
        wanted,
        time.monotonic() + suspend_ms / 1000,
    )


def _wanted(context: Context, request: Command, group: str, topic: str, *, is_given: bool) -> Subscription:
    expression_type, text = text_of(request, "expressionType", "TAG"), text_of(request, "subscription", "*")
    if not is_given:
        known = context.clients.groups.get(group)
        found = None if known is None else known.subscriptions.get(topic)
        if found is None:
            raise Refusal(
                Response.SUBSCRIPTION_NOT_EXIST, "the consumer's group info or subscription not exist"
            )
        if found.version < long_of(request, "subVersion", 0):
            raise Refusal(Response.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        expression_type, text = found.expression_type, found.text
    try:
        return parsed_subscription(expression_type, text)
    except (FilterError, UsageError) as error:
        raise Refusal(Response.SUBSCRIPTION_PARSE_FAILED, error.message) from error


def run_pull(context: Context, view: View, pull: Pull) -> Outcome:
    """Answer a pull with what is there now."""
    queue = view.queue(pull.topic, pull.queue_id)
    window = Window(0, 0, 0) if queue is None else queue.window
    if queue is not None and pull.offset + pull.most > window.high:
        window = queue.look()
    if queue is not None and (found := _usual(context, view, queue, window, pull)) is not None:
        return found
    result = answer_pull(
        view.store, None if queue is None else queue.queue, window, pull.offset, pull.most, pull.wanted,
        max_bytes=pull.most_bytes, memory_bytes=_ANY_DISTANCE, limits=context.limits,
    )  # fmt: skip
    if result.status is not GetMessageStatus.FOUND or queue is None:
        return _without_records(pull, result)
    return _with_records(context, view, queue, pull, result)


def _usual(context: Context, view: View, queue: ServedQueue, window: Window, pull: Pull) -> Outcome | None:
    """The answer with all messages from the offset on, if nothing about them is unusual."""
    if not (pull.is_plain and isinstance(queue.queue, ConsumeQueue) and window.low <= pull.offset):
        return None
    most_bytes = context.limits.memory_bytes
    if view.store.profile.limits_pull_bytes:
        most_bytes = min(most_bytes, max(pull.most_bytes, PULL_BYTES_MIN))
    found = context.whole.answer(
        view.log, queue.queue, pull.topic, pull.queue_id, pull.offset,
        min(window.high, window.end, pull.offset + pull.most),
        most_bytes=most_bytes, version_1=pull.request.version < _VERSION_5,
    )  # fmt: skip
    if found is None:
        return None
    count, records = found
    context.counters.messages[pull.topic] += count
    return Outcome(_found(pull, pull.offset + count, window, [records]))


def _without_records(pull: Pull, result: GetMessageResult) -> Outcome:
    if result.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE:
        code = Response.PULL_NOT_FOUND if pull.offset == 0 else Response.PULL_OFFSET_MOVED
    else:
        code = _CODES[result.status]
    answer = _answer(pull, code, result.next_begin_offset, result, str(result.status))
    return Outcome(answer, code is Response.PULL_NOT_FOUND, result.next_begin_offset)


def _answer(
    pull: Pull, code: Response, following: int, window: GetMessageResult | Window, remark: str
) -> Command:
    low, high = (
        (window.low, window.high) if isinstance(window, Window) else (window.min_offset, window.max_offset)
    )
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(following),
        "minOffset": str(low),
        "maxOffset": str(high),
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }
    return pull.request.answer(code, remark, fields)


def timed_out(view: View, pull: Pull) -> Command:
    """The answer to a pull that has waited for long enough."""
    queue = view.queue(pull.topic, pull.queue_id)
    window = Window(0, 0, 0) if queue is None else queue.window
    status = GetMessageStatus.OFFSET_OVERFLOW_ONE if window.high else GetMessageStatus.NO_MESSAGE_IN_QUEUE
    return _answer(pull, Response.PULL_NOT_FOUND, pull.offset, window, str(status))


def _with_records(
    context: Context, view: View, queue: ServedQueue, pull: Pull, result: GetMessageResult
) -> Outcome:
    """The records that are sound; the others are counted. Nothing after a record that has not come yet."""
    old_client = pull.request.version < _VERSION_5
    pieces: list[memoryview] = []
    following, messages = result.next_begin_offset, 0
    found = list(checked_records(view.log, pull.topic, pull.queue_id, result.records))
    late = _first_late(view, queue, found)
    for record, data, reason in found:
        if record.queue_offset == late:
            following = late
            break
        if reason is not None:
            context.counters.leave_out(pull.topic, pull.queue_id, record.queue_offset, reason)
            continue
        is_alone = old_client and _is_version_2(data)  # such a client drops what follows in the answer
        if is_alone and pieces:
            following = record.queue_offset
            break
        pieces.append(data)
        messages += record.count
        if is_alone:
            following = record.queue_offset + record.count
            break
    if not pieces:
        waits = following == pull.offset
        code = Response.PULL_NOT_FOUND if waits else Response.PULL_RETRY_IMMEDIATELY
        status = GetMessageStatus.OFFSET_FOUND_NULL if waits else GetMessageStatus.NO_MATCHED_MESSAGE
        return Outcome(_answer(pull, code, following, result, str(status)), waits, following)
    context.counters.messages[pull.topic] += messages
    return Outcome(_found(pull, following, result, pieces))


def _found(
    pull: Pull, following: int, window: GetMessageResult | Window, pieces: Sequence[bytes | memoryview]
) -> Command:
    answer = _answer(pull, Response.SUCCESS, following, window, str(GetMessageStatus.FOUND))
    answer.pieces = pieces
    return answer


def _first_late(view: View, queue: ServedQueue, found: list[Checked]) -> int | None:
    """The queue offset of the first record that may still be written; None where there is none.

    A copy of a live store can hold units before their records. Only what no sound record follows can be late,
    and only for a while.
    """
    if not view.live or found[-1].reason is None:
        return None
    sound = [place for place, each in enumerate(found) if each.reason is None]
    first, now = found[sound[-1] + 1 if sound else 0].record.queue_offset, time.monotonic()
    if queue.late is None or queue.late[0] != first:
        queue.late = first, now
    return first if now - queue.late[1] < LATE_S else None


def _is_version_2(data: memoryview) -> bool:
    return int.from_bytes(data[4:8], signed=True) == form.MAGIC_V2


class HeldPulls:
    """The pulls that wait, by topic and queue id."""

    def __init__(self, limit: int, peer_limit: int) -> None:
        self._limit = limit
        self._peer_limit = peer_limit
        self._by_queue: dict[tuple[str, int], dict[Pull, None]] = {}  # in the order of their coming
        self._by_peer: dict[int, dict[Pull, None]] = {}
        self.count = 0

    def hold(self, pull: Pull) -> bool:
        """Let a pull wait; False if too many do."""
        peer = id(pull.peer)
        if self.count >= self._limit or len(self._by_peer.get(peer, ())) >= self._peer_limit:
            return False
        self._by_queue.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        self._by_peer.setdefault(peer, {})[pull] = None
        self.count += 1
        return True

    def queues(self) -> list[tuple[str, int]]:
        """The queues for which some wait."""
        return list(self._by_queue)

    def of(self, topic: str, queue_id: int) -> list[Pull]:
        """Those that wait for a queue."""
        return list(self._by_queue.get((topic, queue_id), ()))

    def release(self, pull: Pull) -> None:
        """A pull waits no longer."""
        key = pull.topic, pull.queue_id
        waiting = self._by_queue[key]
        del waiting[pull]
        if not waiting:
            del self._by_queue[key]
        self.count -= 1
        own = self._by_peer[id(pull.peer)]
        del own[pull]
        if not own:
            del self._by_peer[id(pull.peer)]

    def due(self, now: float) -> Iterator[Pull]:
        """Those that have waited for long enough."""
        for waiting in list(self._by_queue.values()):
            yield from [pull for pull in waiting if pull.deadline <= now]

    def drop(self, peer: Peer) -> None:
        """Forget the pulls of a connection."""
        for pull in list(self._by_peer.get(id(peer), ())):
            self.release(pull)
