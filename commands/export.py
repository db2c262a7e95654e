"""`rmqtool export`: messages of a store as files for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqtool.commands import options
from rmqtool.commands.finding_report import (
    FindingReport,
    note_fillers,
    note_selection,
    note_times,
    report_unknown,
)
from rmqtool.commands.groups import Before, Group, with_groups
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK, UsageError, worst_exit_code
from rmqtool.output import Output
from rmqtool.terminal import print_error
from rmqtool.times import parse_zone

if TYPE_CHECKING:
    from rmqtool.read.selection import Selection
    from rmqtool.read.store import Store
    from rmqtool.report.export.request import ExportRequest
    from rmqtool.report.export.run import ExportResult


class ExportOptions(Group):
    """Options of the output files and their content."""

    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH|URL",
            help="Write to this file, or to a folder if the name ends with /: s3://bucket/folder/,"
            " webhdfs://host:9870/folder/.",
        ),
    ] = None
    output_format: Annotated[
        Literal["parquet", "arrow", "orc", "jsonl", "csv", "records"] | None,
        typer.Option(
            "--output-format",
            metavar="parquet|arrow|orc|jsonl|csv|records",
            help="Format of the files. Default: from the suffix of --output; parquet with --partition-by."
            " records: the stored bytes.",
        ),
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="NAMES",
            help="Write only these columns, in this order, separated by commas. 'help' lists all columns,"
            " also without STORE. JSON lines and CSV include body_encoding with body: a body that is not"
            " UTF-8 is base64.",
        ),
    ] = None
    body: Annotated[
        Literal["plain", "stored", "both", "none"],
        typer.Option(
            "--body",
            metavar="plain|stored|both|none",
            help="Write the body decompressed, as stored (column stored_body), both ways, or not at all.",
        ),
    ] = "plain"
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Also write the whole record (column record). If the name of --output has no known suffix,"
            " and neither --output-format nor --partition-by is given, the file holds only the bytes of the"
            " records.",
        ),
    ] = False
    compression: Annotated[
        Literal["zstd", "lz4", "gzip", "none"] | None,
        typer.Option(
            "--compression",
            metavar="zstd|lz4|gzip|none",
            help="Compress the files. Default: zstd for parquet, arrow and orc; from the suffix"
            " for jsonl and csv (.jsonl.gz, .csv.zst).",
        ),
    ] = None
    partition_by: Annotated[
        str | None,
        typer.Option(
            "--partition-by",
            metavar="KEYS",
            help="For Parquet: partition into Hive-style folders by topic, date or topic,date. Dates are"
            " those of the store time, in UTC or in --tz.",
        ),
    ] = None
    file_size: Annotated[
        int | None,
        typer.Option(
            "--file-size",
            metavar="SIZE",
            parser=options.parse_size,
            help="In a folder: start a new file at about this size. Default: 1G.",
        ),
    ] = None
    row_group: Annotated[
        int | None,
        typer.Option(
            "--row-group",
            metavar="SIZE",
            parser=options.parse_size,
            help="Write rows in groups of this size, which are held in memory. Default: 64M.",
        ),
    ] = None
    cursor_file: Annotated[
        str | None,
        typer.Option(
            "--cursor-file",
            metavar="FILE",
            help="Resume where the previous run stopped, and record in this local file where this run stops.",
        ),
    ] = None
    spreadsheet: Annotated[
        bool,
        typer.Option(
            "--spreadsheet",
            help="Write CSV for Excel: with a UTF-8 byte order mark, an apostrophe before text that looks"
            " like a formula or that Excel would change (00123, 1E5, 3-4), and times without an offset, in"
            " --tz. append --input reads it back, but the apostrophes stay.",
        ),
    ] = False
    force: options.Replace = False

    def names(self) -> list[str] | None:
        """Return the columns of --columns."""
        return _names(self.columns)

    def request(self, output: str, columns: list[str] | None, tz: str | None) -> ExportRequest:
        """Return the options as a request. Raises UsageError for options that do not go together."""
        from rmqtool.report.export.request import GROUP_BYTES, export_request

        return export_request(
            output,
            format=self.output_format,
            compression=self.compression,
            columns=columns,
            body=self.body,
            raw=self.raw,
            partition_by=_names(self.partition_by),
            file_bytes=self.file_size,
            group_bytes=self.row_group or GROUP_BYTES,
            tz=parse_zone(tz),
            date_tz=parse_zone("UTC" if tz is None else tz),
            spreadsheet=self.spreadsheet,
            force=self.force,
            cursor_file=None
            if self.cursor_file is None
            else options.local_file(self.cursor_file, "--cursor-file"),
        )


@with_groups
def export(
    *,
    own: ExportOptions,
    store: options.StoreOptions,
    selected: options.SelectionOptions,
    shown: options.ObjectOutput,
    jobs: Annotated[options.Jobs, Before("format")] = 1,
) -> int:
    """Write messages to Parquet, Arrow, ORC, JSON lines or CSV.

    The columns are those of a message row (dump --fields help), with types: times are timestamps in UTC,
    keys a list, properties a map, bodies bytes. The column body_text, which only --columns adds, is the body
    as text; it is null where the body is not UTF-8. JSON lines and CSV are what dump prints. append --input
    reads the files back, except ORC, files of records, and text files that were compressed as a whole; it
    needs the body as bytes, and ignores body_text. With --body stored or both the stored body is included,
    so append stores the same record even if its body is compressed.

    A batch record (BatchCQ) is one row, as the broker stores it: with the keys, tags and properties of the
    record, and a body that holds its messages packed. The column system lists these messages. A note on
    standard error says how many batch records there were, and how many messages they hold. Another one says
    how many rows are fillers of recover, and which options leave them out.

    A file appears only when it is complete; an interrupted run never leaves a partial file. In a folder,
    files are named by the physical offset at which they start. With --cursor-file the cursor advances only
    after a file has appeared: successive runs export each message once, even if a run is interrupted. Log
    files that expired between two runs are reported.

    Damage is reported on standard error, and sound messages are exported. Rows of damaged messages name the
    damage in status. Damaged properties (CL09, CL13) and bodies that cannot be decompressed (CL14) are
    detected if status is among the columns.

    Exits with 0 even if nothing matches; 1 for damage, for a --topic or --queue that the store does not
    have, and when messages between the cursor and the start of the log are lost; 2 for a usage error; 3 when
    something could not be read or written, or is stored in a form rmqtool cannot read; 4 when
    a file exists or would lie in the store, and for a cursor of another log or selection; 70 for a bug in
    rmqtool; 130 when interrupted.
    """
    from rmqtool.findings import ScanCounters
    from rmqtool.report.export.run import run_export

    columns = own.names()
    if own.output is None:
        raise UsageError(
            "--output is missing", hint="--output messages.parquet, or a folder that ends with /"
        )
    writer, selection = shown.writer(), selected.selection(shown.tz)
    request = own.request(own.output, columns, shown.tz)
    if own.spreadsheet:
        _note_spreadsheet(writer, shown.tz)
    seen = FindingReport(writer)
    with store.open(quiet=shown.quiet) as opened:
        with writer.progress("export", sum(file.size for file in opened.layout.commit_log)) as bar:
            result = run_export(opened, selection, request, seen.report, bar.advance, jobs=jobs)
        _write_sums(result, writer)
        _note_bodies(result, writer)
        if result.messages:
            _note_delayed(opened, selection, writer)
        looked = ScanCounters(topics=set(selection.topics) if result.messages else set())
        note_fillers(result.batch_records, selection, writer)
        shows_them = request.format == "records" or "system" in (columns or ())
        note_selection([opened], selection, writer, None if shows_them else result.batch_records)
        note_times([opened], selection, writer, shown.zone, found=result.messages > 0)
        seen.note_past_end(opened, selection, result.messages)
        unknown = report_unknown([opened], selection, looked, found=result.messages > 0)
        lost = EXIT_FINDINGS if result.lost else EXIT_OK
        return worst_exit_code(seen.exit_code(), unknown, lost)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name for name in map(str.strip, text.split(",")) if name]


def _note_spreadsheet(writer: Output, tz: str | None) -> None:
    """Note what --spreadsheet changes."""
    zone = "the local zone" if tz is None else tz
    writer.note(
        "rmqtool: --spreadsheet puts an apostrophe before texts that start with = + - @ or a tab, or that"
        f" Excel would change, such as 00123, 1E5 and 3-4, and writes times in {zone}, without an offset:"
        " the file is not exact"
    )


def _note_bodies(result: ExportResult, writer: Output) -> None:
    """Note which bodies Excel does not show as they are."""
    from rmqtool.report.export.text import CELL_MAX

    if number := result.too_long_bodies:
        what = "1 body is" if number == 1 else f"{number} bodies are"
        writer.note(
            f"rmqtool: {what} longer than a cell of Excel ({CELL_MAX:,} characters), which cuts a longer text"
            " or breaks the row: --columns without body leaves bodies out"
        )
    if number := result.encoded_bodies:
        what = "1 body is not text: it is" if number == 1 else f"{number} bodies are not text: they are"
        writer.note(f"rmqtool: {what} in base64 (column body_encoding)")


def _note_delayed(store: Store, selection: Selection, writer: Output) -> None:
    """Note that a delayed message is stored again when it is due, if topics of both are exported."""
    from rmqtool.message.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC

    if selection.topics:
        return  # named, or matched by a pattern of the user
    there = {topic for topic, _ in store.queues}
    names = [
        each for each in (SCHEDULE_TOPIC, TIMER_TOPIC) if each in there and selection.matches_topic(each)
    ]
    if names:
        writer.note(
            f"rmqtool: {' and '.join(names)}: a delayed message is stored there first, and in its own topic"
            " again when it is due; to leave the first out:"
            f" {' '.join(f'--exclude-topic {each}' for each in names)}"
        )


def _write_sums(result: ExportResult, writer: Output) -> None:
    """Report what was lost on stderr, and write the sums."""
    if result.resumed is not None:
        writer.note(f"rmqtool: the previous run had finished {result.resumed}; this run resumes after it")
    if number := result.other_files:
        what = "1 other file is" if number == 1 else f"{number} other files are"
        writer.note(
            f"rmqtool: {what} in the folder, from before this run: a query over the folder reads them too"
        )
    if result.lost is not None:
        first, last = result.lost
        print_error(
            f"rmqtool: error: bytes {first} to {last} of the log have expired since the cursor was written;"
            " no run exported their messages"
        )
    writer.write_object({
        "messages": result.messages,
        "files": [
            {"file": name, "messages": messages, "bytes": size} for name, messages, size in result.files
        ],
        "other_files": result.other_files,
        "next_offset": result.next_offset,
    })  # fmt: skip
