"""A whole store, checked and summed up in one walk over its log: the data of `rmqtool report`.

    records.py   what the walk sees, added up in arrays of a fixed size: the map of the log, classes of sizes
                 and delays, compression
    collect.py   the walk itself, with the examination of `doctor`, the lag of groups, and what was left out

Memory depends on the number of topics and of findings, not of records.
"""

__all__ = ["collect", "records"]
