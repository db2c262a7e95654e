"""`rmqtool expire`: the files of a store that expire, and their deletion."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rmqtool.commands import changes, options
from rmqtool.commands.expire_text import Row, expire_lines
from rmqtool.commands.groups import Given, Only, with_groups
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, RefusedError, UsageError, worst_exit_code
from rmqtool.formats.versions import METAVAR
from rmqtool.lazy_pattern import pattern
from rmqtool.message.cells import with_times
from rmqtool.output import Output
from rmqtool.terminal import counted, format_size
from rmqtool.times import DAY_MS, format_time, parse_time, parse_zone

if TYPE_CHECKING:
    from datetime import tzinfo

    from rmqtool.read.store import Store
    from rmqtool.repair.expire import Expiry, Options
    from rmqtool.repair.expire.remove import Planned
    from rmqtool.repair.plan import PlanFile, Refusal


_OFFSET = pattern(r"[0-9]{1,19}", re.ASCII)
_DIGITS = pattern(r"[0-9]{20,}", re.ASCII)
_PERCENT = pattern(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)(%?)", re.ASCII)

Broker = Annotated[
    list[str] | None,
    typer.Option(
        "--broker",
        metavar=METAVAR,
        parser=options.parse_broker,
        help="Broker version whose rules and defaults apply. Default: the one that used STORE last.",
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Decide as of this time: ISO 8601, epoch milliseconds, now, today, yesterday, 14:30"
        " or '2h ago'. Default: now.",
    ),
]
KeepHours = Annotated[
    float | None,
    typer.Option(
        "--keep-hours", metavar="HOURS", min=0, help="Delete files last modified at least HOURS ago."
    ),
]
UntilFree = Annotated[
    str | None,
    typer.Option(
        "--until-free",
        metavar="SIZE|PERCENT",
        help="Delete files until this much space is free, for example 100G, or this part of the disk, for"
        " example 25%.",
    ),
]
DiskUsed = Annotated[
    str | None,
    typer.Option(
        "--disk-used",
        metavar="PERCENT",
        help="Decide as if this part of the disk were in use, for example 92%. Not with --apply.",
    ),
]
Before = Annotated[
    str | None,
    typer.Option(
        "--before",
        metavar="OFFSET|TIME",
        help="Delete files that end at or before this physical offset (a plain number), or that hold only"
        " messages stored before this time.",
    ),
]
Archive = Annotated[
    Path | None,
    typer.Option(
        "--archive",
        metavar="DIR",
        help="Before the deletion copy the files to this folder and verify the copies.",
    ),
]
All = Annotated[
    bool, typer.Option("--all", help="Show every file, queue and group, not only the first ones.")
]


@with_groups
def expire(
    *,
    store: options.StoreRootOptions,
    broker: Broker = None,
    at: At = None,
    keep_hours: KeepHours = None,
    until_free: UntilFree = None,
    before: Before = None,
    disk_used: DiskUsed = None,
    archive: Archive = None,
    change: Annotated[options.PlanOptions, Only("apply plan write_plan force")],
    all: All = False,
    shown: options.ObjectOutput,
    given: Given,
) -> int:
    r"""Show which files expire and who needs them; delete them.

    A broker deletes log files last modified at least fileReservedTime hours ago: during the hours of
    deleteWhen, and at any hour if disk usage exceeds diskMaxUsedSpaceRatio (a broker treats values below 10
    as 10 and above 95 as 95). Above 85 % it deletes files of any age; above 90 % it also refuses messages. It
    deletes the oldest files first, ten every ten seconds, stops at the first file that it keeps, and never
    deletes the last one. If the first file is still being read, the broker tries again every two minutes. It
    deletes a queue or index file when everything in it refers to offsets before the log's new start. Settings
    come from --broker-conf; the hours of deleteWhen are in the zone of --tz. A broker deletes in several
    passes. The plan shows all of them; the column pass has the number.

    The plan also shows, under what if, what the broker would delete at the next hour of deleteWhen, and if
    disk usage exceeded each of its limits. --disk-used 92% decides as if the disk were that full.

    --keep-hours, --until-free and --before replace these rules and apply at any hour. If several are
    given, a file must satisfy all of them. The last file and the file with the newest message are
    always kept. A warning says if --until-free cannot be reached.

    The plan counts the messages that groups have not consumed, and pending delayed, half and timer messages.
    If there are any, --apply needs --force. rmqtool deliver delivers overdue delayed messages. Topics for
    which no group has an offset only cause a warning: broadcasting consumers commit none. If
    consumerOffset.json, or the database with the offsets, is missing, empty or damaged and has no .bak, or
    offsets of some groups are still lost, it is unknown which groups need messages, and --apply needs --force
    too. Files of a store in use are never deleted. An interrupted run leaves a sound store: run it again.

    --archive first copies each file, reads the copy back, compares it, and lists it with its CRC in a
    manifest. On the disk of the store an archive frees nothing. Without --archive the deleted files are lost.
    The copies keep their relative paths; README.txt in the archive and rmqtool-recovery(7) describe how to
    restore all of them, or single log files.

    Exits with 0 when no file expires or --apply deleted all that do; 1 when files would be deleted; 2 for a
    usage error; 3 when something could not be read or written; 4 when refused; 5 when the store is in use.
    """
    from rmqtool.repair.expire.archive import frees_nothing

    output = shown.writer(changes=change.apply)
    _check_options(change, disk_used, (at, keep_hours, until_free, before, broker))
    if change.plan is None:
        chosen, file = _options(at, keep_hours, until_free, before, broker, disk_used, shown.tz), None
    else:
        chosen, file = _of_file(change.plan)
    try:
        done = (_applied if change.apply else _planned)(store, chosen, file, change, archive, output)
    except RefusedError as error:
        if error.needs is not None and archive is not None:
            words, left_out = _absolute(at, before, chosen, shown.zone)
            line = given.line(*words, f"--{error.needs}", without=left_out)
            is_same_disk = frees_nothing(archive, store.commitlog or [store.store])
            note = "this frees nothing, because the archive is on the same disk; " if is_same_disk else ""
            error.hint = f"{note}to copy the files to {archive} and then delete them: {line}"
        raise
    found = with_times(_row(store, chosen, change, archive, done), shown.zone)
    output.write_object(found, expire_lines(found, shown.zone, store.command, everything=all))
    if done.expiry.trigger is not None:
        options.note_assumed_version(output, done.expiry.rules_of, "--broker")
    if done.expiry.expired or not output.shows_text:  # whose verdict says it
        times = _absolute(at, before, chosen, shown.zone)
        line = _next(given, done, change, archive, times, is_assumed=disk_used is not None)
        output.note(f"rmqtool: {_summary(done.expiry, change.apply)}{line}")
    return _exit_code(done.expiry, applied=change.apply)


class _Done(NamedTuple):
    """What was planned or carried out; `restore` is the line that copies the files of the archive back."""

    expiry: Expiry
    refusals: Sequence[Refusal] = ()
    in_use: bool = False
    manifest: Path | None = None
    restore: str | None = None


def _row(
    store: options.StoreRootOptions,
    chosen: Options,
    change: options.PlanOptions,
    archive: Path | None,
    done: _Done,
) -> Row:
    """Return the report as JSON."""
    from rmqtool.repair.expire.report import report

    found: Row = {
        "path": str(store.store), "applied": change.apply, "in_use": done.in_use,
        "disk_used_ratio": chosen.disk_used_ratio, "before_timestamp_ms": chosen.before_ms,
        **report(done.expiry, chosen.now_ms, applied=change.apply),
        "refusals": [refusal.row() for refusal in done.refusals],
    }  # fmt: skip
    if archive is not None:
        manifest = None if done.manifest is None else str(done.manifest)
        found |= {"archive": str(archive), "manifest": manifest, "restore": done.restore}
    return found


def _check_options(change: options.PlanOptions, disk_used: str | None, rules: Sequence[object]) -> None:
    if disk_used is not None and (change.apply or change.write_plan is not None):
        raise UsageError(
            "--disk-used only shows what would be deleted",
            hint="without --apply and --write-plan the command shows the line that deletes these files",
        )
    if change.plan is not None and any(value not in (None, []) for value in (*rules, disk_used)):
        raise UsageError("the plan already selects the files", hint="omit --plan or the rules")
    changes.check_options(change)


def _of_file(path: Path) -> tuple[Options, PlanFile]:
    """Return the options stored in a plan file, and the file. Raises InputError."""
    from rmqtool.repair.expire import Options
    from rmqtool.repair.plan import read_plan
    from rmqtool.repair.plan.documents import convert

    file = read_plan(path, "expire")
    return convert(file.options, Options, file.path), file


def _options(
    at: str | None,
    keep_hours: float | None,
    until_free: str | None,
    before: str | None,
    broker: list[str] | None,
    disk_used: str | None,
    tz: str | None,
) -> Options:
    from rmqtool.repair.expire import Options

    if broker is not None and len(set(broker)) > 1:
        raise UsageError("only one broker version can be emulated", hint="give --broker once")
    zone, clock_ms = parse_zone(tz), time.time_ns() // 1_000_000
    if keep_hours is not None and not math.isfinite(keep_hours):
        raise UsageError("--keep-hours is not a number of hours")
    offset = time_ms = None
    if before is not None and _OFFSET.fullmatch(before.strip()):
        offset = int(before)
    elif before is not None and _DIGITS.fullmatch(before.strip()):
        raise UsageError("--before: a physical offset has at most 19 digits")
    elif before is not None:
        time_ms = parse_time(before, zone, clock_ms)
    now_ms = clock_ms if at is None else parse_time(at, zone, clock_ms)
    free_bytes, free_ratio = (None, None) if until_free is None else _free_space(until_free)
    used = None if disk_used is None else _percent("--disk-used", disk_used)
    return Options(
        now_ms, tz, broker[0] if broker else None, keep_hours, free_bytes, offset, time_ms, free_ratio, used
    )


def _free_space(text: str) -> tuple[int | None, float | None]:
    """Return the bytes of --until-free, or the part of the disk."""
    if text.strip().endswith("%"):
        return None, _percent("--until-free", text)
    if text.strip().isdecimal():
        raise UsageError(
            f"--until-free {text} has no unit",
            hint=f"give a size such as {text}G, or a part of the disk: 25%",
        )
    return options.parse_size(text), None


def _percent(name: str, text: str) -> float:
    match = _PERCENT.fullmatch(text.strip())
    value = float(match[1]) if match is not None else 0
    # 0.92 may be meant as a ratio, as in broker.conf.
    is_clear = match is not None and (match[2] == "%" or value >= 1)
    example = {"--disk-used": "92%", "--until-free": "25%"}[name]
    if not is_clear:
        raise UsageError(f"{name} {text} is not a percentage", hint=f"give one such as {example}")
    if not 0 < value < 100:
        hint = f"give more than 0% and less than 100%, such as {example}"
        raise UsageError(f"{name} {text} is out of range", hint=hint)
    return value / 100


def _planned(
    store: options.StoreRootOptions,
    chosen: Options,
    file: PlanFile | None,
    change: options.PlanOptions,
    archive: Path | None,
    output: Output,
) -> _Done:
    """Plan, and write the plan to the file of --write-plan."""
    from rmqtool.repair.expire.remove import archive_refusals, plan
    from rmqtool.repair.plan import Refusal, show_plan, write_plan

    def make(opened: Store) -> Planned:
        if opened.live:
            output.note("rmqtool: a broker is using the store and deletes files itself")
        return plan(opened, chosen.request(store.read_only_commitlog or (), archive), chosen)

    opened, planned = show_plan(store.open, make, file=file, rests=False)
    refusals = planned.refusals if planned.is_needed else []
    if archive is not None and planned.is_needed:
        refusals += archive_refusals(opened, planned.expiry, archive)
    if opened.live and planned.is_needed:
        refusals.append(Refusal("a broker is using the store: stop it first"))
    if change.write_plan is not None:
        write_plan(planned.plan, opened.layout, change.write_plan)
    return _Done(planned.expiry, refusals, opened.live)


def _applied(
    store: options.StoreRootOptions,
    chosen: Options,
    file: PlanFile | None,
    change: options.PlanOptions,
    archive: Path | None,
    output: Output,
) -> _Done:
    from rmqtool.repair.expire.remove import expire as run

    request = chosen.request(store.read_only_commitlog or (), archive)
    with output.progress("archive", None) as bar:
        done = run(
            store.open, request, options=chosen, file=file, force=change.force, archive=archive,
            progress=bar.advance,
        )  # fmt: skip
    return _Done(done.expiry, manifest=done.manifest, restore=done.restore)


def _summary(expiry: Expiry, applied: bool) -> str:
    expired = expiry.expired
    if not expired:
        return "nothing to delete"
    allocated = sum(decision.allocated for decision in expired)
    what = f"{counted(len(expired), 'file')}, {format_size(allocated)}"
    return f"deleted {what}" if applied else f"{what} would be deleted"


_RULES = ("at", "keep_hours", "until_free", "before", "disk_used", "tz")


def _absolute(
    at: str | None, before: str | None, chosen: Options, zone: tzinfo | None
) -> tuple[list[str], list[str]]:
    """Return --at and --before with the times that they meant, as words; and the options to leave out.

    Only those that count from now: a line that is run later has to select the same files.
    """
    words, left_out = list[str](), list[str]()
    for name, text, time_ms in (("at", at, chosen.now_ms), ("before", before, chosen.before_ms)):
        if text is None or time_ms is None:
            continue
        is_relative = parse_time(text, zone, time.time_ns() // 1_000_000 + DAY_MS) != time_ms
        fixed = format_time(time_ms, zone) if is_relative else None
        if fixed is not None:
            words += [f"--{name}", fixed]
            left_out.append(name)
    return words, left_out


def _next(
    given: Given,
    done: _Done,
    change: options.PlanOptions,
    archive: Path | None,
    times: tuple[list[str], list[str]],
    *,
    is_assumed: bool,
) -> str:
    """Return the command that applies the plan; an empty text if nothing would be deleted.

    `times` are those of `_absolute`. `is_assumed`: for a disk that is fuller than the present one.
    """
    expiry, refusals = done.expiry, done.refusals
    if change.apply or not expiry.expired:
        return ""
    if any(refusal.needs is None for refusal in refusals):
        return "; --apply would be refused"
    plan = change.plan or change.write_plan
    words, left_out = times[0], ["plan", "write_plan", "archive", "force", *times[1]]
    if plan is not None:
        words, left_out = ["--plan", str(plan)], [*left_out, *_RULES, "broker"]
    elif is_assumed:  # the same files, with the disk as it is
        words, left_out = ["--before", str(expiry.start_after)], [*left_out, *_RULES]
    needs = changes.needs(refusals)
    kept = archive or (Path("DIR") if needs else None)
    copies = [] if kept is None else ["--archive", str(kept)]
    force = ["--force"] if needs or change.force else []
    line = given.line(*words, *copies, "--apply", *force, without=left_out)
    them, are = ("it", "it is") if len(expiry.expired) == 1 else ("them", "they are")
    if kept is None:
        return f"; to delete {them}: {line}"
    lost = "" if archive is not None else f" (DIR on another disk; without --archive {are} lost)"
    if force and not change.force:
        keep = "--apply is refused without --force: rmqtool help recovery shows how to keep what is needed"
        return f"; {keep}; to delete {them} all the same, with a copy in {kept}{lost}: {line}"
    return f"; to copy {them} to {kept} and then delete {them}{lost}: {line}"


def _exit_code(expiry: Expiry, *, applied: bool) -> int:
    codes = [EXIT_OK]
    if expiry.expired and not applied:
        codes.append(EXIT_FINDINGS)
    if expiry.unread or (expiry.losses.unknown and not applied):
        codes.append(EXIT_INPUT)
    return worst_exit_code(*codes)
