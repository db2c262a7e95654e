"""Tables of messages become records at the speed of memory: Arrow batches, checked and written as columns."""

__all__ = ["appender", "rows"]
