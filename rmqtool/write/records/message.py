"""A message as a producer passes it to the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from rmqtool.formats.body import Compression
from rmqtool.lazy_dataclass import dataclass


@dataclass(slots=True)
class NewMessage:
    """One message to store. `prepare` says what client and broker add to it.

    Attributes:
        topic: its topic; a delayed or half message is stored under another one and names this.
        body: the payload.
        tags: the one tag (property TAGS); None or empty: none.
        keys: the index keys (property KEYS, joined by a space).
        properties: further properties by name. As `bytes`: the property string of a stored
            record, kept as it is; then nothing is added and no rule rewrites topic or queue, and
            `tags`, `keys`, `uniq_key` and `delay_level` must not be given.
        queue_id: the queue of the topic; None leaves the choice to the writer.
        flag: the application's flag.
        sys_flag: bits to be set besides those that follow from the other values. With the
            COMPRESSED bit the body is assumed to be compressed already.
        born_timestamp: ms since 1970; None is now.
        born_host: 4 or 16 address bytes and the port as i32; None is the store host.
        store_timestamp: ms since 1970; None is the time of the append.
        store_host: like `born_host`; None is that of the writer's options.
        reconsume_times: how often a consumer has sent it back.
        prepared_transaction_offset: in a committed message the half message's physical offset.
        delay_level: 1 and more delays the message (property DELAY); 0 does not.
        wait: whether a `sync` put waits until it is flushed (property WAIT).
        uniq_key: the unique id (property UNIQ_KEY); None makes one.
        compression: how a body is compressed that is large enough (`compress_over`).
    """

    topic: str
    body: bytes = b""
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] | bytes = field(default_factory=dict)
    queue_id: int | None = None
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int | None = None
    born_host: bytes | None = None
    store_timestamp: int | None = None
    store_host: bytes | None = None
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    delay_level: int = 0
    wait: bool = True
    uniq_key: str | None = None
    compression: Compression = "none"
