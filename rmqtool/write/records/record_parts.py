"""Parts that records share: topics, hosts, checksum; computed once, then looked up in a table.

Source: HookUtils#checkBeforePutMessage, TopicValidator#validateTopic, CommitLog#asyncPutMessage,
MessageExt#socketAddress2ByteBuffer; spec 01 3.2, 10.1.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable
from typing import NamedTuple

from rmqtool.formats.message import (
    BORN_HOST_V6,
    HEADS,
    HOST_V4_SIZE,
    HOST_V6_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
)
from rmqtool.lazy_pattern import pattern
from rmqtool.message.system_topics import (
    DISCARDED_TOPIC,
    HALF_TOPICS,
    OP_TOPICS,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
)
from rmqtool.storage.profile import Profile
from rmqtool.write.records.property_map import illegal

V1_TOPIC_BYTES = 127
_TOPIC = pattern(r"[%|a-zA-Z0-9_-]+")
_MAPPED_V6 = bytes(10) + b"\xff\xff"
_I16 = struct.Struct(">h")

CLOSED_TOPICS = frozenset({
    *HALF_TOPICS, *OP_TOPICS, DISCARDED_TOPIC, SCHEDULE_TOPIC, "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
})  # fmt: skip
"""Topics that no client may send to. Source: TopicValidator#NOT_ALLOWED_SEND_TOPIC_SET."""


class TopicParts(NamedTuple):
    """How a topic is stored: `data` is its length and its bytes. `closed`: not for clients."""

    magic: int
    data: bytes
    closed: bool


_PORT_SIZE = 4
_PORT_MAX = 65_535


class HostParts(NamedTuple):
    """How a pair of hosts is stored: with which bits of sys_flag and which head."""

    born: bytes
    store: bytes
    bits: int
    head_size: int
    pack_head: Callable[..., bytes]


def load_crc32() -> Callable[[bytes], int]:
    """The fastest CRC-32 that is installed."""
    try:
        module = importlib.import_module("isal.isal_zlib")
    except ImportError:
        module = importlib.import_module("zlib")
    crc32: Callable[[bytes], int] = module.crc32
    return crc32


def topic_parts(topic: str, profile: Profile) -> TopicParts:
    """Check a topic's name.

    A name that is allowed also names a folder safely: it has neither `/` nor a dot.

    Raises:
        IllegalMessageError: empty, other characters than a broker allows, or too long.
    """
    if not topic:
        raise illegal("the topic is empty", column="topic")
    if not _TOPIC.fullmatch(topic):
        raise illegal(
            f"topic {topic!r} has characters that no broker takes",
            hint="allowed are the letters a to z and A to Z, digits, and % | _ -",
            column="topic",
        )
    data = topic.encode("ascii")
    limit = profile.retry_topic_bytes if topic.startswith(RETRY_PREFIX) else V1_TOPIC_BYTES
    if len(data) > limit:
        raise illegal(f"topic {topic!r} has {len(data)} bytes: at most {limit} are allowed", column="topic")
    if len(data) > V1_TOPIC_BYTES:
        return TopicParts(MAGIC_V2, _I16.pack(len(data)) + data, False)
    return TopicParts(MAGIC_V1, bytes((len(data),)) + data, topic in CLOSED_TOPICS)


def host_parts(born: bytes, store: bytes) -> HostParts:
    """Check a pair of hosts; an IPv6 address that stands for an IPv4 one is stored as that, as in Java.

    Raises:
        IllegalMessageError: a host of other than 8 or 20 bytes, or a port that a client cannot read.
    """
    born, store = _plain_host(born, "born"), _plain_host(store, "store")
    bits = (len(born) == HOST_V6_SIZE and BORN_HOST_V6) | (len(store) == HOST_V6_SIZE and STORE_HOST_V6)
    return HostParts(born, store, bits, HEADS[bits].size, HEADS[bits].codec.pack)


def _plain_host(host: bytes, what: str) -> bytes:
    if len(host) not in (HOST_V4_SIZE, HOST_V6_SIZE):
        raise illegal(
            f"a {what} host of {len(host)} bytes: it must be an address of 4 or 16 and a port of 4",
            column=f"{what}_host",
        )
    port = int.from_bytes(host[-_PORT_SIZE:], signed=True)
    if not 0 <= port <= _PORT_MAX:  # a Java client takes the record for damaged, and those after it in a pull
        raise illegal(f"a {what} host with port {port}: it must be 0 to {_PORT_MAX}", column=f"{what}_host")
    return host[len(_MAPPED_V6) :] if len(host) == HOST_V6_SIZE and host.startswith(_MAPPED_V6) else host
