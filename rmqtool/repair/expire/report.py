"""An expiry as plain values, for JSON and for text output."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rmqtool.broker.expiry_settings import INTERVALS
from rmqtool.repair.expire.expiry import Expiry, FileDecision

_SETTING_NAMES = {
    "reserved_hours": "fileReservedTime",
    "delete_hours": "deleteWhen",
    "max_used_ratio": "diskMaxUsedSpaceRatio",
    "forcible_ratio": "diskSpaceCleanForciblyRatio",
    "warning_ratio": "diskSpaceWarningLevelRatio",
    "forcible": "cleanFileForciblyEnable",
    "batch_files": "deleteFileBatchMax",
    "replicas_per_disk": "replicasPerDiskPartition",
    "shared_forcible_ratio": "logicalDiskSpaceCleanForciblyThreshold",
    **{name: setting for name, setting, _ in INTERVALS},
}

Report = dict[str, Any]


def report(expiry: Expiry, now_ms: int, *, applied: bool = False) -> Report:
    """An expiry as plain values. Sizes are in bytes, `*_timestamp_ms` in ms since 1970.

    Keys: at_timestamp_ms, rules (the broker's version, or `own`), rules_candidates and rules_reason (if
    the version is assumed: the possible versions, and why it is unknown), settings, trigger,
    next_delete_timestamp_ms, disks, forecast, commit_log, files, queues, unconsumed, groups_unknown,
    pending, without_group, unknown, offsets_unknown, free_before, needed_after (what needs the first log
    file that is not free), usage, unread, goal, what_if (at the next deleteWhen, with limit null; above
    each limit), totals. The decision of a file is goes or stays; deleted or kept with `applied`.
    """
    words = ("deleted", "kept") if applied else ("goes", "stays")
    expired = expiry.expired
    return {
        "at_timestamp_ms": now_ms,
        "rules": "own" if expiry.trigger is None else expiry.rules_of.profile.name,
        "rules_candidates": [] if expiry.trigger is None else list(expiry.rules_of.candidates),
        "rules_reason": None if expiry.trigger is None else expiry.rules_of.reason,
        "settings": _settings(expiry),
        "trigger": None if expiry.trigger is None else asdict(expiry.trigger),
        "next_delete_timestamp_ms": expiry.next_delete_ms,
        "disks": _disks(expiry),
        "forecast": _forecast(expiry, now_ms),
        "commit_log": {
            "files": sum(decision.kind == "commitlog" for decision in expiry.files),
            "files_going": sum(decision.kind == "commitlog" for decision in expired),
            "start_before": expiry.start_before,
            "start_after": expiry.start_after,
        },
        "files": [_file(decision, words) for decision in expiry.files],
        "queues": [
            {
                "topic": each.topic, "queue_id": each.queue_id, "min_offset_before": each.min_before,
                "min_offset_after": each.min_after, "first_offset_after": each.first_after,
                "max_offset": each.max_offset,
                "messages_going": each.messages_going, "messages_staying": each.messages_staying,
                "becomes_empty": each.empty,
            }
            for each in expiry.effects.queues
        ],
        "unconsumed": [asdict(each) for each in expiry.losses.unconsumed],
        "groups_unknown": _groups_unknown(expiry),
        "pending": [asdict(each) for each in expiry.losses.pending],
        "without_group": expiry.losses.without_group,
        "unknown": list(expiry.losses.unknown),
        "offsets_unknown": list(expiry.offsets_unknown),
        "free_before": expiry.free_before,
        "needed_after": _needed(expiry),
        "usage": [each._asdict() for each in expiry.usage],
        "unread": [{"path": path, "reason": reason} for path, reason in expiry.unread],
        "goal": _goal(expiry),
        "what_if": _what_if(expiry),
        "totals": {
            "files_going": len(expired),
            "size_bytes": sum(decision.size for decision in expired),
            "allocated_bytes": sum(decision.allocated for decision in expired),
            "freed_bytes": expiry.freed_bytes,
            "messages_going": sum(each.messages_going for each in expiry.effects.queues),
            "queues_that_become_empty": sum(each.empty for each in expiry.effects.queues),
        },
    }  # fmt: skip


def _needed(expiry: Expiry) -> dict[str, Any]:
    return {
        "unconsumed": [asdict(each) for each in expiry.needed.unconsumed],
        "pending": [asdict(each) for each in expiry.needed.pending],
        "unknown": list(expiry.needed.unknown),
    }


def _what_if(expiry: Expiry) -> list[dict[str, Any]]:
    return [
        {
            "limit": _SETTING_NAMES.get(each.limit or ""), "at_timestamp_ms": each.at_ms,
            "used_ratio": each.used_ratio, "log_files_going": each.log_files,
            "freed_bytes": each.freed_bytes, "messages_going": each.messages,
            "messages_unconsumed": sum(row.messages for row in each.lost.unconsumed),
            "messages_pending": sum(row.messages for row in each.lost.pending),
            "unknown": list(each.lost.unknown),
        }
        for each in expiry.what_if
    ]  # fmt: skip


def _groups_unknown(expiry: Expiry) -> dict[str, Any] | None:
    found = expiry.losses.groups_unknown
    return None if found is None else {"messages_max": found.messages_max, "reasons": list(found.reasons)}


def _goal(expiry: Expiry) -> dict[str, int] | None:
    goal = expiry.goal
    if goal is None:
        return None
    return {"wanted_bytes": goal.wanted, "free_before_bytes": goal.before, "free_after_bytes": goal.after,
            "missing_bytes": goal.missing}  # fmt: skip


def _settings(expiry: Expiry) -> dict[str, Any]:
    """Each setting under its name in broker.conf, with its origin, and the configured value if it differs."""
    found = expiry.settings
    rows = {}
    for name, setting in _SETTING_NAMES.items():
        rows[setting] = {"value": getattr(found, name), "from": found.origins.get(name, "default")}
        if name in found.configured:
            rows[setting]["configured"] = found.configured[name]
    return rows


def _disks(expiry: Expiry) -> list[dict[str, Any]]:
    disks = expiry.disks
    rows = []
    for disk, found in disks.by_id.items():
        holds = ["commitlog"] * (disk in disks.log) + ["queues"] * (disk == disks.queue)
        rows.append({"holds": holds, "used_bytes": found.used, "usable_bytes": found.usable,
                     "reserved_bytes": found.reserved, "used_ratio": found.ratio,
                     "used_after_ratio": expiry.disks_after.by_id[disk].ratio,
                     "usable_after_bytes": expiry.disks_after.by_id[disk].usable})  # fmt: skip
    return rows


def _forecast(expiry: Expiry, now_ms: int) -> dict[str, Any]:
    found = expiry.forecast
    return {
        "log_bytes_per_s": found.log_bytes_per_s,
        "store_bytes_per_s": found.store_bytes_per_s,
        "measured_from_timestamp_ms": found.measured_from_ms,
        "measured_to_timestamp_ms": found.measured_to_ms,
        "reserved_bytes": found.reserved_bytes,
        "hours_that_fit": found.hours_that_fit,
        "reached": [
            {
                "limit": _SETTING_NAMES[each.name],
                "ratio": each.ratio,
                "after_ms": each.after_ms,
                "at_timestamp_ms": None if each.after_ms is None else now_ms + each.after_ms,
            }
            for each in found.reached
        ],
    }


def _file(decision: FileDecision, words: tuple[str, str]) -> dict[str, Any]:
    return {
        "path": decision.path, "kind": decision.kind, "decision": words[0 if decision.expires else 1],
        "reason": decision.reason, "pass": decision.round, "size_bytes": decision.size,
        "allocated_bytes": decision.allocated, "modified_timestamp_ms": decision.mtime_ms,
        "topic": decision.topic, "queue_id": decision.queue_id,
    }  # fmt: skip
