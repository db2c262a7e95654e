"""Consumers that pull as fast as they are answered, and drop what they get.

As a push consumer each has one connection, and one pull under way for each of its queues.
"""

from __future__ import annotations

import re
import selectors
import socket
from collections.abc import Sequence
from typing import NamedTuple

from rmqtool.formats.remoting import Command, encode
from rmqtool.formats.remoting_codes import Request, Response

_NEXT = re.compile(rb'"nextBeginOffset":"(\d+)"')
_CODE = re.compile(rb'"code":(\d+)')
_OPAQUE = re.compile(rb'"opaque":(\d+)')
_BUFFER_BYTES = 8 << 20
_PATIENCE_S = 60.0
_HAS_SUBSCRIPTION = 4  # PullSysFlag
_MARK_BYTES = 8


class Pulled(NamedTuple):
    """What all consumers have got: messages, and bytes of records."""

    messages: int
    bytes: int


class _Consumer:
    """One connection; `queues` are the queue ids, with where each ends."""

    def __init__(self, address: tuple[str, int], topic: str, queues: dict[int, int]) -> None:
        self._topic = topic
        self._ends = queues
        self._offsets = dict.fromkeys(queues, 0)
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self.messages = self.bytes = 0
        self.socket = socket.create_connection(address, _PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def is_done(self) -> bool:
        return self._offsets == self._ends

    def begin(self) -> None:
        self.socket.sendall(b"".join(map(self._request, self._offsets)))

    def _request(self, queue: int) -> bytes:
        fields = {
            "consumerGroup": "bench", "topic": self._topic, "queueId": str(queue),
            "queueOffset": str(self._offsets[queue]), "maxMsgNums": "32", "sysFlag": str(_HAS_SUBSCRIPTION),
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
            "expressionType": "TAG",
        }  # fmt: skip
        return encode(Command(Request.PULL_MESSAGE, fields, opaque=queue, version=493, language="JAVA"))

    def read(self) -> None:
        """Take what has come, and ask for what follows."""
        count = self.socket.recv_into(self._view[self._filled :])
        assert count, "the server has closed the connection"
        self._filled += count
        position, requests = 0, []
        while self._filled - position >= _MARK_BYTES:
            length = int.from_bytes(self._view[position : position + 4])
            end = position + 4 + length
            if end > self._filled:
                break
            header = 0xFF_FF_FF & int.from_bytes(self._view[position + 4 : position + _MARK_BYTES])
            requests += self._answer(
                bytes(self._view[position + _MARK_BYTES : position + _MARK_BYTES + header]),
                length - 4 - header,
            )
            position = end
        self._view[: self._filled - position] = self._view[position : self._filled]
        self._filled -= position
        if requests:
            self.socket.sendall(b"".join(requests))

    def _answer(self, header: bytes, body_bytes: int) -> Sequence[bytes]:
        code, queue, following = (pattern.search(header) for pattern in (_CODE, _OPAQUE, _NEXT))
        assert code is not None and queue is not None and following is not None, header
        assert int(code[1]) == Response.SUCCESS, header
        number, offset = int(queue[1]), int(following[1])
        self.messages += offset - self._offsets[number]
        self.bytes += body_bytes
        self._offsets[number] = offset
        return [self._request(number)] if offset < self._ends[number] else []


def pull_all(address: tuple[str, int], topic: str, ends: dict[int, int], consumers: int) -> Pulled:
    """Pull all messages of a topic, from offset 0; the consumers divide the queues among them."""
    each = [
        _Consumer(address, topic, {queue: end for queue, end in ends.items() if queue % consumers == number})
        for number in range(consumers)
    ]
    with selectors.DefaultSelector() as ready:
        for consumer in each:
            ready.register(consumer.socket, selectors.EVENT_READ, consumer)
            consumer.begin()
        while any(not consumer.is_done for consumer in each):
            events = ready.select(_PATIENCE_S)
            assert events, "the server does not answer"
            for key, _ in events:
                key.data.read()
    for consumer in each:
        consumer.socket.close()
    return Pulled(sum(one.messages for one in each), sum(one.bytes for one in each))
