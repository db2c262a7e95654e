"""The layout of a store for queue logs."""

from __future__ import annotations

from rmqtool.storage.broker_conf import BrokerConf
from rmqtool.storage.layout import IndexFilePath, QueueFiles, StoreFile, StoreLayout
from rmqtool.storage.queue_logs.model import SPAN
from rmqtool.storage.queue_logs.view import QueueLogs


def as_store(logs: QueueLogs, conf: BrokerConf | None = None) -> StoreLayout:
    """The layout of a tiered copy, or of the logs of compacted topics; broker.conf sets nothing."""
    layout = StoreLayout(logs.root, logs.kind, commit_log_folders=(logs.root / "commitlog",))
    layout.queue_logs, layout.broker_conf = logs, conf
    layout.commit_log = tuple(
        StoreFile(logs.root / file.inner, file.offset, file.size) for file in logs.log_files
    )
    layout.commit_log_file_size = SPAN
    for key, file in logs.queue_files.items():
        units = StoreFile(logs.root / file.inner, file.offset, file.size)
        layout.consume_queues[key] = QueueFiles(*key, logs.queue_folder(key), (units,), is_made=True)
    shape = logs.index_shape
    if shape is not None:
        layout.index_slots, layout.index_entries = shape.slots, shape.entries
        names = (logs.root / name for name in logs.index_files)
        layout.index_files = tuple(IndexFilePath(name, shape.size, name.name) for name in names)
    layout.unsupported = logs.unread
    return layout
