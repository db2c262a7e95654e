"""RocksDB databases of a store, read without a library, because libraries write into the folder.

    table       one .sst: index, blocks, range deletes
    database    the live tables and write-ahead logs of a folder, merged by sequence number
    queues      the consume queues of a database as a `Storage`: each queue is one file of units

Nothing is written, locked or created. It is in the room `storage` because the layout of a store depends on
it: a queue in RocksDB is listed and opened like one in files, so no reader of queues knows the difference.
"""

__all__ = ["database", "queues", "table"]
