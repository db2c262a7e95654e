"""The content of a store for people and programs: info, dump, tail, stats, trace, export, copy."""

__all__ = ["copy", "dump", "export", "info", "residency", "stats", "tail", "trace", "warm"]
