"""The expiry of a store's files, by the broker's rules or an operator's, and its consequences.

The broker's decision and its settings are in `broker.expiry_rules` and `broker.expiry_settings`.

    own_rules.py   an operator's decision
    losses.py      messages that are still needed; the offsets of each queue before and after
    expiry.py      `plan_expiry`: the facts of a store, the decision, the forecast of its disk
    archive.py     verified copies of the deleted files, with a manifest
    remove.py      the deletion, under the store's lock

Source: DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService; spec 02 section 7.
"""

from rmqtool.repair.expire.expiry import Expiry, Options, Request, as_plan, plan_expiry
from rmqtool.repair.expire.own_rules import OwnRules

__all__ = [
    "Expiry", "Options", "OwnRules", "Request", "archive", "as_plan", "expiry", "own_rules", "plan_expiry",
    "remove", "report",
]  # fmt: skip
