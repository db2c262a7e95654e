"""The history of one message: the engine of `lookup --trace`.

    related.py   the records of the same message: delayed, half, retried, dead, delivered
    steps.py     each of them as a step, and whether the step is finished
    groups.py    whether the offset of each consumer group has passed the message
    traces.py    the reports of clients: who sent it, who consumed it, with which result
    outcome.py   all of this together

A message keeps its UNIQ_KEY on its way through the broker's topics, so its records can be found.
"""

from rmqtool.report.trace.outcome import FIELDS, Fate, message_fate, table_fields
from rmqtool.report.trace.steps import unique_key

__all__ = ["FIELDS", "Fate", "message_fate", "table_fields", "unique_key"]
