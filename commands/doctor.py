"""`rmqtool doctor`: the first look at a store, with what to run next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqtool.commands import options
from rmqtool.commands.groups import Before, Only, with_groups
from rmqtool.output import Output
from rmqtool.terminal import counted, format_size

if TYPE_CHECKING:
    from rmqtool.report.doctor import Diagnosis, Examination

_WIDTH = 80  # columns of the text, however wide the terminal is: it is read over ssh and pasted into tickets
_LABEL = 10

ReadLimit = Annotated[
    int | None,
    typer.Option(
        "--read-limit",
        metavar="SIZE",
        parser=options.parse_size,
        help="Read at most SIZE of the parts that grow with the store: half of it is the newest part of the"
        " log; default: 256M.",
    ),
]


@with_groups
def doctor(
    *,
    store: options.StoreOptions,
    read_limit: ReadLimit = None,
    scan: Annotated[options.ScanOptions, Only("jobs"), Before("read_limit")],
    shown: Annotated[options.ObjectOutput, Only("format json quiet progress")],
) -> int:
    r"""Say what is wrong with a store, and what to run next.

    Looks at everything that can be had in seconds, however large the store is: the set of files, lock,
    checkpoint, configuration and its .bak files, the ends of the queues, the index, the timer, the newest
    part of the log, the disk and when it is full, and what a start of each broker version would do. Shows
    the worst first: how sure it is, what it costs if nobody acts, and the next command. Ends with what it
    did not look at; verify checks all of it. Nothing is changed, and a broker may be using the store.

    Exits with 1 if something is critical or a warning, with 3 when something could not be read or is
    stored in a form rmqtool cannot read (RocksDB, DLedger, tiered).
    """
    writer = shown.writer()
    found = _examine(store, read_limit, scan.jobs, writer)
    writer.write_object(_row(found, store), _lines(found, store))
    return found.exit_code


def _examine(store: options.StoreOptions, read_limit: int | None, jobs: int, writer: Output) -> Examination:
    from rmqtool.read import kernels
    from rmqtool.report.doctor import DEFAULT_READ_LIMIT, examine

    limit = DEFAULT_READ_LIMIT if read_limit is None else read_limit
    with store.open(quiet=writer.quiet) as opened:
        if opened.layout.commit_log and not kernels.are_cached():
            writer.note("compiling the scan kernels: a few seconds, once for this version of rmqtool")
        total = min(sum(file.size for file in opened.layout.commit_log), limit // 2)
        with writer.progress("doctor", total) as bar:
            return examine(opened, read_limit=limit, jobs=jobs, progress=bar.advance)


def command_line(words: Iterable[str], store: options.StoreOptions) -> str | None:
    """Return a command line for a shell, with the store in the place of STORE; None without words."""
    from rmqtool.report.doctor import STORE

    given = list(words)
    if not given:
        return None
    if STORE in given:
        _, name, _, *rest = given
        return store.command(name, *rest)
    return shlex.join(given)


def _row(found: Examination, store: options.StoreOptions) -> dict[str, Any]:
    info = found.info
    return {
        "path": info["path"],
        "kind": info["kind"],
        "written_by": info["written_by"],
        "verdict": " ".join(_verdict(found)),
        "critical": found.count("critical"),
        "warnings": found.count("warning"),
        "notices": found.count("notice"),
        "results": [{**each.row(), "command": command_line(each.command, store)} for each in found.diagnoses],
        "starts": [start.row() for start in found.starts],
        "state": info["state"],
        "disk": found.disk,
        "not_looked_at": [
            {"what": each.what, "reason": each.reason, "command": command_line(each.command, store)}
            for each in found.omissions
        ],
        "read_limit_bytes": found.read_limit_bytes,
        "log_read_bytes": found.log_read_bytes,
        "seconds": round(found.seconds, 3),
    }


def _verdict(found: Examination) -> Iterator[str]:
    """Yield the sentences that answer: is it damaged, and may a broker start."""
    numbers = (("warning", found.count("warning")), ("notice", found.count("notice")))
    counts = [counted(number, what) for what, number in numbers if number]
    critical = found.count("critical")
    if critical:
        others = f" Also {' and '.join(counts)}." if counts else ""
        yield f"Act now: {critical} critical {'result' if critical == 1 else 'results'}.{others}"
    elif found.count("warning"):
        yield f"Nothing critical was found, but {' and '.join(counts)}."
    else:
        yield f"Nothing wrong was found{f' ({counts[0]})' if counts else ''}."
    yield from _start_sentence(found)


def _start_sentence(found: Examination) -> Iterator[str]:
    own = set(found.info.get("written_by_candidates") or ())
    starts = [start for start in found.starts if start.broker in own]
    if found.info["state"]["lock"] == "held":
        yield "A broker is using the store."
    elif not starts:
        return
    elif any(each.severity == "critical" and each.name.startswith("start_") for each in found.diagnoses):
        yield "Do not start the broker before you have read what follows."
    elif all(start.prediction is not None for start in starts):
        if not found.count("critical"):
            brokers = " or ".join(start.broker for start in starts)
            yield f"A start of broker {brokers} loses nothing."
    else:
        yield "Whether a start loses messages was not looked at."


def _lines(found: Examination, store: options.StoreOptions) -> Iterator[str]:
    info = found.info
    yield from _wrapped("verdict", " ".join(_verdict(found)))
    yield from _wrapped(info["kind"] if info["kind"] == "store" else "part", info["path"])
    if found.disk is not None:
        free = format_size(found.disk["free_bytes"])
        yield from _wrapped("disk", f"{found.disk['used_ratio']:.0%} used, {free} free")
    for each in found.diagnoses:
        yield ""
        yield from _block(each, store)
    yield ""
    yield from _omission_lines(found, store)


def _block(each: Diagnosis, store: options.StoreOptions) -> Iterator[str]:
    more = f" (and {each.count - 1} more)" if each.count > 1 else ""
    yield f"{each.severity.upper()}, {each.certainty}: {each.name} {_shortened(each.path, 38)}{more}"
    yield from _wrapped("", each.message, indent=2)
    yield from _wrapped("cost", each.cost, indent=2)
    if each.cure is not None:
        yield from _wrapped("do", each.cure, indent=2)
    line = command_line(each.command, store)
    if line is not None:
        yield f"  {'run':<{_LABEL - 2}}{line}"


def _omission_lines(found: Examination, store: options.StoreOptions) -> Iterator[str]:
    if not found.omissions:
        yield f"looked at everything that fits {format_size(found.read_limit_bytes)}: the whole store"
        return
    yield "not looked at"
    commands: list[str] = []
    for each in found.omissions:
        yield from _wrapped("-", f"{each.what}: {each.reason}", indent=2, label=4)
        line = command_line(each.command, store)
        if line is not None and line not in commands:
            commands.append(line)
    for line in commands:
        yield f"  {'run':<{_LABEL - 2}}{line}"


def _wrapped(title: str, text: str, *, indent: int = 0, label: int = _LABEL) -> Iterator[str]:
    """Yield `text` after a label, in lines of at most 80 columns."""
    from textwrap import wrap

    left = label if title else indent
    pieces = wrap(text, _WIDTH - left, break_on_hyphens=False) or [""]
    head = f"{' ' * indent}{title}".ljust(left)
    for number, piece in enumerate(pieces):
        yield f"{head if number == 0 else ' ' * left}{piece}"


def _shortened(path: str, width: int) -> str:
    """Return `path` with its middle left out if it is longer than `width`."""
    if len(path) <= width:
        return path
    half = (width - 1) // 2
    return f"{path[:half]}…{path[-(width - 1 - half) :]}"
