"""The history of one message: the engine of `lookup --trace`.

    steps.py     a record as a step, and whether the step is finished
    outcome.py   the records of the same message (delayed, half, retried, dead, delivered), which groups have
                 passed it, and what clients reported

A message keeps its UNIQ_KEY on its way through the broker's topics, so its records can be found.
"""

from rmqtool.report.trace.outcome import FIELDS, Fate, GroupState, groups_of_lost, message_fate, table_fields
from rmqtool.report.trace.steps import unique_key

__all__ = ["FIELDS", "Fate", "GroupState", "groups_of_lost", "message_fate", "table_fields", "unique_key"]
