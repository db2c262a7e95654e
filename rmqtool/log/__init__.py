"""The commit log as records.

`frames` is the one scan of whole files, in compiled code. `python_scan` is the same scan in plain Python, for
small reads and as the reference in tests. `commit_log` reads single records; `damage` classifies the bytes
between records.
"""

__all__ = [
    "arriving", "commit_log", "compiled", "crc", "damage", "dispatch", "dispatch_kernel", "events", "fillers",
    "frame_kernel", "frames", "intrinsics", "key_match", "log_files", "log_heads", "point_read",
    "properties", "python_scan", "remains", "rocksdb_block_kernel",
    "scan_cache", "segments", "store_intrinsics", "string_ranges",
]  # fmt: skip
