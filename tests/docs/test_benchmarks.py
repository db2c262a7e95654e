"""The benchmarks work: contenders take turns, results are right, the report writes them."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main as rmqtool_main
from rmqtool.commands import concepts_page
from rmqtool.log.frames import Frames, walk
from rmqtool.storage.source import open_source
from tests import ROOT
from tests.benchmarks import (
    growth,
    harness,
    java,
    limits,
    machine,
    messages,
    report,
    rows_lookup,
    rows_recover,
)
from tests.benchmarks.harness import Call, Contender, Program, Row, Sample, measure, rmqtool
from tests.benchmarks.scale import SCALES, Bench

COUNT = 40


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests" / "benchmarks").glob("*.py")), ids=lambda path: path.stem
)
def test_every_module_is_importable(path: Path) -> None:
    """A name that moved would else be noticed by CI only."""
    importlib.import_module(f"tests.benchmarks.{path.stem}")


# the harness


@dataclass(frozen=True, kw_only=True)
class Prepared(Contender):
    """A contender whose rounds take prepared times; `log` gets a letter for each."""

    times: list[float] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def _work(self, watched: bool) -> Sample:
        self.log.append(self.name.upper() if watched else self.name)
        return Sample(1000, peak_bytes=7, open_files=3) if watched else Sample(self.times.pop(0))


def contenders(log: list[str]) -> list[Prepared]:
    return [
        Prepared(name="a", kind="rmqtool", times=[2, 1, 4], log=log),
        Prepared(name="b", times=[6, 5, 4], log=log),
        Prepared(name="c", kind="limit", times=[1, 1, 1], log=log, amount=5),
    ]


def test_contenders_take_turns() -> None:
    """In one order and in the other, after a round that is watched and does not count."""
    log: list[str] = []
    result = measure(Row("r", contenders(log), unit="keys", amount=10, goals={"b": 2}), rounds=3, budget_s=60)
    assert "".join(log) == "ABC" + "abc" + "cba" + "abc"
    ours, other, part = result["contenders"]
    assert (ours["seconds"], ours["low"], ours["high"], ours["ratio"]) == (2, 1, 4, None)
    assert (ours["peak_bytes"], ours["open_files"]) == (7, 3)
    assert (other["seconds"], other["ratio"]) == (5, pytest.approx(3))  # the median of 6/2, 5/1, 4/4
    assert (part["seconds"], part["ratio"], part["part"]) == (
        2,
        1,
        True,
    )  # half of the work in half of the time
    assert (result["rounds"], result["goals"]) == (3, {"b": 2})


@pytest.mark.parametrize(
    ("clock", "rounds", "order", "seconds"),
    [
        ((0, 1, 9), 3, "ABC" + "abc" + "cba", 1.5),  # the third would begin too late
        ((0, 1, 11), 3, "ABC" + "abc", 2),
        ((0, 41), 3, "ABC", 1000),  # the first has taken too long: it counts
        ((0, 1), 0, "ABC", 1000),
    ],
)
def test_rounds_end_with_the_budget(
    clock: tuple[float, ...], rounds: int, order: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, log = iter((*clock, 99)), list[str]()
    monkeypatch.setattr(harness.time, "perf_counter", lambda: next(times))
    result = measure(Row("r", contenders(log)), rounds=rounds, budget_s=10)
    assert ("".join(log), result["contenders"][0]["seconds"]) == (order, seconds)


def test_a_program_is_a_whole_process() -> None:
    """Its exit code, its answer and its own seconds are looked at; its memory and files are watched."""
    code = "import sys; data = bytearray(50 << 20); sys.stdin.read(); print('seconds 0.25')"
    program = Program(
        name="p", line=[sys.executable, "-c", code], stdin=b"x",
        inside=lambda text: float(text.split()[1]), answer=lambda text: "seconds" in text,
    )  # fmt: skip
    sample = program.round(watched=True)
    assert sample.seconds > 0 and sample.cpu_seconds is not None and sample.inside_seconds == 0.25
    assert sample.peak_bytes > 0
    result = measure(Row("r", [program]), rounds=1, budget_s=0)
    assert [each["name"] for each in result["contenders"]] == ["p", "p, work alone"]
    with pytest.raises(AssertionError, match="not the expected answer"):
        replace(program, answer=lambda text: False).round(watched=True)
    with pytest.raises(AssertionError, match="exit code 0"):
        replace(program, codes=(1,)).round()


def test_a_call_may_measure_itself(tmp_path: Path) -> None:
    order: list[str] = []
    call = Call(
        name="c", work=lambda: 0.5, before=lambda: order.append("before"), after=lambda: order.append("after")
    )
    assert call.round() == Sample(0.5)
    assert order == ["before", "after"]
    assert replace(call, work=lambda: None).round(watched=True).seconds < 0.5


def test_a_command_is_what_a_user_types() -> None:
    assert rmqtool("--version", answer=lambda text: "rmqtool" in text).round(watched=True).seconds > 0


@pytest.mark.parametrize("area", [rows_lookup, rows_recover], ids=lambda area: area.__name__.rsplit("_")[-1])
def test_real_rows_at_tiny_size(area: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every contender but Java does its work, and what it answers is right; nothing is left behind."""
    monkeypatch.setattr(java, "is_ready", lambda: False)
    scale = replace(
        SCALES["small"], log_messages=COUNT, keys_messages=COUNT, keys=(1, 5), log_file_bytes=1 << 20
    )
    found = [measure(row, rounds=0, budget_s=0) for row in area.rows(Bench(scale, tmp_path / "bench"))]
    assert found and all(row["contenders"][0]["kind"] == "rmqtool" for row in found)
    assert not any((tmp_path / "bench").iterdir())


# what the contenders do


@pytest.fixture
def store(tmp_path: Path) -> Path:
    messages.make_store(tmp_path / "store", COUNT, topics=2, log_file_bytes=1 << 20)
    return tmp_path / "store"


def test_stores_are_sound(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What is measured is a store without any damage, with every message in its queue."""
    assert messages.stored_messages(store) == COUNT
    assert rmqtool_main(["verify", str(store)]) == 0
    assert "sound" in capfd.readouterr().err


def test_limits_read_what_is_there(store: Path) -> None:
    paths = sorted((store / "commitlog").iterdir())
    assert limits.read(paths) == sum(path.stat().st_size for path in paths)
    data = memoryview(paths[0].read_bytes())
    assert (limits.read_and_sum(paths[0]) - sum(data[: len(data) & -8].cast("Q"))) % (1 << 64) == 0
    assert limits.zlib_walk(data, COUNT) == limits.construct_walk(data, COUNT) == COUNT


def test_the_bare_writer_writes_as_much(store: Path, tmp_path: Path) -> None:
    plan, copy = tmp_path / "plan.json", tmp_path / "copy"
    limits.write_plan(store, messages.log_end(store), plan)
    limits.main(["write", str(plan), str(copy)])
    sizes = {path.relative_to(store): path.stat().st_size for path in store.rglob("*") if path.is_file()}
    assert sizes == {
        path.relative_to(copy): path.stat().st_size for path in copy.rglob("*") if path.is_file()
    }
    planned = {name: data_bytes for name, data_bytes, _ in json.loads(plan.read_text("utf-8"))}
    assert planned[f"commitlog/{0:020}"] == messages.log_end(store)


def test_the_bare_loop_writes_records(tmp_path: Path) -> None:
    """The limit of `put` is one of records that are right."""
    made = [(number % 2, "T", b"body", b"KEYS\1k\2") for number in range(COUNT)]
    assert limits.put_loop(tmp_path / f"{0:020}", made) > 0
    source = open_source(tmp_path / f"{0:020}")
    rows = [event.rows for event in walk(source, file_from_offset=0) if isinstance(event, Frames)]
    assert sum(map(len, rows)) == COUNT and not rows[0]["status"].any()
    assert rows[0]["queue_offset"].tolist()[-2:] == [COUNT // 2 - 1] * 2
    source.close()


def test_limits_of_files(tmp_path: Path) -> None:
    """One file per queue holds its bodies; JSON lines and Parquet hold every message."""
    import pyarrow.parquet as pq

    table, lines = tmp_path / "a.arrow", tmp_path / "a.jsonl"
    messages.write_arrow(table, messages.batches(2, COUNT))
    messages.write_jsonl(lines, messages.batches(2, COUNT))
    limits.main(["partitions", str(table), str(tmp_path / "queues")])
    sizes = [path.stat().st_size for path in (tmp_path / "queues").iterdir()]
    assert sizes == [COUNT // 8 * messages.BODY_BYTES] * 8
    limits.main(["parquet", str(table), str(tmp_path / "a.parquet")])
    assert pq.read_metadata(tmp_path / "a.parquet").num_rows == limits.json_lines(str(lines)) == COUNT
    limits.main(["flush", str(tmp_path / "flushed"), "2"])
    assert (tmp_path / "flushed").stat().st_size == 2 * 16 * 1024
    with pytest.raises(SystemExit):
        limits.main(["nothing"])


def test_a_removed_store_frees_its_space(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one with many files the files stay, empty, and its name is free again."""
    monkeypatch.setattr(machine, "FEW_FILES", 1)
    folder = store.parent
    machine.remove_store(store)
    assert not store.exists()
    left = [path for path in folder.rglob("*") if path.is_file()]
    assert left and not any(path.stat().st_size for path in left)


# the report


def results(scale: str = "full") -> dict[str, Any]:
    """Results of a few real rows at the smallest size."""
    rows = [
        Row("verify, log pass",
            [rmqtool("--version"), Program(name="bare", line=[sys.executable, "-c", ""])]),
        Row("a call",
            [Call(name="ours", work=lambda: 2e-3), Call(name="java", kind="java", work=lambda: 1.0)],
            unit="bytes", amount=1e9, in_process=True),
    ]  # fmt: skip
    points = [
        {"command": "verify", "shown": "", "axis": "bytes of log", "size": size << 30, "seconds": size * 2.0,
         "peak_bytes": 5 << 20, "open_files": 4} for size in (1, 2, 4)
    ]  # fmt: skip
    measured = [{"area": "read"} | measure(row, rounds=2, budget_s=9) for row in rows]
    return {
        "scale": scale, "log_messages": COUNT, "machine": machine.describe(), "java": True, "rows": measured,
        "growth": growth.curves(points),
    }  # fmt: skip


def test_slopes_are_exponents() -> None:
    def slope(seconds: Sequence[float]) -> float | None:
        points = [{"command": "c", "axis": "x", "size": 10**n, "seconds": s} for n, s in enumerate(seconds)]
        (curve,) = growth.curves(points)
        return curve["slope"]

    assert slope([1]) is None
    assert slope([2, 2]) == 0
    assert slope([1, 9, 100]) == pytest.approx(1)


def test_a_goal_below_a_limit_is_out_of_reach() -> None:
    """Limits decide alone, and only where the goal is missed."""

    def aims(ours: float, limit: float, kind: str = "limit") -> list[str]:
        peers = [("ours", "rmqtool", ours), ("java", "java", 10.0), ("bare", kind, limit)]
        row = {"goals": {"java": 4}, "cpu_goals": {}, "contenders": [
            {"name": name, "kind": kind, "seconds": seconds, "ratio": seconds / ours}
            for name, kind, seconds in peers
        ]}  # fmt: skip
        return [aim for peer in row["contenders"] for aim in report._aims(row, peer)]

    assert aims(2.5, 3) == ["to reach 4 x: reached"]
    assert aims(3, 2) == aims(3, 4, "other") == ["to reach 4 x: missed"]
    assert aims(5, 4) == ["to reach 4 x: out of reach, bare has 2.5 x"]


def test_report_writes_everything(tmp_path: Path) -> None:
    """A table, its values, a chart; and into the documents, again and again, without touching the rest."""
    found = results()
    report.write_all(found, tmp_path)
    assert json.loads((tmp_path / "table.json").read_text("utf-8")) == found
    assert (tmp_path / "chart.svg").read_text("utf-8").count("<svg") == 1
    table = (tmp_path / "table.md").read_text("utf-8")
    for words in ("| a call (in process) | 2 ms", "500.00 GB/s | java |", "| 500 x |",
                  found["machine"]["date"], "1 GiB: 2 s; 2 GiB: 4 s; 4 GiB: 8 s", "5 to 5 MiB",
                  "1.00 |"):  # fmt: skip
        assert words in table, words
    readme, page = tmp_path / "README.md", tmp_path / "page.py"
    readme.write_text(report.README.read_text("utf-8"), "utf-8")
    page.write_text(report.CONCEPTS.read_text("utf-8"), "utf-8")
    for _ in range(2):
        report.put(found, readme, page)
    assert readme.read_text("utf-8").count("\n## Speed\n") == 1
    few = report.selection(found)
    assert few in readme.read_text("utf-8")
    assert "| verify, log pass | " in few and "bare: " in few and "a call" not in few
    assert max(map(len, report.page(found).split("```")[1].splitlines())) <= 78
    space: dict[str, Any] = {}
    exec(page.read_text("utf-8"), space)  # noqa: S102
    assert space["SPEED"] == report.page(found) and space["TEXT"] == concepts_page.TEXT
    for path, source, markers in (
        (readme, report.README, report.README_MARKERS),
        (page, report.CONCEPTS, report.PAGE_MARKERS),
    ):
        written, before = (report.between(each.read_text("utf-8"), markers, "") for each in (path, source))
        assert written == before


def test_other_areas_are_kept(tmp_path: Path) -> None:
    """Of the same scale and commit only, so that a long run may be made in parts."""
    found, path = results(), tmp_path / "table.json"
    report.write_json(found, path)
    again: dict[str, Any] = found | {"rows": [], "growth": []}
    report.keep_other_areas(again, ["append"], path)
    assert (again["rows"], again["growth"]) == (found["rows"], found["growth"])
    for areas, changes in ((["read", "growth"], {}), ([], {"scale": "small"}), ([], {"machine": {}})):
        other: dict[str, Any] = found | {"rows": [], "growth": []} | changes
        report.keep_other_areas(other, areas, path)
        assert (other["rows"], other["growth"]) == ([], [])


def test_documents_have_room_for_the_table() -> None:
    """Without a table the section is left out; a document without markers is refused."""
    for path, markers, empty in (
        (report.README, report.README_MARKERS, ""),
        (report.CONCEPTS, report.PAGE_MARKERS, report.page_source(None)),
    ):
        text = path.read_text("utf-8")
        assert report.between(report.between(text, markers, "x\n"), markers, empty).count("## Speed") == 0
    with pytest.raises(ValueError, match="speed: begin"):
        report.between("no markers\n", report.README_MARKERS, "")


def test_only_a_full_run_is_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.json"
    assert report.main([str(path)]) == 1
    assert "make bench" in capsys.readouterr().err
    report.write_json(results("quick"), path)
    assert report.main([str(path)]) == 1
    assert "quick" in capsys.readouterr().err
    assert set(SCALES) == {"small", "quick", "full"}
