"""Which files of a store expire, by the broker's rules or an operator's, and what that means.

The broker's decision and its settings are in `broker.expiry_rules` and `broker.expiry_settings`.

    own_rules.py   an operator's decision
    gather.py      what both want to know of a store
    queues.py      offsets of each queue before and after
    losses.py      messages that somebody still waits for
    forecast.py    when the disk reaches each ratio
    expiry.py      all of it for one store: `plan_expiry`
    archive.py     copies of what goes, verified, with a manifest
    remove.py      the deletion, under the store's lock

Source: DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService; spec 02 section 7.
"""

from rmqtool.repair.expire.expiry import Expiry, Options, Request, as_plan, plan_expiry
from rmqtool.repair.expire.own_rules import OwnRules

__all__ = ["Expiry", "Options", "OwnRules", "Request", "as_plan", "plan_expiry", "queues", "remove", "report"]
