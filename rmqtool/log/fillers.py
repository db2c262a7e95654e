"""Which records of a batch are fillers of `recover`, by whole arrays, as `formats.filler.is_filler` says."""

from __future__ import annotations

import numpy as np

from rmqtool.formats import filler
from rmqtool.formats.message import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from rmqtool.log.frames import Frames
from rmqtool.log.string_ranges import bodies, gather, hosts
from rmqtool.storage.buffers import Array

_FULL = 0xFF  # every byte of a filler's body


def filler_places(frames: Frames, mask: Array | None = None) -> Array:
    """Which of the records, or of those of `mask`, are fillers: rising places, shape (fillers,).

    The hosts decide almost always, and of these one byte: no body is looked at for other records.
    """
    places: Array = np.arange(len(frames.rows)) if mask is None else np.flatnonzero(mask)
    for born in (True, False):
        found = hosts(frames, born=born)
        places = places[found.lengths[places] == len(filler.HOST)]
        for place in reversed(range(len(filler.HOST))):  # the port comes last, and is 0 in no real host
            is_like = found.data[found.starts[places] + place] == filler.HOST[place]
            places = places[is_like]
    if not len(places):
        return places
    rows = frames.rows[places]
    is_filler = (rows["sys_flag"] & TRANSACTION_MASK) != TRANSACTION_ROLLBACK
    if not is_filler.all():
        topic = filler.TAG.encode()
        is_own = np.array([topic.startswith(each) for each in frames.topics], np.bool_)
        is_filler |= is_own[rows["topic_id"]]
    column = gather(bodies(frames.at(places)))
    chosen: Array = places[is_filler & only_filling(column.offsets, column.data)]
    return chosen


def only_filling(offsets: Array, data: Array) -> Array:
    """Which bodies hold nothing but the bytes that fill a filler: bool, shape (rows,).

    Args:
        offsets: where each body starts in `data`, and the end of the last one, shape (rows + 1,).
        data: their bytes, u1.
    """
    found = np.ones(len(offsets) - 1, np.bool_)
    others = np.flatnonzero(data != _FULL)
    found[np.searchsorted(offsets, others, "right") - 1] = False
    return found
