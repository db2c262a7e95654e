"""Consume queues: units by number, and how queues are built from the log."""

__all__ = [
    "build",
    "consume_queue",
    "extension",
    "light_queues",
    "newest",
    "pull_kernel",
    "rocksdb_units",
    "units",
]
