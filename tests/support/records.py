"""Records for tests: every field has a plain default, sizes and CRC are computed."""

from __future__ import annotations

from dataclasses import replace

from rmqtool.formats import filler, message, properties
from rmqtool.formats.message import Message

STORE_TIMESTAMP = 1_700_000_000_123  # 2023-11-14T22:13:20.123Z
is_filler = filler.is_filler
HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4)


def record(
    topic: str = "TopicTest",
    body: bytes = b"hello",
    found: dict[str, str] | bytes | None = None,
    **fields: int | bytes,
) -> Message:
    """A sound record at offset 0; `found` is its properties, decoded (5.x dialect) or as bytes."""
    stored = found if isinstance(found, bytes) else properties.encode(found or {}, dialect="5.x")
    topic_bytes = topic.encode()
    magic = message.MAGIC_V1 if len(topic_bytes) < 128 else message.MAGIC_V2
    values = Message(
        total_size=0, magic=magic, body_crc=message.masked_crc(body), queue_id=0, flag=0,
        queue_offset=0, physical_offset=0, sys_flag=0, born_timestamp=STORE_TIMESTAMP - 5,
        born_host=HOST, store_timestamp=STORE_TIMESTAMP, store_host=HOST, reconsume_times=0,
        prepared_transaction_offset=0, body_length=len(body), body=body, topic_bytes=topic_bytes,
        properties_length=len(stored), properties_bytes=stored,
    )  # fmt: skip
    values = replace(values, **fields)  # type: ignore[arg-type]
    lengths = len(values.body), len(values.topic_bytes), len(values.properties_bytes)
    size = message.record_size(values.version, values.sys_flag, *lengths)
    return values if "total_size" in fields else replace(values, total_size=size)
