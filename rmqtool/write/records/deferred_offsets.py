"""Properties that hold queue offsets, so that the record's size is known late.

INNER_BASE of a batch that is one record (5.x), and INNER_MULTI_QUEUE_OFFSET of a message that also
goes to light queues.

Source: BatchConsumeQueue#assignQueueOffset, MultiDispatch#wrapMultiDispatch (4.9),
LmqDispatch#wrapLmqDispatch, CommitLog#handlePropertiesForLmqMsg (5.x); spec 01 5.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rmqtool.formats import properties
from rmqtool.formats.java import java_utf8_encode
from rmqtool.formats.message import INNER_BATCH
from rmqtool.formats.properties import INNER_BASE, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET
from rmqtool.message.system_topics import BUILT_IN_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from rmqtool.storage.layout import can_be_folder
from rmqtool.storage.profile import Profile
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.property_map import first_string, illegal, map_string, put_wait_last

LMQ_PREFIX: Final = "%LMQ%"
_SEPARATOR: Final = ","
_RECORD_MAX: Final = (1 << 31) - 1


class DeferredOffsets(NamedTuple):
    """The queue offsets that a record waits for before its properties are complete.

    Attributes:
        found: the broker's map.
        stored: the property string of a record that is kept as it is; used again where the offsets
            are still the same.
        inner: INNER_BASE is wanted.
        light_queues: (name, queue id) of the light queues whose offsets are wanted.
        places: for each name in INNER_MULTI_DISPATCH its place in `light_queues`; None: it takes no
            part, and its offset is left empty.
        size_limit: bytes that the whole record may have.
        profile: whose rules hold.
    """

    found: dict[str, str]
    stored: bytes | None
    inner: bool
    light_queues: tuple[tuple[str, int], ...]
    places: tuple[int | None, ...]
    size_limit: int
    profile: Profile


def deferred_offsets(
    found: Mapping[str, str],
    topic: str,
    queue_id: int,
    sys_flag: int,
    options: WriteOptions,
    stored: bytes | None = None,
) -> DeferredOffsets | None:
    """Return the offsets that a message with the broker's map `found` waits for; None if it waits for none.

    Raises:
        IllegalMessageError: the name of a light queue cannot be, or is there twice.
    """
    inner = bool(sys_flag & INNER_BATCH) and options.profile.has_inner_batch
    names = _light_names(found, topic, options)
    light_queues: list[tuple[str, int]] = []
    places: list[int | None] = []
    for name in names:
        is_lmq = name.startswith(LMQ_PREFIX)
        if is_lmq or not options.profile.light_only_lmq:
            places.append(len(light_queues))
            light_queues.append((name, 0 if is_lmq else queue_id))
        else:
            places.append(None)
    if not inner and not names:
        return None
    # 5.x lets no record grow beyond the largest body by its light queues' offsets.
    size_limit = options.body_limit if names and options.profile.light_only_lmq else _RECORD_MAX
    return DeferredOffsets(
        dict(found), stored, inner, tuple(light_queues), tuple(places), size_limit, options.profile
    )


def _light_names(found: Mapping[str, str], topic: str, options: WriteOptions) -> list[str]:
    text = found.get(INNER_MULTI_DISPATCH, "")
    if not options.multi_dispatch or not text.strip():
        return []
    if options.profile.light_only_lmq and (
        topic == SCHEDULE_TOPIC or topic.startswith((RETRY_PREFIX, BUILT_IN_PREFIX))
    ):
        return []
    names = text.rstrip(_SEPARATOR).split(_SEPARATOR)  # Java's split: no empty pieces at the end
    for name in names:
        # Each names a folder. One named twice gets two units of one record, and with them a queue
        # that its own broker takes for damaged.
        if not can_be_folder(name):
            raise illegal(f"light queue {name[:40]!r}: no folder can have this name", column="properties")
    if len(set(names)) < len(names):
        raise illegal(f"{INNER_MULTI_DISPATCH} names a light queue twice", column="properties")
    return names


def deferred_bytes(late: DeferredOffsets, queue_offset: int, light_offsets: Sequence[int]) -> bytes:
    """The property string with its offsets, UTF-8.

    Args:
        late: of the message.
        queue_offset: the first that the record takes in its own queue.
        light_offsets: one for each of `late.light_queues`.
    """
    found = dict(late.found)
    if late.inner:
        found[INNER_BASE] = str(queue_offset)
    if late.places:
        texts = ["" if place is None else str(light_offsets[place]) for place in late.places]
        found[INNER_MULTI_QUEUE_OFFSET] = _SEPARATOR.join(texts)
    if late.stored is not None and properties.decode(late.stored) == found:
        return late.stored
    if not late.places:
        return java_utf8_encode(map_string(found, late.profile))
    if late.profile.stores_wait:
        put_wait_last(found)
        return java_utf8_encode(map_string(found, late.profile))
    return java_utf8_encode(first_string(found, late.profile))
