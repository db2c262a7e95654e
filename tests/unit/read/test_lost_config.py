"""Config files that are gone: told where a broker must have had them, by every command, and nowhere else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.formats import config_json
from rmqtool.read.lost_config import known_groups, lost_config
from rmqtool.read.store import Store
from rmqtool.times import format_time
from tests.support.stores import Library

StoreCopy = Callable[[str], Path]
LOST = {"CF06", "CF07", "CF08", "CF09"}


def lose(root: Path, *names: str) -> None:
    """Delete config files with their .bak."""
    for name in names:
        for path in (root / "config" / f"{name}.json", root / "config" / f"{name}.json.bak"):
            path.unlink(missing_ok=True)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    code = main([*map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def lost(capsys: pytest.CaptureFixture[str], root: Path) -> set[str]:
    """What `verify` says of lost config files; `info` says the same."""
    _, out, _ = run(capsys, "verify", root, "--pass", "config", "--format", "jsonl")
    found = {json.loads(line)["problem"] for line in out.splitlines()} & LOST
    _, out, _ = run(capsys, "info", root, "--format", "json")
    assert {row["problem"] for row in json.loads(out)["problems"]} & LOST == found
    return found


def test_a_lost_folder_comes_first(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every verdict names its files, which of them recover makes again, and that a copy comes first."""
    root = store_copy("ok_533_clean")
    monkeypatch.chdir(root.parent)
    root = Path(root.name)
    kept = (root / "config/topics.json").read_bytes()
    shutil.rmtree(root / "config")
    begins = (
        "The folder config/ is missing (topics.json, consumerOffset.json, subscriptionGroup.json,"
        " delayOffset.json and timercheck): first of all, copy it from a backup, the old host or a slave."
        " Without a copy, recover makes topics.json, delayOffset.json and timercheck again; reset-offset sets"
        " offsets, or groups skip or repeat messages."
    )
    _, out, _ = run(capsys, "doctor", root, "--no-host", "--format", "text")
    assert " ".join(out.split()).startswith(f"verdict {begins} Act now") and len(out.splitlines()) <= 23
    assert ": the lost files of config/\n          rmqtool doctor --all shows them in full\n" in out
    _, _, err = run(capsys, "verify", root, "--format", "jsonl")
    assert next(line for line in err.splitlines() if "config/ is" in line) == begins
    _, out, _ = run(capsys, "info", root, "--format", "text")
    said = " ".join(out.partition("\nverdict ")[2].split())
    assert said.startswith(
        "The folder config/ is missing (topics.json, consumerOffset.json, subscriptionGroup"
    )
    assert "first of all, copy it from a backup" in said and " next rmqtool help recovery " in said
    monkeypatch.setenv("COLUMNS", "10000")
    _, out, err = run(capsys, "recover", root, "--format", "text")
    assert " ".join(out.partition("\nverdict ")[2].split()).startswith(f"{begins} ")
    assert "copy of config/, copy it into the store and plan again; without one, to apply the plan: " in err
    (reason,) = [line for line in out.splitlines() if line.startswith("create ") and "topics.json" in line]
    assert reason.endswith("  topics and numbers of queues as log and queues show")
    (lacks,) = [line for line in out.splitlines() if line.startswith("warning      CF06")]
    assert "lacks topics without messages" in lacks and "permissions" in lacks
    assert "made again from the log: without it a start delivers 37 messages again" in out
    assert out.count("timercheck is lost: ") == 1 and out.count("  as above\n") == 3
    (root / "config").mkdir()
    (root / "config/topics.json").write_bytes(kept)
    for command in ("doctor", "verify", "recover"):
        _, out, err = run(capsys, command, root, "--format", "json")
        assert "The folder config/" not in out + err and "copy it into the store" not in err


def test_topics_without_content_give_no_queues_of_another_type(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    root = store_copy("ok_540_clean")
    lose(root, "topics")
    for content, how in (("", "is empty"), ("{", "cannot be parsed")):
        (root / "config/topics.json").write_text(content)
        main(["doctor", str(root), "--json"])
        out = capsys.readouterr().out
        assert f"topics.json {how}, so the broker expects consume queues" in out
        assert "queue.type" not in out


def test_lost_groups_are_named(store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the committed offsets, which stats shows by group, are lost as well."""
    root = store_copy("ok_540_clean")
    lose(root, "consumerOffset")
    lose(root, "subscriptionGroup")
    main(["verify", str(root), "--format", "jsonl"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (groups,) = [each for each in found if each.get("problem") == "CF09"]
    names = groups["detail"]["names"]
    assert len(names) == len(set(names)) == groups["detail"]["groups"] == 7
    assert {"pub_group_one", "pub_retry_group"} < set(names)
    assert groups["message"].endswith(": pub_group_one, pub_group_tag, pub_group_four and 4 more")
    assert "create the named groups" in groups["repair"] and "stats" not in groups["repair"]


@pytest.mark.parametrize("name", ["ok_497_clean", "ok_533_clean", "ok_540_clean", "torn_540_killed"])
def test_files_of_a_broker(name: str, store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]) -> None:
    """Each file that is gone is found, with its .bak only, and alone."""
    root = store_copy(name)
    assert lost(capsys, root) == set()
    (root / "config/consumerOffset.json").unlink()
    assert lost(capsys, root) == set()  # the .bak is there: CF01
    lose(root, "consumerOffset")
    assert lost(capsys, root) == {"CF08"}
    lose(root, "subscriptionGroup")
    assert lost(capsys, root) == {"CF08", "CF09"}
    lose(root, "delayOffset")
    assert lost(capsys, root) - {"CF07"} == {"CF08", "CF09"}
    shutil.rmtree(root / "config")
    assert lost(capsys, root) == LOST


@pytest.mark.parametrize(
    ("file", "bak", "how"),
    [
        (b"", None, "is empty, and has no .bak"),
        (bytes(200), None, "cannot be parsed, and has no .bak"),
        (b"", b"", "is empty, and its .bak is empty"),
        (None, b"", "is missing, and its .bak is empty"),
    ],
)
def test_a_file_without_content_is_lost(
    file: bytes | None, bak: bytes | None, how: str, store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker starts without what it held, as with no file: each command says what that costs."""
    root = store_copy("ok_540_clean")
    codes = {
        "topics": "CF06", "delayOffset": "CF07", "consumerOffset": "CF08", "subscriptionGroup": "CF09",
    }  # fmt: skip
    for name in codes:
        lose(root, name)
        for path, data in ((f"{name}.json", file), (f"{name}.json.bak", bak)):
            if data is not None:
                (root / "config" / path).write_bytes(data)
    assert lost(capsys, root) == LOST
    _, out, _ = run(capsys, "verify", root, "--pass", "config", "--format", "jsonl")
    rows = [row for row in map(json.loads, out.splitlines()) if row["problem"] != "CF03"]
    assert [row["problem"] for row in rows] == sorted(codes.values())
    assert all(row["message"].startswith(f"{row['path'][7:]} {how}") for row in rows)
    _, out, _ = run(capsys, "recover", root, "--format", "text")
    assert "committed offsets of groups are lost" in " ".join(out.split()).lower()
    _, _, err = run(capsys, "stats", root, "--by", "group", "--format", "jsonl")
    assert "CF08" in err or "the consumer offsets" in err


@pytest.mark.parametrize("name", ["consumerOffset", "subscriptionGroup", "delayOffset", "consumerOrderInfo"])
def test_a_bak_that_cannot_be_parsed_ends_a_start(
    name: str, store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is gone, its .bak ends in the middle: load() of its manager fails. 4.9 has no order info."""
    root = store_copy("ok_540_clean")
    path = root / "config" / f"{name}.json"
    text = path.read_bytes()
    lose(root, name)
    path.with_name(f"{path.name}.bak").write_bytes(text[:-2])
    code, out, _ = run(capsys, "verify", root, "--format", "jsonl")
    (row,) = map(json.loads, out.splitlines())
    assert (code, row["problem"], row["path"]) == (1, "CF02", f"config/{path.name}.bak")
    code, out, _ = run(capsys, "info", root, "--format", "json")
    assert code == 1 and [(each["problem"], each["path"]) for each in json.loads(out)["problems"]] == [
        ("CF02", row["path"])
    ]
    _, out, _ = run(capsys, "recover", root, "--format", "json", "--broker", "4.9", "--broker", "5.4")
    unread = {row["broker"]: row["unread_config"] for row in json.loads(out)["predictions"]}
    reason = f"neither config/{path.name} nor its .bak can be parsed"
    assert unread["5.4"] == [
        {"path": f"config/{path.name}", "reason": reason, "problem": "CF02", "ends": True}
    ]
    assert unread["4.9"] == ([] if name == "consumerOrderInfo" else unread["5.4"])
    _, out, _ = run(capsys, "recover", root, "--format", "text", "--broker", "5.4")
    said = " ".join(out.split())
    assert f"A start of 5.4 fails: {reason}. Copy config/{path.name} from a backup, the old host" in said
    _, _, err = run(capsys, "verify", root)
    assert f"Do not start the broker yet. A start of 5.4 fails: {reason}." in " ".join(err.split())
    code, _, err = run(capsys, "recover", root, "--mode", "broker", "--broker", "5.4")
    assert code == 4 and path.name in err and "rmqtool problems CF02 says" in err
    _, out, _ = run(capsys, "doctor", root, "--no-host", "--format", "text")
    assert "A start of 5.4 fails" in " ".join(out.split())
    assert "ERROR, certain: CF02" in out and "start_fails" not in out  # one damage, with its own cure
    assert out.splitlines()[-1] == "next      rmqtool problems CF02"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("consumerOffset", b'{"offsetTable":{"T@g":{0:"x"}}}'),
        ("consumerOffset", b'{"offsetTable":[]}'),
        ("topics", b'{"topicConfigTable":{"T":5}}'),
        ("subscriptionGroup", b'{"subscriptionGroupTable":{"g":{"brokerId":"x"}}}'),
    ],
)
def test_every_command_takes_the_bak_of_a_file_of_wrong_types(
    name: str, text: bytes, store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a broker, which does not load it: CF01, a start that runs, and a copy of the .bak by recover."""
    root = store_copy("ok_540_clean")
    path = root / "config" / f"{name}.json"
    bak = path.with_name(f"{path.name}.bak")
    bak.write_bytes(path.read_bytes())
    path.write_bytes(text)
    _, out, _ = run(capsys, "verify", root, "--format", "jsonl")
    found = {row["problem"]: row["path"] for row in map(json.loads, out.splitlines()) if "problem" in row}
    assert found.keys() - {"CF13"} == {"CF01"} and found["CF01"] == f"config/{path.name}"
    assert ("CF13" in found) == (name == "consumerOffset")
    _, out, _ = run(capsys, "doctor", root, "--no-host", "--format", "text")
    assert "CF01" in out and "CF02" not in out
    _, out, _ = run(capsys, "recover", root, "--format", "json", "--broker", "5.4")
    plan = json.loads(out)
    assert plan["predictions"][0]["unread_config"] == []
    assert [(each["path"], each["problem"]) for each in plan["actions"]] == [(f"config/{path.name}", "CF01")]
    bak.write_bytes(text)
    code, out, _ = run(capsys, "verify", root, "--format", "jsonl")
    assert code == 1 and "CF02" in {json.loads(line)["problem"] for line in out.splitlines()}
    _, out, _ = run(capsys, "recover", root, "--format", "json", "--broker", "5.4")
    assert [each["ends"] for each in json.loads(out)["predictions"][0]["unread_config"]] == [True]


def test_metrics_of_the_timer_that_cannot_be_parsed_end_a_start(
    store_copy: StoreCopy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker of 5.4.0 was seen to end; to start with timerWheelEnable=false, and without a .bak."""
    root, conf = store_copy("ok_540_clean"), tmp_path / "broker.conf"
    name = "config/timermetrics"
    for path in (root / name, root / f"{name}.bak"):
        path.write_text('{"dataVersion')
    for line, ends in (("timerWheelEnable=true", True), ("timerWheelEnable=false", False)):
        conf.write_text(line)
        _, out, _ = run(capsys, "recover", root, "--format", "json", "--broker-conf", conf)
        unread = {
            row["broker"]: [each["path"] for each in row["unread_config"]]
            for row in json.loads(out)["predictions"]
        }
        assert unread == {"4.9": [], "5.3": [name] * ends, "5.4": [name] * ends}
    (root / f"{name}.bak").unlink()
    _, out, _ = run(capsys, "recover", root, "--format", "json")
    assert not any(row["unread_config"] for row in json.loads(out)["predictions"])


def test_a_broker_in_its_first_seconds(store_copy: StoreCopy) -> None:
    """With abort, and none of the files that it writes by the clock, it was killed before it came to that."""
    root = store_copy("ok_540_small_ipv6")
    lose(root, "consumerOffset", "delayOffset")
    messages = {"TopicTest": 3}
    with Store.open(root) as store:
        assert [each.problem.code for each in lost_config(store.layout, messages)] == ["CF08"]
    (root / "abort").touch()
    with Store.open(root) as store:
        assert [each.problem.code for each in lost_config(store.layout, messages)] == ["CF08"]
    lose(root, "consumerFilter", "consumerOrderInfo")
    for path in (root / "config").glob("t*trics*"):
        path.unlink()
    with Store.open(root) as store:
        assert list(lost_config(store.layout, messages)) == []
        assert list(lost_config(store.layout, {})) == []


def test_stores_that_never_had_them(
    cases: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new store, a copy with topics of groups, and log files without messages of groups."""
    source = cases.path("ok_540_clean")
    assert run(capsys, "append", tmp_path / "new", "--create", "--create-topic", "--topic", "Orders",
               "--body", "x", "--commitlog-file-size", "1M")[0] == 0  # fmt: skip
    assert lost(capsys, tmp_path / "new") == set()
    run(capsys, "copy", source, "--output", tmp_path / "copy", "--topic", "%RETRY%pub_retry_group")
    assert lost(capsys, tmp_path / "copy") == set()
    shutil.copytree(source / "commitlog", tmp_path / "bare/commitlog")
    with Store.open(tmp_path / "bare") as store:
        assert list(lost_config(store.layout, {"Orders": 3})) == []


def test_log_files_that_were_rescued(
    cases: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Messages of consumer groups show that there were offsets: they are lost also after a repair."""
    root = tmp_path / "store"
    shutil.copytree(cases.path("ok_540_clean") / "commitlog", root / "commitlog")
    _, out, _ = run(capsys, "verify", root, "--format", "jsonl")
    assert {"CF06", "CF08", "CF09"} <= {json.loads(line)["problem"] for line in out.splitlines()}
    assert run(capsys, "recover", root, "--apply")[0] == 0
    assert lost(capsys, root) == {"CF08", "CF09"}


def test_recover_says_it(store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]) -> None:
    """The cost and where to get the file; only the delay offsets can be made again."""
    root = store_copy("ok_540_clean")
    lose(root, "consumerOffset", "delayOffset")
    code, out, _ = run(capsys, "recover", root)
    warnings, _, verdict = out.partition("\nverdict ")
    said = " ".join(warnings.split())
    assert code == 1 and "made again from the log: without it a start delivers 39 messages again" in said
    assert "consumeFromWhere" in said and "from a slave" in said
    assert "ommitted offsets of groups are lost" in " ".join(verdict.split())
    _, out, _ = run(capsys, "recover", root, "--format", "json")
    assert [text[:4] for text in json.loads(out)["warnings"]] == ["CF08"]
    shutil.rmtree(root / "config")
    _, out, _ = run(capsys, "recover", root, "--format", "json")
    found = json.loads(out)
    assert [text[:4] for text in found["warnings"]] == ["CF06", "CF08", "CF09"]
    paths = {row["path"] for row in found["actions"]}
    made = {"config/topics.json", "config/delayOffset.json"}
    assert {path for path in paths if "timer" not in path} == made
    assert "config/timercheck" in paths  # it was lost with the folder


def test_an_old_bak_is_no_loss_of_nothing(store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]) -> None:
    """What the .bak costs is said: its age, and the groups that it lacks; when recover has copied it, too."""
    root = store_copy("ok_533_clean")
    config = root / "config/consumerOffset.json"
    document = config_json.parse(config.read_bytes())
    table = document["offsetTable"]
    document["offsetTable"] = {name: each for name, each in table.items() if "pub_group_tag" not in str(name)}
    bak = config.with_name("consumerOffset.json.bak")
    bak.write_bytes(config_json.dump(document, "5.3"))
    with Store.open(root) as opened:
        last_ms = opened.last_stored_ms()
    assert last_ms is not None
    os.utime(bak, ns=((last_ms - 1000) * 1_000_000,) * 2)
    written, last = (format_time(each, UTC) for each in (last_ms - 1000, last_ms))
    config.unlink()
    expected = config_json.parse(bak.read_bytes())["offsetTable"]
    for is_applied in (False, True):
        _, out, _ = run(capsys, "verify", root, "--json")
        (found,) = [row for row in map(json.loads, out.splitlines()) if row["problem"] == "CF13"]
        gone = [row for row in map(json.loads, out.splitlines()) if row["problem"] == "CF01"]
        assert [(row["path"], row["message"]) for row in gone] == (
            []
            if is_applied
            else [("config/consumerOffset.json", f"{config.name} is missing; its .bak can be read")]
        )
        assert "pub_group_tag" in found["detail"]["names"] and found["detail"]["older_ms"] == 1000
        assert f"lost; the .bak was written {written}, the last message {last}; " in found["message"]
        assert "no offset in it: pub_group_tag, " in found["message"] and "reset-offset" in found["repair"]
        for command in (("verify",), ("doctor", "--no-host", "--format", "text"), ("recover",)):
            code, out, err = run(capsys, *command, root)
            said = " ".join((out + err).split())
            assert code == 1 and (is_applied or "no message. But committed offsets are old (CF13)" in said)
            assert "Nothing wrong" not in said and "CF13" in said
            again = f"groups receive again what they consumed since {written} or up to 5 s before (the last"
            assert is_applied or f"{again} message was stored {last}), and those without" in said
        assert run(capsys, "recover", root, "--apply")[0] == 0
        assert config_json.parse(config.read_bytes())["offsetTable"] == expected
    assert b'"rmqtoolOffsetsOld":true' in config.read_bytes()
    one = ("reset-offset", root, "--group", "pub_group_one", "--apply")
    assert run(capsys, *one, "--from", "latest")[0] == 0  # it is there already
    _, out, _ = run(capsys, "verify", root, "--json")
    (found,) = [row for row in map(json.loads, out.splitlines()) if row["problem"] == "CF13"]
    assert "reset-offset has not set those of " in found["message"] and "one" not in found["message"]
    before = config.read_bytes()
    assert run(capsys, *one, "--from", "latest")[0] == 0 and config.read_bytes() == before
    with Store.open(root) as opened:
        groups = known_groups(opened.layout, ())
    for group in groups:
        options = ("--topic", "pubTopicOne", "--from", "earliest", "--apply")
        assert run(capsys, "reset-offset", root, "--group", group, *options)[0] == 0
    _, out, _ = run(capsys, "verify", root, "--pass", "config")
    assert "CF13" not in out


def test_topics_that_topics_json_lacks_are_said(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sound as the log is, a start is not all well: nobody is served these messages."""
    root = store_copy("bad_cf03_topic_unknown")
    lacks = "1 topic with 121 messages is not in topics.json: pubipv6B"
    served = "But topics that topics.json lacks are served to nobody until they are created again (CF03)."
    for command, *options in (("verify",), ("doctor", "--no-host", "--format", "text"), ("recover",)):
        code, out, err = run(capsys, command, root, *options)
        said = " ".join((out + err).split())
        assert code == 1 and f"loses no message. {served}" in said
        assert (lacks in said) == (command != "recover") and f"rmqtool recover {root}" in said
    assert "1 topic is added that has 121 messages" in said
    _, out, _ = run(capsys, "info", root, "--format", "json")
    assert [(row["problem"], row["message"]) for row in json.loads(out)["problems"]] == [("CF03", lacks)]
    assert run(capsys, "recover", root, "--apply")[0] == 0
    assert run(capsys, "verify", root)[0] == 0 and run(capsys, "recover", root)[0] == 0


def test_no_group_is_not_no_lag(
    cases: Library, store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """A topic that no group reads, and a store whose offsets are lost, are not "no lag"."""
    whole = ("stats", cases.path("ok_540_clean"), "--by", "group,topic", "--format", "jsonl")
    _, out, err = run(capsys, *whole, "--topic", "pubOrder")
    (row,) = map(json.loads, out.splitlines())
    assert (row["group"], row["topic"], row["status"], row["lag_messages"]) == (
        None, "pubOrder", ["no_group"], None,
    )  # fmt: skip
    assert "no group has an offset for topic pubOrder" in err
    _, out, err = run(capsys, *whole)
    assert all(json.loads(line)["group"] for line in out.splitlines()) and "no group" not in err
    root = store_copy("ok_540_clean")
    lose(root, "consumerOffset")
    _, out, err = run(capsys, "stats", root, "--by", "group", "--format", "jsonl")
    (row,) = map(json.loads, out.splitlines())
    assert (row["group"], row["status"]) == (None, ["offsets_missing"])
    assert "CF08" in err
    _, out, _ = run(capsys, "stats", root, "--by", "group", "--format", "table")
    assert out.splitlines()[2].startswith("(unknown) ")


def test_a_trace_says_that_nobody_reads(
    cases: Library, store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row and a line where no group has an offset; where the file is gone, that it is not known."""
    asked = ("--key", "ORDER_5", "--max", "1", "--trace", "--format", "jsonl")
    _, out, err = run(capsys, "lookup", cases.path("ok_540_clean"), *asked)
    (row,) = [row for row in map(json.loads, out.splitlines()) if row["kind"] == "group"]
    assert (row["group"], row["state"]) == (None, "no_group")
    assert row["detail"] == {"reason": "no group has an offset for topic pubOrder"}
    assert "no group has an offset for topic pubOrder" in err
    root = store_copy("ok_540_clean")
    lose(root, "consumerOffset")
    _, out, err = run(capsys, "lookup", root, *asked)
    assert not any(json.loads(line)["kind"] == "group" for line in out.splitlines())
    assert "unknown: consumer groups: config/consumerOffset.json and its .bak are missing" in err


@pytest.mark.parametrize("command", ["recover", "rebuild"])
def test_a_repair_does_not_hide_the_loss(
    command: str, store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """The topics are written again; that the offsets of groups are lost is said then and later."""
    root = store_copy("ok_540_clean")
    shutil.rmtree(root / "config")
    shutil.rmtree(root / "consumequeue")
    _, out, err = run(capsys, command, root, "--apply", *(["--yes"] if command == "recover" else []))
    assert "ommitted offsets of groups are lost" in " ".join((out + err).split())
    assert (root / "config/topics.json").exists() and "start a broker." not in out
    assert lost(capsys, root) == {"CF07", "CF08", "CF09"} - ({"CF07"} if command == "recover" else set())
    _, _, err = run(capsys, command, root)
    assert (command == "recover") or "ommitted offsets of groups are lost" in err


def test_a_start_without_topics_fails_for_a_reason_that_is_true(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker takes a topic with batch queues for one with consume queues: no file says so."""
    root = store_copy("ok_540_clean")
    shutil.rmtree(root / "config")
    _, out, _ = run(capsys, "recover", root, "--format", "json")
    errors = {row["broker"]: row["load_error"] for row in json.loads(out)["predictions"]}
    assert errors["4.9"] is None
    assert errors["5.4"] == (
        "topics.json is missing, so the broker expects consume queues for this topic, not batch queues"
    )


def test_what_a_start_without_topics_and_delay_offsets_costs(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the words of recover, which knows how many are delivered again, also by doctor and verify."""
    root = store_copy("ok_497_clean")
    lose(root, "topics", "delayOffset")
    no_topic = "A start of 4.9 serves no topic until it is created again, because topics.json is lost, and"
    _, out, _ = run(capsys, "recover", root, "--format", "text")
    said = " ".join(out.split())
    assert f"Do not start the broker yet. {no_topic} delivers 29 delayed messages again." in said
    _, out, _ = run(capsys, "doctor", root, "--no-host", "--format", "text")
    _, _, err = run(capsys, "verify", root)
    for text in (out, err):
        assert f"Do not start the broker yet. {no_topic} may deliver delayed messages again" in " ".join(
            text.split()
        )
    assert run(capsys, "recover", root, "--apply")[0] == 0
    _, out, _ = run(capsys, "doctor", root, "--no-host", "--format", "text")
    assert "A start of 4.9 loses nothing." in out
