"""The structures that rmqtool-store(5) describes, in its order."""

from __future__ import annotations

from rmqtool.formats import (
    batch,
    checkpoint,
    compaction,
    config_json,
    consume_queue,
    epoch,
    index,
    ledger,
    markers,
    message,
    message_id,
    pop_record,
    properties,
    rocksdb,
    rocksdb_queue,
    rocksdb_timer,
    tiered,
    timer,
    trace,
)
from rmqtool.formats.declare import Layout
from rmqtool.formats.parts import Part

_RECORD_TEXT = (
    "One message in commitlog/. Records follow each other without padding, and no record spans two files:"
    " a record of n bytes is written only if n + 8 bytes are left."
)
_BATCH_TEXT = (
    "One message in the body of a batch record (sys_flag bit 80) and in a batch send request. Items follow"
    " each other; the other fields of the record apply to all of them."
)


def _titled(*layouts: Layout) -> tuple[tuple[str, Part | Layout, str], ...]:
    return tuple((layout.name, layout, layout.text) for layout in layouts)


STRUCTURES: tuple[tuple[str, Part | Layout, str], ...] = (
    ("message record", message.RECORD, _RECORD_TEXT),
    *_titled(message.BLANK, properties.CRC_PROPERTY),
    ("batch item", batch.ITEM, _BATCH_TEXT),
    *_titled(message_id.OFFSET_MESSAGE_ID[4], message_id.UNIQUE_ID[4], message_id.GRPC_UNIQUE_ID),
    *_titled(consume_queue.UNIT, consume_queue.BATCH_UNIT),
    *_titled(rocksdb_queue.UNIT_VALUE, rocksdb_queue.END_VALUE),
    ("consume queue extension unit", consume_queue.EXT_UNIT, consume_queue.EXT_UNIT_TEXT),
    *_titled(index.HEADER, index.SLOT, index.ENTRY, checkpoint.CHECKPOINT),
    ("abort", markers.ABORT, markers.ABORT_TEXT),
    ("lock", markers.LOCK, markers.LOCK_TEXT),
    ("config files", config_json.DOCUMENT, config_json.TEXT),
    *_titled(timer.SLOT, timer.LOG_UNIT, timer.LOG_BLANK, timer.CHECK, rocksdb_timer.VALUE),
    ("epoch file", epoch.EPOCH_FILE, epoch.TEXT),
    *_titled(ledger.HEADER, ledger.FILE_END, ledger.INDEX_UNIT),
    ("DLedger state files", ledger.STATE, ledger.STATE_TEXT),
    ("POP record", pop_record.VALUE, pop_record.TEXT),
    ("compaction checkpoint", compaction.POSITIONS, compaction.TEXT),
    *_titled(tiered.CODA, tiered.INDEX_HEADER, tiered.INDEX_SLOT, tiered.INDEX_ITEM),
    ("tiered metadata", tiered.DOCUMENT, tiered.TEXT),
    ("trace body", trace.BODY, trace.TEXT),
    *_titled(rocksdb.FOOTER, rocksdb.TRAILER, rocksdb.KEY_TAIL, rocksdb.LOG_HEAD, rocksdb.BATCH_HEAD),
)
"""(title, declaration, text) of every structure, in the order of the manual page."""
