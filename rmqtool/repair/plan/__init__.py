"""Changes of a store: planned as data first, then carried out so that even a killed run can be undone.

    action.py       Action, Plan                            what would change
    fingerprint.py  Fingerprint, fingerprint                the store that a plan is for
    plan_file.py    write_plan, read_plan, agree            a plan on paper
    apply.py        apply                                   does a plan
    undo.py         undo, roll_back                         restores the former bytes
    backup.py       Backup, Manifest                        what was there before
    harness.py      show_plan, carry_out                    what a command does with its plan
    guard.py        keeps brokers out, names the unfinished runs

Plans are made by others: `salvage`, `rebuild`, `expire`.
"""

from rmqtool.repair.plan.action import Action, ActionKind, Build, Plan
from rmqtool.repair.plan.apply import Applied, apply, backup_folder, check_backup, default_backup
from rmqtool.repair.plan.fingerprint import Fingerprint, fingerprint
from rmqtool.repair.plan.harness import (
    OpenStore,
    Refusal,
    carry_out,
    held_store,
    not_overridden,
    settle_own,
    show_plan,
    steady,
    unready,
)
from rmqtool.repair.plan.plan_file import PlanFile, agree, check_unchanged, read_plan, write_plan
from rmqtool.repair.plan.undo import Earlier, Undone, roll_back, undo, undoable

__all__ = [
    "Action",
    "Applied",
    "Build",
    "Earlier",
    "Fingerprint",
    "ActionKind",
    "OpenStore",
    "Plan",
    "PlanFile",
    "Refusal",
    "Undone",
    "agree",
    "backup",
    "apply",
    "backup_folder",
    "carry_out",
    "changes",
    "check_backup",
    "check_unchanged",
    "default_backup",
    "documents",
    "fingerprint",
    "guard",
    "harness",
    "held_store",
    "not_overridden",
    "paths",
    "plan_file",
    "read_plan",
    "roll_back",
    "settle_own",
    "space",
    "show_plan",
    "steady",
    "undo",
    "undoable",
    "unready",
    "write_plan",
]
