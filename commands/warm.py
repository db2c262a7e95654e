"""`rmqtool warm`: the newest part of a store, into the page cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqtool.commands import options
from rmqtool.commands.finding_report import report_unread
from rmqtool.commands.groups import Before, Only, with_groups
from rmqtool.errors import UsageError
from rmqtool.output import Output
from rmqtool.terminal import format_size

if TYPE_CHECKING:
    from rmqtool.report.warm import Warmed

COLUMNS = ("part", "files", "bytes", "resident_before_bytes", "resident_bytes", "left_out_bytes")
_LAST = 1 << 30

Last = Annotated[
    int | None,
    typer.Option(
        "--last", metavar="SIZE", parser=options.parse_size,
        help="Read the newest SIZE of the commit log. Default: 1G.",
    ),
]  # fmt: skip
Queues = Annotated[
    bool, typer.Option("--queues", help="Read the queue units of these messages too, before the log.")
]
Index = Annotated[
    bool, typer.Option("--index", help="Read the index files that hold keys of these messages too.")
]
AtMost = Annotated[
    int | None,
    typer.Option(
        "--at-most", metavar="SIZE", parser=options.parse_size,
        help="Read at most SIZE in total. Default: half of the memory that is available.",
    ),
]  # fmt: skip


@with_groups
def warm(
    *,
    store: options.LocalStoreOptions,
    last: Last = None,
    queues: Queues = False,
    index: Index = False,
    at_most: AtMost = None,
    scan: Annotated[options.ScanOptions, Only("io_limit"), Before("at_most")],
    shown: Annotated[options.RowOutput, Only("format json fields quiet")],
) -> int:
    r"""Read the newest part of a store into the page cache.

    After a restart of the host no part of a store is in memory, and the first consumers have to wait for
    the device. This command reads what they will read: queue units, then the end of the commit log from its
    newest byte backwards, then the index. Run it before the broker starts, or while it runs.

    Each row is one part: its size (without holes), the bytes in the page cache before and after, and the
    bytes left out because --at-most was reached. Linux reports what is in the page cache only to the owner of
    the files; otherwise these columns are empty.

    The store is not changed. The system may drop these pages again when other programs need the memory.

    Exits with 0 when every part was read; 1 for damage; 2 for a usage error, such as a store that is not in
    files of this machine; 3 when something could not be read.
    """
    from rmqtool.report.warm import sections
    from rmqtool.report.warm import warm as bring_in
    from rmqtool.storage.page_cache import available_memory
    from rmqtool.storage.source import RateLimiter

    writer = shown.writer()
    writer.check_fields(COLUMNS)
    with store.open(quiet=shown.quiet) as opened:
        if not opened.is_local:
            raise UsageError(
                f"{store.store} is not in files of this machine",
                hint="only these have a place in its page cache",
            )
        bound = available_memory() // 2 if at_most is None else at_most
        limiter = RateLimiter(scan.io_limit) if scan.io_limit else None
        chosen = sections(opened, _LAST if last is None else last, queues=queues, index=index)
        parts = bring_in(opened, chosen, bound, limiter=limiter)
        writer.write_rows(map(_row, parts), COLUMNS)
        _note(writer, parts)
        return report_unread(opened, writer, queues=queues)


def _row(part: Warmed) -> dict[str, Any]:
    return {name: getattr(part, name) for name in COLUMNS}


def _note(writer: Output, parts: list[Warmed]) -> None:
    total = sum(part.bytes for part in parts)
    resident = [part.resident_bytes for part in parts]
    left_out = sum(part.left_out_bytes for part in parts)
    if not total:
        writer.note("rmqtool: there is nothing to read")
        return
    if None not in resident:
        now = sum(part.resident_bytes or 0 for part in parts)
        writer.note(f"rmqtool: {format_size(now)} of {format_size(total)} are in the page cache")
    if left_out:
        writer.note(f"rmqtool: {format_size(left_out)} were left out; --at-most allows more")
