"""Files of messages: JSON lines, CSV, Parquet and Arrow, read in blocks into the columns of `table`."""

__all__ = ["append", "dry_run", "reader"]
