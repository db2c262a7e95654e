"""The values of `--what`: the rows and columns of each.

Rows of the small files are made here: of the checkpoint, and of the configuration as a broker would load it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, tzinfo
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from rmqtool import times
from rmqtool.errors import UsageError
from rmqtool.findings import Progress, Report, ScanCounters
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.cells import TextColumns, TextLines
from rmqtool.message.rows import Row, RowFormat
from rmqtool.problems import finding
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.dump import log
from rmqtool.report.dump.messages import MessageDump
from rmqtool.storage.config_files import read_file, read_or_none
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.out_of_reach import report_out_of_reach

if TYPE_CHECKING:
    from rmqtool.message.explain import Explanation
    from rmqtool.report.dump.index import Part
    from rmqtool.report.export.lines import CellMaker, LineMaker


CHECKPOINT_FIELDS = (
    "physic_msg_timestamp_ms", "physic_msg_time", "logics_msg_timestamp_ms", "logics_msg_time",
    "index_msg_timestamp_ms", "index_msg_time", "master_flushed_offset", "confirm_phy_offset", "file",
)  # fmt: skip
CONFIG_FIELDS = ("name", "source", "content", "status", "file")
_BAK = ".bak"
_BINARY = ("timercheck",)  # written by the timer, no configuration


def checkpoint_rows(layout: StoreLayout, report: Report, *, tz: tzinfo | None = UTC) -> Iterator[Row]:
    """The checkpoint's row; none without a checkpoint. A time of 0 is one never set."""
    from rmqtool.formats import checkpoint

    if layout.checkpoint is None:
        report(finding("CP01", "checkpoint"))
        return
    data, name = read_file(layout.checkpoint, checkpoint.FILE_SIZE + 1), layout.relative(layout.checkpoint)
    if len(data) != checkpoint.FILE_SIZE:
        report(finding("CP02", name, 0, len(data)))
    if not any(data):
        report(finding("CP01", name))
    found = checkpoint.decode(data.ljust(checkpoint.FILE_SIZE, b"\0"))
    row: Row = {}
    for part in ("physic_msg", "logics_msg", "index_msg"):
        timestamp = getattr(found, f"{part}_timestamp")
        row[f"{part}_timestamp_ms"] = timestamp
        row[f"{part}_time"] = times.format_time(timestamp, tz) if timestamp else None
    row["master_flushed_offset"] = found.master_flushed_offset
    row["confirm_phy_offset"] = found.confirm_phy_offset
    yield row | {"file": name}


def explain_checkpoint(layout: StoreLayout, tz: tzinfo | None = UTC) -> Explanation:
    """The checkpoint field by field. Raises UsageError where there is none."""
    from rmqtool.formats import checkpoint
    from rmqtool.message.explain import explain_structure

    if layout.checkpoint is None:
        raise UsageError("there is no checkpoint", path=layout.root)
    data = read_file(layout.checkpoint, checkpoint.FILE_SIZE)
    return explain_structure(checkpoint.CHECKPOINT.declaration, data, 0, tz)


def config_rows(layout: StoreLayout, report: Report, names: tuple[str, ...] = ()) -> Iterator[Row]:
    """One row per configuration file, with what a broker would load: the file, else its .bak.

    Args:
        layout: the store's files.
        report: called for files that cannot be read.
        names: globs over the file names, such as `topics.json`; empty for all.
    """
    from rmqtool.formats import config_json

    report_out_of_reach(layout, "config", report)
    for name in sorted({name.removesuffix(_BAK) for name in layout.config} - set(_BINARY)):
        if names and not any(fnmatchcase(name, each) for each in names):
            continue
        main, bak = layout.config.get(name), layout.config.get(name + _BAK)
        loaded = config_json.load_with_bak(name, read_or_none(main), read_or_none(bak))
        path = main if loaded.source != "bak" and main is not None else bak
        file = layout.relative(path) if path is not None else name
        code = {"failed": "CF02", "bak": "CF01"}.get(loaded.source)
        if code is not None:
            main_name = layout.relative(main) if main is not None else name
            report(finding(code, main_name, reason=loaded.file_error, bak_reason=loaded.bak_error))
        yield {
            "name": name,
            "source": loaded.source,
            "content": loaded.document,
            "status": ["ok" if code is None else code],
            "file": file,
        }


What = Literal[
    "commitlog", "consumequeue", "index", "checkpoint", "config", "timer", "pop", "epoch", "compaction"
]
KINDS: tuple[What, ...] = get_args(What)

Headings = Sequence[str | tuple[str, ...]]
_UNSELECTED = ("checkpoint", "config", "pop", "epoch", "compaction")


def columns_of(what: What, *, gaps: bool = False, counts_only: bool = False) -> Sequence[str]:
    """Every column that the rows of a kind may have, or those of counts."""
    if counts_only:
        from rmqtool.report.dump import counts

        return counts.FIELDS
    match what:
        case "commitlog":
            return log.GAP_FIELDS if gaps else log.FIELDS
        case "consumequeue":
            from rmqtool.report.dump import queues

            return queues.FIELDS
        case "index":
            from rmqtool.report.dump import index

            return index.FIELDS
        case "checkpoint":
            return CHECKPOINT_FIELDS
        case "config":
            return CONFIG_FIELDS
        case "pop":
            from rmqtool.report.dump import pop

            return pop.FIELDS
        case "timer" | "epoch" | "compaction":
            from rmqtool.report.dump import timer

            return {
                "timer": timer.TIMER_FIELDS, "epoch": timer.EPOCH_FIELDS,
                "compaction": timer.COMPACTION_FIELDS,
            }[what]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows, every column that they may have, and what chooses a table's columns by the first rows."""

    rows: Iterator[Row | TextLines | TextColumns]
    columns: Sequence[str]
    table: Headings | Callable[[Sequence[Mapping[str, Any]]], Headings] | None = None


@dataclass
class Dump:
    """One dump: a store, the parts of it to show, and their form.

    `report` is called for damage, `looked` counts what was examined.
    With `lines` large parts of the messages come as lines that it makes, with `cells` as cells of a table.
    """

    store: Store
    selection: Selection
    form: RowFormat
    report: Report
    reverse: bool = False
    gaps: bool = False
    progress: Progress | None = None
    looked: ScanCounters = field(default_factory=ScanCounters)
    lines: Callable[[], LineMaker] | None = None
    cells: Callable[[], CellMaker] | None = None

    @cached_property
    def messages(self) -> MessageDump:
        """The reading of the messages that `listing` and `raw` show."""
        return MessageDump(
            self.store, self.selection, self.report,
            reverse=self.reverse, gaps=self.gaps, progress=self.progress, looked=self.looked,
        )  # fmt: skip

    def listing(self, what: What, part: Part) -> Listing:
        """The rows of one kind. Raises UsageError for a selection that they have nothing for."""
        layout, selection, tz, report = self.store.layout, self.selection, self.form.tz, self.report
        named = (selection.topics, selection.exclude_topics, selection.queues, selection.tags, selection.keys)
        if what != "commitlog" and selection.filter is not None:
            raise UsageError("only messages have properties to filter by", hint="--filter needs the log")
        if what != "commitlog" and selection.grep is not None:
            raise UsageError("only messages have bodies to search", hint="--grep needs the log")
        if (what == "timer" and any(named)) or (what in _UNSELECTED and not selection.selects_all):
            raise UsageError(f"nothing can be selected so with --what {what}")
        columns = columns_of(what, gaps=self.gaps)
        match what:
            case "commitlog":
                rows = self.messages.rows(self.form, self.lines, self.cells)
                return Listing(rows, columns, partial(log.table_fields, gaps=self.gaps))
            case "consumequeue":
                from rmqtool.report.dump import queues

                units = queues.queue_rows(
                    layout, selection, report, tz=tz, reverse=self.reverse, gaps=self.gaps
                )
                return Listing(units, columns, partial(queues.table_fields, gaps=self.gaps))
            case "index":
                from rmqtool.report.dump import index

                entries = index.index_rows(layout, selection, part, report, tz=tz, reverse=self.reverse)
                return Listing(entries, columns, index.TABLE_FIELDS[part])
            case "checkpoint":
                return Listing(checkpoint_rows(layout, report, tz=tz), columns)
            case "config":
                return Listing(config_rows(layout, report), columns)
            case "timer" | "pop" | "epoch" | "compaction":
                return self._of_other_files(what)

    def _of_other_files(self, what: Literal["timer", "pop", "epoch", "compaction"]) -> Listing:
        from rmqtool.report.dump import timer

        layout, report, columns = self.store.layout, self.report, columns_of(what)
        match what:
            case "timer":
                waiting = timer.timer_rows(self.store, self.selection, report, tz=self.form.tz)
                return Listing(waiting, columns, timer.TIMER_TABLE)
            case "pop":
                from rmqtool.report.dump import pop

                rows = pop.pop_rows(layout, report, tz=self.form.tz)
                return Listing(rows, columns, pop.TABLE_FIELDS)
            case "epoch":
                return Listing(timer.epoch_rows(layout, report), columns)
            case "compaction":
                return Listing(timer.compaction_rows(layout, report), columns)

    def counts(self) -> Listing:
        """Counts per topic and queue."""
        from rmqtool.report.dump import counts

        rows = counts.count_rows(
            self.store, self.selection, self.report, self.progress, tz=self.form.tz, looked=self.looked
        )
        return Listing(rows, columns_of("commitlog", counts_only=True), counts.TABLE_FIELDS)

    def raw(self) -> Iterator[bytes | memoryview]:
        """The records as bytes."""
        return self.messages.raw()

    def explain(self, what: What, offset: int) -> Explanation:
        """One structure as annotated bytes.

        Raises:
            UsageError: a kind that has none, more is selected than one queue, or no queue of queues.
            InputError: nothing is at the offset, or it cannot be read.
        """
        layout, tz = self.store.layout, self.form.tz
        queues_only = Selection(topics=self.selection.topics, queues=self.selection.queues)
        if self.reverse or self.selection != (queues_only if what == "consumequeue" else Selection()):
            raise UsageError(
                "--explain shows one structure: options that select, limit or order others do not go with it",
                hint="with --what consumequeue, --topic and --queue choose the queue",
            )
        match what:
            case "commitlog":
                from rmqtool.report.dump import place

                return place.explain_log(self.store, offset, self.form)
            case "consumequeue":
                from rmqtool.report.dump import queues

                return queues.explain_unit(layout, self.selection, offset, tz)
            case "checkpoint":
                return explain_checkpoint(layout, tz)
            case _:
                raise UsageError("--explain shows a record, a consume queue unit or the checkpoint")
