"""The page about a store: its numbers, what it must not let through, and when it is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.cli import main
from rmqtool.commands.report_plot import Chart
from rmqtool.errors import EXIT_OK, EXIT_REFUSED, EXIT_USAGE
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.stats.overview import Request, overview
from rmqtool.report.summary.collect import FINDINGS_MAX, Summary, summarize
from rmqtool.report.summary.records import DELAY_EDGES, SIZE_EDGES, STEPS
from tests import ROOT
from tests.support.build_store import write_log
from tests.support.pages import Page, page_of
from tests.support.programs import started, until
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.stores import Library, case_names
from tests.support.sweep import sample
from tests.support.trees import unchanged
from tests.support.whole_store import keyed, write_config, write_whole

REAL = "ok_540_clean"
HOSTILE = (
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "' onmouseover='alert(1)", "</style><b>",
    "{{ 7 * 7 }}{% raw %}", "a\x00b\x1b[31m\x07\nnew", "\u202egnp.exe\u2066", "&lt;&amp;", "日本\U0001f600",
    "x" * 300, "-->]]>",
)  # fmt: skip
OTHER_KINDS = tuple(name for name in case_names() if name.startswith("kind_"))
SOME = (
    "bad_cl03_body_crc", "bad_cl21_wrong_size_file", "bad_cl12_unreadable", "bad_cf02_config_unreadable",
    "bad_cp05_repair_unfinished", "bad_cq09_wrong_size_file", "gap_cl20_missing_file", "gap_cl26_log_missing",
    "torn_540_killed",
)  # fmt: skip
Capture = pytest.CaptureFixture[str]


def summary_of(root: Path, **arguments: Any) -> Summary:
    with Store.open(root) as store:
        return summarize(store, **arguments)


def written(store: Path, target: Path, *options: str) -> tuple[int, Page]:
    """The exit code and the page of a run that must not change the store."""
    with unchanged(store) if store.is_dir() else unchanged(store.parent):
        code = main(["report", str(store), "--output", str(target), "--quiet", *options])
    return code, page_of(target)


def test_numbers_are_those_of_stats(cases: Library) -> None:
    """One walk gives what a scan of `stats` gives, in whatever order the windows come."""
    root = cases.path(REAL)
    found = summary_of(root)
    with Store.open(root) as store:
        request = Request(Selection(), by=("topic",), charts=True)
        scanned = overview(store, request, lambda finding: None)
    rows = sorted(scanned.sections[0].rows, key=lambda row: (-row["bytes"], row["topic"]))
    assert found.topics == [dict(row) for row in rows]
    assert scanned.charts is not None
    for ours, theirs in zip(found.log.timeline.points(), scanned.charts.timeline.points(), strict=True):
        assert ours.tolist() == theirs.tolist()
    assert found.log.count == scanned.selected == sum(row["count"] for row in rows)
    assert found.log.bytes == sum(row["bytes"] for row in rows)


def test_the_log_is_read_once(cases: Library) -> None:
    """Every byte of it is walked once, whatever the page shows."""
    root, passed = cases.path(REAL), []
    found = summary_of(root, progress=passed.append, jobs=1)
    with Store.open(root) as store:
        length = store.end_offset() - store.commit_log.min_offset
        blanks = sum(file.size for file in store.layout.commit_log) - length
    assert length - blanks <= sum(passed) <= length + blanks
    assert found.examination.log_read_bytes == length


def test_threads_change_nothing(cases: Library) -> None:
    one, many = (summary_of(cases.path(REAL), jobs=jobs, now_ms=0) for jobs in (1, 4))
    assert one.topics == many.topics and one.lags == many.lags
    for name in ("counts", "first_ms", "last_ms"):
        assert getattr(one.log.map, name).tolist() == getattr(many.log.map, name).tolist()
    assert one.log.map.bytes().tolist() == many.log.map.bytes().tolist()
    for name in ("sizes", "delays"):
        ours, theirs = getattr(one.log, name), getattr(many.log, name)
        assert (ours.counts.tolist(), ours.bytes.tolist()) == (theirs.counts.tolist(), theirs.bytes.tolist())
    named = [
        {(log.topics.values[code], kind): codec for (code, kind), codec in log.compression.found.items()}
        for log in (one.log, many.log)
    ]
    assert named[0] == named[1] and named[0]


def test_sums_are_those_of_the_records(tmp_path: Path) -> None:
    """The map divides records at its steps; classes begin at their lower edge."""
    sizes = [1, 10, 5_000, 300, 120_000, 40, 7, 60_000]
    records = [
        record(
            f"T{n % 3}",
            b"x" * body,
            store_timestamp=STORE_TIMESTAMP + n,
            born_timestamp=STORE_TIMESTAMP + n - d,
        )
        for n, (body, d) in enumerate(
            zip(sizes, (-5, 0, 1, 9, 10, 60_000, 3_600_000, 100_000_000), strict=True)
        )
    ]
    stored = write_log(tmp_path / "commitlog", records, file_size=1 << 18)
    found = summary_of(tmp_path).log
    width, expected = found.map.width, Counter[tuple[str, int]]()
    for each in stored:
        for place in range(each.physical_offset, each.physical_offset + each.total_size):
            expected[each.topic, place // width] += 1
    assert len(found.map.counts) <= STEPS
    for code, topic in enumerate(found.topics.values):
        steps = found.map.bytes_of(code).tolist()
        assert steps == [expected[topic, step] for step in range(len(steps))]
    for classes, edges, values in (
        (found.sizes, SIZE_EDGES, [each.total_size for each in stored]),
        (found.delays, DELAY_EDGES, [each.store_timestamp - each.born_timestamp for each in stored]),
    ):
        places = Counter(sum(value >= edge for edge in edges) for value in values)
        assert classes.counts.tolist() == [places[place] for place in range(len(edges) + 1)]


def test_a_sound_store(cases: Library, tmp_path: Path) -> None:
    code, page = written(cases.path(REAL), tmp_path / "a.html")
    assert code == EXIT_OK
    for words in (
        "Nothing wrong was found", "A start loses nothing", "pubTopicEight", "Lag of consumer groups",
        "Messages per second", "Compression", "zstd", "damage: none",
    ):  # fmt: skip
        assert words in page.text, words
    assert (
        page.elements["main"]
        == page.elements["nav"]
        == page.elements["header"]
        == page.elements["footer"]
        == 1
    )
    assert page.elements["figure"] == page.elements["figcaption"] == 7
    assert page.elements["details"] >= page.elements["figure"]
    assert (tmp_path / "a.html").stat().st_size < 400_000


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*sample(SOME, 3), *sample(OTHER_KINDS, 3)])
def test_every_store_gives_a_page_and_the_exit_code_of_verify(
    name: str, cases: Library, tmp_path: Path, capsys: Capture
) -> None:
    root = cases.path(name)
    code, page = written(root, tmp_path / "a.html")
    assert code == main(["verify", str(root), "--quiet", "--format", "jsonl"])
    rows = [
        json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"problem"')
    ]
    for row in rows[:20]:
        if row["severity"] != "note":
            assert row["problem"] in page.text, row
    if OTHER_KINDS and name in OTHER_KINDS and code == 3:
        assert "Everything was looked at" not in page.text


def test_a_missing_file_of_offsets_is_said(cases: Library, tmp_path: Path) -> None:
    _, page = written(cases.path("bad_cf08_consumer_offsets_missing"), tmp_path / "a.html")
    assert "the lag of consumer groups: consumerOffset.json and its .bak are missing" in page.text
    assert "Lag of consumer groups" not in page.text


def hostile_store(root: Path) -> Path:
    """A log whose topics, and offsets whose groups, have names that no producer should have chosen."""
    names = [*HOSTILE, "y" * 32_000]
    records = [record(name, b"body", store_timestamp=STORE_TIMESTAMP + n) for n, name in enumerate(names)]
    write_log(root / "commitlog", [*keyed(20), *records], file_size=1 << 20)
    (root / "consumequeue").mkdir()
    groups = {f"TopicTest@{name}": {"0": 1} for name in (*HOSTILE, "z" * 65_536)}
    write_config(root, "consumerOffset.json", {"offsetTable": groups})
    return root


def test_names_of_a_store_are_only_text(tmp_path: Path) -> None:
    """No name becomes an element, an attribute, a control character or a change of direction."""
    _, page = written(hostile_store(tmp_path / "st\x1b\u202eore"), tmp_path / "a.html")
    data = (tmp_path / "a.html").read_text("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", data)
    assert "<script" not in data and "<img" not in data and "<b>" not in data
    for shown in (
        "<script>alert(1)</script>", "' onmouseover='alert(1)", "{{ 7 * 7 }}{% raw %}", "</style><b>",
        r"a\x00b\x1b[31m\x07\nnew", r"\u202egnp.exe\u2066", "&lt;&amp;", "日本\U0001f600",
    ):  # fmt: skip
        assert page.text.count(shown) >= 2, shown  # as a topic and as a group
    assert "y" * 100 not in page.text and "z" * 100 not in page.text
    assert len(data) < 500_000


def test_a_loss_is_said_once_and_counted_once(cases: Library, tmp_path: Path, capsys: Capture) -> None:
    """The verdict has no sentence twice; the tile and the JSON object have its counts."""
    root, target = tmp_path / "store", tmp_path / "a.html"
    cases.variant("5.4.0:clean:zero-page-last-file:abort", root)
    assert main(["report", str(root), "-o", str(target), "--json"]) == 1
    row, text = json.loads(capsys.readouterr().out), page_of(target).text
    verdict = text[text.index("Act now") : text.index("Findings", text.index("Act now"))]
    assert verdict.count("gives up 261 sound messages") == 1
    assert (row["errors"], row["warnings"], row["notes"]) == (2, 1, 2)
    assert "Act now: 2 errors. Also 1 warning and 2 notes." in row["verdict"]
    assert re.search(r"Errors\s*2\s*1 warning, 2 notes", text)
    assert text.count("Keys, tags or other properties of the message are damaged (at 3505988") == 2


@given(
    st.lists(st.tuples(st.floats(0, 100), st.text("0:", min_size=1, max_size=16)), max_size=12),
    st.sampled_from([(280, False), (360, False), (500, True), (1100, True)]),
)
def test_labels_of_a_chart_do_not_meet(ticks: list[tuple[float, str]], screen: tuple[int, bool]) -> None:
    """Whatever the texts and places, on a phone and on a desk."""
    chart = Chart("name", "title", "text", 100, ())
    chart.labels(0, ticks)
    width, is_wide = screen
    ends = []
    for shape in chart.shapes:
        if is_wide or "minor" not in shape.attributes["class"]:
            length = len(shape.text) * 6.4  # pixels of a letter
            part = {"start": 0, "middle": 0.5, "end": 1}[shape.attributes["text-anchor"]]
            begin = float(shape.attributes["x"].rstrip("%")) * width / 100 - length * part
            ends.append((begin, begin + length))
    ends.sort()
    assert all(after[0] - before[1] > 1 for before, after in pairwise(ends))
    assert bool(chart.shapes) == bool(ticks)


def test_many_topics_are_grouped(tmp_path: Path) -> None:
    records = (record(f"topic_{n % 300:05}_" + "n" * 100, b"b") for n in range(400))
    write_log(tmp_path / "store" / "commitlog", records, file_size=1 << 20)
    _, page = written(tmp_path / "store", tmp_path / "a.html")
    assert "275 other topics" in page.text
    assert (tmp_path / "a.html").stat().st_size < 300_000


def test_many_findings_are_counted_and_some_shown(tmp_path: Path) -> None:
    """Each of 700 records in turn is damaged; the page keeps to its size."""
    stored = write_log(tmp_path / "store" / "commitlog", keyed(1400, body=60), file_size=1 << 20)
    path = next((tmp_path / "store" / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    for each in stored[::2]:
        data[each.physical_offset + 90] ^= 0xFF  # of the body
    path.write_bytes(data)
    found = summary_of(tmp_path / "store")
    assert found.findings.counts["error"] == 700
    kept = Counter(each.problem.severity for each in found.findings.worst_first())
    assert kept["error"] == FINDINGS_MAX
    code, page = written(tmp_path / "store", tmp_path / "a.html")
    assert code == 1
    assert f"Places (100 of {found.findings.counts.total()})" in page.text


def test_an_existing_file_is_kept_unless_force(cases: Library, tmp_path: Path, capsys: Capture) -> None:
    root, target = cases.path("ok_540_small_propcrc"), tmp_path / "a.html"
    target.write_text("mine")
    assert main(["report", str(root), "-o", str(target)]) == EXIT_REFUSED
    assert target.read_text() == "mine" and "the file exists" in capsys.readouterr().err
    assert main(["report", str(root), "-o", str(target), "--force", "--json"]) == EXIT_OK
    row = json.loads(capsys.readouterr().out)
    assert row["bytes"] == target.stat().st_size and page_of(target)
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "link", "pipe"):
        assert main(["report", str(root), "-o", str(tmp_path / name), "--force"]) == EXIT_REFUSED
        assert "is not a plain file and is not replaced" in capsys.readouterr().err
    assert (tmp_path / "link").is_symlink() and (tmp_path / "pipe").is_fifo()


def test_the_page_is_never_put_into_the_store(cases: Library, tmp_path: Path, capsys: Capture) -> None:
    root = cases.path("ok_540_small_propcrc")
    with unchanged(root):
        for target in (root / "a.html", root / "commitlog" / ".." / "config" / "a.html"):
            assert main(["report", str(root), "-o", str(target), "--force"]) == EXIT_REFUSED
        assert main(["report", str(root)]) == EXIT_USAGE
        assert main(["report", str(root), "-o", "s3://bucket/a.html"]) == EXIT_USAGE
    assert "--output is missing" in capsys.readouterr().err


def test_parts_of_a_store(cases: Library, tmp_path: Path) -> None:
    root = cases.path(REAL)
    for number, part in enumerate(("commitlog", "consumequeue/pubTopicEight/0")):
        code, page = written(root / part, tmp_path / f"{number}.html")
        assert code == EXIT_OK
        assert "What a start would do" not in page.text


def test_a_store_in_use(tmp_path: Path) -> None:
    """The starts are left out, and the page says why."""
    write_whole(tmp_path / "store", keyed(30))
    code = "import sys; from pathlib import Path; from rmqtool.storage.lock import acquire; "
    code += "lock = acquire(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, tmp_path / "store" / "lock"]
    with started(command, stdin=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        until(lambda: b"held" in process.stdout.readline(), "the lock is held")
        _, page = written(tmp_path / "store", tmp_path / "a.html")
    assert "A broker is using the store" in page.text
    assert "what a broker's start would do: a broker is using the store" in page.text


def _contrast(first: str, second: str) -> float:
    """The ratio of WCAG 2 between two colours."""
    lights = []
    for colour in (first, second):
        digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
        parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_colours_have_enough_contrast() -> None:
    """AA in both themes: 4.5 for text, 3 for shapes."""
    style = (ROOT / "commands" / "report_page.html").read_text("utf-8")
    light = dict(re.findall(r"--([a-z0-9-]+):(#[0-9a-f]+)", style.split(":root{")[1].split("}")[0]))
    dark = light | dict(re.findall(r"--([a-z0-9-]+):(#[0-9a-f]+)", style.split(":root{")[2].split("}")[0]))
    texts = [(ink, ground) for ink in ("ink", "soft", "link") for ground in ("bg", "card", "faint")]
    texts += [(level, ground) for level in ("ok", "warn", "bad") for ground in (f"{level}-bg", "card")]
    shapes = [(f"t{n}", "card") for n in (*range(1, 9), "o")] + [("bar1", "card")]
    for theme in (light, dark):
        assert [pair for pair in texts if _contrast(theme[pair[0]], theme[pair[1]]) < 4.5] == []
        assert [pair for pair in shapes if _contrast(theme[pair[0]], theme[pair[1]]) < 3] == []
