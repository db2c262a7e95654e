"""`rmqtool stats`: sections and formats, hostile names, errors, charts; nothing changes."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from datetime import UTC
from pathlib import Path

import numpy as np
import pytest

from rmqtool.cli import main
from rmqtool.commands.stats import BAR_WIDTH, sparkline
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.stats import lag, overview, pending, transactions
from rmqtool.report.stats.timeline import Bars, Timeline
from rmqtool.terminal import bar
from tests.support.build_store import write_log
from tests.support.dumps import SMALL, facts_of, flip
from tests.support.hard_limits import size_limit
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.stats import Stats, check_rows
from tests.support.stores import Library
from tests.support.whole_store import keyed, write_config, write_whole

HOSTILE = ["=cmd()", 'a"b,c\nd', "\x1b[31mred\x1b[0m", "$\\frac{x$ & <b>", "\u202eevil", "主题"]


@pytest.fixture
def stats(capfdbinary: pytest.CaptureFixture[bytes]) -> Stats:
    """`rmqtool stats` with what it wrote."""
    return Stats(capfdbinary)


@pytest.fixture(scope="module")
def small(cases: Library) -> Path:
    """A small real store."""
    return cases.path(SMALL)


def test_rows_by_topic_are_the_default(small: Path, stats: Stats) -> None:
    """Piped: jsonl, one row per topic, most bytes first, with all fields in order."""
    result = stats(small)
    assert result.code == 0 and result.err == ""
    check_rows(result.rows, facts_of(SMALL), ("topic",))
    assert all(tuple(row) == overview.fields(("topic",)) for row in result.rows)


@pytest.mark.parametrize("format", ["json", "csv", "tsv"])
def test_formats_of_one_part(format: str, small: Path, stats: Stats) -> None:
    """The same values in every format."""
    rows = stats(small, "--by", "topic,queue").rows
    out = stats(small, "--by", "topic,queue", "--format", format).out.decode()
    if format == "json":
        assert json.loads(out) == rows
        return
    table = list(csv.DictReader(io.StringIO(out), delimiter="," if format == "csv" else "\t"))
    assert [(row["topic"], int(row["queue_id"]), int(row["count"])) for row in table] == [
        (row["topic"], row["queue_id"], row["count"]) for row in rows
    ]


def test_table_has_bars(small: Path, stats: Stats) -> None:
    """The longest bar is that of the most bytes; a part of the whole is never without."""
    lines = stats(small, "--format", "table").out.decode().splitlines()
    assert "share" in lines[0] and len(lines) == len({fact["topic"] for fact in facts_of(SMALL)}) + 2
    assert max(line.count("█") for line in lines) == BAR_WIDTH
    assert bar(0, 10, 20) == "" and bar(1, 10**9, 20) == "▏" and bar(5, 10, 20) == "█" * 10
    assert bar(10, 10, BAR_WIDTH) == "█" * BAR_WIDTH


def test_the_hint_of_a_narrow_table_names_what_fields_takes(
    small: Path, stats: Stats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bars are no field: they are left out without a word, and every name of the note can be chosen."""
    monkeypatch.setattr("rmqtool.output._is_terminal", lambda stream: stream is sys.stdout)
    monkeypatch.setenv("PAGER", "cat")
    monkeypatch.setenv("COLUMNS", "60")
    result = stats(small, "--format", "table")
    hint = re.search(r"too narrow for (.*); --fields", result.err)
    assert hint and "share" not in result.out.decode() and "share" not in hint[1]
    assert stats(small, "--fields", hint[1].replace(" ", "")).code == 0


def test_everything(cases: Library, stats: Stats) -> None:
    """All parts: an object, rows with their section, tables under headings; not one csv."""
    store = cases.path("ok_540_clean")
    found = Stats.object(stats(store, "--all", "--format", "json"))
    assert list(found) == ["messages", "lag", "largest", "duplicates", "delayed", "transactions"]
    assert len(found["largest"]) == 10
    assert tuple(found["delayed"][0]) == pending.FIELDS
    assert tuple(found["transactions"][0]) == transactions.FIELDS
    assert tuple(found["lag"][0]) == lag.fields(("group", "topic"))
    rows = stats(store, "--all").rows
    assert [row["section"] for row in rows] == [name for name, part in found.items() for _ in part]
    table = stats(store, "--all", "--format", "table").out.decode()
    assert "Lag of consumer groups:" in table and "Unique keys stored more than once: none" in table
    result = stats(store, "--all", "--format", "csv")
    assert (result.code, result.out) == (2, b"") and "only one section" in result.err


def test_limit_and_sort_are_about_rows(small: Path, stats: Stats) -> None:
    """The first rows by bytes, or by another field that falls."""
    rows = stats(small).rows
    assert stats(small, "--limit", 2).rows == rows[:2]
    by_count = stats(small, "--sort", "count").rows
    assert [row["count"] for row in by_count] == sorted((row["count"] for row in rows), reverse=True)
    result = stats(small, "--sort", "colour")
    assert result.code == 2 and "cannot sort" in result.err
    assert stats(small, "--fields", "topic,count", "--limit", 1).rows == [
        {"topic": rows[0]["topic"], "count": rows[0]["count"]}
    ]


def test_what_is_not_there(small: Path, stats: Stats) -> None:
    """Nothing selected is no error; a topic or queue that the store lacks is 1, with its neighbours."""
    assert (stats(small, "--since", "2030-01-01").code, stats(small, "--topic", "pub*x*").code) == (0, 1)
    assert stats(small, "--since", "2030-01-01").err.startswith("rmqtool: no message matches\n")
    result = stats(small, "--topic", "TopicNone")
    assert result.code == 1 and "no topic TopicNone" in result.err and result.out == b""
    assert stats(small, "--queue", "999").code == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--by", "colour"), 2), (("--by", "group,tag"), 2), (("--at", "yesterdayish"), 2),
        (("--at", "2999-01-01"), 2), (("--memory", "much"), 2), (("--largest", "-1"), 2),
        (("--plot", "chart.gif"), 2), (("--plot", "s3://bucket/chart.svg"), 2),
        (("--at", "now", "--time-field", "born", "--since", "today"), 2),
        (("--fields", "nothing"), 2), (("--until", "2000", "--since", "2001"), 2),
        (("--all", "--limit", str(1 << 63)), 2), (("--by", "group", "--tag", "x"), 2),
        (("--by", "group", "--since", "1"), 2), (("--by", "group", "--to-offset", "1"), 2),
        (("--by", "group,topic", "--key", "x"), 2), (("--by", "group", "--filter", "a = 1"), 2),
    ],
)  # fmt: skip
def test_usage_errors(arguments: tuple[str, ...], code: int, small: Path, stats: Stats) -> None:
    """One clear error, no output."""
    result = stats(small, *arguments)
    assert (result.code, result.out) == (code, b"")
    assert 0 < len(result.err.splitlines()) <= 8 and "Traceback" not in result.err


def test_a_single_file_has_no_lag(small: Path, stats: Stats) -> None:
    """Of a commit log file messages are counted; lag is a usage error; the rest is what the log says."""
    file = next((small / "commitlog").iterdir())
    check_rows(stats(file).rows, facts_of(SMALL), ("topic",))
    assert stats(file, "--by", "group").code == 2
    assert stats(file, "--transactions").code == 0


def test_a_part_that_cannot_be_read(tmp_path: Path, stats: Stats) -> None:
    """Alone it is an error; beside others they are shown, with 3 as the exit code and a note."""
    write_whole(tmp_path, keyed(20))
    conf = tmp_path / "broker.conf"
    conf.write_text("storeType=defaultRocksDB\n")
    (tmp_path / "consumequeue" / "CURRENT").write_text("MANIFEST-000004\n")
    result = stats(tmp_path, "--by", "group", "--broker-conf", conf)
    assert (result.code, result.out) == (3, b"") and "RocksDB" in result.err
    result = stats(tmp_path, "--all", "--broker-conf", conf)
    assert result.code == 3 and "no lag: the consume queues are in RocksDB" in result.err
    assert any(row["section"] == "messages" for row in result.rows)
    (tmp_path / "consumequeue" / "CURRENT").unlink()
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        (tmp_path / "config" / name).write_text("{")
    assert (stats(tmp_path, "--delayed").code, stats(tmp_path, "--all").code) == (3, 3)
    file = next((tmp_path / "commitlog").iterdir())
    assert stats(file, "--all").code == 0


def test_damage_is_told_once(tmp_path: Path, stats: Stats) -> None:
    """What is sound is counted; exit code 1, also with several passes over the log."""
    stored = write_whole(tmp_path, keyed(40))
    flip(tmp_path / "commitlog" / f"{0:020}", stored[3].physical_offset + 100)
    for arguments in ((), ("--all",), ("--duplicates",), ("--transactions", "--topic", "TopicTest")):
        result = stats(tmp_path, *arguments)
        assert result.code == 1 and result.err.count("CL03") == 1, arguments
    assert sum(row["count"] for row in stats(tmp_path).rows) == 40


def test_past(tmp_path: Path, stats: Stats) -> None:
    """As of a time: fewer messages, bounds of lag, and notes on what is not known."""
    write_whole(tmp_path, keyed(40))
    at = str(STORE_TIMESTAMP + 10)
    result = stats(tmp_path, "--at", at)
    assert sum(row["count"] for row in result.rows) == 10 and "unknown for that time" in result.err
    row = stats(tmp_path, "--at", at, "--by", "group").rows[0]
    assert (row["lag_messages"], row["lag_messages_min"], row["lag_messages_max"]) == (None, 0, 10)
    found = Stats.object(stats(tmp_path, "--at", at, "--all", "--format", "json"))
    assert found["as_of"]["timestamp_ms"] == STORE_TIMESTAMP + 10 and found["as_of"]["unknown"]


def test_hostile_names(tmp_path: Path, stats: Stats) -> None:
    """Whatever a topic or tag is called, no control character reaches a table, and json gives it back."""
    write_log(tmp_path / "commitlog", [
        record(name, b"x" * 10, {"TAGS": name, "UNIQ_KEY": name}, queue_offset=n)
        for n, name in enumerate([*HOSTILE, *HOSTILE])
    ])  # fmt: skip
    rows = stats(tmp_path, "--by", "topic,tag").rows
    assert {row["topic"] for row in rows} == {row["tag"] for row in rows} == set(HOSTILE)
    for arguments in (("--by", "tag"), ("--duplicates",), ("--largest", 5), ("--by", "topic,tag", "--all")):
        text = stats(tmp_path, *arguments, "--format", "table").out.decode()
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)


def test_a_live_store(tmp_path: Path, stats: Stats, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a store in use what lies below the end that it had at the start is counted."""
    stored = write_whole(tmp_path, keyed(20))
    monkeypatch.setattr(Store, "live", property(lambda _: True))
    monkeypatch.setattr(Store, "end_offset", lambda _: stored[15].physical_offset)
    for arguments in (("--all",), ("--all", "--to-offset", 10**6)):
        rows = stats(tmp_path, *arguments).rows
        assert [row["count"] for row in rows if row["section"] == "messages"] == [15]


# -- charts ------------------------------------------------------------------------------------------


def test_svg_is_well_formed_and_the_same_again(tmp_path: Path, stats: Stats) -> None:
    """Hostile group names are text in it, not formulas and not markup."""
    pytest.importorskip("matplotlib")
    store = tmp_path / "store"
    write_whole(store, keyed(40))
    write_config(store, "consumerOffset.json",
                 {"offsetTable": {f"TopicTest@{name}": {"0": 1, "1": 2} for name in HOSTILE}})  # fmt: skip
    pictures = []
    for name in ("a.svg", "b.svg"):
        result = stats(store, "--plot", tmp_path / name)
        assert result.code == 0 and result.err == ""
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]
    assert ElementTree.fromstring(pictures[0]).tag.endswith("svg")
    result = stats(store, "--plot", tmp_path / "a.svg")
    assert result.code == 4 and "exists" in result.err
    result = stats(store, "--plot", store / "a.svg")
    assert result.code == 4 and not (store / "a.svg").exists()


def test_a_full_disk_leaves_no_picture(tmp_path: Path, small: Path, stats: Stats) -> None:
    """Half of one would be in the way of the next run."""
    pytest.importorskip("matplotlib")
    (tmp_path / "charts").mkdir()
    with size_limit(4096):
        result = stats(small, "--plot", tmp_path / "charts" / "a.png")
    assert result.code == 3 and "cannot write" in result.err
    assert list((tmp_path / "charts").iterdir()) == []
    assert stats(small, "--plot", tmp_path / "charts" / "a.png").code == 0


def drawn(path: Path) -> list[str]:
    """The texts of a picture."""
    return re.findall("<!-- (.*?) -->", path.read_text("utf-8"))


def test_charts_show_what_by_names(tmp_path: Path, stats: Stats) -> None:
    """Long names lose their middle; a class between others has its place; lag only where groups are."""
    pytest.importorskip("matplotlib")
    store = tmp_path / "store"
    long = record("n" * 120, b"x" * 20_000, {"KEYS": "k", "UNIQ_KEY": "U"}, store_timestamp=STORE_TIMESTAMP)
    write_whole(store, [*keyed(20), long], log_file_size=1 << 17)
    for number, (by, texts) in enumerate((
        ("topic", {"TopicTest", "n" * 32 + "…" + "n" * 31}), ("queue", {"queue 0", "queue 1"}),
        ("tag,topic", {"Tag0, TopicTest"}), ("group", {"TopicTest"}),
    )):  # fmt: skip
        assert stats(store, "--by", by, "--plot", tmp_path / f"{number}.svg").code == 0
        shown = drawn(tmp_path / f"{number}.svg")
        assert texts <= set(shown), shown
        assert {"Queue skew", "Lag of consumer groups, messages", "group", "4 KiB", "14 Nov 22:13:20"} <= set(
            shown
        )
    by_topic, *others, by_group = ((tmp_path / f"{number}.svg").read_bytes() for number in range(4))
    assert by_group == by_topic and by_topic not in others  # the lag is drawn whatever --by is
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable": {}}')
    assert stats(store, "--plot", tmp_path / "none.svg").code == 0
    assert "Lag of consumer groups, messages" not in drawn(tmp_path / "none.svg")


def test_backlog_and_queues_of_charts(tmp_path: Path) -> None:
    """A group's backlog ends at its lag; the queues' sums are those of the records."""
    stored = write_whole(tmp_path, keyed(31))
    write_config(
        tmp_path,
        "consumerOffset.json",
        {"offsetTable": {"TopicTest@slow": {"0": 4, "1": 9}, "TopicTest@done": {"0": 16, "1": 15}}},
    )
    with Store.open(tmp_path) as store:
        request = overview.Request(Selection(), charts=True, now_ms=STORE_TIMESTAMP)
        charts = overview.overview(store, request, lambda finding: None).charts
    assert charts is not None
    assert charts.queues == {"TopicTest": {0: 16, 1: 15}}
    waits = [each for each in stored if each.queue_offset >= (4, 9)[each.queue_id]]
    assert list(charts.backlog) == ["slow"]
    bars = charts.backlog["slow"].bars(100)
    assert bars is not None and sum(bars.counts) == len(waits) == 18
    assert sum(bars.bytes) == sum(each.total_size for each in waits)


def test_a_wrong_clock_does_not_squeeze_the_others() -> None:
    timeline = Timeline()
    times = [STORE_TIMESTAMP + 1000 * (n // 50) for n in range(5000)] + [0, STORE_TIMESTAMP * 2]
    timeline.add(np.array(times), np.ones(len(times), np.int64))
    bars = timeline.bars(160)
    assert bars is not None
    assert bars.left_out == 2 and sum(bars.counts) == 5000 and 80 <= len(bars.counts) <= 160
    near = Timeline()
    near.add(np.array([*times[:5000], times[0] - 3_000]), np.ones(5001, np.int64))
    bars = near.bars(160)
    assert bars is not None and bars.left_out == 0 and bars.counts[1:3] == [0, 0]


def test_sparkline() -> None:
    """As high as the most; a step with few messages is seen, one without is empty."""
    line = sparkline(Bars(STORE_TIMESTAMP, 2000, [0, 1, 400, 800, 0, 799], [0] * 6, 0), UTC)
    assert line == " ▁▄█ █  2023-11-14 22:13:20 to 22:13:32, 2s each, at most 400/s"
    assert len(sparkline(Bars(STORE_TIMESTAMP, 86_400_000, [10**9] * 30, [0] * 30, 0), UTC)) <= 110


@pytest.mark.parametrize(("format", "is_there"), [("table", True), ("jsonl", False), ("csv", False)])
def test_a_table_ends_with_messages_over_time(
    small: Path, capfd: pytest.CaptureFixture[str], format: str, is_there: bool
) -> None:
    assert main(["stats", str(small), "--format", format]) == 0
    shown = capfd.readouterr()
    assert ("over time" in shown.err) == is_there and "over time" not in shown.out
    facts = facts_of(SMALL)
    total = f"total {len(facts)} messages, {sum(each['storeSize'] for each in facts)} bytes, in "
    assert (total in shown.err) == is_there and "total" not in shown.out


def test_topics_are_excluded(cases: Library, stats: Stats) -> None:
    """As with the other commands; a group of an excluded topic is not called one without offsets."""
    store = cases.path("ok_540_clean")
    rows = stats(store, "--by", "topic", "--exclude-topic", "pub*", "--format", "jsonl").rows
    assert rows and not any(row["topic"].startswith("pub") for row in rows)
    others = ("--exclude-topic", "pubTopicOne", "--exclude-topic", "%RETRY%pub_group_one")
    found = stats(store, "--by", "group", *others, "--format", "jsonl")
    assert "pub_group_four" in {row["group"] for row in found.rows}
    assert (
        "pub_group_one" not in {row["group"] for row in found.rows} and "neither an offset" not in found.err
    )


def test_png_of_an_empty_selection(tmp_path: Path, small: Path, stats: Stats) -> None:
    """Nothing to draw is no error."""
    pytest.importorskip("matplotlib")
    assert stats(small, "--until", "2000-01-01", "--plot", tmp_path / "chart.png").code == 0
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib(
    tmp_path: Path, small: Path, stats: Stats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that names the extra, before any work; exit code 3."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = stats(small, "--plot", tmp_path / "chart.png")
    assert (result.code, result.out) == (3, b"") and "rmqtool[plot]" in result.err
