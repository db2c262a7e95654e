"""`rmqtool spark-scan`: the same selections and checks as Spark jobs, over many stores and machines."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqtool.commands import options
from rmqtool.commands.groups import Group, Only, with_groups
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK, UsageError, worst_exit_code
from rmqtool.lazy_dataclass import dataclass
from rmqtool.output import Output
from rmqtool.terminal import counted, print_error

if TYPE_CHECKING:
    from datetime import tzinfo

    from pyspark.sql import SparkSession

    from rmqtool.message.rows import BodyForm
    from rmqtool.problems import Finding
    from rmqtool.read.selection import Selection
    from rmqtool.read.store import Store
    from rmqtool.spark.partitions import ScanPlan
    from rmqtool.spark.scan_job import Bad, ScanRequest
    from rmqtool.spark.scan_job_groups import Counts
    from rmqtool.storage.layout import StoreLayout


Stores = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="STORE...",
        help="Store roots, glob patterns or URLs that all executors can reach. Default: the value of"
        " RMQTOOL_STORE.",
        show_default=False,
    ),
]


class SparkOptions(Group):
    """Options of the actions on the messages, and of the place where Spark runs."""

    count: Annotated[bool, typer.Option("--count", help="Show only the number of messages.")] = False
    group_by: Annotated[
        str | None,
        typer.Option(
            "--group-by",
            metavar="NAMES",
            help="Count by these, separated by commas: topic, queue, tag, hour, day or other columns.",
        ),
    ] = None
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql",
            metavar="QUERY",
            help="Run a query over the views messages, consume_queue and index_entries.",
        ),
    ] = None
    verify: Annotated[bool, typer.Option("--verify", help="Check the stores as rmqtool verify does.")] = False
    stats: Annotated[
        bool, typer.Option("--stats", help="Show counts, offsets and times per topic and queue.")
    ] = False
    rebuild_report: Annotated[
        bool,
        typer.Option(
            "--rebuild-report", help="Show which queues and index files rmqtool rebuild would replace."
        ),
    ] = False
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="URL", help="Write the messages to this new folder, from the executors."
        ),
    ] = None
    output_format: Annotated[
        Literal["parquet", "orc", "jsonl", "csv"] | None,
        typer.Option(
            "--output-format",
            metavar="parquet|orc|jsonl|csv",
            help="With --output: write this format. Default: parquet.",
        ),
    ] = None
    partition_by: Annotated[
        str | None,
        typer.Option(
            "--partition-by",
            metavar="NAMES",
            help="With --output: partition into folders by these: date, hour (both UTC), topic or other"
            " columns.",
        ),
    ] = None
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Show what would be read: the numbers of files and bytes, and an estimate of the records.",
        ),
    ] = False
    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            help="Run Spark on this master: local[4], spark://host:7077, yarn. Default: local[*].",
        ),
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="Set a Spark property (repeatable)."),
    ] = None
    driver_memory: Annotated[
        str | None,
        typer.Option("--driver-memory", metavar="SIZE", help="Heap of the Spark driver, for example 4g."),
    ] = None

    def action(self) -> str | None:
        """Return the requested action; None for rows.

        Raises:
            UsageError: several actions, one without a value, or options that need another one.
        """
        from rmqtool.spark.session import is_utf8

        requested = {name: value for name, value in self.actions().items() if value not in (None, False)}
        for name, value in requested.items():
            if value == "":
                raise UsageError(f"{name} is empty")
            if isinstance(value, str) and not is_utf8(value):
                raise UsageError(f"{name} is not UTF-8")
        chosen = list(requested)
        if len(chosen) > 1:
            raise UsageError(
                f"{chosen[0]} and {chosen[1]} exclude each other", hint="run one after the other"
            )
        if (self.output_format or self.partition_by) and chosen != ["--output"]:
            raise UsageError(
                f"{'--output-format' if self.output_format else '--partition-by'} needs --output"
            )
        return chosen[0] if chosen else None

    def actions(self) -> dict[str, Any]:
        """Return the values of the options that are actions, by their names."""
        return {
            "--count": self.count, "--group-by": self.group_by, "--sql": self.sql, "--verify": self.verify,
            "--stats": self.stats, "--rebuild-report": self.rebuild_report, "--output": self.output,
        }  # fmt: skip


@dataclass
class _Run:
    """The state that all actions share: the request, the output, and how a session is started.

    `messages` is how many were found, None where the action does not count them.
    """

    request: ScanRequest
    plan: ScanPlan
    writer: Output
    tz: tzinfo | None
    start: Callable[[], Any]
    messages: int | None = None

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Start a session, print the address of its UI, and show progress while it works."""
        from rmqtool.spark.session import watched

        with self.start() as session:
            url = session.sparkContext.uiWebUrl
            if url:
                self.writer.note(f"rmqtool: Spark UI: {url}")
            with (
                self.writer.progress("spark", self.plan.bytes_read, line_seconds=_LINE_SECONDS) as bar,
                watched(session.sparkContext, bar, self.plan.bytes_read),
            ):
                yield session

    @contextmanager
    def stores(self) -> Iterator[list[tuple[str, Store]]]:
        """Open all stores on this machine, as (broker name, store)."""
        from rmqtool.spark.options import parse_options
        from rmqtool.spark.stores import open_place

        given = parse_options(self.request.options())
        with ExitStack() as stack:
            places = [each.place for each in self.plan.stores]
            yield [(place.broker_name, stack.enter_context(open_place(place, given))) for place in places]


_LINE_SECONDS = 10.0  # of progress without a terminal: a job takes minutes
_Action = Callable[[_Run], int]


@with_groups
def spark_scan(
    *,
    stores: Stores = None,
    located: options.LocationOptions,
    selected: Annotated[
        options.SelectionOptions,
        Only("topic exclude_topic queue tag key filter since until time_field from_offset to_offset limit"),
    ],
    own: SparkOptions,
    shown: Annotated[options.OutputOptions, Only("format json fields body tz quiet progress")],
) -> int:
    """Read or check many stores with Spark.

    Runs on all cores of this machine or on a cluster. Shows the selected messages, or performs one of
    --count, --group-by, --sql, --verify, --stats, --rebuild-report, --output. Several stores, for example
    of all brokers of a cluster, are read as one; the field broker_name distinguishes them. On a cluster
    every executor must reach the stores at the same paths or URLs, and needs Python with the dependencies
    of rmqtool; rmqtool itself is sent to the executors.

    In --sql, columns have Spark's names: topic, queueId, queueOffset, physicalOffset, storeTimestamp,
    tags, keys, body and so on. If a query scans messages once, conditions on these columns use queues,
    the index and file names where possible. Only the necessary columns are read: those of --fields or of
    the query. A query only reads: it cannot write, or run a program or a Java method.

    Of the options that select messages, the view consume_queue applies only --topic, --exclude-topic
    and --queue, and the view index_entries applies none; a note says so. --limit applies to the
    result of the query.

    Rows are those of rmqtool dump, except that the column system, which is slow, is shown only if
    --fields names it. A range of the log without a record is a row of its own (an offset, a size and
    a status); with --sql only if the query reads status, as SELECT * does. --count, --group-by,
    --stats and --output report such ranges on standard error. They also report damaged records, but
    count and write them. --verify describes the damage. rmqtool sets PYSPARK_PYTHON in the
    environment, and only these Spark properties, unless --conf overrides them: filter pushdown, time zone
    UTC, quiet logs, a temporary warehouse.

    --explain estimates the number of records from queue units and bytes. The field reason says which
    parts of the log are read if queues or the index are used. --since and --until exclude whole
    files. They exclude part of a file only if more than 64 MiB of it would be read. The range read is
    ten minutes longer at both ends, to allow for clocks that were set back.

    Exits with 0 when nothing is damaged; 1 for damage (with --sql only the column status shows damage), and
    when --rebuild-report has rows; 2 for a usage error; 3 when something could not be read, or Java or
    pyspark is missing; 4 when the URL of --output exists; 130 when interrupted, after stopping the job and
    the session.
    """
    from rmqtool.spark.scan_job import ScanRequest, plan, within_log
    from rmqtool.spark.session import parse_conf, require_spark, spark_session

    action, selection = own.action(), selected.selection(shown.tz)
    _check(action, selection, shown.body, explain=own.explain)
    writer = shown.writer()
    work = _action(action, own, writer, shown.body)
    parse_conf(own.conf or ())
    conf = located.broker_conf
    request = ScanRequest(
        _stores(stores), selection, None if conf is None else str(conf),
        tuple(map(str, located.commitlog or ())), tuple(map(str, located.read_only_commitlog or ())),
    )  # fmt: skip
    request = within_log(request)
    start = partial(spark_session, master=own.master, conf=own.conf or (), driver_memory=own.driver_memory)
    run = _Run(request, plan(request), writer, shown.zone, start)
    if own.explain:
        return _explain(run)
    require_spark()
    return worst_exit_code(work(run), _report_unknown(run))


def _check(action: str | None, selection: Selection, body: BodyForm, *, explain: bool) -> None:
    """Raise UsageError for options that have no effect on the action."""
    if selection.limit is not None and action in ("--count", "--verify", "--rebuild-report"):
        raise UsageError(
            f"--limit and {action} exclude each other", hint="a limit applies to rows that are shown"
        )
    if action in ("--verify", "--rebuild-report") and not selection.selects_all:
        raise UsageError(f"{action} checks whole stores", hint="omit --topic, --since and similar options")
    if action is not None and body != "text" and (action != "--output" or body == "hex"):
        raise UsageError(
            f"--body {body} and {action} exclude each other", hint="it applies only to rows that show bodies"
        )
    if explain and action == "--sql":
        raise UsageError(
            "--explain and --sql exclude each other", hint="to explain a query: --sql 'EXPLAIN SELECT ...'"
        )


def _stores(given: list[str] | None) -> tuple[str, ...]:
    if given:
        return tuple(given)
    store = os.environ.get("RMQTOOL_STORE")
    if not store:
        raise UsageError("missing argument STORE", hint="see 'rmqtool spark-scan --help'")
    print_error(f"rmqtool: using the store of RMQTOOL_STORE: {store}")
    return (store,)


def _action(action: str | None, own: SparkOptions, writer: Output, body: BodyForm) -> _Action:
    """Return the function for the action. Its options are checked here, before Spark is started."""
    from rmqtool.commands.verify import COLUMNS as FINDING_FIELDS
    from rmqtool.spark import scan_job_groups, scan_job_output, scan_job_rows, scan_job_verify

    match action:
        case None:
            writer.check_fields(scan_job_rows.FIELDS)
            return partial(_show, body=body)
        case "--count":
            return _count
        case "--group-by":
            groups = scan_job_groups.parse_groups(own.group_by or "")
            fields = scan_job_groups.group_fields(groups)
            writer.check_fields(fields)
            return partial(_counted, fields=fields, rows=lambda counts, tz: counts.group_rows(groups, tz))
        case "--stats":
            fields = scan_job_groups.QUEUE_FIELDS
            writer.check_fields(fields)
            return partial(_counted, fields=fields, rows=lambda counts, tz: counts.queue_rows(tz))
        case "--verify":
            writer.check_fields((*FINDING_FIELDS, "broker_name"))
            return _verify
        case "--rebuild-report":
            writer.check_fields((*scan_job_verify.REBUILD_FIELDS, "broker_name"))
            return _rebuild_report
        case "--output":
            names = scan_job_output.output_names(writer.fields)
            parts = scan_job_output.partition_names(own.partition_by) if own.partition_by else ()
            return partial(
                _write, url=own.output or "", form=own.output_format or "parquet", parts=parts, names=names,
                body=body != "none",
            )  # fmt: skip
        case _:
            return partial(_query, sql=own.sql or "")


def _explain(run: _Run) -> int:
    from rmqtool.spark.scan_job import EXPLAIN_FIELDS, explain_rows

    with run.stores() as stores:
        run.writer.write_rows(explain_rows(run.plan, stores), EXPLAIN_FIELDS)
    return EXIT_OK


def _show(run: _Run, *, body: BodyForm) -> int:
    from rmqtool.commands.finding_report import FindingReport
    from rmqtool.report.dump.log import TABLE_FIELDS
    from rmqtool.spark.scan_job_rows import FIELDS, message_rows

    names = None if run.writer.fields is None else [name.partition(".")[0] for name in run.writer.fields]
    seen, run.messages = FindingReport(run.writer), 0

    def report(broker_name: str, found: Finding) -> None:
        several = len(run.plan.stores) > 1
        seen.report(replace(found, path=f"{broker_name}: {found.path}") if several else found)

    def rows() -> Iterator[dict[str, Any]]:
        for row, is_message in message_rows(session, run.request, report, names=names, body=body, tz=run.tz):
            run.messages = (run.messages or 0) + is_message
            yield row

    with run.session() as session:
        run.writer.write_rows(rows(), FIELDS, TABLE_FIELDS)
    return seen.exit_code()


def _count(run: _Run) -> int:
    from rmqtool.spark.scan_job_groups import count

    with run.session() as session:
        run.messages, bad = count(session, run.request)
    run.writer.write_rows([{"count": run.messages}], ("count",))
    return _report_damage(bad)


def _counted(
    run: _Run, *, fields: tuple[str, ...], rows: Callable[[Counts, tzinfo | None], Iterable[dict[str, Any]]]
) -> int:
    from itertools import islice

    from rmqtool.spark.scan_job_groups import Counts

    with run.session() as session:
        counts = Counts(session, run.request)
        table = [name for name in fields if not name.endswith("_timestamp_ms")]
        run.messages = run.writer.write_rows(
            islice(rows(counts, run.tz), run.request.selection.limit), fields, table
        )
    return _report_damage(counts.bad)


def _report_unknown(run: _Run) -> int:
    """Report requested data that is not searched or does not exist; return the exit code."""
    from rmqtool.commands.finding_report import note_selection, note_times, report_unknown
    from rmqtool.findings import ScanCounters

    selection = run.request.selection
    if selection.selects_all:
        return EXIT_OK
    with run.stores() as stores:
        opened = [store for _, store in stores]
        note_selection(opened, selection, run.writer)
        note_times(opened, selection, run.writer, run.tz, found=bool(run.messages))
        return EXIT_OK if run.messages else report_unknown(opened, selection, ScanCounters(), found=False)


def _query(run: _Run, *, sql: str) -> int:
    from rmqtool.commands.finding_report import note_unselected
    from rmqtool.spark.errors import spark_errors
    from rmqtool.spark.scan_job_rows import sql_columns, sql_rows
    from rmqtool.spark.scan_job_sql import query_frame, reads_of

    with run.session() as session, spark_errors():
        reads = reads_of(session, sql)
        note_unselected(reads.columns, run.request.selection, run.writer)
        frame = query_frame(session, run.request, sql, reads)
        rows = sql_rows(frame, run.request.selection.limit, run.tz)
        run.writer.write_rows(rows, sql_columns(frame))
    return EXIT_OK


def _findings(
    run: _Run, codes: set[int], note: Callable[[str], None]
) -> Iterator[tuple[str, Finding, StoreLayout]]:
    """Yield (broker name, finding, layout) of all stores; `note` gets a line on the extent of each check."""
    from rmqtool.check.verify import Report, verify
    from rmqtool.commands.verify import summary
    from rmqtool.spark.scan_job_verify import SparkExecutor

    with run.stores() as stores, run.session() as session:
        for name, store in stores:
            report, counts = Report(), Counter[str]()
            for each in verify(store, report=report, spread=SparkExecutor(session.sparkContext)):
                codes.add(each.problem.exit_code)
                counts[each.problem.severity] += 1
                yield name, each, store.layout
            note(summary(report, counts) if len(stores) == 1 else f"{name}: {summary(report, counts)}")


@cache
def _command(store: Path, name: str) -> str:
    return options.StoreOptions(store=store).command(name)


def _verify(run: _Run) -> int:
    from rmqtool.commands.finding_report import finding_row
    from rmqtool.commands.verify import COLUMNS, TABLE_COLUMNS

    codes, lines = {EXIT_OK}, list[str]()
    several = ("broker_name",) if len(run.plan.stores) > 1 else ()
    found = _findings(run, codes, lines.append)
    rows = (
        {
            **({"broker_name": name} if several else {}),
            **finding_row(each, layout, partial(_command, layout.root or Path(name))),
        }
        for name, each, layout in found
    )
    run.writer.write_rows(rows, (*several, *COLUMNS), (*several, *TABLE_COLUMNS))
    for line in lines:
        run.writer.note(line)
    return worst_exit_code(*codes)


def _rebuild_report(run: _Run) -> int:
    from itertools import groupby

    from rmqtool.spark.scan_job_verify import REBUILD_FIELDS, REBUILD_TABLE, rebuild_rows

    codes, several = {EXIT_OK}, len(run.plan.stores) > 1
    found = groupby(_findings(run, codes, lambda line: None), itemgetter(0))
    rows = (
        {**row, **({"broker_name": name} if several else {})}
        for name, of_store in found
        for row in rebuild_rows(each for _, each, _ in of_store)
    )
    count = run.writer.write_rows(rows, (*REBUILD_FIELDS, "broker_name"), REBUILD_TABLE)
    return EXIT_FINDINGS if count else EXIT_OK


def _write(run: _Run, *, url: str, form: Any, parts: tuple[str, ...], names: Any, body: bool) -> int:
    from rmqtool.spark.scan_job_output import output_place, write_messages

    kept = (*run.request.commitlog_paths, *run.request.read_only_paths)
    place = output_place(url, [*(each.place.path for each in run.plan.stores), *kept])
    with run.session() as session:
        bad = write_messages(
            session, run.request, place, format=form, partition_by=parts, names=names, with_body=body
        )
    run.writer.note(f"rmqtool: written to {url}")
    return _report_damage(bad)


def _report_damage(bad: Bad) -> int:
    """Report the counts of damage: ranges without a record are not counted as messages, damaged records are.

    Returns the exit code.
    """
    texts = [
        f"{counted(count, what)} {how}"
        for count, what, how in (
            (bad.ranges, "damaged range", "not counted"), (bad.records, "damaged record", "counted"),
        )
        if count
    ]  # fmt: skip
    if not texts:
        return EXIT_OK
    print_error(f"rmqtool: {', '.join(texts)}; --verify shows all of them")
    return EXIT_FINDINGS
