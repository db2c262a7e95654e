"""A support archive of a store: what describes it, without message bodies, with names replaced if wanted."""

__all__ = ["archive", "parts", "redaction"]
