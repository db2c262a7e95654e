"""Arrow batches of messages become records at the speed of memory.

schema.py      the columns of a message; single rows of them
columns.py     the columns of a batch as addresses and numbers; which rows need the careful path
batch.py       those columns made ready for `write.encode`
queues.py      the queues that rows go to, and their next offsets
messages.py    the columns of a list of messages
rows.py        columns into the log: `RowAppender`
pipe.py        the buffers on their way into the log
appender.py    tables: `TableAppender`
many.py        lists of messages: `ManyAppender`
"""

__all__ = ["appender", "many", "schema"]
