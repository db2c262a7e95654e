"""From a selection to messages: the access path, frames, batches and rows; look-ups; `Store`.

`access` decides whether queues, index or the log answer a selection, `messages` reads what it decided.
"""

__all__ = [
    "access",
    "body_pattern",
    "boundaries",
    "broker_names",
    "by_time",
    "consumer_offsets",
    "coverage",
    "delay_levels",
    "delivered",
    "due_times",
    "fillers",
    "filter",
    "hit_batches",
    "hits",
    "kernels",
    "known_topics",
    "log_items",
    "lookup_explain",
    "lookup_request",
    "lost_config",
    "messages",
    "op_records",
    "pushed",
    "query_message",
    "reading",
    "residual",
    "selection",
    "split",
    "store",
    "table_files",
    "time_rows",
    "unread",
]
