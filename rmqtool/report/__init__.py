"""The content of a store for people and programs: info, browse, doctor, dump, tail, stats, export, ..."""

__all__ = [
    "browse", "copy", "doctor", "dump", "export", "host", "info", "residency", "stats", "summary", "tail",
    "trace", "warm",
]  # fmt: skip
