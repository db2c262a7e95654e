"""The content of a store for people and programs: info, doctor, dump, tail, stats, trace, export, copy."""

__all__ = [
    "copy", "doctor", "dump", "export", "host", "info", "residency", "stats", "summary", "tail", "trace",
    "warm",
]  # fmt: skip
