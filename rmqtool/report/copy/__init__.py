"""A subset of a store as a new store: the engine of `rmqtool copy`.

    topics.py    which topics go along, under which names
    records.py   records as rows of a table, as they are stored
    run.py       a whole copy

A record keeps all that it holds: times, hosts, flags, the stored body, the property string. New are its
physical offset and its queue offset, which counts from 0 in every queue without gaps.
"""

__all__ = ["run"]
