"""`rmqtool report`: a page about a store, in one HTML file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqtool.commands import options
from rmqtool.commands.doctor import command_line
from rmqtool.commands.groups import Before, Only, with_groups
from rmqtool.errors import UsageError
from rmqtool.terminal import counted, escape, format_size, shortened

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.report.summary.collect import Summary

OutputFile = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the page to this new file.")
]


@with_groups
def report(
    *,
    store: options.StoreOptions,
    output: OutputFile = None,
    redact: options.Redact = False,
    force: options.Replace = False,
    shown: Annotated[options.ObjectOutput, Only("tz format json quiet progress")],
    scan: Annotated[options.ScanOptions, Before("quiet")],
) -> int:
    r"""Write an HTML page about a store: verdict, damage, charts, lag, next start.

    The page is one file that needs no network and no script. It begins with the verdict and the next
    commands. Then it shows what is wrong and how to repair it, what a start of each broker version would
    do, a map of the commit log by topic, messages over time, sizes, queues, lag of consumer groups, delays,
    compression, and what was not checked. A table repeats the figures of every chart.

    The log is read once and checked as verify does, in bounded memory. Samples of compressed bodies are
    decompressed. The prediction of a start reads at most 4 GiB more. Topics and groups after the largest 25
    are shown as one sum. The page names topics, groups and paths, but shows no keys and no bodies. --redact
    replaces these names with pseudonyms (redacted-topic#1), as bundle does, so that others may read the page.
    A broker may be using the store; the page then shows what was there when the command started.

    Exits with 0 when nothing is wrong; 1 when there is a warning or an error; 2 for a usage error; 3 when
    something could not be read or is stored in a form rmqtool cannot read: the
    page says what is missing; 4 when the file exists and --force is not given, when something other than a
    plain file has its name, or when it would lie in the store.
    """
    from rmqtool.report.summary.collect import summarize
    from rmqtool.storage.source import RateLimiter

    if output is None:
        raise UsageError("--output is missing", hint="--output report.html")
    path, writer = options.local_file(output, "--output"), shown.writer()
    store = store.absolute() if redact else store
    with store.open(quiet=shown.quiet) as opened:
        _check(opened, path, force=force)
        with writer.progress("report", sum(file.size for file in opened.layout.commit_log)) as bar:
            found = summarize(
                opened,
                tz=shown.zone,
                jobs=scan.jobs,
                keep_cache=scan.keep_cache,
                limiter=RateLimiter(scan.io_limit) if scan.io_limit else None,
                progress=bar.advance,
            )
        pieces = _page(found, opened, store, shown, _redaction(found, opened) if redact else str)
        size = _write(path, pieces, replace=force and path.exists())
    row = {**_row(found, path, size), "redacted": redact}
    writer.write_object(row, _lines(row))
    return found.exit_code


def _check(store: Store, path: Path, *, force: bool) -> None:
    """Raise an error for a file that cannot be written, before any work."""
    from rmqtool.report.export.new_file import check_new
    from rmqtool.storage.durable import check_replaceable
    from rmqtool.storage.output_guard import keep_out

    keep_out(store.layout, path, "the file", location=store.location.path)
    if not force:
        check_new(path)
    else:
        check_replaceable(path)


def _page(
    found: Summary,
    opened: Store,
    store: options.StoreOptions,
    shown: options.ObjectOutput,
    redact: Callable[[str], str],
) -> list[bytes]:
    """Return the page in pieces."""
    from rmqtool.commands.report_text import page

    def command(words: Sequence[str]) -> str | None:
        return command_line(words, store)

    now_ms = time.time_ns() // 1_000_000
    return list(page(found, opened.layout, command, shown.zone, now_ms, redact))


def _redaction(found: Summary, opened: Store) -> Callable[[str], str]:
    """Return what replaces the names of the store in a text: those of files and of the log."""
    from rmqtool.report.bundle.redaction import Redaction, names_of

    redaction = Redaction(forms=(escape, shortened))
    names_of(opened, redaction)
    redaction.add("topic", found.log.topics.values)
    redaction.add("group", [row["group"] for row in found.lags])
    redaction.add("topic", [row["topic"] for row in found.lags])
    return redaction.text


def _write(path: Path, pieces: list[bytes], *, replace: bool) -> int:
    """Write the page; return its size in bytes."""
    from rmqtool.report.export.new_file import write_new
    from rmqtool.storage.durable import replace_file

    if not replace:
        return write_new(path, pieces)
    data = b"".join(pieces)
    replace_file(path, data)
    return len(data)


def _row(found: Summary, path: Path, size: int) -> dict[str, Any]:
    from rmqtool.commands.doctor_text import verdict

    count = found.examination.count
    return {
        "output": str(path),
        "bytes": size,
        "verdict": " ".join(verdict(found.examination)),
        "errors": count("error"),
        "warnings": count("warning"),
        "notes": count("note"),
        "messages": found.log.count,
        "log_read_bytes": found.examination.log_read_bytes,
        "not_looked_at": [each.what for each in found.examination.omissions],
        "seconds": round(found.examination.seconds, 3),
    }


def _lines(row: dict[str, Any]) -> Iterator[str]:
    yield f"{'verdict':<13}{row['verdict']}"
    read = format_size(row["log_read_bytes"])
    yield f"{'read':<13}{counted(row['messages'], 'message')}, {read} of the commit log"
    yield f"{'page':<13}{row['output']} ({format_size(row['bytes'])})"
    no = "no: it has names of topics and groups, and paths (--redact replaces them)"
    yield f"{'redacted':<13}{'yes' if row['redacted'] else no}"
