"""`rmqtool dump` on damaged stores: what is sound is shown, what is not is told, and nothing raises."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmqtool.check.verify import verify
from rmqtool.cli import main
from rmqtool.message.rows import RowFormat
from rmqtool.problems import Finding
from rmqtool.read.body_pattern import BodyPattern
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.dump.counts import count_rows
from rmqtool.report.dump.log import message_rows
from tests.support.dumps import SMALL, Dump, facts_of, flip
from tests.support.programs import PATIENCE_S
from tests.support.stores import Library, case
from tests.support.sweep import sample

pytestmark = [pytest.mark.sweep, pytest.mark.usefixtures("json_lines")]


WHOLE: dict[str, list[dict[str, Any]]] = {}
"""The rows of sound stores, each read once."""


@pytest.fixture
def dump(capfdbinary: pytest.CaptureFixture[bytes]) -> Dump:
    """`rmqtool dump` with what it wrote."""
    return Dump(capfdbinary)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("bad_cl04_wrong_length", "CL04"), ("bad_cl05_unknown_magic", "CL05"),
        ("bad_cl06_foreign_record", "CL06"), ("bad_cl09_property_crc", "CL09"),
        ("bad_cl10_bad_blank", "CL10"), ("bad_cl11_no_blank", "CL11"), ("bad_cl13_bad_properties", "CL13"),
        ("bad_cl14_bad_body", "CL14"), ("gap_cl02_zero_hole", "CL02"), ("gap_cl08_zeroed_page", "CL08"),
        ("gap_cl20_missing_file", "CL20"),
    ],
)  # fmt: skip
def test_damage_is_told_and_all_else_is_shown(name: str, code: str, cases: Library, dump: Dump) -> None:
    """The bad place by its code, in the rows with --gaps and on stderr; exit code 1."""
    base = case(name).base
    assert base is not None
    fields = ("--fields", "kind,physical_offset,size,topic,status")
    kinds = {"CL02": "zeros", "CL11": "zeros", "CL20": "missing"}
    if base not in WHOLE:
        WHOLE[base] = dump(cases.path(base), *fields, "--gaps").rows
    whole = {row["physical_offset"]: row for row in WHOLE[base]}
    result = dump(cases.path(name), *fields, "--gaps")
    assert result.code == 1
    assert f" {code} " in result.err
    assert len([line for line in result.err.splitlines() if "(BatchCQ)" not in line]) == 1
    bad = [row for row in result.rows if row["status"] not in (["ok"], None)]
    assert [row["status"] for row in bad] == [[code]]
    assert bad[0]["kind"] == kinds.get(code, "record" if bad[0]["topic"] else "bad")
    start, stop = bad[0]["physical_offset"], bad[0]["physical_offset"] + bad[0]["size"]
    for row in result.rows:
        if row["status"] == ["ok"] or (row["kind"] in ("blank", "zeros") and row["status"] is None):
            assert row == whole.pop(row["physical_offset"])
    assert all(start <= offset < stop for offset in whole), "only records in the bad place are missing"
    backwards = dump(cases.path(name), *fields, "--gaps", "--reverse")
    assert (backwards.code, backwards.rows) == (1, result.rows[::-1])


def test_all_agree_on_a_record_whose_properties_end_in_zeros(
    cases: Library, tmp_path: Path, dump: Dump, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A page was lost: of one record the end, of the next the start. Only the second cannot be read."""
    store = cases.variant("5.4.0:clean:zero-page-last-file:abort", tmp_path / "store")
    cut, gone = ("CL13", 3505988, 5785), ("CL08", 3511773, 4229)
    with Store.open(store) as opened:
        found = [each for each in verify(opened) if each.problem.code.startswith("CL")]
    assert [(each.problem.code, each.physical_offset, each.length) for each in found] == [cut, gone]
    for ways in ((), ("--reverse",)):  # compiled, plain
        result = dump(store, "--fields", "kind,physical_offset,size,status", "--gaps", *ways)
        bad = [row for row in result.rows if row["status"] not in (["ok"], None)]
        found_here = [(*row["status"], row["physical_offset"], row["size"]) for row in bad]
        assert sorted(found_here, key=lambda row: row[1]) == [cut, gone]
        assert f" {cut[0]} " in result.err and f" {gone[0]} " in result.err
    for command in (("lookup", "--offset", "3505988"), ("tail", "--topic", "pubBatch", "--queue", "3",
                    "--from", "2", "--limit", "1")):  # fmt: skip
        main([command[0], str(store), *command[1:], "--fields", "status", "--format", "jsonl"])
        out, err = capfdbinary.readouterr()
        assert (json.loads(out), b"CL13" in err) == ({"status": ["CL13"]}, True)
    assert main(["recover", str(store), "--format", "json"]) == 1
    plan = json.loads(capfdbinary.readouterr().out)
    assert [row["physical_offset"] for row in plan["incomplete"]] == [cut[1]]
    assert [(row["physical_offset"], row["size"]) for row in plan["lost"]] == [gone[1:]]
    assert main(["doctor", str(store), "--no-host", "--format", "text"]) == 1
    assert b"whole pages are zero (at 3511773, 4229 bytes)" in capfdbinary.readouterr().out


@pytest.mark.parametrize(("number", "cut"), sample([(1, 500_000), (1, 100), (-1, 100), (-1, 500_000)], 4))
def test_a_short_file_is_no_missing_file(number: int, cut: int, store_copy: Any, dump: Dump) -> None:
    """CL21 and what its end cuts off, as verify has them; no CL20, and rows that leave nothing out."""
    store = store_copy("ok_540_clean")
    path = sorted((store / "commitlog").iterdir())[number]
    with path.open("r+b") as file:
        file.truncate((1 << 20) - cut)
    result = dump(store, "--gaps")
    assert result.code == 1
    assert "CL20" not in result.err
    assert f"(1048576 bytes expected): commitlog/{path.name}" in result.err
    end = 0
    for row in result.rows:
        assert row["physical_offset"] == end, row
        end += row["size"]
    assert dump(store, "--gaps", "--reverse").rows == result.rows[::-1]
    missing = [(row["physical_offset"], row["size"]) for row in result.rows if row["kind"] == "missing"]
    assert missing == ([(int(path.name) + (1 << 20) - cut, cut)] if number == 1 else [])
    if cut >= 500_000:
        assert "cut off by the end of a file" in result.err
    seen: list[Finding] = []
    with Store.open(store) as opened:
        list(message_rows(opened, Selection(), RowFormat(), seen.append))
        found = [each for each in verify(opened, passes=("files", "log")) if each.problem.code != "CL24"]
        for compiled in (0, 1 << 40):
            told: list[Finding] = []
            list(count_rows(opened, Selection(), told.append, compiled_from_bytes=compiled))
            assert places(told) == places(seen)
        backwards: list[Finding] = []
        list(message_rows(opened, Selection(), RowFormat(), backwards.append, reverse=True))
        assert places(backwards) == places(seen)
    assert places(seen) == places(found)


def places(findings: list[Finding]) -> list[tuple[str, str, int | None, int | None]]:
    """Code, file, offset and length of each."""
    return sorted((each.problem.code, each.path, each.physical_offset, each.length) for each in findings)


def test_a_flipped_body_is_told(store_copy: Any, dump: Dump) -> None:
    """The record is still shown, with its status; counts and raw bytes tell it too."""
    store = store_copy(SMALL)
    fact = facts_of(SMALL)[3]
    flip(store / "commitlog" / ("0" * 20), fact["physicalOffset"] + 90)
    for options in ((), ("--stats-only",), ("--raw",), ("--fields", "topic")):
        result = dump(store, *options)
        assert result.code == 1
        assert f"CL03 the body does not match its CRC: commitlog/{'0' * 20}" in result.err
        assert f"offset {fact['physicalOffset']}, {fact['storeSize']} bytes" in result.err
    row = next(row for row in dump(store).rows if row["physical_offset"] == fact["physicalOffset"])
    assert "CL03" in row["status"]


def test_a_torn_tail_is_no_damage(store_copy: Any, dump: Dump) -> None:
    """The log cut in its last record: a note, exit code 0, all others shown."""
    store = store_copy(SMALL)
    facts = facts_of(SMALL)
    path = store / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    start = facts[-1]["physicalOffset"]
    data[start + 60 :] = bytes(len(data) - start - 60)
    path.write_bytes(data)
    result = dump(store, "--gaps")
    assert result.code == 0
    assert "note: CL01" in result.err
    assert [row["physical_offset"] for row in result.rows] == [fact["physicalOffset"] for fact in facts]
    assert result.rows[-1]["status"] == ["CL01"]
    assert dump(store, "--quiet").err == ""


def test_much_damage_is_told_in_few_lines(store_copy: Any, dump: Dump) -> None:
    """Twenty places one by one, then their number."""
    store = store_copy(SMALL)
    bodies = [fact["physicalOffset"] + 88 for fact in facts_of(SMALL)[::2] if fact["storedBodyLength"]]
    flip(store / "commitlog" / ("0" * 20), *bodies)
    lines = dump(store).err.splitlines()
    assert len(lines) == 21
    assert "more; rmqtool verify shows all of them" in lines[-1]


def test_a_missing_codec_names_the_command(cases: Library) -> None:
    """The rest is shown; exit code 3. In a process of its own, for codecs are loaded once."""
    script = (
        "import sys; sys.modules['zstandard'] = sys.modules['compression.zstd'] = None;"
        "from rmqtool.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "dump", str(cases.path("ok_540_clean"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 3
    assert "pip install zstandard" in done.stderr
    unread = [row for row in rows if row["status"] == ["UN01"]]
    assert unread
    assert all(row["body"] is None and row["body_compression"] == "zstd" for row in unread)
    assert len(rows) == len(facts_of("ok_540_clean"))
    without = subprocess.run([*command, "--body", "none"], capture_output=True, check=False)
    assert without.returncode == 0


def test_a_body_that_does_not_unpack_is_told_without_it(cases: Library, tmp_path: Path, dump: Dump) -> None:
    """By every command that shows the status, whether it shows the body or not."""
    path = cases.path("bad_cl14_bad_body")
    wanted = dump(path, "--fields", "physical_offset,status").rows
    assert any(row["status"] == ["CL14"] for row in wanted)
    commands = (
        ("export", path, "-o", tmp_path / "rows.jsonl", "--columns", "physical_offset,status"),
        ("tail", path, "--from", "earliest", "--fields", "physical_offset,status", "--format", "jsonl"),
    )
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "rmqtool", *map(str, command)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        text = (tmp_path / "rows.jsonl").read_text() if command[0] == "export" else done.stdout
        rows = [json.loads(line) for line in text.splitlines()]
        assert done.returncode == 1 and "CL14" in done.stderr
        assert sorted(row["physical_offset"] for row in rows if row["status"] != ["ok"]) == [
            row["physical_offset"] for row in wanted if row["status"] != ["ok"]
        ]


def test_a_body_limit_is_a_limit(cases: Library, dump: Dump) -> None:
    """What would unpack to more is not unpacked."""
    result = dump(cases.path("ok_540_clean"), "--body-limit", 10)
    assert result.code == 1
    over = [row for row in result.rows if row["status"] == ["CL14"]]
    assert over
    assert all(row["body"] is None and row["body_compression"] != "none" for row in over)


@pytest.mark.parametrize(
    ("name", "what", "code", "exit_code"),
    [
        ("bad_cq08_invalid_unit", "consumequeue", "CQ08", 1),
        ("gap_cq10_missing_file", "consumequeue", "CQ10", 1),
        ("bad_ix02_chain_loop", "index", "IX02", 1), ("bad_ix06_wrong_size_file", "index", "IX06", 1),
        ("bad_cp02_checkpoint_size", "checkpoint", "CP02", 1),
        ("old_cp01_checkpoint_missing", "checkpoint", "CP01", 0),
        ("bad_cf01_config_bak", "config", "CF01", 1), ("bad_cf02_config_unreadable", "config", "CF02", 1),
        ("bad_tm02_timer_unit", "timer", "TM02", 1), ("bad_ep01_epoch_file", "epoch", "EP01", 1),
        ("bad_cc01_compaction", "compaction", "CC01", 1),
    ],
)  # fmt: skip
def test_damage_elsewhere(
    name: str, what: str, code: str, exit_code: int, cases: Library, dump: Dump
) -> None:
    """What the rows of queues, index and small files meet."""
    part = ("--part", "chains") if what == "index" else ()
    result = dump(cases.path(name), "--what", what, *part)
    assert result.code == exit_code
    assert f" {code} " in result.err


def test_queues_in_rocksdb_that_cannot_be_opened(store_copy: Any, dump: Dump) -> None:
    """RD01, with exit code 3; the log is shown all the same."""
    store = store_copy(SMALL)
    shutil.rmtree(store / "consumequeue")
    (store / "consumequeue").mkdir()
    (store / "consumequeue" / "CURRENT").write_text("MANIFEST-000004\n")
    result = dump(store, "--what", "consumequeue")
    assert (result.code, result.out) == (3, b"")
    assert " RD01 " in result.err and "consumequeue/MANIFEST-000004" in result.err
    assert dump(store, "--limit", 1).code == 0


def test_a_queue_without_a_log_is_told(cases: Library, dump: Dump) -> None:
    """An empty answer would look like an empty store."""
    result = dump(cases.path("gap_cl26_log_missing"))
    assert result.code == 1
    assert "CL26" in result.err


@pytest.mark.parametrize(
    "name",
    ["ok_497_clean", "ok_540_expired", "gap_cl02_zero_hole", "gap_cl20_missing_file", "bad_cl10_bad_blank",
     "bad_cl11_no_blank", "bad_cl06_foreign_record", "bad_cl04_wrong_length"],
)  # fmt: skip
@pytest.mark.parametrize(
    "selection",
    [Selection(), Selection(topics=["pub*"], queues=[0, 2], exclude_topics=["pubT*"], from_offset=1000),
     Selection(since=1_795_251_030_000, to_offset=3_000_000),
     Selection(until=1_795_251_030_000, time_field="born"),
     Selection(grep=BodyPattern("(?i)ORDER")), Selection(grep=BodyPattern("[0-9]{3}"), topics=["pub*"])],
)  # fmt: skip
def test_counts_are_the_same_both_ways(name: str, selection: Selection, cases: Library) -> None:
    """The compiled walk counts and reports what the plain one does."""
    with Store.open(cases.path(name)) as store:
        told: list[list[Finding]] = [[], []]
        plain = list(count_rows(store, selection, told[0].append))
        compiled = list(count_rows(store, selection, told[1].append, compiled_from_bytes=0))
    assert plain == compiled
    assert told[0] == told[1]


def test_empty_files_behind_the_log_are_no_hole(store_copy: Any, dump: Dump) -> None:
    """Neither forwards nor backwards: nothing was ever written there."""
    store = store_copy(SMALL)
    for number in (1, 2):
        (store / "commitlog" / f"{number << 20:020}").touch()
    assert dump(store).code == dump(store, "--reverse").code == 0
