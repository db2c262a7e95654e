"""`rmqtool sql`: SQL over stores on one machine, one query, queries from a pipe, or a prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmqtool.commands import options
from rmqtool.commands.finding_report import (
    FindingReport,
    note_fillers,
    note_selection,
    note_times,
    note_unselected,
    report_unknown,
)
from rmqtool.commands.groups import Only, with_groups
from rmqtool.commands.interrupts import entering
from rmqtool.errors import EXIT_OK, InputError, UsageError, worst_exit_code
from rmqtool.lazy_dataclass import dataclass
from rmqtool.output import Output
from rmqtool.sizes import format_size

if TYPE_CHECKING:
    from datetime import tzinfo

    from rmqtool.read.selection import Selection
    from rmqtool.read.store import Store
    from rmqtool.report.sql.session import Session

Query = Annotated[
    str | None,
    typer.Argument(
        metavar="[QUERY]",
        help="The query. Default: read queries from standard input, each ended by a semicolon; on"
        " a terminal, open a prompt.",
    ),
]
Also = Annotated[
    list[Path] | None,
    typer.Option(
        "--store",
        metavar="STORE",
        parser=options.parse_store,
        help="Also read this store (repeatable); the column brokerName distinguishes the stores.",
    ),
]
Memory = Annotated[
    int | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        parser=options.parse_size,
        help="Memory that a query may use before it uses temporary files. Default: 1G.",
    ),
]
PROMPT_ROWS = 1000
"""Rows that the prompt shows of a query without --limit."""


@dataclass
class Queries:
    """What every query of a run needs: the open stores, the session, the output."""

    stores: Sequence[tuple[str, Store]]
    selection: Selection
    session: Session
    writer: Output
    tz: tzinfo | None
    jobs: int
    limit: int | None
    seen: FindingReport
    total_bytes: int
    found: bool = False

    def run(self, text: str) -> int:
        """Run a query and show its rows; returns how many. Raises as `Session.run`."""
        from rmqtool.report.sql.tables import Scans

        with self.writer.progress("sql", self.total_bytes) as bar:
            scans = Scans(self.stores, self.selection, self.seen.report, bar.advance, self.jobs)
            with self.session.run(text, scans) as result:
                rows = result.rows(self.tz)
                shown = rows if self.limit is None else islice(rows, self.limit)
                count = self.writer.write_rows(shown, result.names, has_header=True)
            note_unselected(scans.views, self.selection, self.writer)
            met = scans.most_batch_records()
            note_fillers(met, self.selection, self.writer, query=text)
            note_selection([], self.selection, self.writer, met, is_query=True)
        is_empty = bool(scans.views) and not scans.has_rows  # count(*) of nothing is a row too
        note_times(
            (store for _, store in self.stores), self.selection, self.writer, self.tz, found=not is_empty
        )
        self.found = self.found or (count > 0 and not is_empty)
        return count


@with_groups
def sql(
    *,
    store: options.StoreOptions,
    query: Query = None,
    also: Also = None,
    selected: Annotated[
        options.SelectionOptions,
        Only(
            "topic exclude_topic queue tag key filter grep since until time_field from_offset to_offset limit"
        ),
    ],
    memory: Memory = None,
    jobs: options.Jobs = 0,
    shown: options.RowOutput,
) -> int:
    """Query a store in SQL.

    There are three tables: messages, consume_queue (a row for each queue unit) and index_entries.
    spark-scan --sql has the same. Columns have Spark's names: topic, queueId, queueOffset,
    physicalOffset, storeTimestamp, tags, keys, uniqKey, properties, body and so on; case does not matter.
    The names that dump and export show, such as queue_id and body_length, stand for the same columns.
    The dialect is that of DuckDB. A body that is text is shown as text. decode(body) is text for functions of
    the query; it fails for other bytes, so add WHERE body_encoding = 'utf-8'. Neither Java nor a cluster is
    needed.

    Only the columns that a query needs are read. Conditions on topic, queueId, tags, uniqKey,
    physicalOffset, storeTimestamp and storeTimestampMs that are joined by AND use the queues, the index and
    the files of their range where possible; so do the options that select messages. Of these options, the
    table consume_queue applies only --topic, --exclude-topic and --queue, and index_entries applies none; a
    note says so. --limit applies to the rows of the result.

    Without QUERY, rmqtool reads queries from standard input. On a terminal it shows a prompt: a query ends
    with a semicolon and may have several lines. .tables lists the tables, .schema their columns, .quit ends.
    The prompt shows the first 1000 rows of a query unless --limit is given.

    A query only reads. It has no access to files, to the network or to extensions of DuckDB, and cannot
    change the configuration. A batch record (BatchCQ) is one row of messages; a note says how many batch
    records a query read, and how many messages they hold. A filler of recover is a row too; a note says how
    many of them a query read, and which condition leaves them out. What needs more than --memory-limit goes
    to temporary files in TMPDIR, which are deleted at the end. Damage that a query meets is reported on
    standard error. A range of the log without a record is a row of its own (an offset, a size and a status)
    if the query reads status, as SELECT * does.

    Exits with 0 when the query was answered; 1 for damage, and for a --topic or --queue that the store
    does not have; 2 for a usage error, and for a query that is not correct, does more than read or needs
    more memory; 3 when something could not be read, or DuckDB is missing (pip install 'rmqtool[sql]');
    130 when interrupted.
    """
    if query is not None and not query.strip():
        raise UsageError("QUERY is empty")
    writer, selection = shown.writer(), selected.selection(shown.tz)
    is_prompt = query is None and sys.stdin is not None and sys.stdin.isatty()
    with _queries(store, also or (), selection, memory, jobs, writer, shown) as queries:
        if query is not None and query.lstrip().startswith("."):
            from rmqtool.commands.sql_prompt import command

            command(writer, query.strip())
            queries.found = True
        elif query is not None:
            queries.run(query)
        elif is_prompt:
            from rmqtool.commands.sql_prompt import prompt

            queries.limit = PROMPT_ROWS if selection.limit is None else selection.limit
            prompt(queries.run, writer, queries.limit)
        else:
            _run_script(queries, _standard_input())
        stores = [each for _, each in queries.stores]
        unknown = EXIT_OK
        if not queries.found and not is_prompt:
            from rmqtool.findings import ScanCounters

            unknown = report_unknown(stores, selection, ScanCounters(), found=False)
        return worst_exit_code(queries.seen.exit_code(), unknown)


def _run_script(queries: Queries, text: str) -> None:
    """Run the queries of a text, and lines with commands between them."""
    from rmqtool.commands.sql_prompt import command, script

    if not any(line.lstrip().startswith(".") for line in text.splitlines()):
        for query in queries.session.split(text):
            queries.run(query)
        return
    for part in script(text):
        if not part.startswith("."):
            for query in queries.session.split(part):
                queries.run(query)
            continue
        queries.found = True
        if not command(queries.writer, part):
            return


@contextmanager
def _queries(
    store: options.StoreOptions, also: Sequence[Path], selection: Selection, memory: int | None, jobs: int,
    writer: Output, shown: options.RowOutput,
) -> Iterator[Queries]:  # fmt: skip
    """The stores, opened, with a session."""
    from rmqtool.read.broker_names import broker_names
    from rmqtool.report.sql.session import MEMORY_MIN, session
    from rmqtool.storage.output_guard import keep_out

    if memory is not None and memory < MEMORY_MIN:
        raise UsageError(f"--memory-limit must be at least {format_size(MEMORY_MIN)}")
    if also and (store.commitlog or store.read_only_commitlog):
        raise UsageError("--commitlog and --read-only-commitlog are for a single store", hint="omit --store")
    paths = [store.store, *also]
    twice = next((each for each in paths if paths.count(each) > 1), None)
    if twice is not None:
        raise UsageError("the same store is named twice", path=twice)
    conf = None if store.broker_conf is None else str(store.broker_conf)
    names = broker_names([str(each) for each in paths], conf)
    with ExitStack() as stack:
        opened = [stack.enter_context(store.but(store=each).open(quiet=shown.quiet)) for each in paths]
        running = stack.enter_context(entering(lambda: session(memory, jobs)))
        for each in opened:
            path = each.location.path
            if not each.layout.has_messages:
                raise UsageError(f"sql reads stores, not files of kind {each.layout.kind}", path=path)
            if running.temp_folder is not None:
                keep_out(each.layout, running.temp_folder, "the folder of temporary files", location=path)
        log_bytes = sum(each.layout.log_bytes for each in opened)
        yield Queries(
            list(zip(names, opened, strict=True)), selection, running, writer, shown.zone, jobs,
            selection.limit, FindingReport(writer), log_bytes,
        )  # fmt: skip


def _standard_input() -> str:
    if sys.stdin is None:
        raise InputError("standard input is closed")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UsageError("standard input is not UTF-8") from error
