"""A subset of a store as a new store: the engine of `rmqtool copy`.

    topics.py    which topics are copied, under which names
    records.py   records as rows of a table, as they are stored
    run.py       a whole copy

A record keeps its content: times, hosts, flags, the stored body, the property string. Its physical offset
and its queue offset are new; queue offsets count from 0 in every queue without gaps.
"""

__all__ = ["run"]
