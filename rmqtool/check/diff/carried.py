"""The messages that only one of two logs has, by unique key: those to carry over to the other.

After a failover producers may have sent again what the other side holds too, or someone has carried
messages over before, at the end of two logs that have diverged or to replace fillers. A unique key names a
message of a topic, and with the number of deliveries a message of a retry topic; the CRC of the body tells
the messages of a client's batch apart, which share a unique key. Physical and queue offsets of the two logs
say nothing about each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqtool.check.diff.ends import SideName
from rmqtool.check.diff.operands import Operand
from rmqtool.check.diff.windows import Range, without
from rmqtool.formats.filler import HOST, is_filler
from rmqtool.formats.message_id import host_text
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.damage import CODE_BY_STATUS
from rmqtool.log.events import PROPERTIES_UNSOUND
from rmqtool.message.rows import OK
from rmqtool.problems import Finding
from rmqtool.read.selection import Selection

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Mask = np.ndarray[Any, np.dtype[np.bool_]]
    Offsets = np.ndarray[Any, np.dtype[np.int64]]

NOT_CARRIED = "RMQ_SYS*"
"""Topics whose messages mean nothing in another store: half messages, ops, traces."""
COMPARED_BYTES = 2 << 30
"""Most bytes of a range whose messages `carried` compares: it holds their keys in memory."""
_RANGES_MAX = 100
_PROPERTIES = CODE_BY_STATUS[PROPERTIES_UNSOUND]
_COLUMNS = (
    "physical_offset", "topic", "uniq_key", "reconsume_times", "body_crc", "born_host", "store_host", "status"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Carried:
    """The messages of one log in a range of physical offsets, which the other log has or lacks.

    Attributes:
        messages: all sound ones, without the topics `NOT_CARRIED` and without fillers.
        in_other: those of which the other log has the unique key, topic, number of deliveries and body CRC.
        without_key: those that have no unique key: whether the other log has them is unknown.
        ranges: ranges of physical offsets that hold all others, and those without a unique key, but
            none of `in_other`; empty if there are too many ranges.
        damaged: damaged places in this log, in the range.
        places: the smallest and the largest physical offset of `in_other` in the other log; None without.
        topics: number of messages by topic, without `in_other`.
        repeated: how many of `in_other` the other log has more often than this one.
        damaged_properties: messages with damaged properties, which are not in `messages`.
        system: sound messages of the topics `NOT_CARRIED`, which are not in `messages`.
    """

    messages: int
    in_other: int
    without_key: int
    ranges: tuple[Range, ...]
    damaged: int
    places: Range | None
    topics: Mapping[str, int]
    repeated: int
    damaged_properties: int
    system: int

    def row(self) -> dict[str, Any]:
        """As JSON."""
        first, last = self.places if self.places is not None else (None, None)
        return {
            "messages": self.messages,
            "in_other": self.in_other,
            "in_other_first_offset": first,
            "in_other_last_offset": last,
            "in_other_repeated": self.repeated,
            "only_here": self.messages - self.in_other - self.without_key,
            "without_uniq_key": self.without_key,
            "topics": dict(self.topics),
            "ranges": [{"from_offset": start, "to_offset": stop} for start, stop in self.ranges],
            "damaged_places": self.damaged,
            "damaged_properties": self.damaged_properties,
            "not_carried": self.system,
        }


class Wanted(NamedTuple):
    """Messages to compare: of the log of `side`, in [start, stop)."""

    side: SideName
    start: int
    stop: int


def carried(a: Operand, b: Operand, wanted: Sequence[Wanted], *, jobs: int) -> list[Carried]:
    """What the other log has of the messages in each of the wanted ranges.

    The other log is searched from the first of the wanted offsets on: a message that was carried over lies
    after the place that it was meant for.

    Args:
        a: one log.
        b: the other.
        wanted: the ranges; those of one side do not overlap.
        jobs: number of threads.
    """
    logs: dict[SideName, Operand] = {"a": a, "b": b}
    held = {each: _Messages.joined(_read(logs[each.side], each.start, each.stop, jobs)) for each in wanted}
    known: dict[SideName, _Known] = {}
    others: tuple[tuple[SideName, Operand], ...] = (("a", b), ("b", a))
    for name, other in others:
        mine = [found.names for each, found in held.items() if each.side == name]
        theirs = [(each, found) for each, found in held.items() if each.side != name]
        if mine:
            known[name] = _Known(mine, _all(other, min(each.start for each in wanted), theirs, jobs))
    return [held[each].compared(known[each.side], each.stop) for each in wanted]


def _all(
    side: Operand, start: int, held: Sequence[tuple[Wanted, _Messages]], jobs: int
) -> Iterator[_Messages]:
    """All messages of a log from an offset on; those that are held are not read again."""
    yield _Messages.nothing(0)
    yield from (messages for _, messages in held)
    read = sorted((each.start, each.stop) for each, _ in held)
    for low, high in without([(start, side.end)], read) if start < side.end else ():
        yield from _read(side, low, high, jobs)


def _read(side: Operand, start: int, stop: int, jobs: int) -> Iterator[_Messages]:
    """The messages of a log in [start, stop), in parts; the last one has none but counts the others."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from rmqtool.read.messages import message_batches

    found: list[Finding] = []
    chosen, system = Selection(from_offset=start, to_offset=stop), 0
    for batch in message_batches(
        side.store, chosen, columns=_COLUMNS, body="stored", jobs=jobs, report=found.append
    ):
        is_message = np.ones(batch.num_rows, bool)
        places = batch["physical_offset"].to_numpy()
        for row in np.flatnonzero(_has_hosts_of_filler(batch)).tolist():
            stored = side.store.find(int(places[row]))
            is_message[row] = stored is None or not is_filler(stored.message)
        topics, is_sound = batch["topic"].cast(pa.string()), _has_status(batch, OK)
        is_system = pc.starts_with(topics, NOT_CARRIED.rstrip("*")).to_numpy(zero_copy_only=False)
        system += int((is_system & is_message & is_sound).sum())
        others = ~is_system  # those between messages do not end a range
        wanted = pa.array(others)
        yield _Messages(
            places[others], topics.filter(wanted), _names(batch).filter(wanted), is_message[others],
            is_sound[others], _has_status(batch, _PROPERTIES)[others], 0,
        )  # fmt: skip
    yield _Messages.nothing(sum(each.problem.severity == "error" for each in found), system)


@dataclass(frozen=True, slots=True)
class _Messages:
    """Records of one log: their places and topics, and what identifies each, null without a unique key.

    `is_message` is whether each can be carried over if it is sound, `is_keyless` whether its properties are
    damaged. `damaged` and `system` are counts: see `Carried`.
    """

    places: Offsets
    topics: pa.Array
    names: pa.Array
    is_message: Mask
    is_sound: Mask
    is_keyless: Mask
    damaged: int
    system: int = 0

    @classmethod
    def nothing(cls, damaged: int, system: int = 0) -> _Messages:
        """No messages, and the counts."""
        import numpy as np
        import pyarrow as pa

        none, no_text = np.array([], bool), pa.array([], pa.string())
        return cls(np.array([], np.int64), no_text, no_text, none, none, none, damaged, system)

    @classmethod
    def joined(cls, parts: Iterable[_Messages]) -> _Messages:
        """All parts as one."""
        import numpy as np
        import pyarrow as pa

        all_parts = list(parts)
        return cls(
            np.concatenate([each.places for each in all_parts]),
            pa.concat_arrays([each.topics for each in all_parts]),
            pa.concat_arrays([each.names for each in all_parts]),
            np.concatenate([each.is_message for each in all_parts]),
            np.concatenate([each.is_sound for each in all_parts]),
            np.concatenate([each.is_keyless for each in all_parts]),
            sum(each.damaged for each in all_parts),
            sum(each.system for each in all_parts),
        )

    def compared(self, known: _Known, stop: int) -> Carried:
        """What the other log has of these messages, of which `stop` is the end."""
        import numpy as np
        import pyarrow as pa

        is_message = self.is_message & self.is_sound  # append refuses the others
        has_key = self.names.is_valid().to_numpy(zero_copy_only=False)
        places = known.places(self.names)
        in_other = (places >= 0) & is_message
        wanted = is_message & ~in_other
        # A range begins with the first wanted message, and ends before the next one that is not.
        edges = np.flatnonzero(np.diff(wanted.astype(np.int8), prepend=0, append=0))
        bounds = np.append(self.places, stop)
        ranges = [(int(bounds[first]), int(bounds[last])) for first, last in edges.reshape(-1, 2)]
        found = places[in_other]
        return Carried(
            int(is_message.sum()),
            len(found),
            int((is_message & ~has_key).sum()),
            tuple(ranges) if len(ranges) <= _RANGES_MAX else (),
            self.damaged,
            (int(found.min()), int(found.max())) if len(found) else None,
            {
                each["values"]: each["counts"]
                for each in self.topics.filter(pa.array(wanted)).value_counts().to_pylist()
            },
            known.repeated(self.names.filter(pa.array(is_message))),
            int((self.is_message & self.is_keyless).sum()),
            self.system,
        )


class _Known:
    """The messages of a log of which another one has the names, by name."""

    def __init__(self, names: Sequence[pa.Array], messages: Iterable[_Messages]) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = pa.concat_arrays(list(names))
        parts = []
        for each in messages:
            known = pc.is_in(each.names, value_set=wanted, skip_nulls=True).to_numpy(zero_copy_only=False)
            rows = np.flatnonzero(known & each.is_message & each.is_sound)
            parts.append((each.places[rows], each.names.take(pa.array(rows))))
        self._places = np.concatenate([places for places, _ in parts])
        self._names = pa.concat_arrays([found for _, found in parts])

    def places(self, names: pa.Array) -> Offsets:
        """The physical offset of a message with each of the names; -1 where there is none."""
        import numpy as np
        import pyarrow.compute as pc

        rows = pc.index_in(names, value_set=self._names, skip_nulls=True)
        rows = rows.fill_null(-1).to_numpy(zero_copy_only=False)
        found: Offsets = np.append(self._places, -1)[rows]
        return found

    def repeated(self, names: pa.Array) -> int:
        """The number of names that this log has more often than `names` has them."""
        import numpy as np
        import pyarrow.compute as pc

        here, there = names.drop_null().value_counts(), self._names.value_counts()
        rows = pc.index_in(here.field("values"), value_set=there.field("values"))
        rows = rows.fill_null(-1).to_numpy(zero_copy_only=False)
        counts = np.append(there.field("counts").to_numpy(), 0)[rows]
        return int((counts > here.field("counts").to_numpy()).sum())


def _names(batch: pa.RecordBatch) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = [
        pc.cast(batch[name], pa.string()) for name in ("topic", "reconsume_times", "body_crc", "uniq_key")
    ]
    return pc.binary_join_element_wise(*parts, "\x01")


def _has_status(batch: pa.RecordBatch, word: str) -> Mask:
    """Whether the status of each record begins with a code, or with `OK`."""
    import pyarrow.compute as pc

    found: Mask = pc.equal(pc.list_element(batch["status"], 0), word).to_numpy(zero_copy_only=False)
    return found


def _has_hosts_of_filler(batch: pa.RecordBatch) -> Mask:
    import pyarrow.compute as pc

    host = host_text(HOST)
    both = pc.and_(pc.equal(batch["born_host"], host), pc.equal(batch["store_host"], host))
    found: Mask = both.to_numpy(zero_copy_only=False)
    return found
