"""Recover a store: what a broker's start would do to it, and one plan that keeps what is valid.

    request.py      Request                         what is asked for
    assemble.py     plan_and_predict, plan_recover  the plan: log, queues, index, and what follows elsewhere
    after.py        After                           the store as log, queues and index will be
    state.py        checkpoint and abort            offsets.py  committed and delay offsets
    timer.py        timer log, wheel, checkpoint    strays.py   epoch file, compaction checkpoint, strays
    refusals.py     what stands against it          run.py      recover_store, undo_recover

The order of truth: valid records of the log, then queues, then index, then the checkpoint (spec 02 15.4).
"""

from rmqtool.broker.rules import DEFAULT_HEAP_BYTES
from rmqtool.repair.recover.assemble import Recovery, plan_and_predict, plan_recover, predictions
from rmqtool.repair.recover.refusals import Refusal
from rmqtool.repair.recover.request import BROKERS, Broker, Fill, Mode, Request
from rmqtool.repair.recover.run import Outcome, recover_store, undo_recover

__all__ = [
    "BROKERS",
    "DEFAULT_HEAP_BYTES",
    "Broker",
    "Fill",
    "Mode",
    "Outcome",
    "Recovery",
    "Refusal",
    "Request",
    "after",
    "plan_and_predict",
    "plan_recover",
    "predictions",
    "recover_store",
    "state",
    "undo_recover",
]
