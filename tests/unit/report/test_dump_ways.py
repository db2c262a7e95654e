"""`rmqtool dump` of messages: what is read by an access path is what is read record by record."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from rmqtool import output
from rmqtool.findings import ScanCounters
from rmqtool.formats import message
from rmqtool.log.events import StoredMessage
from rmqtool.message.cells import TextColumns, TextLines, csv_text, field_value, json_text
from rmqtool.message.columns import NAMES
from rmqtool.message.rows import RowFormat
from rmqtool.problems import Finding
from rmqtool.read import log_items
from rmqtool.read.due_times import due_of
from rmqtool.read.filter import parse
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.dump import log, messages
from rmqtool.report.dump.log import GAP_FIELDS, OF_GAPS
from rmqtool.report.export.lines import CellMaker, LineFormat, LineMaker, can_be_lines
from tests.support.build_store import file_name, write_log
from tests.support.dumps import SMALL, Dump
from tests.support.records import record as make_record
from tests.support.stores import VERSIONS, Library, case_names, is_large, variant_id, variants
from tests.support.sweep import IS_WHOLE, in_sweeps, paired, sample

pytestmark = pytest.mark.sweep

LARGE = 1000  # messages

LOGS = [name for name in case_names() if "_cl" in name or name.startswith(("ok_", "torn_", "old_un01"))]
QUEUES = [name for name in case_names() if name not in LOGS]
DAMAGED = [f"{version}:{variant_id(each)}" for version in VERSIONS for each in variants(version)[::10]]
# Each is read record by record once for each selection: the default run takes those of some hundred messages.
SMALL_LOGS = [name for name in LOGS if not is_large(name)]
LARGE_LOGS = in_sweeps([name for name in LOGS if is_large(name)])
CLEAN_DAMAGED = [name for name in DAMAGED if ":clean:" in name]
KILLED_DAMAGED = in_sweeps([name for name in DAMAGED if ":clean:" not in name])
SOME = [*sample(SMALL_LOGS, 15), *LARGE_LOGS, *sample(CLEAN_DAMAGED, 60), *KILLED_DAMAGED]
FORMS = (
    RowFormat(), RowFormat(body="none"), RowFormat(body="hex"), RowFormat(body_limit=100),
    RowFormat(names=("topic", "body", "stored_body", "system")), RowFormat(names=("physical_offset",)),
)  # fmt: skip


@pytest.fixture(autouse=True)
def never_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every store is read by its access path; a reading with a limit begins with a few plain records."""
    monkeypatch.setattr(log_items, "PLAIN_BYTES", -1)
    monkeypatch.setattr(messages, "PLAIN_BYTES", 3000)


class Both:
    """One selection of one store, read both ways; what they say about it is compared."""

    def __init__(
        self, store: Store, selection: Selection, *, reverse: bool = False, gaps: bool = False
    ) -> None:
        self.store = store
        self.selection = selection
        self.reverse, self.gaps = reverse, gaps
        self.told: list[Finding] = []
        self.expected: list[Finding] = []
        self.looked, self.counted = ScanCounters(), ScanCounters()
        self.dump = messages.MessageDump(
            store, selection, self.told.append, reverse=reverse, gaps=gaps, looked=self.looked
        )

    def plain(self, form: RowFormat) -> list[dict[str, Any]]:
        rows = log.message_rows(
            self.store, self.selection, form, self.expected.append,
            reverse=self.reverse, gaps=self.gaps, looked=self.counted,
        )  # fmt: skip
        return list(rows)

    def check_told(self) -> None:
        """All that lies in what was read is told, in order, and nothing else; backwards in any order."""
        access = self.dump.access
        if self.reverse:
            self.told.sort(key=str)
            self.expected.sort(key=str)
        if access is None or access.bytes_read == access.bytes_total:
            assert [str(each) for each in self.told] == [str(each) for each in self.expected]
            assert self.looked.topics == self.counted.topics
            if self.selection.limit is None:
                assert self.looked == self.counted
            return
        rest = [each for each in self.expected if each not in self.told]
        assert [each for each in self.expected if each in self.told] == self.told
        read = [each for each in access.ranges if each.via == "log"]
        for each in rest:
            place = each.physical_offset or 0
            assert not any(part.start <= place < part.stop for part in read), each


def selections(rows: list[dict[str, Any]]) -> Iterator[Selection]:
    """Of every kind one that selects something of these rows."""
    yield Selection()
    if not rows:
        return
    first, middle, last = rows[0], rows[len(rows) // 2], rows[-1]
    keyed = next((row for row in rows[len(rows) // 3 :] if row["keys"]), middle)
    key = (keyed["keys"] or ["none"])[0]
    yield Selection(limit=3)
    yield Selection(limit=len(rows) - 1)
    yield Selection(limit=2, topics=[last["topic"], "nowhere"])
    yield Selection(topics=[middle["topic"]])
    yield Selection(topics=[first["topic"][:3] + "*"], exclude_topics=[last["topic"]], queues=[0, 1])
    yield Selection(keys=[key])
    yield Selection(keys=[key, "nowhere"], topics=[keyed["topic"]], limit=1)
    yield Selection(tags=[middle["tags"] or "TagA"])
    yield Selection(since=middle["store_timestamp_ms"])
    yield Selection(since=middle["store_timestamp_ms"], until=last["store_timestamp_ms"], limit=5)
    yield Selection(until=middle["born_timestamp_ms"], time_field="born")
    yield Selection(from_offset=middle["physical_offset"] + 1, to_offset=last["physical_offset"])
    yield Selection(filter=parse("KEYS IS NOT NULL AND TAGS IS NOT NULL"), queues=[0, 2])
    yield Selection(topics=["nowhere"])


def chosen(rows: list[dict[str, Any]], name: str, share: int) -> list[tuple[int, Selection]]:
    """One in `share` of them with its number: each store takes a part, so that all are taken by several.

    The default run takes fewer of a large store, which is read record by record once for each.
    """
    every = list(enumerate(selections(rows)))
    if len(rows) > LARGE and not IS_WHOLE:
        share *= 4
    return [every[0], *every[1 + crc32(name.encode()) % share :: share]]


@contextmanager
def opened(name: str, cases: Library, tmp_path: Path) -> Iterator[Store]:
    """A fixture, or a damaged variant by its name."""
    path = cases.variant(name, tmp_path / "variant") if ":" in name else cases.path(name)
    with Store.open(path) as store:
        yield store


@pytest.mark.parametrize("name", [*SOME, *sample(QUEUES, 40)])
def test_rows_and_findings_are_the_same(name: str, cases: Library, tmp_path: Path) -> None:
    with opened(name, cases, tmp_path) as store:
        due = due_of(store)
        rows = Both(store, Selection()).plain(RowFormat(due_of=due))
        for number, selection in chosen(rows, name, 4):
            each = FORMS[number % len(FORMS)]
            form = RowFormat(body=each.body, names=each.names, body_limit=each.body_limit, due_of=due)
            both = Both(store, selection)
            assert list(both.dump.rows(form)) == both.plain(form), selection
            both.check_told()


ORDERS = ({"reverse": True}, {"gaps": True}, {"reverse": True, "gaps": True})


@pytest.mark.parametrize("name", [*SOME, *sample(QUEUES, 40)])
def test_backwards_and_with_gaps(
    name: str, cases: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As rows and as lines, in pieces of a few records and in large ones."""
    with opened(name, cases, tmp_path) as store:
        due = due_of(store)
        rows = Both(store, Selection()).plain(RowFormat(due_of=due))
        for number, selection in chosen(rows, name, 4):
            monkeypatch.setattr(messages, "_PIECE_BYTES", (2000, 50_000, 8 << 20)[number % 3])
            order = ORDERS[(number + crc32(name.encode())) % len(ORDERS)]
            each = FORMS[number % len(FORMS)]
            form = RowFormat(body=each.body, names=each.names, body_limit=each.body_limit, due_of=due)
            both = Both(store, selection, **order)
            assert list(both.dump.rows(form)) == both.plain(form), (selection, order)
            both.check_told()
            format: LineFormat = ("jsonl", "csv")[number % 2]
            names: tuple[str, ...] | None = (None, ("topic", "kind", "body", "blank"), None)[number % 3]
            names = GAP_FIELDS if names is None and format == "csv" else names
            form = RowFormat(due_of=due)
            more: dict[str, Any] = {"more": OF_GAPS} if names is not None else {}
            if names is None and "gaps" in order:
                more = {"first": OF_GAPS[:1]}
            elif "gaps" not in order:
                names, more = None if names is None else ("topic", "body"), {}
            made = partial(LineMaker, names, form, format, **more)
            both = Both(store, selection, **order)
            found = [
                bytes(row.data) if isinstance(row, TextLines) else shown(row, names, format)
                for row in both.dump.rows(form, made)
            ]
            assert b"".join(found) == b"".join(shown(row, names, format) for row in both.plain(form))
            both.check_told()


def shown(row: dict[str, Any], names: tuple[str, ...] | None, format: LineFormat) -> bytes:
    """The line of a row with these columns."""
    if names is not None and format == "jsonl":
        row = {name: row.get(name) for name in names}
    return line_of(row, names or NAMES, format)


def test_backwards_the_plain_part_and_the_rest_tell_once(cases: Library) -> None:
    """That a file is too short is told before its last record, and not again by the pieces before."""
    form = RowFormat(names=("physical_offset",))
    with Store.open(cases.path("bad_cl21_wrong_size_file")) as store:
        both = Both(store, Selection(limit=200), reverse=True)
        assert list(both.dump.rows(form)) == both.plain(form)
        both.check_told()
        assert both.dump.access is not None and "CL21" in {each.problem.code for each in both.told}


def test_a_torn_last_record_that_a_queue_leads_to(cases: Library, tmp_path: Path) -> None:
    """Its unit is there, and the range that the queue gives ends where the record ends."""
    form = RowFormat(names=("physical_offset",))
    with opened("5.4.0:killed:torn-last-record:noabort", cases, tmp_path) as store:
        both = Both(store, Selection(topics=["pub*"], exclude_topics=["pubTopicEight"], queues=[0, 1]))
        assert list(both.dump.rows(form)) == both.plain(form)
        assert both.dump.access is not None and both.dump.access.kind == "queue"


@pytest.mark.parametrize(("name", "format"), paired(SOME, ["jsonl", "csv"]))
def test_lines_are_those_of_rows(name: str, format: LineFormat, cases: Library, tmp_path: Path) -> None:
    with opened(name, cases, tmp_path) as store:
        due = due_of(store)
        rows = Both(store, Selection()).plain(RowFormat(due_of=due))
        for number, selection in chosen(rows, name, 5):
            names = (None, ("topic", "body", "stored_body"), None, ("status", "file"))[number % 4]
            form = RowFormat(body=("text", "none")[number % 2], names=names, due_of=due)  # type: ignore[arg-type]
            assert can_be_lines(store, names, form)
            both = Both(store, selection)
            found = b"".join(
                bytes(row.data) if isinstance(row, TextLines) else line_of(row, names or NAMES, format)
                for row in both.dump.rows(form, lambda: LineMaker(names, form, format))  # noqa: B023
            )
            assert found == b"".join(line_of(row, names or NAMES, format) for row in both.plain(form))
            both.check_told()


def line_of(row: dict[str, Any], names: tuple[str, ...], format: LineFormat) -> bytes:
    """A row as `Output` writes it."""
    if format == "jsonl":
        return json_text(row).encode() + b"\n"
    return ",".join(csv_text(field_value(row, name)) for name in names).encode() + b"\n"


@pytest.mark.parametrize("name", SOME)
def test_a_table_of_cells_is_that_of_rows(
    name: str, cases: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:  # fmt: skip
    """Byte for byte, with the widths of every block, in any language, and for system records alone."""
    block_rows = (5, 200)[crc32(name.encode()) % 2]
    monkeypatch.setattr(output, "TABLE_BLOCK_ROWS", block_rows)

    def table(rows: Iterable[Any], names: tuple[str, ...] | None) -> tuple[int, bytes]:
        writer = output.Output(fields=None if names is None else ",".join(names))
        count = writer.write_rows(rows, NAMES, log.table_fields)
        return count, capfdbinary.readouterr().out

    with opened(name, cases, tmp_path) as store:
        due = due_of(store)
        rows = Both(store, Selection()).plain(RowFormat(due_of=due))
        system = next((row["topic"] for row in rows if row.get("system")), None)
        for number, selection in [*chosen(rows, name, 5), (0, Selection(topics=[system or "nowhere"]))]:
            names = (None, ("topic", "properties", "body"), ("keys", "system", "store_time", "status"))[
                number % 3
            ]
            form = RowFormat(body=("text", "none")[number % 2], names=names, due_of=due)  # type: ignore[arg-type]
            both = Both(store, selection)
            maker = partial(CellMaker, names or log.TABLE_FIELDS, form, block_rows)
            made: list[TextColumns] = []
            noted = (note_cells(each, made) for each in both.dump.rows(form, cells=maker))
            assert table(noted, names) == table(both.plain(form), names), selection
            both.check_told()
            is_cells = names is not None or any(not row.get("system") for row in rows[:block_rows])
            if selection == Selection() and len(rows) > block_rows and is_cells:
                assert sum(each.count for each in made) == len(rows) - block_rows


def note_cells(each: Any, made: list[TextColumns]) -> Any:
    """Return a row or block of cells; the blocks are added to `made`."""
    if not isinstance(each, Mapping):
        made.append(each)
    return each


@pytest.mark.parametrize("name", SOME)
def test_raw_is_what_the_files_hold(name: str, cases: Library, tmp_path: Path) -> None:
    with opened(name, cases, tmp_path) as store:
        rows = Both(store, Selection()).plain(RowFormat())
        for _, selection in chosen(rows, name, 5):
            both = Both(store, selection)
            found = b"".join(map(bytes, both.dump.raw()))
            items = list(log_items.log_items(store, selection, looked=both.counted))
            assert found == b"".join(
                message.encode(each.message) for each in items if isinstance(each, StoredMessage)
            )
            for each in items:
                if isinstance(each, StoredMessage):
                    both.expected += log_items.record_findings(each, [])
                elif isinstance(each, Finding):
                    both.expected.append(each)
            if not store.layout.unsupported and not store.layout.unreadable:
                both.check_told()
            backwards = messages.MessageDump(store, selection, lambda _: None, reverse=True)
            if selection.limit is None:
                pieces = list(map(bytes, backwards.raw()))
                assert b"".join(pieces[::-1]) == found


@pytest.mark.parametrize("format", ["jsonl", "json", "csv", "tsv", "table", None])
def test_the_command_writes_the_same(
    format: str | None, cases: Library, monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:  # fmt: skip
    """In every format, and byte for byte without one; with what it says, and its exit code."""
    # A table that has waited for its rows for a second is shown with the widths that it has by then.
    monkeypatch.setattr(output, "FLUSH_SECONDS", 3600.0)
    dump = Dump(capfdbinary)
    form = ("--raw",) if format is None else ("--format", format)
    for name, options in (
        (SMALL, ()), (SMALL, ("--limit", 40)), (SMALL, ("--tag", "none")),
        (SMALL, ("--topic", "SCHEDULE_TOPIC_XXXX", "--fields", "system.kind,topic,topic")),
        (SMALL, ("--fields", "body,system", "--body", "none")), ("bad_cl03_body_crc", ()),
        ("bad_cl14_bad_body", ("--from-offset", 700_000, "--to-offset", 800_000)),
        ("gap_cl26_log_missing", ()),
    ):  # fmt: skip
        if format is None and "--fields" in options:
            continue
        found = dump(cases.path(name), *form, *options)
        with monkeypatch.context() as patch:
            patch.setattr(log_items, "PLAIN_BYTES", 1 << 40)
            plain = dump(cases.path(name), *form, *options)
        assert (found.code, found.out, found.err) == (plain.code, plain.out, plain.err), (name, options)


def test_what_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of the selected offsets count, holes of files that were made ahead do not."""
    stored = write_log(tmp_path / "commitlog", [make_record(body=bytes(1000)) for _ in range(3)])
    path = tmp_path / "commitlog" / file_name(0)
    os.truncate(path, 64 << 20)
    with Store.open(path) as store:
        end = stored[-1].physical_offset + stored[-1].total_size
        monkeypatch.setattr(log_items, "PLAIN_BYTES", 64 << 10)
        assert log_items.is_small(store, None, None)
        monkeypatch.setattr(log_items, "PLAIN_BYTES", 2000)
        assert not log_items.is_small(store, None, None)
        assert log_items.is_small(store, 0, 2000) and log_items.is_small(store, end - 100, end)
