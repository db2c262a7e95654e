"""Counts, sizes, delays, rates, lag and what waits inside the broker: the engine of `rmqtool stats`.

    dimensions.py    what messages are counted by: topic, queue, tag, hour, day, size class
    groups.py        one pass over the log, added up per group
    histogram.py     percentiles of many groups in bounded memory
    scanner.py       the one walk, and who is told about its records
    texts.py         tags as codes
    timeline.py      messages over time, for charts
    messages.py      the rows of groups
    largest.py       the largest messages
    duplicates.py    unique keys that were stored more than once
    transactions.py  half messages: open, committed, rolled back
    lag.py           what consumer groups have not consumed
    pending.py       delayed and timer messages that wait, by the time when they are due
    past.py          what the store held at an earlier time
    overview.py      which of these were asked for, in one pass

The log is read once, window by window, and added up as arrays; memory depends on the number of
groups, not on that of records. Every part yields rows (dicts with the names of its FIELDS).
"""

__all__ = ["dimensions", "lag", "overview"]
