"""Which rows and columns each value of `--what` stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from rmqtool.errors import UsageError
from rmqtool.findings import Progress, Report, ScanCounters
from rmqtool.message.cells import TextLines
from rmqtool.message.explain import Explanation
from rmqtool.message.rows import Row, RowFormat
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.dump import config_rows as small
from rmqtool.report.dump import counts, index, log, place, queues, timer
from rmqtool.report.dump.messages import MessageDump

if TYPE_CHECKING:
    from rmqtool.report.export.lines import LineMaker

What = Literal["commitlog", "consumequeue", "index", "checkpoint", "config", "timer", "epoch", "compaction"]
KINDS: tuple[What, ...] = get_args(What)

Headings = Sequence[str | tuple[str, ...]]
_UNSELECTED = ("checkpoint", "config", "epoch", "compaction")


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows, every column that they may have, and what chooses a table's columns by the first rows."""

    rows: Iterator[Row | TextLines]
    columns: Sequence[str]
    table: Headings | Callable[[Sequence[Mapping[str, Any]]], Headings] | None = None


@dataclass
class Dump:
    """What to show of a store, and how; `report` is called for damage, `looked` counts what was examined.

    With `lines` large parts of the messages come as lines that it makes.
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

    @cached_property
    def messages(self) -> MessageDump:
        """The reading of the messages that `listing` and `raw` show."""
        return MessageDump(
            self.store, self.selection, self.report,
            reverse=self.reverse, progress=self.progress, looked=self.looked,
        )  # fmt: skip

    def listing(self, what: What, part: index.Part) -> Listing:
        """The rows of one kind. Raises UsageError for a selection that they have nothing for."""
        layout, selection, tz, report = self.store.layout, self.selection, self.form.tz, self.report
        named = (selection.topics, selection.exclude_topics, selection.queues, selection.tags, selection.keys)
        if what != "commitlog" and selection.filter is not None:
            raise UsageError("only messages have properties to filter by", hint="--filter needs the log")
        if (what == "timer" and any(named)) or (what in _UNSELECTED and not selection.selects_all):
            raise UsageError(f"nothing can be selected so with --what {what}")
        match what:
            case "commitlog":
                return self._records()
            case "consumequeue":
                units = queues.queue_rows(
                    layout, selection, report, tz=tz, reverse=self.reverse, gaps=self.gaps
                )
                return Listing(units, queues.FIELDS, partial(queues.table_fields, gaps=self.gaps))
            case "index":
                entries = index.index_rows(layout, selection, part, report, tz=tz, reverse=self.reverse)
                return Listing(entries, index.FIELDS, index.TABLE_FIELDS[part])
            case "checkpoint":
                return Listing(small.checkpoint_rows(layout, report, tz=tz), small.CHECKPOINT_FIELDS)
            case "timer":
                waiting = timer.timer_rows(self.store, selection, report, tz=tz)
                return Listing(waiting, timer.TIMER_FIELDS, timer.TIMER_TABLE)
            case "epoch":
                return Listing(timer.epoch_rows(layout, report), timer.EPOCH_FIELDS)
            case "compaction":
                return Listing(timer.compaction_rows(layout, report), timer.COMPACTION_FIELDS)
            case "config":
                return Listing(small.config_rows(layout, report), small.CONFIG_FIELDS)

    def _records(self) -> Listing:
        rows: Iterator[Row | TextLines]
        if self.gaps:
            rows = log.message_rows(
                self.store, self.selection, self.form, self.report,
                reverse=self.reverse, gaps=self.gaps, progress=self.progress, looked=self.looked,
            )  # fmt: skip
        else:
            rows = self.messages.rows(self.form, self.lines)
        columns = log.GAP_FIELDS if self.gaps else log.FIELDS
        return Listing(rows, columns, partial(log.table_fields, gaps=self.gaps))

    def counts(self) -> Listing:
        """Counts per topic and queue."""
        rows = counts.count_rows(
            self.store, self.selection, self.report, self.progress, tz=self.form.tz, looked=self.looked
        )
        return Listing(rows, counts.FIELDS, counts.TABLE_FIELDS)

    def raw(self) -> Iterator[bytes | memoryview]:
        """The records as bytes."""
        return self.messages.raw()

    def explain(self, what: What, offset: int) -> Explanation:
        """One structure as annotated bytes.

        Raises:
            UsageError: a kind that has none, or more or fewer than one queue is selected.
            InputError: nothing is at the offset, or it cannot be read.
        """
        layout, tz = self.store.layout, self.form.tz
        match what:
            case "commitlog":
                return place.explain_log(self.store, offset, self.form)
            case "consumequeue":
                return queues.explain_unit(layout, self.selection, offset, tz)
            case "checkpoint":
                return small.explain_checkpoint(layout, tz)
            case _:
                raise UsageError("--explain shows a record, a consume queue unit or the checkpoint")
