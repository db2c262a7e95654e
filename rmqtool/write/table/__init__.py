"""Arrow batches of messages become records at the speed of memory.

schema.py      the columns of a message; single rows of them
columns.py     the columns of a batch as addresses and numbers; which rows need the careful path
batch.py       those columns made ready for `write.encode`
queues.py      the queues that rows go to, and their next offsets
appender.py    all of it: `TableAppender`
"""

__all__ = ["appender", "schema"]
