"""Messages of queues as a consumer gets them.

    get_message.py   one pull, with the broker's statuses and next offset
    subscription.py  tags and filters, as broker and client apply them
    start.py         where to begin: a position, a time, a group's offsets, the last N
    topics.py        which queues; `open_tail` puts the rest together
    follower.py      the messages of many queues in the log's order, as they come
    queue_tail.py    the units of one queue: files that roll, expire, are cut
    log_reader.py    records by their places
    bulk.py          rounds of many units, as Arrow batches, when it has fallen behind
    rows.py          what comes as rows, and rounds as lines of JSON or CSV, up to a limit

Reading takes no lock and writes nothing; a running broker does not notice it.
"""

__all__ = ["get_message", "log_reader", "rows", "start", "subscription", "topics"]
