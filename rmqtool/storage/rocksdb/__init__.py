"""RocksDB databases of a store, read without a library, because libraries write into the folder.

A new database is written by a library, in a folder next to the store.

    table       one .sst: index, blocks, range deletes
    database    the live tables and write-ahead logs of a folder, merged by sequence number
    config      topics, groups and offsets of a database as the JSON files that they stand for
    parts       which parts of a store are in databases that can be read
    messages    the database rocksdbstore: offsets of messages by key, timer messages
    writer      a new database, by the library rocksdict
    queues      the consume queues of a database as a `Storage`: each queue is one file of units

Reading writes, locks and creates nothing. It is in the room `storage` because the layout of a store
depends on it: a queue in RocksDB is listed and opened like one in files, so no reader of queues knows the
difference.
"""

__all__ = ["config", "database", "messages", "parts", "queues", "table", "writer"]
