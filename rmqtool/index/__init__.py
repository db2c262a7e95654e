"""Index files: `index_file` reads them, `build` makes entries from the keys of records.

`rocksdb_entries` compares an index in RocksDB with records.
"""

__all__ = ["build", "index_file", "rocksdb_entries"]
