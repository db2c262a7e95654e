"""Changes of a store: planned as data first, then done so that a run can be undone, a killed one too.

    action.py       Action, Plan                            what would change
    fingerprint.py  Fingerprint, fingerprint                the store that a plan is for
    plan_file.py    write_plan, read_plan, agree            a plan on paper
    apply.py        apply                                   does a plan
    backup_folder.py  backup_folder, check_backup           where its backup is made
    rollback.py     roll_back                               gives back what a killed run has changed
    undo.py         undo                                    gives back the former bytes
    backup.py       Backup, Manifest                        what was there before
    held.py         held_store, steady                      the lock first, then the look
    guard.py        keeps brokers out, names the unfinished runs

Plans are made by others: `salvage`, `rebuild`, `expire`.
"""

from rmqtool.repair.plan.action import Action, Kind, Plan
from rmqtool.repair.plan.apply import Applied, apply
from rmqtool.repair.plan.backup_folder import backup_folder, check_backup, default_backup
from rmqtool.repair.plan.fingerprint import Fingerprint, fingerprint
from rmqtool.repair.plan.held import OpenStore, held_store, steady
from rmqtool.repair.plan.plan_file import PlanFile, agree, check_unchanged, read_plan, write_plan
from rmqtool.repair.plan.rollback import Earlier, roll_back
from rmqtool.repair.plan.undo import Undone, undo

__all__ = [
    "Action",
    "Applied",
    "Earlier",
    "Fingerprint",
    "Kind",
    "OpenStore",
    "Plan",
    "PlanFile",
    "Undone",
    "agree",
    "apply",
    "backup",
    "backup_folder",
    "changes",
    "check_backup",
    "check_unchanged",
    "default_backup",
    "documents",
    "fingerprint",
    "guard",
    "held",
    "held_store",
    "paths",
    "plan_file",
    "read_plan",
    "roll_back",
    "space",
    "steady",
    "undo",
    "write_plan",
]
