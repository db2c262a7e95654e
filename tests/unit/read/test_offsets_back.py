"""Committed offsets that went back: what is behind consumerOffset.json.bak, as CF11, in every command."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqtool.formats import config_json
from rmqtool.read.offsets_back import offsets_that_went_back
from rmqtool.read.store import Store
from rmqtool.storage import lock
from tests.unit.read.test_lost_config import run

StoreCopy = Callable[[str], Path]
FILE = "config/consumerOffset.json"
PAIR, GROUP = "pub-Topic_Four@pub_group_four", "pub_group_four"


def codes(capsys: pytest.CaptureFixture[str], root: Path) -> list[str]:
    """The problems of the configuration that `verify` finds."""
    _, out, _ = run(capsys, "verify", root, "--pass", "config", "--format", "jsonl")
    return [json.loads(line)["problem"] for line in out.splitlines()]


def change(root: Path, changed: Callable[[dict[str, Any]], None], name: str = FILE) -> None:
    """Write a file of offsets after `changed` had its table, as a person edits it."""
    document: Any = config_json.parse((root / name).read_bytes())
    changed(document["offsetTable"])
    (root / name).write_bytes(config_json.dump(document, "5.4"))


def to_zero(table: dict[str, Any]) -> None:
    """What the edit of a person, or a restored file, may leave."""
    for queues in table.values():
        queues.update(dict.fromkeys(queues, 0))


@pytest.mark.parametrize("name", ["ok_497_clean", "ok_533_clean", "ok_540_clean"])
def test_doctor_and_verify_say_so(
    name: str, store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """With groups, topics and numbers, a cost and a line that puts the .bak back; the exit code stays 0."""
    root = store_copy(name)
    good = (root / FILE).read_bytes()
    assert "CF11" not in codes(capsys, root)
    (root / f"{FILE}.bak").write_bytes(good)
    change(root, to_zero)
    with Store.open(root) as store:
        found = offsets_that_went_back(store)
    messages, groups = sum(each.messages for each in found), {each.group for each in found}
    assert GROUP in groups and not any(group.startswith("CID_RMQ_SYS_") for group in groups)
    assert all(each.messages == each.before > each.offset == 0 for each in found)
    code, out, err = run(capsys, "verify", root, "--pass", "config")
    assert code == 0 and f"receive {messages} messages again" in " ".join(out.split())
    (line,) = re.findall(r"put the offsets of the \.bak back: (.+)\n", err)
    code, out, _ = run(capsys, "doctor", root, "--no-host", "--format", "text")
    said = " ".join(out.split())
    assert code == 0 and "Nothing wrong was found" not in said
    went = f"Committed offsets of {len(groups)} groups went back ({messages} messages received again)"
    assert went in said.partition("store")[0]
    assert "NOTE, possible: CF11 " in out and " cost " in said and " do if nobody reset them" in said
    assert f"  run     {line}\n" in out and re.search(r" in \S+: \d+ -> 0", said)
    code, out, _ = run(capsys, "doctor", root, "--no-host", "--format", "json")
    (row,) = [each for each in json.loads(out)["results"] if each["name"] == "CF11"]
    assert row["command"] == line and row["certainty"] == "possible" and row["severity"] == "note"
    assert row["detail"]["messages"] == messages and row["detail"]["groups"] == len(groups)
    subprocess.run(shlex.split(line), check=True)  # noqa: S603
    assert (root / FILE).read_bytes() == good and "CF11" not in codes(capsys, root)


def test_a_line_for_a_long_path_stays_whole(
    store_copy: StoreCopy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is pasted into a shell; so is a path with a space."""
    root = store_copy("bad_cf11_offsets_went_back").rename(tmp_path / f"a store {'x' * 80}")
    _, out, _ = run(capsys, "doctor", root, "--no-host", "--format", "text")
    (line,) = [line for line in out.splitlines() if line.startswith("  run ")]
    assert shlex.split(line) == ["run", "cp", "-p", f"{root / FILE}.bak", str(root / FILE)]


def test_only_what_the_group_receives_again(store_copy: StoreCopy) -> None:
    """Not a group or topic that is gone, nor offsets past the end of a queue, nor forward."""
    root = store_copy("ok_540_clean")
    assert found_after(root, lambda table: table.pop(PAIR)) == []
    assert found_after(root, lambda table: table[PAIR].update({0: 1 << 40})) == []
    assert found_after(root, lambda table: table[PAIR].update({0: 30})) == [(0, 37, 30, 7)]
    assert found_after(root, lambda table: table[PAIR].update({0: -5})) == [(0, 37, -5, 37)]
    assert found_after(root, lambda table: table[PAIR].pop(0)) == [(0, 37, None, 37)]
    change(root, lambda table: table.update({"noTopic@group": {0: 9}}), f"{FILE}.bak")
    assert found_after(root, lambda table: table.update({"noTopic@group": {0: 0}})) == []
    # no further than the end of the queue
    change(root, lambda table: table[PAIR].update({0: (1 << 63) - 1, 99: 7}), f"{FILE}.bak")
    assert found_after(root, lambda table: table[PAIR].update({0: 36})) == [(0, 148, 36, 112)]


def found_after(
    root: Path, changed: Callable[[dict[str, Any]], Any]
) -> list[tuple[int, int, int | None, int]]:
    """Queue, from, to and messages of what went back with one change of the file, which is then undone."""
    before = (root / FILE).read_bytes()
    change(root, changed)
    with Store.open(root) as store:
        found = offsets_that_went_back(store)
    (root / FILE).write_bytes(before)
    return [(each.queue_id, each.before, each.offset, each.messages) for each in found]


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"null", b"[]", b"\xff\x00", b'{"offsetTable":7}', b'{"offsetTable":{"a@b":[1]}}',
        b'{"offsetTable":{"pub-Topic_Four@pub_group_four":{0:NaN}}}',
        b'{"offsetTable":{"pub-Topic_Four@pub_group_four":{0:null}}}',
        b'{"offsetTable":{"pub-Topic_Four@pub_group_four":{0:"x"}}}',
        b'{"offsetTable":{"pub-Topic_Four@pub_group_four":{0:1.5}}}',
        b'{"offsetTable":{"pub-Topic_Four@pub_group_four":{"-1":5}}}',
        b'{"offsetTable":{"pub-Topic_Four@pub_group_four":{99999999999999999999:5}}}',
        b'{"offsetTable":{"pub-Topic_Four@pub_group_four":{0:99999999999999999999999}}}',
        b'{"offsetTable":{"pub-Topic_Four@pub_group_four":{0:-9223372036854775808}}}',
        b'{"offsetTable":{"":{0:5},"@":{0:5}}}', b'{"offsetTable":' + b"[" * 5000,
    ],
)  # fmt: skip
def test_hostile_values(text: bytes, store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither file makes a command fail or invents offsets that went back."""
    root = store_copy("ok_540_clean")
    before = (root / FILE).read_bytes()
    (root / f"{FILE}.bak").write_bytes(text)
    assert codes(capsys, root) == []
    (root / f"{FILE}.bak").write_bytes(before)
    (root / FILE).write_bytes(text)
    assert run(capsys, "doctor", root, "--no-host")[0] in (0, 1)
    found = codes(capsys, root)
    assert ("CF11" in found) == any(each in text for each in (b"-9223372036854775808", b'"-1":5', b"1.5"))


def test_not_in_a_live_store_and_not_in_rocksdb(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker writes both files from memory; with offsets in RocksDB the files do not count."""
    root = store_copy("bad_cf11_offsets_went_back")
    assert "CF11" in codes(capsys, root)
    held = lock.acquire(root / "lock")
    try:
        assert "CF11" not in codes(capsys, root)
    finally:
        held.release()
    root = store_copy("kind_rocksdb_540")
    offsets = b'{"offsetTable":{"TopicA@cg1":{"0":%d}}}'
    (root / FILE).write_bytes(offsets % 0)
    (root / f"{FILE}.bak").write_bytes(offsets % 7)
    assert "CF11" not in codes(capsys, root)


def test_not_after_commands_that_set_offsets(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """reset-offset and recover note that they set offsets back, also once the queue has grown again."""
    root = store_copy("ok_540_clean")
    assert run(capsys, "reset-offset", root, "--group", "*", "--from", "earliest", "--apply")[0] == 0
    assert codes(capsys, root) == []
    document: Any = config_json.parse((root / FILE).read_bytes())
    assert document.pop("rmqtoolOffsetsSetBack") is True
    (root / FILE).write_bytes(config_json.dump(document, "5.4"))  # as an edit would leave it
    assert codes(capsys, root) == ["CF11"]
    root = store_copy("bad_cf04_consumer_offset")
    table: Any = config_json.parse((root / FILE).read_bytes())
    assert codes(capsys, root) == ["CF04"]
    (root / f"{FILE}.bak").write_bytes((root / FILE).read_bytes())
    assert run(capsys, "recover", root, "--apply")[0] == 0
    after: Any = config_json.parse((root / FILE).read_bytes())
    assert after["offsetTable"] != table["offsetTable"] and after["rmqtoolOffsetsSetBack"] is True
    ((topic, queue_id),) = {
        (name.partition("@")[0], queue_id)
        for name, queues in table["offsetTable"].items()
        for queue_id, offset in queues.items()
        if offset != after["offsetTable"][name][queue_id]
    }
    words = ("append", root, "--topic", topic, "--queue", queue_id, "--body", "x")
    assert run(capsys, *words)[0] == 0
    assert codes(capsys, root) == []


def test_reset_offset_says_what_it_replaces(
    store_copy: StoreCopy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of groups that it does not change; --undo brings the .bak back."""
    root = store_copy("bad_cf11_offsets_went_back")
    bak = (root / f"{FILE}.bak").read_bytes()
    words = ("reset-offset", root, "--group", "pub_group_one", "--from", "earliest")
    said = "4 committed offsets of 2 groups are behind consumerOffset.json.bak"
    assert run(capsys, *words)[2].count(said) == 1
    code, _, err = run(capsys, *words, "--apply", "--backup-dir", tmp_path / "backup")
    assert code == 0 and err.count(said) == 1 and "(CF11): --apply replaces this file" in err
    assert (root / f"{FILE}.bak").read_bytes() != bak and codes(capsys, root) == []
    assert run(capsys, "recover", root, "--undo", tmp_path / "backup")[0] == 0
    assert (root / f"{FILE}.bak").read_bytes() == bak and codes(capsys, root) == ["CF11"]
    sound = store_copy("ok_540_clean")
    assert "CF11" not in run(capsys, "reset-offset", sound, *words[2:])[2]
