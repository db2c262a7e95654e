"""Counts, sizes, delays, rates, lag and pending messages: the engine of `rmqtool stats`.

    dimensions.py    the dimensions: topic, queue, tag, hour, day, size class
    groups.py        one pass over the log, summed up per group
    histogram.py     percentiles of many groups in bounded memory
    scanner.py       the one scan, which passes its batches to all aggregators
    duplicates.py    unique keys that were stored more than once
    transactions.py  half messages: open, committed, rolled back
    lag.py           the messages that consumer groups have not consumed, now or at an earlier time
    timeline.py      messages and bytes over time
    charts.py        the data of charts: messages per queue, what groups have not consumed over time
    pending.py       delayed and timer messages that wait, by delivery time
    overview.py      a request for any of these, in as few passes as possible; the rows of groups, the largest
                     messages

The log is read window by window and summed up as arrays; memory depends on the number of groups, not of
records. Every part yields rows (dicts with the names of its FIELDS).
"""

__all__ = [
    "charts",
    "dimensions",
    "duplicates",
    "groups",
    "lag",
    "overview",
    "pending",
    "scanner",
    "timeline",
    "transactions",
]
