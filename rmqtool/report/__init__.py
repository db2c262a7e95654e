"""What a store holds, for people and for other programs: info, dump, tail, stats, trace, export, copy."""

__all__ = ["copy", "dump", "export", "info", "residency", "stats", "tail", "trace"]
