"""The index of tiered storage as index files: one for each queue, with its entries in the order of the log.

A broker puts the keys of all queues into one index file after the other. An index file of a store covers a
range of its log, and so here each queue has its own, made of the items of all index segments. Items whose
topic the metadata do not know, and files that are not an index, are left out: `verify` reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from rmqtool.errors import FormatError
from rmqtool.formats import index, tiered
from rmqtool.formats.index import Header, Shape
from rmqtool.storage.buffers import Array
from rmqtool.storage.queue_logs.model import Places

_SLOTS = 1 << 14
_MS = 1000


class Items(NamedTuple):
    """The items of an index file, and the time that their seconds count from, ms."""

    items: Array
    begin_timestamp: int
    end_timestamp: int


def items_of(read: Callable[[int, int], bytes], size: int) -> Items:
    """The items of a complete index file, without its slots.

    Args:
        read: reads bytes of the file: offset, length. Raises OSError.
        size: bytes of the file.

    Raises:
        FormatError: it is not such a file, or it has become shorter.
        OSError: it cannot be read.
    """
    header = tiered.decode_index_header(read(0, tiered.INDEX_HEADER.size))
    slots = tiered.slots_of(header, size)
    start = tiered.INDEX_HEADER.size + slots * tiered.INDEX_SLOT.size
    data = read(start, header.items * tiered.INDEX_ITEM.size)
    if len(data) < header.items * tiered.INDEX_ITEM.size:
        raise FormatError("tiered index: the file has become shorter")
    return Items(np.frombuffer(data, tiered.INDEX_ITEM.dtype), header.begin_timestamp, header.end_timestamp)


class IndexView:
    """Index files of queues.

    Args:
        found: the items of all index files.
        places: of every queue.
        topics: topic by its id.
    """

    def __init__(
        self, found: list[Items], places: Mapping[tuple[str, int], Places], topics: Mapping[int, str]
    ) -> None:
        total = sum(len(each.items) for each in found)
        self.shape = Shape(min(max(total, 1), _SLOTS), total + 2)
        self.begin = min((each.begin_timestamp for each in found), default=0)
        self.end = max((each.end_timestamp for each in found), default=0)
        self._entries = self._sorted(found, places, topics)

    def _sorted(
        self, found: list[Items], places: Mapping[tuple[str, int], Places], topics: Mapping[int, str]
    ) -> dict[tuple[str, int], Array]:
        """The entries of each queue that has some, in the order of the log."""
        entries: dict[tuple[str, int], list[Array]] = {}
        for each in found:
            items = each.items
            keys = (items["topic_id"].astype(np.int64) << 32) | items["queue_id"].astype(np.int64)
            order = np.argsort(keys, kind="stable")
            marks, starts = np.unique(keys[order], return_index=True)
            for mark, chosen in zip(marks.tolist(), np.split(order, starts[1:]), strict=True):
                key = topics.get(mark >> 32, ""), mark & 0xFFFFFFFF
                if key in places:
                    of_queue = items[chosen]
                    made = np.zeros(len(of_queue), index.ENTRY.dtype)
                    made["key_hash"] = of_queue["key_hash"]
                    made["physical_offset"] = places[key].places(of_queue["offset"].astype(np.int64))
                    late = (each.begin_timestamp - self.begin) // _MS
                    made["time_diff"] = np.clip(of_queue["seconds"].astype(np.int64) + late, 0, 0x7FFFFFFF)
                    entries.setdefault(key, []).append(made)
        result = {}
        for key, parts in entries.items():
            made = np.concatenate(parts)
            result[key] = made[np.argsort(made["physical_offset"], kind="stable")].astype(index.ENTRY.dtype)
        return result

    def file(self, key: tuple[str, int]) -> bytes:
        """The written part of a queue's index file; zeros follow."""
        entries = self._entries.get(key)
        if entries is None:
            return index.encode_header(Header(0, 0, 0, 0, 0, 1))
        entries = entries.copy()
        slots = entries["key_hash"].astype(np.int64) % self.shape.slots
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        numbers = order + 1
        previous = np.zeros(len(entries), np.int64)
        previous[1:] = np.where(ordered[1:] == ordered[:-1], numbers[:-1], 0)
        entries["previous"][order] = previous
        heads = np.zeros(self.shape.slots, ">i4")
        heads[ordered] = numbers  # of equal slots the last one stays
        header = Header(
            self.begin, self.end + _MS, int(entries["physical_offset"][0]),
            int(entries["physical_offset"][-1]), int(np.count_nonzero(heads)), len(entries) + 1,
        )  # fmt: skip
        return b"".join(
            (index.encode_header(header), heads.tobytes(), bytes(index.ENTRY_SIZE), entries.tobytes())
        )
