"""`rmqtool tail` far behind: what is read in bulk is what is read one by one, line for line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqtool import Store
from rmqtool.cli import main
from rmqtool.formats.consume_queue import UNIT, UNIT_SIZE
from rmqtool.message.cells import TextLines, json_text
from rmqtool.message.rows import RowFormat
from rmqtool.read.body_pattern import BodyPattern
from rmqtool.read.due_times import due_of
from rmqtool.read.filter import parse
from rmqtool.read.selection import Selection
from rmqtool.report.tail import bulk as bulk_module
from rmqtool.report.tail import start as start_module
from rmqtool.report.tail.follower import BulkRound
from rmqtool.report.tail.rows import BulkRows, tail_rows
from rmqtool.report.tail.start import StartPosition, start_numbers
from rmqtool.report.tail.subscription import Subscription
from rmqtool.report.tail.topics import open_tail
from rmqtool.write.store_writer import StoreWriter
from tests import ROOT
from tests.support.build_store import patch
from tests.support.stores import Library
from tests.support.tail_writer import SMALL, message
from tests.unit.report.test_tail_follow import all_places, follower, put

pytestmark = pytest.mark.usefixtures("json_lines")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round is tried in bulk, however few units there are, and rounds are small."""
    monkeypatch.setattr(bulk_module, "BULK_UNITS", 3)
    monkeypatch.setattr(bulk_module, "_ROUND_UNITS", 900)
    monkeypatch.setattr("rmqtool.report.tail.follower._BUSY_UNITS", 0)
    monkeypatch.setattr("rmqtool.report.tail.follower._BUFFERED_UNITS_BEFORE_BULK", 50)


def both_ways(
    path: Path, form: RowFormat, names: Sequence[str] | None, wanted: Subscription, start: StartPosition
) -> tuple[list[str], list[str], int]:
    """Lines one by one, lines in bulk, and how many of these came in bulk."""
    with Store.open(path) as store:
        form = replace(form, due_of=due_of(store))
        slow = tail_rows(open_tail(store, Selection(), start, wanted), form, pytest.fail)
        lines = [json_text(row) for row in slow if row is not None]
        tail = open_tail(store, Selection(), start, wanted)
        bulk = BulkRows(tail, form, names, "jsonl")
        found: list[str] = []
        count = 0
        for row in tail_rows(tail, form, pytest.fail, bulk=bulk):
            if isinstance(row, TextLines):
                found += bytes(row.data).decode().splitlines()
                count += row.count
            elif row is not None:
                found.append(json_text(row))
    return lines, found, count


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("name", "names", "wanted", "start"),
    [
        ("ok_540_expired", None, Subscription(), StartPosition()),
        ("ok_540_small_ipv6", None, Subscription.of(["TagA", "AaAa", "\udcff"]), StartPosition()),
        (
            "ok_533_small_propcrc",
            ("queue_id", "tags", "body", "properties"),
            Subscription(),
            StartPosition(last=100),
        ),
        ("ok_497_expired", ("keys", "system"), Subscription(filter=parse("TAGS <> 'AaAa'")), StartPosition()),
    ],
)  # fmt: skip
def test_both_ways_give_the_same_lines(
    name: str, names: Sequence[str] | None, wanted: Subscription, start: StartPosition, cases: Library
) -> None:
    """All columns, some of them, with tags and filters."""
    form = RowFormat(names=None if names is None else tuple(names))
    lines, found, count = both_ways(cases.path(name), form, names, wanted, start)
    assert found == lines and len(lines) > 20 and count > len(lines) // 2


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", ["ok_540_expired", "ok_497_expired"])
@pytest.mark.parametrize(
    "wanted",
    [
        Subscription(grep=BodyPattern("[a-m]1")), Subscription(grep=BodyPattern("(?i)E")),
        Subscription.of(["TagA"], grep=BodyPattern(".")), Subscription(filter=parse("TAGS <> 'AaAa'")),
    ],
)  # fmt: skip
def test_rows_of_a_table_are_looked_for_in_bulk(name: str, wanted: Subscription, cases: Library) -> None:
    """A table has the rows of single messages, bodies compressed or not."""
    with Store.open(cases.path(name)) as store:
        form = RowFormat(due_of=due_of(store))
        slow = list(tail_rows(open_tail(store, Selection(), StartPosition(), wanted), form, pytest.fail))
        tail = open_tail(store, Selection(), StartPosition(), wanted)
        bulk = BulkRows(tail, form, None, None)
        rounds: list[int] = []
        read = tail.bulk
        assert read is not None

        def counted() -> BulkRound | None:
            found = read()
            rounds.extend([] if found is None else [found.units])
            return found

        tail.bulk = counted
        assert list(tail_rows(tail, form, pytest.fail, bulk=bulk)) == slow
        assert slow and sum(rounds) > 100


@pytest.mark.parametrize("name", ["ok_540_expired", "bad_cl14_bad_body", "bad_cl03_body_crc"])
@pytest.mark.parametrize(
    "wanted",
    [
        Subscription(grep=BodyPattern("[a-m]1")), Subscription.of(["TagA"], grep=BodyPattern("e")),
        Subscription(filter=parse("TAGS <> 'AaAa'")), Subscription(grep=BodyPattern("not in any body")),
    ],
)  # fmt: skip
def test_the_last_messages_are_looked_for_in_bulk(
    name: str, wanted: Subscription, cases: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--last N begins where it begins message by message, damaged records among them."""
    passed: list[int] = []
    unwanted = bulk_module.unwanted

    def counted(*arguments: Any) -> frozenset[int]:
        found = unwanted(*arguments)
        passed.append(len(found))
        return found

    with Store.open(cases.path(name)) as store:
        for last in (3, 1000):
            starts = []
            for one_by_one in (1 << 30, 2):
                monkeypatch.setattr(start_module, "_ONE_BY_ONE", one_by_one)
                monkeypatch.setattr(start_module, "_PART_BYTES", 20_000)
                with monkeypatch.context() as patched:
                    patched.setattr(bulk_module, "unwanted", counted)
                    starts.append(start_numbers(store, store.queues, StartPosition(last=last), wanted, {}))
            assert starts[0] == starts[1]
    assert sum(passed) > 0


@pytest.mark.usefixtures("eager")
def test_a_round_goes_on_in_the_next_files_of_a_queue(tmp_path: Path) -> None:
    """Small queue files do not make small rounds: all that came meanwhile is read at once."""
    path = tmp_path / "store"
    with StoreWriter.create(path, "5.4", **{**SMALL, "consume_queue_file_size": 800}) as writer:
        put(writer, 0, 700)
    with Store.open(path) as store:
        assert max(len(queue.files) for queue in store.layout.consume_queues.values()) > 3
        tail = open_tail(store, Selection(), StartPosition(), Subscription())
    bulk = BulkRows(tail, RowFormat(), None, "jsonl")
    rows = tail_rows(tail, RowFormat(), pytest.fail, bulk=bulk)
    assert max(row.count for row in rows if isinstance(row, TextLines)) > 600


@pytest.mark.usefixtures("eager")
def test_lines_of_csv(cases: Library, capfd: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    made: list[int] = []
    shown = BulkRows.shown
    monkeypatch.setattr(BulkRows, "shown", lambda self, batch: made.append(len(batch)) or shown(self, batch))
    arguments = ["tail", str(cases.path("ok_540_expired")), "--format", "csv", "--tz", "UTC"]
    for more in ([], ["--fields", "keys,body,status", "--limit", "300"]):
        assert main([*arguments, *more]) == 0
        in_bulk, made[:] = sum(made), []
        found = capfd.readouterr().out
        with monkeypatch.context() as patched:
            patched.setattr("rmqtool.report.export.lines.can_be_lines", lambda *_: False)
            assert main([*arguments, *more]) == 0
        assert capfd.readouterr().out == found
        assert in_bulk > 100 and not made


@pytest.mark.usefixtures("eager")
def test_since_and_no_bodies(cases: Library) -> None:
    """What is stored before is left out in bulk too."""
    path = cases.path("ok_540_expired")
    with Store.open(path) as store:
        times = sorted(item.message.store_timestamp for item in store.messages())
    start = StartPosition(since=times[len(times) // 2])
    lines, found, count = both_ways(path, RowFormat(body="none"), None, Subscription(), start)
    assert found == lines and len(lines) >= len(times) // 2 - 30 and count


@pytest.mark.usefixtures("eager")
def test_damage_is_left_to_the_other_way(
    tmp_path: Path, cases: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    """Bad units and bad bodies are told once, and nothing else is lost."""
    cases.copy("ok_540_expired", tmp_path / "store")
    path = tmp_path / "store"
    with Store.open(path) as store:
        keys = store.layout.consume_queues
        key = max(keys, key=lambda key: store.max_offset(*key) - store.min_offset(*key))
        low, high = store.min_offset(*key), store.max_offset(*key)
        places = [unit.physical_offset for _, unit in store.queues[key].units(low, high)]
        file = store.layout.consume_queues[key].files[0]
    assert high - low > 20
    at = (low + 5) * UNIT_SIZE - file.file_from_offset
    patch(file.path, at, UNIT.pack(places[5] + 4, 100, 0))
    assert main(["tail", str(path), "--fields", "topic,queue_id,queue_offset,physical_offset"]) == 1
    done = capfd.readouterr()
    rows = [json.loads(line) for line in done.out.splitlines()]
    mine = [row["queue_offset"] for row in rows if (row["topic"], row["queue_id"]) == key]
    assert done.err.count("CQ14") == 1 and mine == [n for n in range(low, high) if n != low + 5]
    assert [row["physical_offset"] for row in rows] == sorted(row["physical_offset"] for row in rows)


@pytest.mark.usefixtures("eager")
def test_bulk_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of both kinds, files that roll, new topics: every message once, in the order of the log."""
    monkeypatch.setattr("rmqtool.report.tail.follower.REFRESH_S", 0)
    path = tmp_path / "store"
    with StoreWriter.create(path, "5.4", **SMALL) as writer:
        put(writer, 0, 300)
        tail = follower(path, StartPosition(position="earliest"))
        form = RowFormat(names=("physical_offset",))
        lines = BulkRows(tail, form, form.names, "jsonl")
        numbers = iter(range(300, 1500, 60))
        idle = 0

        def wait(_: float) -> None:
            nonlocal idle
            number = next(numbers, None)
            if number is None:
                idle += 1
            else:
                put(writer, number, number + 60, f"Topic{number // 500}")

        tail.wait = wait
        found: list[int] = []
        bulk = 0
        for row in tail_rows(tail, form, pytest.fail, bulk=lines, follow=True):
            if isinstance(row, TextLines):
                found += [json.loads(line)["physical_offset"] for line in bytes(row.data).splitlines()]
                bulk += row.count
            elif row is not None:
                found.append(row["physical_offset"])
            elif idle > 4:
                break
    assert found == all_places(path) and len(found) == 1500 and bulk > 700


@pytest.mark.usefixtures("eager")
def test_a_cut_is_seen_in_bulk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store put back and written on with other messages."""
    monkeypatch.setattr("rmqtool.report.tail.follower.REFRESH_S", 0)
    path, kept = tmp_path / "store", tmp_path / "kept"
    one = {**SMALL, "auto_create_queues": 1}
    with StoreWriter.create(path, "5.4", **one) as writer:
        put(writer, 0, 90)
    shutil.copytree(path, kept)

    def steps() -> Iterator[None]:
        with StoreWriter.open(path) as writer:
            put(writer, 90, 130)
        yield
        shutil.rmtree(path)
        shutil.copytree(kept, path)
        with StoreWriter.open(path) as writer:
            put(writer, 600, 640)
        yield

    tail = follower(path, StartPosition(position="earliest"))
    form = RowFormat(names=("keys",))
    lines = BulkRows(tail, form, form.names, "jsonl")
    changes, idle = steps(), 0

    def wait(_: float) -> None:
        nonlocal idle
        idle += next(changes, "over") == "over"

    tail.wait = wait
    found: list[str] = []
    for row in tail_rows(tail, form, pytest.fail, bulk=lines, follow=True):
        if isinstance(row, TextLines):
            found += [json.loads(line)["keys"][0] for line in bytes(row.data).splitlines()]
        elif row is not None:
            found += row["keys"]
        elif idle > 3:
            break
    assert found == [f"key-{number}" for number in (*range(130), *range(600, 640))]


def test_light_commands_load_nothing_heavy(tmp_path: Path) -> None:
    """A short tail of a small store needs no pyarrow and no compiled kernel."""
    path = tmp_path / "store"
    with StoreWriter.create(path, "5.4", **SMALL) as writer:
        writer.put(message(1))
    code = (
        "import sys; from rmqtool.cli import main; "
        f"code = main(['tail', {str(path)!r}, '--filter', 'size > 0']); "
        "print([n for n in ('pyarrow', 'numba', 'rich') if n in sys.modules], file=sys.stderr);"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "[]\n", 1)
