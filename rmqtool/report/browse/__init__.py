"""What the screens of `rmqtool browse` show, as rows: plain functions over an open store.

    topics.py    topics, and the queues of one
    messages.py  the messages of one queue by the numbers of their units
    record.py    one record: its fields, its body, its bytes
    groups.py    consumer groups with their lag
    log.py       the files of the commit log, the records of one file

A page reads what is on it and nothing else: units by their number, records by their offset. So its cost
depends neither on the size of the store nor on the number of topics. Damage is a value of a row (`problems`,
codes of `rmqtool.problems`); an exception means that the whole page cannot be had.
"""

__all__ = ["groups", "log", "messages", "record", "topics"]
