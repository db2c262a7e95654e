"""The commit log as records.

`frames` is the one walk over whole files; it is compiled, and `python_scan` is the same walk in plain Python,
for small reads and as the reference of the tests. `commit_log` reads single records, `damage` names what a
walk found between them.
"""

__all__ = [
    "commit_log",
    "compiled",
    "crc",
    "damage",
    "dispatch",
    "dispatch_kernel",
    "events",
    "frame_kernel",
    "frames",
    "intrinsics",
    "log_files",
    "log_heads",
    "point_read",
    "properties",
    "python_scan",
    "scan_cache",
    "store_intrinsics",
    "string_ranges",
]
