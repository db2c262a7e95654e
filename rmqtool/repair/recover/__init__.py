"""Recovers a store: predicts what a broker's start would do to it, and plans a repair that keeps valid data.

    request.py      Request                         the parameters
    assemble.py     plan_and_predict, plan_recover  the plan, and the reasons not to apply it
    after.py        After                           the store after the changes of log, queues and index
    state.py        checkpoint and abort            offsets.py  committed and delay offsets
    timer_loss.py   the timer after a loss          lost.py     what can be read of lost records
    timer.py        timer log, wheel, checkpoint    strays.py   epoch file, compaction checkpoint, strays
    run.py          recover_store, undo_recover

The order of truth: valid records of the log, then queues, then index, then the checkpoint (spec 02 15.4).
"""

from rmqtool.broker.rules import DEFAULT_HEAP_BYTES
from rmqtool.formats.versions import BROKERS, Broker
from rmqtool.repair.recover.assemble import Recovery, plan_and_predict, plan_recover, predictions
from rmqtool.repair.recover.request import Fill, Mode, Request
from rmqtool.repair.recover.run import Outcome, recover_store, undo_recover

__all__ = [
    "BROKERS",
    "DEFAULT_HEAP_BYTES",
    "Broker",
    "Fill",
    "Mode",
    "Outcome",
    "Recovery",
    "Request",
    "after",
    "plan_and_predict",
    "plan_recover",
    "predictions",
    "recover_store",
    "state",
    "undo_recover",
]
