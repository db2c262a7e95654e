"""What a store holds, for people and programs: info, browse, doctor, dump, tail, stats, export, sql, ..."""

__all__ = [
    "browse", "bundle", "copy", "doctor", "dump", "export", "info", "residency", "sql", "stats",
    "summary", "tail", "trace", "warm",
]  # fmt: skip
