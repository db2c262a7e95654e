"""Findings from the ends of queues and index: what is ahead of the log, or gone.

Nothing is read but the small files: the newest units, the headers of the index and the log's end are what
`info` has read already. `verify` reads the rest.

Source: ConsumeQueue#truncateDirtyLogicFiles, IndexService#load, ConsumerOffsetManager#commitOffset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from rmqtool.errors import InputError
from rmqtool.formats import config_json
from rmqtool.log.log_files import Tail
from rmqtool.problems import Finding, finding
from rmqtool.queue.consume_queue import Span
from rmqtool.read.known_topics import topic_names
from rmqtool.read.lost_config import CONSUMER_OFFSETS
from rmqtool.read.store import Store
from rmqtool.storage.config_files import FOLDER, read_config

Spans = Mapping[tuple[str, int], Span]


def is_judged(store: Store) -> bool:
    """Whether the ends show damage: a whole store that no broker is changing, of which all can be read."""
    layout = store.layout
    is_whole = layout.kind == "store" and bool(layout.commit_log)
    return is_whole and not (store.live or layout.unsupported or layout.unreadable or store.failures)


def ahead(spans: Spans, tail: Tail, index: Mapping[str, Any] | None) -> Iterator[Finding]:
    """CQ03 and IX04, once for all queues and once for the index: what points past the log's last record."""
    newest = {key: span.last for key, span in spans.items() if span.last is not None}
    queues = sorted(
        key for key, unit in newest.items() if not unit.is_pre_blank and unit.physical_offset >= tail.end
    )
    if queues:
        count = "1 queue points" if len(queues) == 1 else f"{len(queues)} queues point"
        names = list(dict.fromkeys(topic for topic, _ in queues))
        found = finding("CQ03", "consumequeue", queues=len(queues), topics=names, log_end=tail.end)
        yield replace(found, message=f"{count} past the last record of the log")
    if index is not None and index["last_physical_offset"] >= tail.end > 0 and index["entries"]:
        found = finding("IX04", "index", last_physical_offset=index["last_physical_offset"], log_end=tail.end)
        yield replace(found, message="the index points past the last record of the log")


def missing(store: Store, index_timestamp: int) -> Iterator[Finding]:
    """CQ13 and IX10: queues without files from which groups have consumed, and an index that was written.

    `index_timestamp` is the index time of the checkpoint, 0 for none.
    """
    root = store.layout.root
    assert root is not None, "a store has a root"
    try:
        offsets = config_json.consumer_offsets(read_config(root / FOLDER, CONSUMER_OFFSETS).document or {})
    except InputError:  # a finding of its own
        offsets = {}
    for topic, queue_id in consumed_without_files(store, offsets):
        found = finding("CQ13", f"consumequeue/{topic}/{queue_id}", topic=topic, queue_id=queue_id)
        yield replace(found, message="groups have consumed from this queue, but it has no files")
    if index_timestamp > 0 and not store.layout.index_files:
        found = finding("IX10", "index", index_timestamp=index_timestamp)
        yield replace(found, message="the checkpoint has the time of an index, but there is no index")


def consumed_without_files(
    store: Store, offsets: Mapping[tuple[str, str], Mapping[int, int]]
) -> list[tuple[str, int]]:
    """Queues of the store's topics that have no files, though a group has committed an offset above 0.

    `offsets` are the committed ones by queue id, by (topic, group). A topic that was deleted is none of the
    store's: a broker may keep its offsets.
    """
    committed = {
        (topic, queue_id)
        for (topic, _), of_queues in offsets.items()
        for queue_id, offset in of_queues.items()
        if offset > 0 and (topic, queue_id) not in store.queues
    }
    topics = topic_names(store.layout) if committed else set()
    return sorted(key for key in committed if key[0] in topics)
