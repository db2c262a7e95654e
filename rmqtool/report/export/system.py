"""The column `system`: the meaning of system records, computed only for the few records that are."""

from __future__ import annotations

from datetime import tzinfo
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import properties
from rmqtool.formats.message import INNER_BATCH, TRANSACTION_MASK
from rmqtool.log.events import Blank
from rmqtool.message.cells import json_text
from rmqtool.message.system_topics import DLQ_PREFIX, RETRY_PREFIX, describe, is_system_topic
from rmqtool.read.due_times import due_of
from rmqtool.read.store import Store

READS = ("physical_offset", "topic", "sys_flag", "properties")
"""The columns from which it is computed."""
_PROPERTIES = pa.array([properties.REAL_TOPIC, properties.TIMER_OUT_MS])


class SystemColumn:
    """Computes the column; see `describe` for its values.

    Args:
        store: the store; its queues and broker.conf give the delivery times of delayed messages.
        tz: zone of the times in it; None is the local zone.
        bodies: include the bodies of the messages in a batch.
    """

    def __init__(self, store: Store, tz: tzinfo | None, *, bodies: bool) -> None:
        self._due_of = due_of(store)
        self._store = store
        self._tz = tz
        self._bodies = bodies

    def column(self, batch: pa.RecordBatch) -> pa.Array:
        """JSON objects for a batch with the columns of READS; null for ordinary messages.

        Raises UnreadableError for a record that cannot be read any more, unless its file was deleted.
        """
        rows = np.flatnonzero(_candidates(batch))
        offsets = batch.column("physical_offset").take(pa.array(rows)).to_pylist()
        texts = np.full(len(batch), None, object)
        for row, offset in zip(rows.tolist(), offsets, strict=True):
            texts[row] = self._text(offset)
        return pa.array(texts, pa.string())

    def _text(self, physical_offset: int) -> str | None:
        try:
            stored = self._store.commit_log.read(physical_offset)
        except FormatError:
            return None  # expired since it was read
        except UnreadableError as error:
            if error.is_gone:
                return None
            raise
        if isinstance(stored, Blank):
            return None
        found = describe(stored.message, due_of=self._due_of, tz=self._tz, bodies=self._bodies)
        return None if found is None else json_text(found)


def _candidates(batch: pa.RecordBatch) -> Any:
    """Which rows may be system records: all that are, and few others. Shape (rows,), bool."""
    topics = batch.column("topic").dictionary_encode()
    named = [is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
             for topic in topics.dictionary.to_pylist()]  # fmt: skip
    chosen = np.array([*named, False])[topics.indices.to_numpy(zero_copy_only=False)]
    chosen |= (batch.column("sys_flag").to_numpy() & (INNER_BATCH | TRANSACTION_MASK)) != 0
    maps = batch.column("properties")
    offsets = maps.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    keys = maps.keys.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    places = np.flatnonzero(pc.is_in(keys, value_set=_PROPERTIES).to_numpy(zero_copy_only=False))
    chosen[np.searchsorted(offsets - offsets[0], places, side="right") - 1] = True
    return chosen
