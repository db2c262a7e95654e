"""The names of the fields of a command's rows, as far as its options determine them.

For `--fields help`, which needs no store, and for completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from rmqtool.commands import ALIASES
from rmqtool.errors import UsageError

OPTIONS = ("fields", "columns")
"""The options that take names of fields, and `help`, which lists them."""


def requested(command: str, given: Mapping[str, Any]) -> Sequence[str] | None:
    """Return the names to list, if an option has `help` instead of names; None if none has, or STORE decides.

    Args:
        command: as it was typed.
        given: the words of its options and arguments by parameter, before they are checked: STORE, without
            which a command does nothing else, may be missing.

    Raises:
        UsageError: the names are those of the result of a query, which is missing.
    """
    if not any("help" in str(given.get(option) or "").split(",") for option in OPTIONS):
        return None
    name = command.replace("-", "_")
    name = ALIASES.get(name, name)
    if name == "sql" and not (given.get("store") and given.get("query")):
        raise UsageError("the fields are those of the query", hint="give STORE and the query too")
    if name == "sql" or (name == "dump" and given.get("store") and not given.get("what")):
        return None
    return field_names(name, given)


def field_names(command: str, given: Mapping[str, Any] | None = None) -> Sequence[str]:
    """Return the names of fields of the rows that a command shows; none if they are not fixed.

    `given`: as for `requested`; without it those of the usual rows.
    """
    given = given or {}
    match command.replace("-", "_"):
        case "dump":
            return _of_dump(given)
        case "tail":
            from rmqtool.report.dump.log import FIELDS

            return FIELDS
        case "lookup":
            return _of_lookup(given)
        case "stats":
            return _of_stats(given)
        case "export":
            from rmqtool.report.export.columns import COLUMNS

            return COLUMNS
        case "append":
            return _of_append(given)
        case "spark_scan":
            return _of_spark_scan(given)
        case module:
            return tuple(getattr(import_module(f"rmqtool.commands.{module}"), "COLUMNS", ()))


def _of_dump(given: Mapping[str, Any]) -> Sequence[str]:
    from rmqtool.report.dump.kinds import KINDS, columns_of

    what = given.get("what", "commitlog")
    if what not in KINDS:
        raise UsageError(f"--what: {what!r} is not one of {', '.join(KINDS)}")
    return columns_of(what, gaps=bool(given.get("gaps")), counts_only=bool(given.get("stats_only")))


def _of_lookup(given: Mapping[str, Any]) -> Sequence[str]:
    if given.get("trace"):
        from rmqtool.report.trace import FIELDS as TRACE_FIELDS

        return TRACE_FIELDS
    from rmqtool.read.lookup_request import FIELDS

    return FIELDS


def _of_stats(given: Mapping[str, Any]) -> Sequence[str]:
    """Those of the only section, or of the first one."""
    from rmqtool.report.stats import duplicates, lag, overview, pending, transactions
    from rmqtool.report.stats.dimensions import parse_by

    others = {
        "largest": field_names("dump"), "duplicates": duplicates.FIELDS, "delayed": pending.FIELDS,
        "transactions": transactions.FIELDS,
    }  # fmt: skip
    if given.get("by") is None:
        for option, names in others.items():
            if given.get(option):
                return names
    by = parse_by(given.get("by") or "topic")
    return lag.fields(by) if "group" in by else overview.fields(by)


def _of_append(given: Mapping[str, Any]) -> Sequence[str]:
    from rmqtool.commands.append import COLUMNS, SUMMARY

    one_by_one = given.get("show") == "messages" or given.get("transaction") is not None
    if given.get("dry_run") or (given.get("input") is not None and not one_by_one):
        return SUMMARY
    return COLUMNS if given.get("input") is not None else COLUMNS[1:]


def _of_spark_scan(given: Mapping[str, Any]) -> Sequence[str]:
    if given.get("explain"):
        from rmqtool.spark.scan_job import EXPLAIN_FIELDS

        return EXPLAIN_FIELDS
    if given.get("group_by") or given.get("stats"):
        from rmqtool.spark.scan_job_groups import QUEUE_FIELDS, group_fields, parse_groups

        return group_fields(parse_groups(given["group_by"])) if given.get("group_by") else QUEUE_FIELDS
    if given.get("verify"):
        return (*field_names("verify"), "broker_name")
    if given.get("rebuild_report"):
        from rmqtool.spark.scan_job_verify import REBUILD_FIELDS

        return (*REBUILD_FIELDS, "broker_name")
    if given.get("count"):
        return ("count",)
    from rmqtool.spark.scan_job_rows import FIELDS

    return FIELDS
