"""`rmqtool doctor`: the first look at a store, with what to run next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rmqtool.command_line import command_line as quoted
from rmqtool.commands import doctor_text, options
from rmqtool.commands.groups import Before, Only, with_groups
from rmqtool.errors import EXIT_OK, InputError, RmqtoolError, UnwritableError, UsageError
from rmqtool.output import Output

if TYPE_CHECKING:
    from rmqtool.report.doctor.diagnosis import Examination

ReadLimit = Annotated[
    int | None,
    typer.Option(
        "--read-limit",
        metavar="SIZE",
        parser=options.parse_size,
        help="Read at most SIZE of the parts that grow with the store; half of this goes to the"
        " newest part of the log. Default: 256M.",
    ),
]
All = Annotated[
    bool, typer.Option("--all", help="Show every result in full, not only what fits a small terminal.")
]
HostRoot = Annotated[
    Path | None,
    typer.Option(
        "--host-root",
        metavar="DIR",
        help="Read the /proc and /sys of the broker's host in this folder, as in a container that"
        " mounts them.",
    ),
]
NoHost = Annotated[bool, typer.Option("--no-host", help="Do not examine the host.")]
Nagios = Annotated[
    bool,
    typer.Option(
        "--nagios", help="Print one line and exit with the code that Nagios and Icinga expect of a plugin."
    ),
]
Prometheus = Annotated[
    bool, typer.Option("--prometheus", help="Print metrics in the text format of Prometheus.")
]
OutputFile = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="With --prometheus: write to this file. It is replaced in one step, so a textfile"
        " collector can read it at any time.",
    ),
]
Watch = Annotated[
    int | None,
    typer.Option(
        "--watch",
        metavar="SECONDS",
        min=1,
        max=31_536_000,
        help="Examine the store again every SECONDS seconds, until interrupted, also while it cannot be read"
        " for a time. With --json each result is a line.",
    ),
]


@with_groups
def doctor(
    *,
    store: options.StoreOptions,
    read_limit: ReadLimit = None,
    host_root: HostRoot = None,
    no_host: NoHost = False,
    nagios: Nagios = False,
    prometheus: Prometheus = False,
    output: OutputFile = None,
    watch: Watch = None,
    all: All = False,
    scan: Annotated[options.ScanOptions, Only("jobs"), Before("read_limit")],
    shown: Annotated[options.ObjectOutput, Only("format json quiet progress")],
) -> int:
    r"""Say what is wrong with a store, and what to run next.

    Examines what can be read within seconds, even in a large store: the set of files, lock, checkpoint,
    configuration and its .bak files, the ends of the queues, the index, the timer, the newest part of the
    log, how full the disk is and when it will be full, what a start of each broker version would do, and
    settings of this host that explain a finding: unwritten pages, swap, read-ahead, mount, inodes,
    limits. Shows the worst finding first, and for each finding how certain it is and what happens if
    nothing is done. Ends with what it did not examine (verify checks the rest of the store), and with the
    one command to run next. The text usually fits 80 columns and 24 lines; --all shows all results in full.
    Nothing is changed, and a broker may be using the store.

    Exits with 0 if nothing is wrong, or notes at most; 1 if there is an error or a warning; 2 for a usage
    error; 3 when something could not be read or is stored in a form rmqtool cannot read; 4 when the file of
    --output would lie in the store, or something other than a plain file has its name. With --nagios: 0 OK,
    1 WARNING, 2 CRITICAL, 3 UNKNOWN, which a usage error is too.
    """
    if sum((nagios, prometheus, shown.json or shown.format is not None)) > 1:
        raise UsageError("--nagios, --prometheus, --json and --format exclude each other")
    if output is not None and not prometheus:
        raise UsageError("--output needs --prometheus")
    if no_host and host_root is not None:
        raise UsageError("--no-host and --host-root exclude each other")
    if nagios and watch is not None:
        raise UsageError("--nagios reports once", hint="the monitoring system repeats it")
    writer = shown.but(quiet=shown.quiet or nagios).writer(pages=watch is None)
    host = None if no_host else host_root or Path("/")
    path = None if output is None else options.local_file(output, "--output")
    run = _Run(store, read_limit, scan.jobs, host, path, everything=all, is_repeated=watch is not None)
    if nagios:
        return _nagios(run, writer)
    code = run.show(writer, prometheus=prometheus)
    try:
        while watch is not None:
            time.sleep(watch)
            if writer.shows_text and not prometheus:
                writer.note(time.strftime("rmqtool: %Y-%m-%d %H:%M:%S"))
            run.show_again(writer, prometheus=prometheus)
    except KeyboardInterrupt:
        return EXIT_OK
    return code


class _Run(NamedTuple):
    """The arguments of an examination; `host` is the folder of proc and sys, None to leave out the host."""

    store: options.StoreOptions
    read_limit: int | None
    jobs: int
    host: Path | None
    output: Path | None
    everything: bool
    is_repeated: bool

    def show(self, writer: Output, *, prometheus: bool) -> int:
        """Examine the store and write the result; return the exit code."""
        found = self.examine(writer)
        if prometheus:
            self._write_metrics(writer, doctor_text.exposition(found))
            return found.exit_code
        lines = doctor_text.lines(found, self.command, everything=self.everything)
        writer.write_object(_row(found, self.store), lines, is_repeated=self.is_repeated)
        return found.exit_code

    def show_again(self, writer: Output, *, prometheus: bool) -> None:
        """As `show`; a store that cannot be read now is a result, for it may come back."""
        try:
            self.show(writer, prometheus=prometheus)
        except UnwritableError:
            raise
        except (InputError, OSError) as error:
            path, message = str(self.store.store), getattr(error, "in_one_line", str(error))
            if prometheus:
                self._write_metrics(writer, doctor_text.exposition_unread(path))
                return
            row = {"path": path, "verdict": doctor_text.unread_verdict(message), "error": message}
            writer.write_object(row, [row["verdict"]], is_repeated=True)

    def _write_metrics(self, writer: Output, metrics: Sequence[str]) -> None:
        """Write metrics to the file of --output, or to standard output."""
        if self.output is None:
            writer.write_lines(metrics)
            return
        from rmqtool.storage.durable import replace_file

        text = "".join(f"{line}\n" for line in metrics)
        replace_file(self.output, text.encode("utf-8", "backslashreplace"))

    def command(self, words: Sequence[str]) -> str | None:
        """Return a command line for a shell."""
        return command_line(words, self.store)

    def examine(self, writer: Output) -> Examination:
        """Examine the store, and the host."""
        from rmqtool.report.doctor.examine import DEFAULT_READ_LIMIT, examine
        from rmqtool.report.doctor.host import look_at_host
        from rmqtool.storage.durable import check_replaceable
        from rmqtool.storage.output_guard import keep_out

        limit = DEFAULT_READ_LIMIT if self.read_limit is None else self.read_limit
        with self.store.open(quiet=writer.quiet) as opened:
            if self.output is not None:
                keep_out(opened.layout, self.output, "the file", location=opened.location.path)
                check_replaceable(self.output)
            total = min(sum(file.size for file in opened.layout.commit_log), limit // 2)
            with writer.progress("doctor", total) as bar:
                found = examine(opened, read_limit=limit, jobs=self.jobs, progress=bar.advance)
            if self.host is not None:
                look_at_host(opened, found, self.host)
            return found


def _nagios(run: _Run, writer: Output) -> int:
    """Write one line as plugins do; also of an error, which a monitoring system shows only then."""
    try:
        line, code = doctor_text.nagios(run.examine(writer))
    except RmqtoolError as error:
        line, code = doctor_text.nagios_unknown(error.message)
    writer.write_lines([line])
    return code


def command_line(words: Sequence[str], store: options.StoreOptions) -> str | None:
    """Return a command line for a shell, with the store in the place of STORE; None without words."""
    from rmqtool.report.doctor.diagnosis import STORE

    given = list(words)
    if not given:
        return None
    if STORE in given:
        _, name, _, *rest = given
        return store.command(name, *rest)
    return quoted(*given)


def _row(found: Examination, store: options.StoreOptions) -> dict[str, Any]:
    from rmqtool.report.doctor.diagnosis import next_words

    info = found.info
    return {
        "path": info["path"],
        "kind": info["kind"],
        "written_by": info["written_by"],
        "verdict": " ".join(doctor_text.verdict(found)),
        "errors": found.count("error"),
        "warnings": found.count("warning"),
        "notes": found.count("note"),
        "next": command_line(next_words(found), store),
        "results": [
            {
                **each.row(),
                "cost": doctor_text.cost(found, each),
                "command": command_line(each.command, store),
            }
            for each in found.diagnoses
        ],
        "lost": [{"topic": topic, "messages": count} for topic, count in sorted(found.lost.items())],
        "starts": [start.row() for start in found.starts],
        "state": info["state"],
        "disk": found.disk,
        "host": found.host,
        "not_looked_at": [
            {"what": each.what, "reason": each.reason, "command": command_line(each.command, store)}
            for each in found.omissions
        ],
        "read_limit_bytes": found.read_limit_bytes,
        "log_read_bytes": found.log_read_bytes,
        "seconds": round(found.seconds, 3),
    }
