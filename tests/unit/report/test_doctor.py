"""The first look at a store: what it finds in every damaged store, how that is shown, and its bounds."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.commands import COMMANDS
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK
from rmqtool.formats import message
from rmqtool.problems import BY_CODE
from rmqtool.read.store import Store
from rmqtool.report.doctor import CERTAINTIES, SEVERITIES, Examination, examine
from tests.support.ordinary_user import as_nobody, open_to_all
from tests.support.stores import Library, case, case_names
from tests.support.trees import unchanged

Capture = pytest.CaptureFixture[str]
WIDTH = 80
SOUND = tuple(name for name in case_names() if name.startswith("ok_"))
DAMAGED = tuple(
    name for name in case_names() if name.startswith(("bad_", "gap_", "old_")) and case(name).codes
)
OTHER_KINDS = tuple(name for name in case_names() if name.startswith("kind_"))
OF_DISK = {"disk_full", "disk_forces_deletion", "disk_deletes_early", "disk_fills"}
"""What depends on the disk of the machine that runs the tests."""


def examined(root: Path, **arguments: Any) -> Examination:
    """The result for a store, without what is wrong with the disk of this machine."""
    with Store.open(root) as store:
        found = examine(store, **arguments)
    found.diagnoses = [each for each in found.diagnoses if each.name not in OF_DISK]
    return found


def names(found: Examination) -> set[str]:
    return {each.name for each in found.diagnoses}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_store_has_nothing_critical(name: str, cases: Library) -> None:
    """Neither a warning; and a start of its broker loses nothing."""
    found = examined(cases.path(name))
    assert [each for each in found.diagnoses if each.severity != "notice"] == []
    assert found.exit_code == EXIT_OK
    own = [start for start in found.starts if start.broker in found.info["written_by_candidates"]]
    assert own and all(start.error is None and start.prediction is not None for start in own)


@pytest.mark.parametrize("name", DAMAGED)
def test_every_kind_of_damage_is_seen(name: str, cases: Library, tmp_path: Path) -> None:
    """Where the whole store fits the limit, doctor finds what verify finds, and the worst is first."""
    if not case(name).as_user:
        check_damage(name, cases.path(name))
        return
    store = cases.copy(name, tmp_path / "store")
    open_to_all(store)
    examined(store)  # loads and compiles: the interpreter may lie in a folder that is closed to that user
    with unchanged(store):
        as_nobody(lambda: check_damage(name, store))


def check_damage(name: str, store: Path) -> None:
    """The results for a damaged store against the codes of its case."""
    found = examined(store)
    codes = set(case(name).codes or ()) - {"CL14"}  # what bodies hold is left to `verify --pass bodies`
    assert codes <= names(found)
    assert {each for each in names(found) if each in BY_CODE} == codes
    ranks = [each.rank for each in found.diagnoses]
    assert ranks == sorted(ranks)
    errors = {code for code in codes if BY_CODE[code].severity == "error" and not code.startswith("IX")}
    assert errors <= {each.name for each in found.diagnoses if each.severity == "critical"}
    worst = max((BY_CODE[code].exit_code for code in codes), default=EXIT_OK)
    assert found.exit_code == worst or (found.exit_code, worst) == (EXIT_FINDINGS, EXIT_OK)
    for each in found.diagnoses:
        assert each.severity in SEVERITIES and each.certainty in CERTAINTIES
        assert each.message and each.cost and each.path
        if each.severity != "notice":
            assert each.cure or each.command


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_other_forms_are_named_and_not_damage(name: str, cases: Library) -> None:
    """DLedger, RocksDB, tiered storage: nothing is critical; the code says that a part was not read."""
    found = examined(cases.path(name))
    assert not found.count("critical")
    if found.info["unsupported"]:
        assert found.exit_code == EXIT_INPUT
        assert "UN01" in names(found)
    if {"commit log", "consume queues"} & {part["what"] for part in found.info["unsupported"]}:
        assert any("start" in each.what for each in found.omissions)


SHOWN = ("ok_540_clean", "bad_cl04_wrong_length", "bad_cf08_consumer_offsets_missing", "kind_dledger_540",
         "gap_cq13_queue_missing")  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_the_text_fits_80_columns(
    name: str, store_copy: Callable[[str], Path], capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the terminal; only command lines are longer, and they name the store as a shell needs it."""
    monkeypatch.setenv("COLUMNS", "200")
    store = store_copy(name).rename(store_copy("ok_497_clean").parent / "the store's copy")
    capfd.readouterr()
    main(["doctor", str(store)])
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("verdict   ")
    for line in lines:
        if line.startswith("  run "):
            words = shlex.split(line)
            assert words[1] == "rmqtool" and words[2] in COMMANDS
            assert words[3] == str(store) or words[2] == "problems"
        else:
            assert len(line) <= WIDTH or str(store) in line
    assert main(["verify", str(store), "--severity", "error"]) in (EXIT_OK, EXIT_FINDINGS, EXIT_INPUT)


def test_json_has_everything(cases: Library, capfd: Capture) -> None:
    store = cases.path("bad_cl21_wrong_size_file")
    assert main(["doctor", str(store), "--format", "json"]) == EXIT_FINDINGS
    found = json.loads(capfd.readouterr().out)
    first = next(each for each in found["results"] if each["name"] == "start_fails")
    assert first["severity"] == "critical" and first["certainty"] == "certain"
    assert first["path"] == "commitlog/00000000000003145728"
    assert first["command"] == shlex.join(["rmqtool", "recover", str(store)])
    assert found["critical"] >= 2 and found["verdict"].startswith("Act now")
    assert [start["loads"] for start in found["starts"]] == [False] * 3
    sizes = next(each for each in found["results"] if each["name"] == "CL21")
    assert sizes["detail"]["expected_bytes"] == 1 << 20 and sizes["count"] == 1


def test_a_single_file_and_an_archive(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """What `info` reads, doctor examines."""
    store = cases.path("bad_cl04_wrong_length")
    archive = shutil.make_archive(str(tmp_path / "store"), "gztar", store)
    file = sorted((store / "commitlog").iterdir())[0]
    for path in (archive, str(file), str(store / "commitlog")):
        assert main(["doctor", path, "--format", "json"]) == EXIT_FINDINGS
        found = json.loads(capfd.readouterr().out)
        damage = next(each for each in found["results"] if each["name"] == "CL04")
        assert damage["severity"] == "critical"
        assert "recover" not in (damage["command"] or "")
        assert (path == archive) == any("disk" in each["what"] for each in found["not_looked_at"])


def test_what_does_not_fit_the_limit_is_named(cases: Library) -> None:
    """The ends of queues and index are looked at then, and the start by names and sizes."""
    found = examined(cases.path("ok_540_clean"), read_limit=64 << 10)
    assert not found.count("critical") and not found.count("warning")
    whats = " ".join(each.what for each in found.omissions)
    for part in ("commit log", "units of the queues", "entries of the index", "start of broker"):
        assert part in whats
    assert 0 < found.log_read_bytes <= 32 << 10
    assert all(start.prediction is None and start.error is None for start in found.starts)


def test_a_queue_that_points_past_the_log_is_seen_at_its_end(cases: Library) -> None:
    """Without reading the units."""
    found = examined(cases.path("bad_cq03_queue_ahead"), read_limit=64 << 10)
    assert "CQ03" in names(found)
    small = examined(cases.path("bad_cq03_queue_ahead"))
    assert "CQ03" in names(small)


def test_a_store_of_two_terabytes(cases: Library, tmp_path: Path) -> None:
    """2,000 files of a GiB that begin as real ones do: a look takes seconds and says what it left out."""
    source, store, size = cases.path("ok_540_clean"), tmp_path / "store", 1 << 30
    shutil.copytree(source / "config", store / "config")
    (store / "commitlog").mkdir()
    head = sorted((source / "commitlog").iterdir())[0].read_bytes()[:4096]
    record = head[: int.from_bytes(head[:4], "big")]
    blank = message.BLANK.pack(size - len(record), message.BLANK_MAGIC)
    place = message.PHYSICAL_OFFSET_OFFSET
    for number in range(2000):
        base = number * size
        with (store / "commitlog" / f"{base:020}").open("wb") as file:
            file.write(record[:place] + base.to_bytes(8, "big") + record[place + 8 :])
            file.write(blank if number < 1999 else b"")
            file.truncate(size)
    shutil.copyfile(source / "checkpoint", store / "checkpoint")
    with Store.open(store) as opened:
        found = examine(opened)
    log = found.info["commit_log"]
    assert (log["files"], log["end_offset"]) == (2000, 1999 * size + len(record))
    assert found.log_read_bytes <= found.read_limit_bytes // 2
    whats = [each.what for each in found.omissions]
    assert any("of the commit log's 2.0 TiB" in what for what in whats)
    assert not found.count("critical"), found.diagnoses
    missing = store / "commitlog" / f"{1000 * size:020}"
    missing.unlink()
    with Store.open(store) as opened:
        found = examine(opened)
    gap = next(each for each in found.diagnoses if each.name == "CL20")
    assert gap.severity == "critical" and gap.path == f"commitlog/{missing.name}"


@pytest.mark.parametrize(("ratio", "name"), [(10, "disk_deletes_early")])
def test_the_limits_of_broker_conf_count(ratio: int, name: str, cases: Library, tmp_path: Path) -> None:
    """A disk above diskMaxUsedSpaceRatio; the smallest that a broker takes is 10 %."""
    conf, store = tmp_path / "broker.conf", cases.path("ok_540_clean")
    conf.write_text(f"diskMaxUsedSpaceRatio={ratio}\n")
    with Store.open(store, broker_conf=conf) as opened:
        found = examine(opened)
    assert found.disk is not None
    if found.disk["used_ratio"] <= ratio / 100:
        assert name not in names(found)
    else:
        assert OF_DISK & names(found)


def test_a_delete_when_that_no_broker_reads(cases: Library, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("deleteWhen=four\n")
    with Store.open(cases.path("ok_540_clean"), broker_conf=conf) as opened:
        found = examine(opened)
    assert next(each for each in found.diagnoses if each.name == "delete_when").path == str(conf)
