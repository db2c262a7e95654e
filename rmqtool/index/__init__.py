"""Index files: header, chains, the entries of many keys, and how they are built from the log."""

__all__ = ["blocks", "build", "index_file", "many_keys"]
