"""The first look at a store: what it finds in every damaged store, how that is shown, and its bounds."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqtool.broker.expiry_rules import Disk, Disks
from rmqtool.cli import main
from rmqtool.commands import COMMANDS, doctor_text
from rmqtool.commands.recover_verdicts import cost_of_start
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, EXIT_REFUSED, EXIT_USAGE
from rmqtool.formats import message
from rmqtool.problems import BY_CODE
from rmqtool.read.store import Store
from rmqtool.repair.expire import expiry
from rmqtool.report.doctor.diagnosis import CERTAINTIES, SEVERITIES, Examination, next_words
from rmqtool.report.doctor.examine import examine
from rmqtool.report.doctor.host import look_at_host
from rmqtool.storage.source import FileSource
from tests import ROOT
from tests.support.ordinary_user import as_nobody, open_to_all
from tests.support.programs import PATIENCE_S, RMQTOOL, started, until
from tests.support.stores import Library, case, case_names, is_large
from tests.support.sweep import IS_WHOLE, sample
from tests.support.trees import unchanged

pytestmark = pytest.mark.sweep

Capture = pytest.CaptureFixture[str]
WIDTH = 80
SOUND = tuple(name for name in case_names() if name.startswith("ok_"))
DAMAGED = tuple(
    name for name in case_names() if name.startswith(("bad_", "gap_", "old_")) and case(name).codes
)
DEAR = [name for name in DAMAGED if is_large(name) or case(name).as_user]
SMALL = [name for name in DAMAGED if name not in DEAR]
OTHER_KINDS = tuple(name for name in case_names() if name.startswith("kind_"))
OF_DISK = {"disk_full", "disk_forces_deletion", "disk_deletes_early", "disk_fills", "deletes_unread"}
"""What depends on the disk of the machine that runs the tests."""


def examined(root: Path, **arguments: Any) -> Examination:
    """The result for a store, without what is wrong with the disk of this machine."""
    with Store.open(root) as store:
        found = examine(store, **arguments)
    found.diagnoses = [each for each in found.diagnoses if each.name not in OF_DISK]
    return found


def names(found: Examination) -> set[str]:
    return {each.name for each in found.diagnoses}


@pytest.mark.parametrize("name", sample(SOUND, 3))
def test_a_sound_store_has_only_notes(name: str, cases: Library) -> None:
    """Neither a warning; and a start of its broker loses nothing."""
    found = examined(cases.path(name))
    assert [each for each in found.diagnoses if each.severity != "note"] == []
    assert found.exit_code == EXIT_OK
    own = [start for start in found.starts if start.broker in found.info["written_by_candidates"]]
    assert own and all(start.error is None and start.prediction is not None for start in own)


@pytest.mark.parametrize("name", [*sample(SMALL, 4), *(DEAR if IS_WHOLE else ["bad_cp06_unreadable"])])
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
    assert errors <= {each.name for each in found.diagnoses if each.severity == "error"}
    worst = max((BY_CODE[code].exit_code for code in codes), default=EXIT_OK)
    assert found.exit_code == worst or (found.exit_code, worst) == (EXIT_FINDINGS, EXIT_OK)
    for each in found.diagnoses:
        assert each.severity in SEVERITIES and each.certainty in CERTAINTIES
        assert each.message and each.cost and each.path
        if each.severity != "note":
            assert each.cure or each.command


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_other_forms_are_named_and_not_damage(name: str, cases: Library) -> None:
    """DLedger, RocksDB, tiered storage: nothing is an error; the code says that a part was not read."""
    found = examined(cases.path(name))
    assert not found.count("error")
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
    main(["doctor", str(store), "--no-host", "--all"])
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("verdict   ")
    for line in lines:
        if line.startswith(("  run ", "next ")):
            words = shlex.split(line)
            assert words[1] == "rmqtool" and words[2] in COMMANDS
            assert words[3] == str(store) or words[2] in ("problems", "help")
        else:
            assert len(line) <= WIDTH or str(store) in line
    assert main(["verify", str(store), "--severity", "error"]) in (EXIT_OK, EXIT_FINDINGS, EXIT_INPUT)


def zero(root: Path) -> None:
    """A page of an old file is zeroed; the broker was killed."""
    with (root / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(602_112)
        file.write(bytes(4096))
    (root / "abort").touch()


def cut(root: Path) -> None:
    """The last file is cut; the broker was killed."""
    os.truncate(root / "commitlog" / f"{3 << 20:020}", 300_000)
    (root / "abort").touch()


def without_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue/pubTopicOne")


def without_offsets(root: Path) -> None:
    for path in (root / "config").glob("consumerOffset.json*"):
        path.unlink()


def sound(root: Path) -> None:
    """Nothing is changed."""


SITUATIONS: tuple[tuple[Callable[[Path], None], int, str], ...] = (
    (sound, 1, "verify STORE --pass bodies"), (zero, 1, "recover STORE"), (cut, 1, "recover STORE"),
    (without_queue, 1, "recover STORE"), (without_offsets, 1, "help recovery"), (sound, 92, "expire STORE"),
)  # fmt: skip


def test_the_next_command_stays_on_the_screen(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """What was not looked at gives way to it: the verdict on a lost config folder has eight lines."""
    root = cases.copy("ok_533_clean", tmp_path / ("broker-" + "c" * 70))
    shutil.rmtree(root / "config")
    (root / "abort").touch()
    main(["doctor", str(root), "--no-host"])
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) <= 23 and lines[-1] == f"next      rmqtool recover {root}"
    (store,) = [line for line in lines if line.startswith("store  ")]
    assert len(store) == 80 and store.endswith("ccc")


def test_a_lost_config_folder_fits_a_small_terminal(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """What to copy is in the verdict; the cure of CF08 said it once more, in six lines."""
    root = cases.copy("ok_497_clean", tmp_path / "broker-c")
    shutil.rmtree(root / "config")
    (root / "abort").touch()
    main(["doctor", str(root), "--no-host"])
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) <= 23 and lines[-2] == "next      rmqtool help recovery"
    assert "first of all, copy it from a backup" in " ".join(map(str.strip, lines))


def test_damaged_properties_lead_to_what_is_left_of_them(cases: Library, capfd: Capture) -> None:
    root = cases.path("bad_cl13_bad_properties")
    main(["doctor", str(root), "--no-host", "--json"])
    found = json.loads(capfd.readouterr().out)
    (row,) = [row for row in found["results"] if row["name"] == "CL13"]
    assert row["command"] == f"rmqtool dump {root} --explain {row['physical_offsets'][0]}"
    assert main(shlex.split(row["command"])[1:]) == EXIT_FINDINGS


@pytest.mark.parametrize(("damage", "percent", "wanted"), SITUATIONS)
def test_a_small_terminal_shows_the_answer_and_one_next_command(
    damage: Callable[[Path], None],
    percent: int,
    wanted: str,
    cases: Library,
    tmp_path: Path,
    capfd: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """80x24: the verdict, the worst with its cost, and at the end one command, which is not refused.

    What a start costs is said in the words of recover, for the broker of the store.
    """
    root = cases.copy("ok_540_clean", tmp_path / "store")
    damage(root)

    def disks(store: Store, folders: Any) -> Disks:
        device = store.layout.commit_log[0].path.stat().st_dev
        return Disks({device: Disk(percent << 30, (100 - percent) << 30)}, (device,), device)

    monkeypatch.setattr(expiry, "_disks", disks)
    monkeypatch.chdir(tmp_path)
    main(["doctor", "store", "--no-host"])
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) <= 23 and max(map(len, lines)) <= WIDTH
    assert [line[10:] for line in lines if line.startswith("next ")] == [
        f"rmqtool {wanted}".replace("STORE", "store")
    ]
    assert lines[-1].startswith(("next ", "          section: ")) and not any(
        "  run " in line for line in lines
    )
    text = " ".join(line.strip() for line in lines)
    assert "recovered range" not in text
    assert main(shlex.split(next(line for line in lines if line.startswith("next ")))[2:]) in (
        EXIT_OK,
        EXIT_FINDINGS,
    )
    out = capfd.readouterr().out
    assert wanted.startswith(("expire", "help")) or "refused" not in out
    main(["recover", "store", "--format", "json"])
    found = json.loads(capfd.readouterr().out)
    (own,) = [row for row in found["predictions"] if row["broker"] == "5.4"]
    nothing = "loses nothing more" if found["lost_messages"] else "loses nothing"
    if damage is without_offsets:
        nothing = "loses no message"
    assert f"A start of 5.4 {cost_of_start(own) or nothing}." in text
    if percent > 90:
        assert "disk_full" in text and "refuses messages" in text and "; this store takes " in text
    main(["doctor", "store", "--no-host", "--json"])
    found = json.loads(capfd.readouterr().out)
    assert shlex.split(found["next"])[1] == wanted.split()[0]
    if damage in (zero, cut):
        assert not any("rebuild" in (row["command"] or "") for row in found["results"])
        assert "rebuild" not in text


def test_all_results_are_shown_on_request(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """What does not fit is named, and --all shows it."""
    root = cases.copy("ok_540_clean", tmp_path / "store")
    cut(root)
    main(["doctor", str(root), "--no-host"])
    short = capfd.readouterr().out
    main(["doctor", str(root), "--no-host", "--all"])
    full = capfd.readouterr().out
    blocks = re.findall(r"^(?:ERROR|WARNING|NOTE), \w+: (\w+)", full, re.MULTILINE)
    assert {"CL21", "CQ03", "CP04"} <= set(blocks)
    assert "rmqtool doctor --all" in " ".join(short.split())
    for name in blocks:
        assert name in short


def test_all_names_of_lost_topics_and_groups_are_shown(
    cases: Library, tmp_path: Path, capfd: Capture
) -> None:
    """What a person has to enter by hand: by doctor, and topics with their queues by recover."""
    root = cases.copy("ok_540_clean", tmp_path / "store")
    config = root / "config"
    text = (config / "topics.json").read_text()
    known = json.loads(text)["topicConfigTable"]
    for path in (*config.glob("topics.json*"), *config.glob("subscriptionGroup.json*")):
        path.unlink()
    (config / "topics.json").write_text('{"dataVersion":{"counter":1},"topicConfigTable":{}}')
    results = {}
    for words in ((), ("--all",)):
        main(["doctor", str(root), "--no-host", *words])
        results[words] = " ".join(capfd.readouterr().out.split())
    assert "and 4 more" in results[("--all",)] and "doctor STORE --all names all" in results[("--all",)]
    main(["recover", str(root), "--json"])
    (action,) = [
        each for each in json.loads(capfd.readouterr().out)["actions"] if each["path"].endswith("topics.json")
    ]
    added = action["detail"]["added"]
    assert len(added) == action["detail"]["topics"] > 10
    main(["recover", str(root), "--all"])
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    for each in added:
        name = each["topic"]
        assert name in results[("--all",)] and [name, str(each["queues"]), str(each["messages"])] in lines
        assert each["queues"] <= known[name]["writeQueueNums"]
    main(["recover", str(root)])
    assert "new in topics.json" not in capfd.readouterr().out
    assert " names pub_group_one " in results[("--all",)] and " names pub_group_one " not in results[()]


@pytest.mark.parametrize("limit", [(), ("--read-limit", "64K")])
@pytest.mark.parametrize("name", ["kind_rocksdb_540_running", "ok_540_clean"])
def test_a_lost_config_is_found_as_verify_finds_it(
    name: str, limit: tuple[str, ...], cases: Library, tmp_path: Path, capfd: Capture
) -> None:
    """Also where the queues have no units yet, or the part of the log that is read has not all topics."""
    root = cases.copy(name, tmp_path / "store")
    shutil.rmtree(root / "config")
    main(["verify", str(root), "--json"])
    lost = {row["problem"] for row in map(json.loads, capfd.readouterr().out.splitlines())}
    lost = {code for code in lost if code.startswith("CF")}
    assert lost == {"CF06", "CF07", "CF08", "CF09"}
    assert main(["doctor", str(root), "--no-host", "--json", *limit]) == EXIT_FINDINGS
    found = json.loads(capfd.readouterr().out)
    assert lost <= {row["name"] for row in found["results"]}
    assert "consumerOffset.json" in found["verdict"]
    main(["verify", str(root), "--json", "--limit-bytes", "2K"])
    assert lost <= {row["problem"] for row in map(json.loads, capfd.readouterr().out.splitlines())}


def test_a_damaged_ledger_leads_to_copy(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """Recover never changes a DLedger log, but repairs what is beside it."""
    root = cases.copy("kind_dledger_540", tmp_path / "store")
    log = max((root / "dledger-n0/data").iterdir(), key=lambda path: path.stat().st_size)
    with log.open("r+b") as file:
        file.seek(2000)
        file.write(b"\xff" * 64)
    assert main(["doctor", str(root), "--no-host"]) == EXIT_FINDINGS
    out = capfd.readouterr().out
    assert out.splitlines()[-1] == f"next      rmqtool copy {root} --output NEW"
    assert f"rmqtool recover {root}" not in out
    root = cases.copy("kind_dledger_540", tmp_path / "sound")
    (root / "config/timercheck").unlink()
    assert main(["doctor", str(root), "--no-host"]) == EXIT_FINDINGS
    assert capfd.readouterr().out.splitlines()[-1] == f"next      rmqtool recover {root}"


def test_json_has_everything(cases: Library, capfd: Capture) -> None:
    store = cases.path("bad_cl21_wrong_size_file")
    assert main(["doctor", str(store), "--format", "json"]) == EXIT_FINDINGS
    found = json.loads(capfd.readouterr().out)
    first = next(each for each in found["results"] if each["name"] == "start_fails")
    assert first["severity"] == "error" and first["certainty"] == "certain"
    assert first["path"] == "commitlog/00000000000003145728"
    assert first["command"] == shlex.join(["rmqtool", "recover", str(store)])
    assert found["errors"] >= 2 and found["verdict"].startswith("Act now")
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
        assert damage["severity"] == "error"
        is_whole = path == archive  # of a part nothing is repaired
        assert ("recover LOCAL_COPY" if is_whole else "problems CL04") in (damage["command"] or "")
        assert (path == archive) == any("disk" in each["what"] for each in found["not_looked_at"])


def test_what_does_not_fit_the_limit_is_named(cases: Library) -> None:
    """The ends of queues and index are looked at then, and the start by names and sizes."""
    found = examined(cases.path("ok_540_clean"), read_limit=64 << 10)
    assert not found.count("error") and not found.count("warning")
    whats = " ".join(each.what for each in found.omissions)
    for part in ("commit log", "units of the queues", "entries of the index", "start of broker"):
        assert part in whats
    assert 0 < found.log_read_bytes <= 32 << 10
    assert all(start.prediction is None and start.error is None for start in found.starts)
    assert next_words(found) == ("rmqtool", "recover", "STORE")


def test_a_queue_that_points_past_the_log_is_seen_at_its_end(cases: Library) -> None:
    """Without reading the units."""
    found = examined(cases.path("bad_cq03_queue_ahead"), read_limit=64 << 10)
    assert "CQ03" in names(found)
    small = examined(cases.path("bad_cq03_queue_ahead"))
    assert "CQ03" in names(small)


def test_a_store_of_two_terabytes(cases: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 files of a GiB that begin as real ones do: a look takes seconds and says what it left out."""
    read: list[int] = []
    window = FileSource.window

    def counting(source: FileSource, offset: int, length: int) -> Any:
        read.append(length)
        return window(source, offset, length)

    monkeypatch.setattr(FileSource, "window", counting)
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
    assert "which messages a lost timer log or timercheck costs" in whats
    assert sum(read) <= found.read_limit_bytes
    assert not found.count("error"), found.diagnoses
    missing = store / "commitlog" / f"{1000 * size:020}"
    missing.unlink()
    with Store.open(store) as opened:
        found = examine(opened)
    gap = next(each for each in found.diagnoses if each.name == "CL20")
    assert gap.severity == "error" and gap.path == f"commitlog/{missing.name}"


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


def test_a_deletion_of_unread_messages_is_said(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """With a broker.conf, whose fileReservedTime counts: the next hour of deleteWhen, beside the verdict."""
    store, conf = cases.copy("ok_540_clean", tmp_path / "store"), tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=48\n")
    files = sorted((store / "commitlog").iterdir())
    now = int(time.time())
    for file in files:
        os.utime(file, (now - 80 * 3600, now - 80 * 3600))
    main(["doctor", str(store), "--no-host", "--broker-conf", str(conf), "--format", "json"])
    (found,) = [
        row for row in json.loads(capfd.readouterr().out)["results"] if row["name"] == "deletes_unread"
    ]
    assert found["severity"] == "warning" and found["detail"]["unread"] > 0
    assert found["detail"]["log_files"] < len(files) and "fileReservedTime 48 h" in found["message"]
    main(["doctor", str(store), "--no-host", "--broker-conf", str(conf), "--format", "text"])
    said = " ".join(capfd.readouterr().out.split())
    assert "A start of 5.4 loses no message. But a broker that runs deletes messages that are still" in said
    conf.write_text("fileReservedTime=240\n")
    for line in (["--broker-conf", str(conf)], []):
        main(["doctor", str(store), "--no-host", *line, "--format", "json"])
        assert "deletes_unread" not in capfd.readouterr().out


# What monitoring systems read


@pytest.mark.parametrize(
    ("name", "state", "code"),
    [("ok_540_clean", "OK", 0), ("bad_cf01_config_bak", "WARNING", 1),
     ("bad_cl04_wrong_length", "CRITICAL", 2), ("old_un01_tiered", "UNKNOWN", 3)],
)  # fmt: skip
def test_one_line_for_nagios(name: str, state: str, code: int, cases: Library, capfd: Capture) -> None:
    """The line of a plugin: the state, one sentence, a bar, numbers with their limits."""
    assert main(["doctor", str(cases.path(name)), "--nagios", "--no-host"]) == code
    (line,) = capfd.readouterr().out.splitlines()
    text, _, numbers = line.partition(" | ")
    assert text.startswith(f"RMQTOOL {state} - ") and "|" not in text
    found = dict(number.split("=") for number in numbers.split(" "))
    assert int(found["errors"].split(";")[0]) == (0 if code != 2 else int(text.split()[3]))
    assert found["time"].endswith("s")
    assert code == 3 or re.fullmatch(r"\d+%;75;90;0;100", found["disk_used"])  # no file, no disk


def test_nagios_is_told_of_an_error(tmp_path: Path, capfd: Capture) -> None:
    """On stdout, where it looks."""
    assert main(["doctor", str(tmp_path / "gone"), "--nagios"]) == 3
    out = capfd.readouterr().out
    assert out.startswith("RMQTOOL UNKNOWN - ") and out.count("\n") == 1


@pytest.mark.parametrize("words", ["", "STORE --nosuch", "STORE --watch 1", "STORE --read-limit x"])
def test_a_usage_error_is_unknown_to_nagios(words: str, cases: Library, capfd: Capture) -> None:
    """Its code elsewhere, 2, would be CRITICAL."""
    given = [str(cases.path("ok_540_clean")) if each == "STORE" else each for each in words.split()]
    assert main(["doctor", *given, "--nagios"]) == 3
    found = capfd.readouterr()
    assert found.out.startswith("RMQTOOL UNKNOWN - ") and found.out.count("\n") == 1 and found.err


SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (-?[0-9.e+]+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\["\\n])*)"')


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples of an exposition, which must be one: each name has a type before its first sample."""
    found, typed = {}, set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind == "gauge" and name not in typed
            typed.add(name)
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] in typed
            labels = {
                key: value.replace(r"\"", '"').replace(r"\\", "\\") for key, value in LABEL.findall(match[2])
            }
            key = match[1], frozenset(labels.items())
            assert key not in found, "a sample twice"
            found[key] = float(match[3])
    return found


def test_metrics_for_prometheus(store_copy: Callable[[str], Path], tmp_path: Path, capfd: Capture) -> None:
    """Read back: the numbers are those of the JSON, and labels survive a path with a quote."""
    store = store_copy("bad_cl21_wrong_size_file").rename(tmp_path / 'a "store"')
    assert main(["doctor", str(store), "--format", "json", "--no-host"]) == EXIT_FINDINGS
    found = json.loads(capfd.readouterr().out)
    with unchanged(store):
        assert main(["doctor", str(store), "--prometheus", "--no-host"]) == EXIT_FINDINGS
    metrics = samples(capfd.readouterr().out)
    by_name: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for (name, labels), value in metrics.items():
        assert ("store", str(store)) in labels
        by_name.setdefault(name, {})[labels - {("store", str(store))}] = value
    severities = by_name["rmqtool_doctor_results"]
    assert severities[frozenset({("severity", "error")})] == found["errors"]
    assert len(by_name["rmqtool_doctor_result"]) == len(found["results"])
    assert by_name["rmqtool_doctor_start_loads"] == {
        frozenset({("broker", start["broker"])}): 0 for start in found["starts"]
    }
    assert by_name["rmqtool_store_in_use"] == {frozenset(): 0}


def test_the_file_of_a_collector_is_replaced_as_a_whole(cases: Library, tmp_path: Path) -> None:
    """By another file of the same mode; nothing else is left, and nothing is written into the store."""
    store, file = cases.path("ok_540_clean"), tmp_path / "rmqtool.prom"
    file.write_text("old\n")
    file.chmod(0o640)
    inode = file.stat().st_ino
    with unchanged(store):
        arguments = ["doctor", str(store), "--no-host", "--prometheus"]
        assert main([*arguments, "--output", str(file)]) == EXIT_OK
        assert main([*arguments, "--output", str(store / "new.prom")]) == EXIT_REFUSED
    assert samples(file.read_text("utf-8"))
    assert file.stat().st_ino != inode and file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]


def test_only_a_plain_file_is_replaced(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """`--output /dev/null` would rename a file over the device."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/null")
    arguments = ["doctor", str(cases.path("ok_540_clean")), "--no-host", "--prometheus", "--output"]
    for path in (pipe, link, tmp_path):
        assert main([*arguments, str(path)]) == EXIT_REFUSED
        assert "is not a plain file and is not replaced" in capfd.readouterr().err
    assert pipe.is_fifo() and link.is_symlink() and sorted(tmp_path.iterdir()) == [link, pipe]


@pytest.mark.parametrize(
    "options", ["--prometheus --json", "--output x",
                "--no-host --host-root /", "--watch 0", "--watch 99999999999999999999",
                "--prometheus --output ."],
)  # fmt: skip
def test_options_that_exclude_each_other(options: str, cases: Library) -> None:
    assert main(["doctor", str(cases.path("ok_540_clean")), *options.split()]) == EXIT_USAGE


def test_watch_repeats_until_it_is_interrupted(cases: Library, tmp_path: Path) -> None:
    """The collector's file is written again and again; an interrupt ends it in order."""
    file = tmp_path / "rmqtool.prom"
    command = [*RMQTOOL, "doctor", cases.path("ok_540_clean"), "--no-host", "--prometheus", "-o", file]
    with started([*command, "--watch", "1"]) as process:
        inodes: set[int] = set()

        def is_repeated() -> bool:
            if file.exists():
                inodes.add(file.stat().st_mtime_ns)
            return len(inodes) >= 3

        until(is_repeated, "the file is not written again")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_OK, errors


def test_each_result_of_watch_is_a_line_of_json(cases: Library) -> None:
    command = [*RMQTOOL, "doctor", cases.path("ok_540_clean"), "--no-host", "--json", "--watch", "1"]
    with started(command, text=True, stdout=subprocess.PIPE) as process:
        lines = [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert [json.loads(line)["verdict"] for line in lines] and "rmqtool: 20" not in errors


def test_watch_goes_on_while_the_store_is_gone(store_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """Renamed or unmounted for a time: each result says so, and the metrics have no old values."""
    store = store_copy("ok_540_clean")
    away, file = store.with_name("away"), tmp_path / "rmqtool.prom"
    command = [*RMQTOOL, "doctor", store, "--no-host", "--watch", "1"]
    with (
        started([*command, "--json"], text=True, stdout=subprocess.PIPE) as process,
        started([*command, "--prometheus", "-o", file]) as metrics,
    ):
        up = "rmqtool_doctor_up", frozenset({("store", str(store))})
        assert "error" not in json.loads(process.stdout.readline())
        until(file.exists, "no metrics are written")
        assert samples(file.read_text("utf-8"))[up] == 1
        store.rename(away)
        until(lambda: "error" in json.loads(process.stdout.readline()), "the error is not a line")
        until(lambda: samples(file.read_text("utf-8")) == {up: 0}, "the metrics do not show it")
        away.rename(store)
        until(lambda: "error" not in json.loads(process.stdout.readline()), "it does not go on")
        until(lambda: samples(file.read_text("utf-8"))[up] == 1, "the metrics do not go on")
        for each in (process, metrics):
            each.send_signal(signal.SIGINT)
            each.communicate(timeout=PATIENCE_S)
            assert each.returncode == EXIT_OK


# The host

MEMINFO = """MemTotal:       32768000 kB
MemAvailable:   20480000 kB
Dirty:          {dirty} kB
Writeback:        102400 kB
SwapTotal:       8388608 kB
SwapFree:        {swap_free} kB
"""


def host_tree(root: Path, store: Path, **given: Any) -> Path:
    """A folder with the proc and sys of a host."""
    values = {"dirty": 1024, "swap_free": 8388608, "swappiness": 60, "read_ahead": 128, "kind": "ext4",
              "options": "rw,relatime", "maps": 65530, "dirty_ratio": 20, **given}  # fmt: skip
    device = store.stat().st_dev
    place = f"{os.major(device)}:{os.minor(device)}"
    files = {
        "proc/meminfo": MEMINFO.format(**values),
        "proc/sys/vm/swappiness": f"{values['swappiness']}\n",
        "proc/sys/vm/dirty_ratio": f"{values['dirty_ratio']}\n",
        "proc/sys/vm/dirty_bytes": "0\n",
        "proc/sys/vm/max_map_count": f"{values['maps']}\n",
        "proc/1/mountinfo": "22 1 999:9 / / rw - xfs /dev/root rw\n"
        f"36 22 {place} / /data\\040disk {values['options']} shared:1 - "
        f"{values['kind']} /dev/b rw,errors=x\n",
        f"sys/class/bdi/{place}/read_ahead_kb": f"{values['read_ahead']}\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def on_host(store: Path, root: Path, **arguments: Any) -> Examination:
    with Store.open(store, **arguments) as opened:
        found = examine(opened)
        before = len(found.diagnoses)
        look_at_host(opened, found, root)
    assert [each.rank for each in found.diagnoses] == sorted(each.rank for each in found.diagnoses)
    assert len(found.diagnoses) >= before
    return found


def test_a_host_that_explains_nothing(cases: Library, tmp_path: Path) -> None:
    """No swap in use: then 60 of swappiness says nothing. The facts are in the JSON."""
    store = cases.path("ok_540_clean")
    found = on_host(store, host_tree(tmp_path, store))
    assert names(found) <= OF_DISK | {"inodes"}
    assert found.host is not None
    assert found.host["dirty_bytes"] == 1 << 20 and found.host["writeback_bytes"] == 100 << 20
    assert found.host["dirty_limit_bytes"] == 20480000 * 1024 * 20 // 100
    assert (found.host["mount_point"], found.host["file_system"]) == ("/data disk", "ext4")
    assert found.host["mount_options"] == ["rw", "relatime", "errors=x"]
    assert found.host["read_ahead_bytes"] == 128 << 10


@pytest.mark.parametrize(
    ("given", "name", "severity"),
    [({"dirty": 4_000_000}, "dirty_pages", "warning"), ({"swap_free": 4_000_000}, "swapping", "note"),
     ({"read_ahead": 8192}, "read_ahead", "note"), ({"options": "ro,relatime"}, "read_only", "error"),
     ({"options": "rw,sync"}, "mount_sync", "warning"), ({"kind": "nfs4"}, "network_file_system", "warning"),
     ({"kind": "tmpfs"}, "volatile", "note"), ({"maps": 10}, "maps", "error")],
)  # fmt: skip
def test_what_a_host_explains(
    given: dict[str, Any], name: str, severity: str, cases: Library, tmp_path: Path
) -> None:
    """Each fact by itself."""
    store = cases.path("ok_540_clean")
    found = on_host(store, host_tree(tmp_path, store, **given))
    assert names(found) - OF_DISK - {"inodes"} == {name}
    one = next(each for each in found.diagnoses if each.name == name)
    assert one.severity == severity and one.cost and (one.cure or one.command)
    short, full = (
        "\n".join(doctor_text.lines(found, lambda words: None, everything=each)) for each in (False, True)
    )
    assert name in short and name in full
    if name == "read_ahead":  # most hosts have that: in short it is only named
        assert "also      read_ahead: rmqtool doctor --all shows it in full" in short
        assert "the kernel reads" not in short
    verdicts = {text.partition("\n\n")[0].partition("\nstore ")[0] for text in (short, full)}
    assert len(verdicts) == 1 and verdicts.pop().startswith("verdict   ")


def test_the_limits_of_the_process_that_holds_the_lock(cases: Library, tmp_path: Path) -> None:
    """Its locked memory, which a pool needs, and what of it is swapped out."""
    store, conf = cases.copy("ok_540_clean", tmp_path / "store"), tmp_path / "broker.conf"
    conf.write_text("transientStorePoolEnable=true\n")
    root = host_tree(tmp_path / "host", store)
    code = "import sys; from pathlib import Path; from rmqtool.storage.lock import acquire; "
    code += "lock = acquire(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    with started([sys.executable, "-c", code, store / "lock"], stdin=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdout.readline()
        with Store.open(store, broker_conf=conf) as opened:
            pid = opened.holder.pid
            of_process = root / "proc" / str(pid)
            of_process.mkdir()
            (of_process / "status").write_text("Name:\tjava\nVmSwap:\t  204800 kB\n")
            (of_process / "limits").write_text(
                "Limit                     Soft Limit  Hard Limit  Units\n"
                "Max locked memory         65536       65536       bytes\n"
            )
            found = examine(opened)
            look_at_host(opened, found, root)
    assert found.info["state"]["lock"] == "held"
    assert any("start" in each.what for each in found.omissions)
    if pid is None:  # an open-file-description lock shows no process
        assert not {"memory_lock", "swapping"} & names(found)
    else:
        assert {"memory_lock", "swapping"} <= names(found)


def test_a_host_root_without_proc(cases: Library, tmp_path: Path) -> None:
    assert main(["doctor", str(cases.path("ok_540_clean")), "--host-root", str(tmp_path)]) == EXIT_INPUT


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is one percent full, whatever it is."""

    def disks(store: Store, folders: Any) -> Disks:
        device = store.layout.commit_log[0].path.stat().st_dev
        return Disks({device: Disk(1 << 30, 99 << 30)}, (device,), device)

    monkeypatch.setattr(expiry, "_disks", disks)


@pytest.mark.usefixtures("roomy")
def test_messages_that_expired_unread_are_told(cases: Library, capfd: Capture) -> None:
    """By stats, doctor and the look-up of one of them; a store from its first message on says nothing."""
    root = cases.path("ok_540_expired")
    main(["stats", str(root), "--by", "group", "--format", "jsonl"])
    out, err = capfd.readouterr()
    lost = {row["group"]: row["lost_messages"] for row in map(json.loads, out.splitlines())}
    said = (
        "Groups missed 1536 messages (1101 of pub_group_one and 435 of pub_group_four), which expired unread."
    )
    assert (lost["pub_group_one"], lost["pub_group_four"]) == (1101, 435) and said in err
    found = examined(root)
    assert found.missed == {group: count for group, count in lost.items() if count}
    main(["doctor", str(root), "--no-host"])
    text = " ".join(capfd.readouterr().out.split())
    assert said in text and "Nothing is damaged" in text
    assert "expired_unread: 1536 messages expired before a group" in text
    main(["lookup", str(root), "rty1"])
    assert "the log begins at 2097152; older messages have expired" in capfd.readouterr().err
    root = cases.path("ok_540_clean")
    assert examined(root).missed == {}
    main(["lookup", str(root), "no such key"])
    assert "the log begins" not in capfd.readouterr().err


@pytest.mark.usefixtures("roomy")
def test_delayed_messages_that_expired_before_they_were_due(
    cases: Library, tmp_path: Path, capfd: Capture
) -> None:
    """Their units are left; what was due before the newest message was stored may have been delivered."""
    root = cases.copy("torn_540_killed", tmp_path / "store")
    assert examined(root).undelivered == {}
    (root / "commitlog" / f"{0:020}").unlink()
    said = "5 delayed messages of level 4 expired before the delivery time: they are never delivered."
    assert examined(root).undelivered == {4: 5}
    main(["doctor", str(root), "--no-host"])
    text = " ".join(capfd.readouterr().out.split())
    assert said in text and "Nothing wrong was found" not in text
    main(["stats", str(root), "--delayed"])
    assert said in capfd.readouterr().err


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize(
    "name", ["bad_cl03_body_crc", "bad_cq09_extension_cut", "bad_dl02_entry_number", "without config"]
)
def test_all_errors_are_on_the_screen(cases: Library, tmp_path: Path, capfd: Capture, name: str) -> None:
    """As many as the verdict counts; the worst with what to do; what is only named has a few words."""
    long = tmp_path / ("s" * 60)  # its path takes two lines
    root = cases.copy("ok_540_clean", long) if name == "without config" else cases.path(name)
    if name == "without config":
        shutil.rmtree(root / "config")
    main(["doctor", str(root), "--no-host"])
    lines = capfd.readouterr().out.splitlines()
    count = int(re.search(r"Act now: +(\d+) +error", " ".join(lines))[1])  # type: ignore[index]
    blocks = [number for number, line in enumerate(lines) if line.startswith("ERROR, ")]
    assert len(blocks) + sum(line.startswith("also ") for line in lines) >= count > 1
    until = blocks[1] if len(blocks) > 1 else len(lines)
    assert any(line.startswith("  do ") for line in lines[blocks[0] : until])
    assert not [line for line in lines if line.startswith("also ") and ": " not in line]
    assert len(lines) <= 23


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize("host", [(), ("--no-host",)])
@pytest.mark.parametrize(
    "name", ["bad_cl18_bad_number", "bad_cq09_extension_cut", "bad_cf10_offsets_replaced"]
)
def test_an_error_that_is_only_named_has_its_cost(
    cases: Library, capfd: Capture, name: str, host: tuple[str, ...]
) -> None:
    """Below it, in the words that doctor --all has for it, or the first of them."""
    root = cases.path(name)
    main(["doctor", str(root), *host, "--all"])
    whole = " ".join(capfd.readouterr().out.split())
    main(["doctor", str(root), *host])
    lines = capfd.readouterr().out.splitlines()
    named = [number for number, line in enumerate(lines) if line[10:].startswith("ERROR ")]
    assert len(lines) <= 23
    for number in named:
        cost = lines[number + 1].partition("  cost: ")[2]
        assert cost and f"cost {cost}" in whole and not cost.endswith(("…", ",", ";"))
    assert bool(named) == (name != "bad_cf10_offsets_replaced")


@pytest.mark.usefixtures("roomy")
def test_a_warning_has_its_cost_and_its_cure(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """What a start leaves unread, which the verdict says, does not take their lines."""
    root = cases.copy("ok_497_clean", tmp_path / "store")
    for queue in sorted((root / "consumequeue/pubTopicOne").iterdir())[:2]:
        min(queue.iterdir()).unlink()
    os.truncate(min((root / "index").iterdir()), 0)
    main(["doctor", str(root), "--no-host"])
    out = capfd.readouterr().out
    _, _, warning = out.partition("\nWARNING, certain: IX06 ")
    assert "  cost    the broker extends a short file with zeros" in warning
    assert "  do      rmqtool recover rebuilds the index from the commit log\n" in warning
    assert "leaves 1000 messages without a unit in their queue" in " ".join(out.split())
    assert "start_leaves_messages" not in out and len(out.splitlines()) <= 23
    main(["doctor", str(root), "--no-host", "--all"])
    assert "\nWARNING, likely: start_leaves_messages " in capfd.readouterr().out


@pytest.mark.usefixtures("roomy")
def test_next_is_the_cure_of_what_is_worst(cases: Library, tmp_path: Path) -> None:
    """Lost offsets are an error; a header of the index, which rebuild repairs, is not."""
    root = cases.copy("bad_ix01_header", tmp_path / "store")
    assert next_words(examined(root)) == ("rmqtool", "rebuild", "STORE")
    for path in (root / "config").glob("consumerOffset.json*"):
        path.unlink()
    found = examined(root)
    assert {each.command[1] for each in found.diagnoses if each.command} >= {"help", "rebuild"}
    assert next_words(found) == ("rmqtool", "help", "recovery")
