"""Logs that belong to one queue each, shown as one store: tiered storage, and the logs of compacted topics.

model.py        what was found: queue logs, their segments, strays; the folders TOPIC/QUEUE that both have
view.py         a `Storage`: commitlog/, consumequeue/ and index/ as a broker has them, made when read
log_file.py     a segment as a file of the log        unit_file.py    a queue as one file of units
index_files.py  index segments as index files
tiered.py       finds a tiered copy (posix provider)  compacted.py    finds the logs in compaction/
find.py         which of them a folder is, and the layout of a store for them
"""

__all__ = ["compacted", "find", "model", "view"]
