"""The engine's write path: what a broker does between a record and its bytes in log, queues and index.

log_writer.py             records -> commit log files
dispatcher.py             commit log -> queue_writer.py, index_writer.py (the broker's reput)
cut_back.py               queues and index back to where they are known to be complete
targets.py, topics.py     which queue a message goes to; topics.json
schedule.py               delayed messages that are due
opening.py, last_file.py  the checks before; permission.py: those that only a dry run needs
store_writer.py           all of it: `StoreWriter.create` and `StoreWriter.open`; flushes in the background
group_commit.py           puts that wait for the device, of several threads

Messages come in one way. `ingest` reads every input (JSON lines, CSV, Parquet, Arrow, the rows of Spark) into
Arrow batches of one schema, `table.schema`. `table` encodes the plain rows of a batch together, and passes
every other row to `StoreWriter.append`, as a program passes its single messages. `records` holds the rules by
which a message becomes a record.
"""

__all__ = [
    "cut_back",
    "dispatcher",
    "extension_writer",
    "index_writer",
    "ingest",
    "log_writer",
    "opening",
    "options",
    "put_result",
    "queue_writer",
    "records",
    "reput",
    "schedule",
    "state",
    "store_writer",
    "table",
    "topics",
]
