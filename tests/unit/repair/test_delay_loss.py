"""A lost delayOffset.json: `recover` makes it again as far as the log shows what was delivered."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqtool import NewMessage, Store
from rmqtool.cli import main
from rmqtool.formats import config_json
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.read import delay_loss
from rmqtool.read.delay_loss import DelayLoss, find_delay_loss
from rmqtool.read.delivered import delayed_messages, delivered
from rmqtool.read.selection import Selection
from rmqtool.storage import config_files
from rmqtool.write.schedule import deliver, plan
from rmqtool.write.store_writer import StoreWriter
from tests.support.stores import case, real_cases
from tests.support.trees import tree_digest

StoreCopy = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]
T0 = 1_700_000_000_000
DELAYS = (1_000, 60_000, 3_600_000)
SIZES: dict[str, Any] = {"commit_log_file_size": 1 << 20, "consume_queue_file_size": 20_000}
FILE = "config/delayOffset.json"


def offsets(root: Path) -> dict[int, int]:
    """What delayOffset.json says."""
    return config_json.delay_offsets(config_files.read_config(root / "config", "delayOffset.json").document)


def lose(root: Path) -> None:
    """Delete delayOffset.json and its .bak."""
    for path in (root / "config").glob("delayOffset.json*"):
        path.unlink()


def planned(capsys: Capture, root: Path, *more: str) -> dict[str, Any]:
    """The plan of recover."""
    capsys.readouterr()
    main(["recover", str(root), "--json", *more])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def loss(root: Path) -> DelayLoss:
    """What the log shows."""
    with Store.open(root) as store:
        queues = {key: (store.min_offset(*key), store.max_offset(*key)) for key in store.queues}
        found = find_delay_loss(store, queues)
    assert found is not None
    return found


def put(writer: StoreWriter, number: int, level: int, **more: Any) -> None:
    at = T0 + 10_000 * number
    body = f"{level}-{number}".encode()
    writer.put(NewMessage("T", body, queue_id=level, delay_level=level, born_timestamp=at,
                          store_timestamp=at, wait=False, **more))  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three messages of each of three levels; two of each of the first two levels were delivered."""
    root = tmp_path / "store"
    with StoreWriter.create(root, auto_create_queues=4, delays_ms=DELAYS, **SIZES) as writer:
        for number in range(3):
            for level in (1, 2, 3):
                put(writer, number, level)
        with writer.read() as opened:
            due = [each for each in plan(opened, T0 + 4_000_000) if each.level < 3 and each.queue_offset < 2]
            assert len(list(deliver(writer, due))) == 4
    assert offsets(root) == {1: 2, 2: 2}
    return root


def change(root: Path, topic: str, body: bytes, old: bytes, new: bytes) -> None:
    """Change bytes of the record with this topic and body, in place."""
    assert len(old) == len(new)
    with Store.open(root) as opened:
        (found,) = [each for each in opened.messages(Selection(topics=(topic,))) if each.message.body == body]
        place, size = found.physical_offset, found.message.total_size
    path = root / "commitlog" / f"{0:020}"
    data = bytearray(path.read_bytes())
    assert data[place : place + size].count(old) == 1
    at = data.index(old, place)
    data[at : at + len(old)] = new
    path.write_bytes(data)


@pytest.mark.parametrize("name", [name for name in real_cases() if case(name).base is None])
def test_the_offsets_of_a_broker(name: str, store_copy: StoreCopy, capsys: Capture) -> None:
    """Made again as the broker of each real store had them, in its own writing; undone to the byte."""
    root = store_copy(name)
    before = offsets(root)
    text = (root / FILE).read_bytes()
    lose(root)
    lost = tree_digest(root)
    plan = planned(capsys, root)
    (action,) = [row for row in plan["actions"] if row["path"] == FILE]
    count = sum(row["delivered"] for row in action["detail"]["levels"])
    assert (action["kind"], action["problem"]) == ("create", "CF07") and count > 0
    assert f"made again from the log: without it a start delivers {count} messages again" in action["reason"]
    assert plan["delivered_again"] == 0 and not [each for each in plan["warnings"] if "CF07" in each]
    started = [row for row in plan["predictions"] if row["loads"]]
    assert started and {row["delivered_again"] for row in started} <= {count}
    assert main(["recover", str(root), "--apply", "--yes"]) == 0
    with Store.open(root) as opened:  # 4.9 lacks a level of which nothing was delivered: that is its minimum
        starts = {level: opened.min_offset(SCHEDULE_TOPIC, level - 1) for level in offsets(root)}
    assert offsets(root) == starts | before
    made = (root / FILE).read_bytes()
    assert (b'"dataVersion"' in made) == (b'"dataVersion"' in text) and made[:20] == text[:20]
    assert planned(capsys, root)["actions"] == []
    (backup,) = root.parent.glob(f"{root.name}.rmqtool-backup-*")
    assert main(["recover", str(root), "--undo", str(backup)]) == 0
    assert tree_digest(root) == lost


def test_what_a_start_costs(store_copy: StoreCopy, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table and the verdict say it, before and after."""
    root = store_copy("ok_540_clean")
    lose(root)
    monkeypatch.setenv("COLUMNS", "10000")
    main(["recover", str(root), "--format", "text"])
    out = capsys.readouterr().out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("deliver again ")]
    assert row == ["deliver", "again", "39", "0"]
    assert "A start of 5.4 delivers 39 delayed messages again." in out
    main(["recover", str(root), "--apply"])
    main(["recover", str(root), "--format", "text"])
    assert "deliver again" not in capsys.readouterr().out.partition("nothing to do")[2]


def test_a_version_that_is_only_assumed_is_not_written(store_copy: StoreCopy, capsys: Capture) -> None:
    """With the whole folder lost 5.3 or 5.4 may have written the store: the new files do not decide it."""
    root = store_copy("ok_533_clean")
    before = offsets(root)
    shutil.rmtree(root / "config")
    found = planned(capsys, root)
    assert found["written_by_candidates"] == ["5.3", "5.4"]
    assert main(["recover", str(root), "--apply"]) == 0
    assert planned(capsys, root)["written_by_candidates"] == ["5.3", "5.4"]
    assert offsets(root) == before == {1: 24, 2: 5, 3: 8, 4: 0}


def test_a_lost_copy_is_delivered_once_more(store: Path, capsys: Capture) -> None:
    """Its level goes on there, so that the message is not lost; the one after it is delivered twice."""
    lose(store)
    assert [each.next_offset for each in loss(store).levels] == [2, 2, 0]
    change(store, "T", b"1-0", b"1-0", b"X-0")  # recover replaces it with a filler
    found = planned(capsys, store)
    (action,) = [row for row in found["actions"] if row["path"] == FILE]
    levels = {row["level"]: row for row in action["detail"]["levels"]}
    assert {level: row["next_offset"] for level, row in levels.items()} == {1: 0, 2: 2, 3: 0}
    assert (levels[1]["again"], levels[1]["why"], found["delivered_again"]) == (1, "no_copy", 1)
    (text,) = [each for each in found["warnings"] if each.startswith("CF07")]
    assert text == (
        "CF07 with the new delayOffset.json up to 1 delayed message are delivered twice, and none is lost:"
        " level 1 goes on at queue offset 0, because the log has no copy of the message there"
    )
    assert main(["recover", str(store), "--apply"]) == 0
    assert offsets(store) == {1: 0, 2: 2, 3: 0}


def test_a_message_without_a_unique_key(store: Path, capsys: Capture) -> None:
    """Nobody knows whether it was delivered: it holds its level; where nothing else is known, no file."""
    lose(store)
    change(store, SCHEDULE_TOPIC, b"1-1", b"UNIQ_KEY", b"UNIQ_KEX")
    found = planned(capsys, store)
    (action,) = [row for row in found["actions"] if row["path"] == FILE]
    levels = {row["level"]: row for row in action["detail"]["levels"]}
    assert {level: row["next_offset"] for level, row in levels.items()} == {1: 1, 2: 2, 3: 0}
    assert (levels[1]["unclear"], levels[1]["why"]) == (1, "no_key")
    (text,) = [each for each in found["warnings"] if each.startswith("CF07")]
    assert "level 1 goes on at queue offset 1, because the message there has no unique key" in text
    for level in (1, 2):
        change(store, SCHEDULE_TOPIC, f"{level}-0".encode(), b"UNIQ_KEY", b"UNIQ_KEX")
    found = planned(capsys, store)
    assert FILE not in {row["path"] for row in found["actions"]} and found["delivered_again"] == 1
    (text,) = [each for each in found["warnings"] if each.startswith("CF07")]
    assert "and 1 of them was delivered already" in text and "because 3 messages have no unique key" in text
    assert "copy the file to config/ from a backup" in text
    assert main(["recover", str(store), "--apply"]) == 0  # the index has keys that nobody knows any more
    capsys.readouterr()
    main(["recover", str(store), "--format", "text"])
    assert capsys.readouterr().out.splitlines()[-2].split(maxsplit=1) == ["next", "rmqtool help recovery"]


def test_messages_that_are_alike(tmp_path: Path) -> None:
    """One message object, sent with two levels in one millisecond: a copy does not say of which it is."""
    root = tmp_path / "store"
    alike: dict[str, Any] = {"uniq_key": "K"}
    with StoreWriter.create(root, auto_create_queues=4, delays_ms=DELAYS, **SIZES) as writer:
        for level in (3, 1):
            writer.put(NewMessage("T", b"x", queue_id=0, delay_level=level, born_timestamp=T0,
                                  store_timestamp=T0, wait=False, **alike))  # fmt: skip
        with writer.read() as opened:
            assert [each.level for each in deliver(writer, plan(opened, T0 + 1_000))] == [1]
    found = loss(root)
    assert [(each.level, each.next_offset) for each in found.levels] == [(1, 0), (3, 0)]
    with StoreWriter.open(root, delays_ms=DELAYS) as writer, writer.read() as opened:
        assert [each.level for each in deliver(writer, plan(opened, T0 + 4_000_000))] == [3]
    assert [(each.level, each.next_offset) for each in loss(root).levels] == [(1, 1), (3, 1)]


def test_the_same_message_sent_again_is_no_copy(tmp_path: Path) -> None:
    """A client keeps the unique key when it sends an object again: without a delay, or after an attempt."""
    root = tmp_path / "store"
    with StoreWriter.create(root, auto_create_queues=4, delays_ms=DELAYS, **SIZES) as writer:
        put(writer, 0, 3, uniq_key="K")
        for more in ({"born_timestamp": T0 + 1}, {"reconsume_times": 1}, {"queue_id": 2}, {}):
            message = {"queue_id": 3, "born_timestamp": T0, "uniq_key": "K"} | more
            if more:
                writer.put(NewMessage("T", b"3-0", store_timestamp=T0 + 5, wait=False, **message))
    assert [(each.level, each.next_offset) for each in loss(root).levels] == [(3, 0)]
    with StoreWriter.open(root) as writer:
        writer.put(NewMessage("T", b"3-0", queue_id=3, born_timestamp=T0, uniq_key="K", wait=False))
    assert [(each.level, each.next_offset) for each in loss(root).levels] == [(3, 1)]


def test_what_a_broker_discards_does_not_hold_a_level(store: Path, capsys: Capture) -> None:
    """The fillers of recover, and a record that names no real topic."""
    change(store, SCHEDULE_TOPIC, b"1-0", b"1-0", b"X-0")
    change(store, "T", b"1-0", b"1-0", b"X-0")
    change(store, SCHEDULE_TOPIC, b"2-0", b"REAL_TOPIC", b"REAL_TOPIX")
    assert main(["recover", str(store), "--apply"]) == 0
    lose(store)
    assert [each.next_offset for each in loss(store).levels] == [2, 2, 0]
    assert planned(capsys, store)["delivered_again"] == 0


def test_a_log_that_ends_earlier(store: Path) -> None:
    """Messages and copies after the end of the log do not count."""
    with Store.open(store) as opened:
        places = [each.physical_offset for each in opened.messages(Selection(topics=("T",)))]
        queues = {key: (opened.min_offset(*key), opened.max_offset(*key)) for key in opened.queues}
        found = find_delay_loss(opened, queues, places[1])
        assert found is not None and len(found.copies) == 1 and found.messages == 9
        assert [each.next_offset for each in found.levels] == [1, 0, 0]
        assert found.again_without(places[0]) == 0 and found.again_without() == 1


def test_too_many_messages(store: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is examined, and the warning says so."""
    lose(store)
    monkeypatch.setattr(delay_loss, "MESSAGES_MAX", 9)
    assert [row["path"] for row in planned(capsys, store)["actions"]] == [FILE]
    monkeypatch.setattr(delay_loss, "MESSAGES_MAX", 8)
    found = planned(capsys, store)
    assert found["actions"] == [] and found["predictions"][0]["delivered_again"] == 0
    (text,) = found["warnings"]
    assert text.startswith("CF07") and "rmqtool finds out which were delivered of at most " in text


def test_nothing_was_delivered_yet(tmp_path: Path, capsys: Capture) -> None:
    """Every level begins at its start, and the loss costs nothing."""
    root = tmp_path / "store"
    with StoreWriter.create(root, auto_create_queues=4, delays_ms=DELAYS, **SIZES) as writer:
        put(writer, 0, 2)
    lose(root)
    (action,) = planned(capsys, root)["actions"]
    said = "made again from the log: none of the delayed messages was delivered yet"
    assert action["reason"].endswith(said)
    assert main(["recover", str(root), "--apply"]) == 0
    assert offsets(root) == {2: 0} and main(["verify", str(root)]) == 0


def old_bak(root: Path, noted: dict[int, int]) -> None:
    """Leave only a .bak of delayOffset.json, with these offsets."""
    lose(root)
    (root / f"{FILE}.bak").write_bytes(config_json.dump({"offsetTable": dict(noted)}, "4.9"))


def problems(capsys: Capture, root: Path) -> set[str]:
    """The codes of what verify finds."""
    capsys.readouterr()
    main(["verify", str(root), "--json"])
    return {json.loads(line)["problem"] for line in capsys.readouterr().out.splitlines()}


def test_a_bak_that_is_older_than_the_log(store: Path, capsys: Capture) -> None:
    """Each level gets the larger offset of log and .bak; verify, deliver and rebuild say so too."""
    old_bak(store, {1: 0, 2: 1, 3: 0, 9: 5})
    assert {"CF01", "CF07"} <= problems(capsys, store)
    assert main(["rebuild", str(store), "--apply"]) == 0
    assert "(CF07)" not in (err := capsys.readouterr().err) and "recover makes the file again" in err
    assert not (store / FILE).exists()
    assert main(["deliver", str(store), "--apply"]) == 4
    assert "the log has a later copy of 3 under their real topic" in capsys.readouterr().err
    found = planned(capsys, store)
    (action,) = [row for row in found["actions"] if row["path"] == FILE]
    assert (action["kind"], action["problem"], found["delivered_again"]) == ("create", "CF07", 0)
    assert action["reason"] == (
        "delayOffset.json is missing, and its .bak is older than the log; made again from the log and the"
        " .bak: with the .bak alone a start delivers 3 messages again"
    )
    assert {row["delivered_again"] for row in found["predictions"]} == {3}
    assert main(["recover", str(store), "--apply"]) == 0
    assert offsets(store) == {1: 2, 2: 2, 3: 0, 9: 5}
    assert "CF07" not in problems(capsys, store) and planned(capsys, store)["actions"] == []


def test_a_bak_that_knows_more_than_the_log(store: Path, capsys: Capture) -> None:
    """Its offsets stay: before them a message without a key holds no level, and a lost copy comes no more."""
    change(store, SCHEDULE_TOPIC, b"1-0", b"UNIQ_KEY", b"UNIQ_KEX")
    old_bak(store, {1: 1, 2: 2, 3: 1})
    assert [each.next_offset for each in loss(store).levels] == [0, 2, 0]
    assert main(["recover", str(store), "--apply"]) == 0
    assert offsets(store) == {1: 2, 2: 2, 3: 1}
    old_bak(store, {1: 2, 2: 2, 3: 1})
    assert "CF07" not in problems(capsys, store)
    (action,) = [row for row in planned(capsys, store)["actions"] if row["path"] == FILE]
    assert action["problem"] == "CF01"


def test_a_bak_whose_next_message_was_not_delivered(store: Path, capsys: Capture) -> None:
    """One after it was: nothing is better than the .bak, but a warning says what it costs."""
    change(store, "T", b"1-0", b"1-0", b"X-0")
    assert main(["recover", str(store), "--apply"]) == 0
    old_bak(store, {1: 0, 2: 2})
    assert "CF07" in problems(capsys, store)
    found = planned(capsys, store)
    (action,) = [row for row in found["actions"] if row["path"] == FILE]
    assert (action["problem"], found["delivered_again"]) == ("CF01", 1)
    (text,) = found["warnings"]
    assert (
        text.startswith("CF07") and "level 1 goes on at queue offset 0, because the log has no copy" in text
    )


def test_a_bak_and_too_many_messages(store: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is copied, and a warning says that nothing was examined."""
    old_bak(store, {1: 0})
    monkeypatch.setattr(delay_loss, "MESSAGES_MAX", 8)
    found = planned(capsys, store)
    assert [row["problem"] for row in found["actions"] if row["path"] == FILE] == ["CF01"]
    (text,) = found["warnings"]
    assert text.startswith("CF07 delayOffset.json is missing, and its .bak is copied")


def test_a_lost_copy_whose_original_is_there(store_copy: StoreCopy, capsys: Capture) -> None:
    """A delivered copy is destroyed: the message can be read in SCHEDULE_TOPIC_XXXX, and recover says so."""
    root = store_copy("ok_540_clean")
    with Store.open(root) as opened:
        waited = [each for each in delayed_messages(opened) if each.uniq_key and each.topic == "pubDelay"]
        copies = delivered(opened, waited)
        first = next(each for each in waited if each.physical_offset in copies)
        copy = opened.get(copies[first.physical_offset])
        assert copy is not None
        file = opened.commit_log.file_of(copy.physical_offset)
    assert file is not None
    with Path(str(file.path)).open("r+b") as data:
        data.seek(copy.physical_offset - file.file_from_offset)
        data.write(bytes(copy.message.total_size))
    (row,) = planned(capsys, root)["delayed_originals"]
    assert (row["physical_offset"], row["uniq_key"]) == (first.physical_offset, first.uniq_key)
    assert (row["topic"], row["delay_level"], row["delay_queue_offset"]) == (
        "pubDelay", first.level, first.queue_offset,
    )  # fmt: skip
    main(["recover", str(root)])
    out = " ".join(capsys.readouterr().out.split())
    assert "delayed 1 message of pubDelay can be read in SCHEDULE_TOPIC_XXXX, where it waited: only" in out
    assert f"rmqtool lookup {root} --offset {first.physical_offset} --json" in out
