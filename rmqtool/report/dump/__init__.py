"""The content of a store, as rows: the engine of `rmqtool dump`.

    messages.py the selected messages by their access path, as rows, lines or bytes
    log.py      records, blanks and damaged ranges of the commit log, one by one
    place.py    what lies at one physical offset, field by field
    counts.py   how many records of which topic and queue
    queues.py   units of consume queues and batch consume queues
    index.py    headers, slots, entries and chains of index files
    pop.py      POP records in RocksDB
    timer.py    timer log, epoch file, compaction checkpoint
    kinds.py    which of these a value of `--what` means; the checkpoint and the configuration files

Every part yields rows (dicts with the names of its FIELDS) as they are read, and continues past
damage: a `report` function gets a `Finding` for each damaged range. An exception means "cannot continue".
"""

__all__ = ["kinds", "log", "place", "timer"]
