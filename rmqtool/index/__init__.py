"""Index files: `index_file` reads them, `build` makes entries from the keys of records."""

__all__ = ["build", "index_file"]
