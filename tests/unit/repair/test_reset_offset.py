"""`rmqtool reset-offset`: where groups start, what they receive again or skip, and the files it writes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.formats import config_json
from rmqtool.formats.config_change import with_consumer_offsets
from rmqtool.read.by_time import exact_offset_by_time
from rmqtool.read.consumer_offsets import offsets_are_lost
from rmqtool.read.store import Store
from rmqtool.storage import lock
from rmqtool.times import format_time
from tests.support.stores import Library
from tests.support.trees import tree_digest, unchanged
from tests.support.whole_store import codes_of

pytestmark = pytest.mark.usefixtures("json_lines")

NAMES = ("ok_497_clean", "ok_533_clean", "ok_540_clean")
FILE = "config/consumerOffset.json"
STARTS = (
    ("--from", "earliest"), ("--from", "latest"), ("--from", "30"), ("--from", "-5"),
    ("--since", "2026-11-21T08:50:22.7Z"),
)  # fmt: skip
GROUP, TOPIC = "pub_group_four", "pub-Topic_Four"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    """(exit code, rows, what standard error says)."""
    code = main(["reset-offset", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


def offsets(root: Path, name: str = FILE) -> dict[tuple[str, str], dict[int, int]]:
    """The committed offsets of a file."""
    return config_json.consumer_offsets(config_json.parse((root / name).read_bytes()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("start", STARTS, ids=lambda start: start[1])
def test_set_and_undone(
    name: str, start: tuple[str, str], store_copy: Callable[[str], Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The plan says what the file then holds; other groups keep theirs; the undo gives every byte back."""
    root = store_copy(name)
    before, text = offsets(root), (root / FILE).read_bytes()
    digest = tree_digest(root)
    chosen = (root, "--group", GROUP, "--topic", TOPIC, *start)
    with unchanged(root):
        code, planned, err = run(capsys, *chosen)
    assert code == 1 and " --apply\n" in err and len(planned) == 4
    with Store.open(root) as store:
        for row in planned:
            queue = TOPIC, row["queue_id"]
            low, high = store.first_live(*queue), store.max_offset(*queue)
            wanted = {"earliest": low, "latest": high, "30": min(30, high), "-5": max(high - 5, 0)}
            time_ms = 1795251022700
            exact = exact_offset_by_time(store, *queue, time_ms).queue_offset
            committed = before[TOPIC, GROUP][row["queue_id"]]
            new = wanted.get(start[1], exact)
            assert row == {
                "state": "unchanged" if new == committed else "planned", "group": GROUP, "topic": TOPIC,
                "queue_id": row["queue_id"], "committed_offset": committed, "new_offset": new,
                "again_messages": max(committed - new, 0), "skipped_messages": max(new - committed, 0),
                "lag_messages": high - new, "min_offset": low, "max_offset": high, "reason": row["reason"],
            }  # fmt: skip
            assert bool(row["reason"]) == (start[1] == "30" and high < 30)
    backup = tmp_path / "backup"
    code, done, err = run(capsys, *chosen, "--apply", "--backup-dir", backup)
    assert code == 0 and f"--undo {backup}" in err and "set; start the broker, then the consumers" in err
    assert [row | {"state": "planned"} for row in done if row["state"] != "unchanged"] == [
        row for row in planned if row["state"] != "unchanged"
    ]
    assert offsets(root) == before | {(TOPIC, GROUP): {row["queue_id"]: row["new_offset"] for row in done}}
    assert (root / f"{FILE}.bak").read_bytes() == text
    is_back = any(row["again_messages"] for row in done)  # noted in a field of its own
    assert (b'"rmqtoolOffsetsSetBack":true' in (root / FILE).read_bytes()) == is_back
    assert (root / FILE).read_bytes().count(b"\n") == text.count(b"\n") + is_back  # the same JSON writer
    assert run(capsys, *chosen, "--apply")[:2] == (0, [row | {"state": "unchanged"} for row in _again(done)])
    assert main(["recover", str(root), "--undo", str(backup)]) == 0
    assert tree_digest(root) == digest


def _again(done: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a run after the one that did these."""
    now = {"again_messages": 0, "skipped_messages": 0}
    return [row | now | {"committed_offset": row["new_offset"]} for row in done]


@pytest.mark.parametrize("how", ["lost", "config_lost", "garbage"])
@pytest.mark.parametrize("name", NAMES)
def test_lost_offsets_are_set_by_name(
    name: str, how: str, store_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every queue of the topic gets an offset, also one without messages; nothing is lost then."""
    root = store_copy(name)
    for path in (root / "config").iterdir():
        if how == "config_lost" or path.name.startswith("consumerOffset"):
            path.write_bytes(bytes(100)) if how == "garbage" else path.unlink()
    with unchanged(root):
        code, _, err = run(capsys, root, "--group", "*", "--from", "latest")
        assert code == 2 and "name each group and its topics in full" in err
        line = f"  rmqtool reset-offset {root} --group {GROUP} --topic {TOPIC} --from latest\n"
        assert (line in err) and "retry messages show it of some groups: run their lines below" in err
        assert ("which topics these groups consume: " in err) == (how != "config_lost")
        names = "groups that it names: "
        for group, near in (
            ("pub_grup_one", "nearest: pub_group_one, "),
            ("nosuch", names),
            ("nosuch*", names),
        ):
            code, _, err = run(capsys, root, "--group", group, "--from", "latest")
            said = f"no group of the store matches {group!r}"
            said = said if "*" in group else f"nothing in the store names the group {group}"
            lines = [f"rmqtool: {said}", f"  {near}"]
            assert code == 2 and all(map(str.startswith, err.splitlines(), lines)), err
            assert "for a first offset, name each group" in err and "run their lines" not in err
    named = ("--group", GROUP, "--group", "new", "--topic", "pub*Four", "--topic", TOPIC)
    code, rows, err = run(capsys, root, *named, "--from", "-1", "--apply")
    assert code == 0 and len(rows) == 9 and all(row["state"] == "done" for row in rows)
    assert ("is assumed" in err) == (how == "config_lost")
    others = int(err.partition(" more groups have lost all offsets; ")[0].rpartition(" ")[2])
    how_each = f"\n  how each is set: rmqtool reset-offset {root} --group '*' --from -1\n"
    line = "--group pub_group_one --topic pubTopicOne --from -1\n"
    assert (how_each in err, line in err) == (others > 3, others <= 3)
    err_of_all = run(capsys, root, "--group", "*", "--from", "-1")[2]
    assert line in err_of_all and "how each is set" not in err_of_all
    with Store.open(root) as store:
        new = {n: max(store.max_offset(TOPIC, n) - 1, 0) for n in range(4)}
        assert store.written_by.is_known == (how != "config_lost")  # an assumption does not become a fact
        assert offsets_are_lost(store)  # those of the others
        retry = {0: store.max_offset(f"%RETRY%{GROUP}", 0) - 1}
    assert offsets(root) == {(TOPIC, GROUP): new, (TOPIC, "new"): new, (f"%RETRY%{GROUP}", GROUP): retry}
    with Store.open(root) as store:
        there = sum(store.max_offset(TOPIC, n) - store.first_live(TOPIC, n) for n in range(4))
    of_new = f"receives {sum(v > 0 for v in new.values())} of {there} messages there"
    assert f"new gets a first offset in 4 queues and {of_new}" in err


def test_the_offsets_of_the_others_stay_lost(
    store_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """CF08 stays until each known group has an offset, and expire is refused as long; a broker ends it."""
    root = store_copy("ok_540_clean")
    wanted = {group for _, group in offsets(root) if group.startswith("pub")}
    known = sorted(wanted | {"pub_static_group"} | {
        path.name.removeprefix("%RETRY%") for path in (root / "consumequeue").glob("%RETRY%*")
    })  # fmt: skip
    for path in root.glob(f"{FILE}*"):
        path.unlink()
    expire = ("expire", str(root), "--before", "99999999", "--apply", "--archive", str(tmp_path / "archive"))
    reset = ("--topic", "pubTopicOne", "--exclude-topic", "%RETRY%*", "--from", "latest", "--apply")
    for groups in known[:1], known[1:-1]:
        named = [word for group in groups for word in ("--group", group)]
        code, _, err = run(capsys, root, *named, *reset)
        others = err.partition("lost all offsets; set theirs")[2]
        assert code == 0 and (known[-1] in others or "  how each is set: rmqtool" in others)
        assert main(["verify", str(root), "--pass", "config", "--json"]) == 1
        (found,) = map(json.loads, capsys.readouterr().out.splitlines())
        without = found["detail"]["groups"]
        assert (found["problem"], without) == ("CF08", len(known) - known.index(groups[-1]) - 1)
        assert f"of {without} group{'s'[without == 1 :]} are still lost" in found["message"]
        assert " (this replaces the offsets that were set since); without one, set" in found["repair"]
        assert main(list(expire)) == 4 and "are still lost" in capsys.readouterr().err
        assert main(["stats", str(root), "--by", "group"]) == 0
        lag = capsys.readouterr().err.partition("rmqtool: The lag of ")[2].splitlines()
        assert lag[0] == (
            f"{without} groups is unknown: their offsets are lost."
            if without > 1
            else "1 group is unknown: its offsets are lost."
        )
        had = len(known) - without
        assert lag[1] == f"rmqtool: No other group lags ({had} group{'s'[had == 1 :]} with offsets)."
    code, _, err = run(capsys, root, "--group", known[-1], *reset)
    assert code == 0 and "lost all" not in err
    assert main(["stats", str(root), "--by", "group"]) == 0
    assert "are lost" not in capsys.readouterr().err
    assert main(["verify", str(root), "--pass", "config"]) == 0
    capsys.readouterr()
    assert (
        main(list(expire)) == 4 and "still lost" not in capsys.readouterr().err
    )  # it is known who needs them


def test_a_command_that_stores_nothing_keeps_the_undo(
    store_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It opens the store for writing; the checkpoint that it leaves is the one that it found."""
    root, backup = store_copy("ok_540_clean"), tmp_path / "backup"
    named = (root, "--group", GROUP, "--topic", TOPIC, "--from", "earliest")
    assert run(capsys, *named, "--apply", "--backup-dir", backup)[0] == 0
    assert main(["append", str(root), "--topic", "nosuch", "--body", "x"]) != 0
    assert main(["recover", str(root), "--undo", str(backup)]) == 0


def test_retry_messages_show_what_a_group_consumes(
    store_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = store_copy("ok_540_clean")
    for path in root.glob(f"{FILE}*"):
        path.unlink()
    code, _, err = run(capsys, root, "--group", "pub_retry_group", "--from", "earliest")
    line = f"rmqtool reset-offset {root} --group pub_retry_group --topic pubRetry --from earliest\n"
    assert code == 2 and err.endswith(line)
    chosen = (root, "--group", "pub_retry_group", "--topic", "pubRetry", "--from", "earliest")
    _, rows, _ = run(capsys, *chosen)
    assert {row["topic"] for row in rows} == {"pubRetry", "%RETRY%pub_retry_group"}
    assert all(row["skipped_messages"] is None for row in rows)  # it is not known what was consumed
    code, rows, err = run(capsys, *chosen[:-2], "--since", "2h ago")
    assert {row["lag_messages"] for row in rows} == {0} and "and receives 0 of 16 messages there" in err
    begin = "to begin 2h00m before the newest message instead: rmqtool reset-offset "
    _, _, late = err.partition(begin)
    arguments = shlex.split(late.partition("\n")[0])
    with Store.open(root) as store:
        newest_ms = store.last_stored_ms()
    assert newest_ms is not None
    assert arguments[-2:] == ["--since", format_time(newest_ms - 7_200_000, UTC)]  # however long it took
    code, rows, err = run(capsys, *arguments)
    assert code == 1 and 0 < sum(row["lag_messages"] for row in rows) and "to begin" not in err
    code, _, err = run(capsys, root, "--group", "pub_retry_group", "--since", "2h ago")
    last = f"the last message was stored at {format_time(newest_ms, UTC)}"
    assert code == 2 and err.splitlines()[-1] == f"  no message is as new as --since: {last}"


def test_all_retry_messages_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also a topic of which no newer message came back, and of several groups."""
    root, rows = tmp_path / "store", tmp_path / "rows.jsonl"
    came = [("g", "old"), *[("g", "new")] * 1000, ("h", "other")]
    messages = [
        {"topic": f"%RETRY%{group}", "body": "x", "properties": {"RETRY_TOPIC": topic}}
        for group, topic in came
    ]
    rows.write_text("".join(json.dumps(each) + "\n" for each in messages))
    assert main(["append", str(root), "--create", "--create-topic", "--input", str(rows)]) == 0
    capsys.readouterr()
    _, _, err = run(capsys, root, "--group", "*", "--from", "latest")
    assert err.endswith(
        f"rmqtool reset-offset {root} --group g --topic new --topic old --from latest\n"
        f"  rmqtool reset-offset {root} --group h --topic other --from latest\n"
    )


def test_the_bak_counts_where_the_file_is_lost(
    store_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = store_copy("ok_540_clean")
    before, bak = offsets(root, f"{FILE}.bak"), (root / f"{FILE}.bak").read_bytes()
    (root / FILE).unlink()
    assert run(capsys, root, "--group", GROUP, "--topic", TOPIC, "--from", "0", "--apply")[0] == 0
    assert offsets(root) == before | {(TOPIC, GROUP): dict.fromkeys(range(4), 0)}
    assert (root / f"{FILE}.bak").read_bytes() == bak


def test_which_groups_and_topics(
    store_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = store_copy("ok_540_clean")
    with unchanged(root):
        _, rows, err = run(capsys, root, "--group", "pub*", "--from", "latest", "--exclude-topic", "%RETRY%*")
        assert {(row["group"], row["topic"]) for row in rows} == {
            (group, topic) for topic, group in offsets(root) if topic[0] != "%" and group.startswith("pub")
        }
        assert "pub_group_four receives 0 messages again and skips 443" in err
        _, rows, _ = run(capsys, root, "--group", "pub_retry*", "--from", "earliest", "--queue", "0")
        assert [row["topic"] for row in rows] == ["%RETRY%pub_retry_group", "pubRetry"]
        code, rows, err = run(capsys, root, "--group", GROUP, "--topic", TOPIC, "--topic", "pubTopicOnce",
                              "--from", "0")  # fmt: skip
        assert code == 1 and len(rows) == 4 and "nearest: pubTopicOne" in err
        for arguments, text in (
            (("--group", "pub_group_for", "--from", "0"), "nearest: pub_group_four"),
            (("--group", "nothing*", "--from", "0"), "no group has an offset to reset there"),
            (("--group", "CID_RMQ_SYS_TRANS", "--from", "0"), "group of the broker itself"),
            (("--group", GROUP, "--topic", "%LMQ%a", "--from", "0"), "lmqConsumerOffset.json"),
            (("--from", "0"), "--group is missing"),
            (("--group", GROUP), "--since TIME or --from POSITION is missing"),
            (("--group", GROUP, "--from", "0", "--since", "now"), "exclude each other"),
            (("--group", GROUP, "--from", "soon"), "is not a position"),
            (("--plan", "x", "--apply", "--group", GROUP), "give no other"),
        ):
            code, rows, err = run(capsys, root, *arguments)
            assert (code, rows) == (2, []) and text in err, (arguments, err)


def test_an_offset_sets_no_retry_topic_that_is_not_named(
    store_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its offsets are others: 299 of the topic would be the end of the retry topic, and skip its messages."""
    root, retry = store_copy("ok_540_clean"), "%RETRY%pub_retry_group"
    code, rows, err = run(capsys, root, "--group", "pub_retry_group", "--from", "3")
    assert code == 1 and [row["topic"] for row in rows] == ["pubRetry"]
    assert "the retry topics of pub_retry_group stay as they are" in err and "name it with --topic" in err
    for position, topics in (("-1", ()), ("latest", ()), ("3", ("--topic", retry, "--topic", "pubRetry"))):
        _, rows, err = run(capsys, root, "--group", "pub_retry_group", "--from", position, *topics)
        assert {row["topic"] for row in rows} == {retry, "pubRetry"} and "stay as they are" not in err


def test_single_groups_without_an_offset_are_said(
    store_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the line that sets them where retry messages show their topics; no text contradicts itself."""
    root, group = store_copy("ok_540_clean"), "pub_retry_group"
    for path in (root / FILE, root / f"{FILE}.bak"):
        document = config_json.parse(path.read_bytes())
        table = document["offsetTable"]
        document["offsetTable"] = {name: each for name, each in table.items() if group not in str(name)}
        path.write_bytes(config_json.dump(document, "5.4"))
    line = f"  rmqtool reset-offset {root} --group {group} --topic pubRetry --from earliest\n"
    code, _, err = run(capsys, root, "--group", group, "--from", "earliest")
    assert code == 2 and err.endswith(line) and "groups that have" not in err
    assert f"the group '{group}' has no offset that shows which topics it consumes" in err
    code, rows, err = run(capsys, root, "--group", "pub*", "--from", "earliest")
    assert code == 1 and group not in {row["group"] for row in rows}
    assert " groups have no offset and are left out\n" in err and line in err
    assert "which topics these groups consume: pub_static_group. Leave those that consume nothing: " in err
    assert "lost all offsets" not in err


def test_what_stands_against_it(store_copy: Callable[[str], Path], tmp_path: Path,
                                capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    root = store_copy("ok_540_clean")
    chosen = ("--group", GROUP, "--topic", TOPIC, "--since", "2h ago")
    plan = tmp_path / "plan.json"
    code, rows, err = run(capsys, root, *chosen, "--write-plan", plan)
    assert code == 1 and f"--plan {plan} --apply" in err and "2h ago" not in err
    assert run(capsys, root, "--plan", plan) == (code, rows, err)
    done = [row | {"state": "done"} if row["state"] == "planned" else row for row in rows]
    assert run(capsys, root, "--plan", plan, "--apply")[:2] == (0, done)
    assert run(capsys, root, "--plan", plan, "--apply")[0] == 4  # the store has changed since
    for broken in ({"groups": 1}, {"position": "soon"}, {"since": 0}, {"queues": ["a"]}, {"position": None}):
        assert run(capsys, root, "--group", GROUP, "--from", "5", "--write-plan", plan)[0] == 1
        document = json.loads(plan.read_text("utf-8"))
        document["options"] |= broken
        plan.write_text(json.dumps(document), "utf-8")
        assert run(capsys, root, "--plan", plan, "--apply")[0] == 3
    held = lock.acquire(root / "lock")
    assert run(capsys, root, *chosen, "--apply")[0] == 5
    held.release()
    (root / "abort").touch()
    with unchanged(root):
        code, _, err = run(capsys, root, "--group", GROUP, "--from", "5")
        assert code == 1 and "not closed cleanly" in err
        assert run(capsys, root, "--group", GROUP, "--from", "5", "--apply")[0] == 4
    (root / "abort").unlink()
    (root / "config/lmqConsumerOffset.json").write_text('{"offsetTable":{}}', "utf-8")
    code, _, err = run(capsys, root, "--group", GROUP, "--from", "5", "--apply")
    assert code == 4 and "enableLmq" in err
    rocksdb = store_copy("kind_rocksdb_540")
    with unchanged(rocksdb):
        code, _, err = run(capsys, rocksdb, "--group", "*", "--from", "0", "--apply")
        assert code == 4 and "in RocksDB" in err and "resetOffsetByTime" in err


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_removed_by_hand_as_the_help_says(
    name: str, store_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """From both files, as a broker writes them: nothing else changes, and verify finds nothing new."""
    assert main(["reset-offset", "--help"]) == 0
    assert "delete it from offsetTable" in " ".join(capsys.readouterr().out.split())
    root = store_copy(name)
    before, codes = offsets(root), codes_of(root, passes=("config",))
    for path in (root / FILE, root / f"{FILE}.bak"):
        text = path.read_text() if path.exists() else ""
        path.write_text(re.sub(r'"%s@%s":\s*\{[^}]*\}\s*,?' % (TOPIC, GROUP), "", text))  # noqa: UP031
    assert offsets(root) == {pair: found for pair, found in before.items() if pair != (TOPIC, GROUP)}
    assert codes_of(root, passes=("config",)) == codes


def test_the_document_is_the_brokers() -> None:
    """New entries are where a Java map has them; the version counts on 5.x, and its time stays."""
    new = {("T", "g"): {1: 7, 0: 5}}
    old = {"dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 9}, "offsetTable": {"A@b": {"0": 1}}}
    assert with_consumer_offsets(old, new, "5.4") == {
        "dataVersion": {"counter": 4, "stateVersion": 0, "timestamp": 9},
        "offsetTable": {"A@b": {"0": 1}, "T@g": {0: 5, 1: 7}},
    }
    assert with_consumer_offsets({}, new, "4.9") == {"offsetTable": {"T@g": {0: 5, 1: 7}}}
    assert with_consumer_offsets({}, new, "5.3", is_known=False) == {"offsetTable": {"T@g": {"0": 5, "1": 7}}}
    assert list(with_consumer_offsets({}, new, "5.3")) == ["dataVersion", "offsetTable"]


def test_an_odd_entry_is_that_of_a_file_which_no_broker_loads(
    store_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON that holds something else than offsets: those of the .bak count, as for a broker."""
    root = store_copy("ok_540_clean")
    path = root / FILE
    text = path.read_bytes()
    path.with_name(f"{path.name}.bak").write_bytes(text)
    path.write_bytes(text.replace(b'"offsetTable":{', b'"offsetTable":{"pubTopicOne@odd":null,'))
    assert path.read_bytes() != text
    code, _, err = run(capsys, root, "--group", GROUP, "--topic", TOPIC, "--from", "latest", "--apply")
    before, after = (
        config_json.consumer_offsets(config_json.parse(each)) for each in (text, path.read_bytes())
    )
    assert code == 0, err
    assert before.keys() == after.keys() and before.pop((TOPIC, GROUP)) != after.pop((TOPIC, GROUP))
    assert before == after


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--group", "", "--topic", TOPIC), "'' is not the name of a group"),
        (("--group", "a@b", "--topic", TOPIC), "'a@b' is not the name of a group"),
        (("--group", GROUP, "--topic", "nosuch"), "the store has no topic nosuch"),
        (("--group", GROUP, "--exclude-topic", "*"), f"it has offsets in {TOPIC}"),
        (("--group", "TOOLS_CONSUMER", "--topic", TOPIC), "a group of the broker itself"),
    ],
)
def test_names_that_are_wrong(
    words: tuple[str, ...], text: str, cases: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, cases.path("ok_540_clean"), *words, "--from", "latest")
    assert code == 2 and text in err


def test_what_a_group_gets_and_skips(
    store_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A group that no file names, a retry topic without an offset, a queue without files, no queue at all."""
    root = store_copy("ok_540_clean")
    code, _, err = run(capsys, root, "--group", "typo", "--topic", TOPIC, "--from", "latest")
    assert code == 1 and "nothing in the store names the group typo" in err
    _, rows, err = run(capsys, root, "--group", "pub_group_one", "--from", "latest")
    (retry,) = [row for row in rows if row["topic"] == "%RETRY%pub_group_one"]
    assert (retry["committed_offset"], retry["skipped_messages"]) == (None, retry["new_offset"])
    code, rows, err = run(capsys, root, "--group", GROUP, "--queue", "99", "--from", "latest")
    assert (code, rows) == (1, []) and "nothing was changed\n" in err
    shutil.rmtree(root / "consumequeue" / TOPIC)
    code, rows, err = run(capsys, root, "--group", GROUP, "--topic", TOPIC, "--from", "earliest")
    assert code == 4 and {row["state"] for row in rows} >= {"left"} and "rebuild it first" in str(rows)
