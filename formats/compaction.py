"""Compacted topics (5.x): how far each queue was compacted, from `compaction/position-checkpoint`.

The file is a configuration document (`fastjson`) with a `.bak`: `queueOffsetMap` maps `topic_queueId`
to the last queue offset that is compacted. The records of compacted topics are copied to
compaction/compactionLog/TOPIC/QUEUE, in the commit log's own format; compaction/compactionCq
holds batch consume queue units for them.

Source: CompactionPositionMgr, CompactionLog; spec 01 section 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqtool.errors import FormatError
from rmqtool.formats.fastjson import resolve
from rmqtool.formats.parts import GreedyString, Struct

POSITIONS = Struct(
    "document"
    / GreedyString("utf-8")
    * "JSON: queueOffsetMap holds the last compacted queue offset by topic_queueId; empty says"
    " whether the map is empty and is never read",
)
TEXT = "compaction/position-checkpoint: the progress of compaction of each queue (5.x)."
_QUEUE_SEPARATOR = "_"


def positions(document: Any) -> dict[tuple[str, int], int]:
    """The last compacted queue offset, by (topic, queue id).

    Raises:
        FormatError: no queueOffsetMap, a name that is not topic_queueId, or an offset that is not an integer.
    """
    table = resolve(document).get("queueOffsetMap", {}) if isinstance(document, dict) else None
    if not isinstance(table, dict):
        raise FormatError("compaction checkpoint: no queueOffsetMap")
    found: dict[tuple[str, int], int] = {}
    for name, offset in table.items():
        topic, _, queue_id = str(name).rpartition(_QUEUE_SEPARATOR)
        if not (topic and queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= 10):
            raise FormatError(f"compaction checkpoint: {str(name)[:80]!r} is not a topic_queueId")
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise FormatError(f"compaction checkpoint: the offset of {str(name)[:80]!r} is not an integer")
        found[topic, int(queue_id)] = offset
    return found


def document_of(offsets: Mapping[tuple[str, int], int]) -> dict[str, Any]:
    """The document for these offsets; the opposite of `positions`."""
    table = {f"{topic}{_QUEUE_SEPARATOR}{queue_id}": offset for (topic, queue_id), offset in offsets.items()}
    return {"empty": not table, "queueOffsetMap": table}
