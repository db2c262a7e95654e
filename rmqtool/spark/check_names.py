"""What the options of a batch read name and no store has: topics, queues, offsets in the log.

Not for streams: a topic may come later, and where a stream was read up to is checked by the stream. Nor for
`spark-scan`, whose selections are those of `dump` and which says by itself what is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from rmqtool.spark.queue_bounds import tell_loss

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.spark.offsets import QueueName
    from rmqtool.spark.options import SourceOptions
    from rmqtool.spark.stores import StoreLocation


def check_names(options: SourceOptions, stores: Sequence[tuple[StoreLocation, Store]]) -> None:
    """What of topics and queues that options name is in none of the stores.

    A store knows its topics by queues and by topics.json. Where one of them has neither, nobody can say.

    Raises:
        DataLossError: something is not there, unless `failOnDataLoss` is false.
    """
    if not options.topics and not options.assign:
        return
    from rmqtool.read.known_topics import topic_names

    names = [topic_names(store.layout) for _, store in stores]
    if not all(names):
        return
    known = set().union(*names)
    for topic in options.topics:
        if topic not in known:
            near = ", ".join(get_close_matches(topic, known))
            tell_loss(options, f"no store has the topic {topic}" + (f"; nearest: {near}" if near else ""))
    for name in options.assign:
        if not any(_has(store, name) for place, store in stores if name.broker in (None, place.broker_name)):
            tell_loss(options, f"option assign: no store has queue {name}")


def _has(store: Store, name: QueueName) -> bool:
    """Whether a store has the queue, as files or on paper; also where a system topic has no files."""
    from rmqtool.read.known_topics import queue_ids, topic_names

    if name.topic not in topic_names(store.layout):
        return False
    ids = queue_ids(store.layout, lambda topic: topic == name.topic)
    return ids is None or name.queue_id in ids


def log_bounds(store: Store) -> tuple[int, int] | None:
    """The first offset of the log, and the end of its last file; None where it has no files."""
    files = store.commit_log.files
    return (files[0].file_from_offset, files[-1].end) if files else None


def check_offsets(options: SourceOptions, place: StoreLocation, store: Store) -> None:
    """Offsets in the log that options name, and that lie outside of its files.

    Raises:
        DataLossError: as `check_names`.
    """
    bounds = log_bounds(store)
    for name, value in (
        ("startingPhysicalOffset", options.from_offset),
        ("endingPhysicalOffset", options.to_offset),
    ):
        if bounds is None or value is None or bounds[0] <= value <= bounds[1]:
            continue
        what = f"option {name}: the log has offsets {bounds[0]} to {bounds[1]}, not {value}"
        tell_loss(options, what, place.path)
