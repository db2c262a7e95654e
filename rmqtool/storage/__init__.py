"""A store's files: where they are, how many, how they are read, and how they are written durably.

Local files, URLs and archives look the same to the other rooms: a layout, and sources of bytes. The lock,
the version table and the settings of broker.conf are here too. Nothing here knows what a record, a unit or
an entry is.
"""

__all__ = [
    "broker_conf",
    "buffers",
    "claim",
    "config_files",
    "counted_queues",
    "durable",
    "layout",
    "ledger",
    "listing",
    "locate",
    "lock",
    "next_command",
    "open_files",
    "out_of_reach",
    "output_guard",
    "page_cache",
    "permission",
    "prefetch",
    "profile",
    "queue_logs",
    "random_file",
    "ranges",
    "remote",
    "remote_url",
    "rocksdb",
    "roots",
    "single_file",
    "size_settings",
    "source",
    "storage",
    "unsupported",
    "usage",
]
