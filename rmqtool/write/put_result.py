"""The result of a put: the position of the message."""

from __future__ import annotations

from typing import NamedTuple

from rmqtool.formats.message_id import offset_message_id


class PutResult(NamedTuple):
    """Where a message, or the first of a batch, was stored.

    Attributes:
        physical_offset: of the record in the commit log.
        queue_offset: in its queue.
        size: bytes of the record, of a batch all of them.
        topic: under which it is stored: of a delayed or half message not the one that it names.
        queue_id: of that topic.
        store_timestamp: ms since 1970.
        physical_offsets: of every record of a batch; of one message its own.
        store_host: as in the records.
        flushed: whether all of it is known to be on the device.
    """

    physical_offset: int
    queue_offset: int
    size: int
    topic: str
    queue_id: int
    store_timestamp: int
    physical_offsets: tuple[int, ...]
    store_host: bytes
    flushed: bool

    @property
    def message_ids(self) -> tuple[str, ...]:
        """The offset message id of every record."""
        return tuple(offset_message_id(self.store_host, offset) for offset in self.physical_offsets)
