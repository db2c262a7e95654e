"""Whether a store is sound (`verify`), and where two stores part (`diff`)."""

__all__ = ["diff", "verify"]
