"""`rmqtool diff`: the differences between two stores."""

from __future__ import annotations

from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqtool.commands import options
from rmqtool.commands.diff_text import lines
from rmqtool.commands.groups import Before, with_groups
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, worst_exit_code
from rmqtool.times import format_time

if TYPE_CHECKING:
    from rmqtool.check.diff import Difference


StoreA = Annotated[
    Path,
    typer.Argument(
        metavar="STORE_A",
        parser=options.parse_store,
        help="Store root, a folder of commit log files, or a single file. Also accepts a URL or a tar"
        " archive.",
    ),
]
StoreB = Annotated[
    Path,
    typer.Argument(metavar="STORE_B", parser=options.parse_store, help="Store to compare STORE_A with."),
]
CommitLogA = Annotated[
    list[Path] | None,
    typer.Option(
        "--commitlog-a",
        metavar="DIR",
        parser=options.parse_store,
        help="Also use this commit log folder outside STORE_A (repeatable).",
    ),
]
CommitLogB = Annotated[
    list[Path] | None,
    typer.Option(
        "--commitlog-b",
        metavar="DIR",
        parser=options.parse_store,
        help="Also use this commit log folder outside STORE_B (repeatable).",
    ),
]
CommonOnly = Annotated[
    bool,
    typer.Option(
        "--common",
        help="Exit with 0 if everything that both stores hold is equal, even if one starts earlier or is"
        " ahead. Also ignores differing offsets of consumers and of delayed messages.",
    ),
]
Differences = Annotated[
    int,
    typer.Option(
        "--differences",
        metavar="N",
        min=1,
        max=10_000,
        help="Show at most N differing log ranges, N queues, and N entries of each config file.",
    ),
]


@with_groups
def diff(
    *,
    store_a: StoreA,
    store_b: StoreB,
    commitlog_a: CommitLogA = None,
    commitlog_b: CommitLogB = None,
    common: CommonOnly = False,
    differences: Differences = 10,
    shown: options.ObjectOutput,
    reading: Annotated[options.ScanOptions, Before("quiet")],
) -> int:
    """Compare two stores and show where they differ.

    Compares a master with its slave, or a backup with its source. A slave holds its master's commit log
    byte for byte at the same offsets, so the common range is compared byte by byte. The logs may start
    and end at different offsets and use different file sizes. Reports which ranges differ, which record
    each side has there and whether it is sound, which side is ahead, and what only one side holds.
    Queues are compared by the content of their units, config files by value. The index, the checkpoint
    and abort differ from broker to broker and are not compared.

    Nothing is changed. Stores in use can be compared; the comparison covers what was complete when it
    started. A slave that was once ahead of its master keeps differing in that range, and no broker
    reports it. The output ends with the command lines for what was found:

    \b
      diverged   from some offset to their ends, each log holds sound records
                 that the other lacks: lines that carry messages over, for each
                 choice of the store that stays, and which committed offsets
                 fit which store
      ahead      one log continues the other: how many more messages it has,
                 and the line that carries them over if the other store stays
      damaged    one log has damage, damaged properties or fillers of recover
                 where the other has the messages: the log files to copy before
                 a repair, which keeps all queue offsets, and lines that add
                 the messages

    Exits with 0 when the stores are identical; 1 when something differs or one side holds more than the
    other; 2 for a usage error; 3 when a part could not be read. With --common one side may hold more: the
    master of a slave that lags, or the source of an older backup.
    """  # noqa: D301  a backspace character keeps the lines as they are
    from rmqtool.check.diff import common_bytes, look_at
    from rmqtool.check.diff import diff as compare
    from rmqtool.storage.source import RateLimiter

    writer, zone = shown.writer(), shown.zone
    stores = {
        "a": options.StoreOptions(store=store_a, commitlog=commitlog_a),
        "b": options.StoreOptions(store=store_b, commitlog=commitlog_b),
    }
    with stores["a"].open(quiet=shown.quiet) as a, stores["b"].open(quiet=shown.quiet) as b:
        sides = look_at(a), look_at(b)
        with writer.progress("diff", common_bytes(*sides)) as bar:
            found = compare(
                *sides,
                limit=differences,
                jobs=reading.jobs,
                keep_cache=reading.keep_cache,
                limiter=RateLimiter(reading.io_limit) if reading.io_limit else None,
                progress=bar.advance,
            )
        row = _with_times(found.row(), zone)
        writer.write_object(row, lines(row, found, stores))
    return _exit_code(found, common=common)


def _exit_code(found: Difference, *, common: bool) -> int:
    differs = found.differs_in_common if common else found.differs or found.has_more
    return worst_exit_code(EXIT_FINDINGS if differs else EXIT_OK, EXIT_INPUT if found.unread else EXIT_OK)


def _with_times(value: Any, zone: tzinfo | None) -> Any:
    """Return the value with a readable time next to every `*_timestamp_ms`."""
    if isinstance(value, list):
        return [_with_times(item, zone) for item in value]
    if not isinstance(value, dict):
        return value
    result: dict[str, Any] = {}
    for name, item in value.items():
        result[name] = _with_times(item, zone)
        if name.endswith("_timestamp_ms"):
            result[name.replace("timestamp_ms", "time")] = format_time(item, zone) if item else None
    return result
