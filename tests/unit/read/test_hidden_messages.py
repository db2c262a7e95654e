"""Every command reports settings that keep messages from consumers, unless the queues are drained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqtool.formats import config_json
from tests.unit.read.test_lost_config import run

StoreCopy = Callable[[str], Path]
TOPIC, GROUP = "pub-Topic_Four", "pub_group_four"


def change(root: Path, name: str, edit: Callable[[Any], None]) -> None:
    """Edit the document of a config file."""
    path = root / "config" / f"{name}.json"
    document = config_json.parse(path.read_bytes())
    edit(document)
    path.write_bytes(config_json.dump(document, "5.3"))


def of_config(capsys: pytest.CaptureFixture[str], root: Path) -> dict[str, dict[str, Any]]:
    """What verify says of the settings, by code; info says the same."""
    _, out, _ = run(capsys, "verify", root, "--pass", "config", "--format", "jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    found = {row["problem"]: row for row in rows if row["problem"] in ("CF15", "CF16", "CF17")}
    _, out, _ = run(capsys, "info", root, "--format", "json")
    in_info = {row["problem"]: row for row in json.loads(out)["problems"] if row["problem"] in found}
    assert {code: row["detail"] for code, row in in_info.items()} == {
        code: row["detail"] for code, row in found.items()
    }
    return found


@pytest.fixture
def few_queues(store_copy: StoreCopy) -> Path:
    """A store whose topics.json has two of the four queues of a topic, for reading and for writing."""
    root = store_copy("ok_533_clean")
    entry = {"readQueueNums": 2, "writeQueueNums": 2}
    change(root, "topics", lambda document: document["topicConfigTable"][TOPIC].update(entry))
    return root


def test_queues_with_unread_messages_are_read_again(
    few_queues: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found, counted by topic and group, said beside the verdict on a start, and repaired for reading."""
    found = of_config(capsys, few_queues)
    assert set(found) == {"CF15"} and found["CF15"]["severity"] == "warning"
    (row,) = found["CF15"]["detail"]["hidden"]
    assert (row["topic"], row["queues"], set(row["unread"])) == (TOPIC, [2, 3], {GROUP})
    text = f"{TOPIC} ({row['messages']} in queues 2 to 3, readQueueNums 2)"
    assert text in found["CF15"]["message"] and 0 < row["unread"][GROUP] < row["messages"]
    assert f"{row['unread'][GROUP]} of {GROUP}" in found["CF15"]["message"]
    for command, *options in (("verify",), ("doctor", "--no-host", "--format", "text"), ("recover",)):
        code, out, err = run(capsys, command, few_queues, *options)
        said = " ".join((out + err).split())
        assert code == 1 and "loses no message. But topics.json hides messages from consumers" in said
    assert f"readQueueNums of {row['topic']} is raised, which hid {row['messages']} messages" in said
    assert run(capsys, "recover", few_queues, "--apply")[0] == 0
    topic = config_json.topics(config_json.parse((few_queues / "config/topics.json").read_bytes()))[TOPIC]
    assert (topic.read_queue_nums, topic.write_queue_nums) == (4, 2)
    assert run(capsys, "verify", few_queues)[0] == 0 and run(capsys, "recover", few_queues)[0] == 0


def test_drained_queues_are_no_finding(few_queues: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An operator lowers readQueueNums once all groups are at the ends; then nothing is raised again."""
    for queue in ("2,3", "3"):
        line = ("--group", GROUP, "--topic", TOPIC, "--queue", queue, "--from", "latest", "--apply")
        assert run(capsys, "reset-offset", few_queues, *line)[0] == 0
    assert of_config(capsys, few_queues) == {}
    assert run(capsys, "recover", few_queues)[0] == 0


def test_permission_is_left_to_the_person(store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]) -> None:
    """Recover names the line of mqadmin; a topic that is read to its end gives a note on what comes."""
    root = store_copy("ok_533_clean")
    change(root, "topics", lambda document: document["topicConfigTable"][TOPIC].update(perm=2))
    found = of_config(capsys, root)
    assert set(found) == {"CF15"} and found["CF15"]["repair"].startswith("mqadmin updateTopicPerm")
    code, out, err = run(capsys, "recover", root)
    said = " ".join((out + err).split())
    assert code == 1 and "mqadmin updateTopicPerm (-t TOPIC -p 6)" in said.replace("Mqadmin", "mqadmin")
    assert "But topics.json hides messages from consumers" in said and "can repair nothing here" in said
    line = ("--group", GROUP, "--topic", TOPIC, "--from", "latest", "--apply")
    assert run(capsys, "reset-offset", root, *line)[0] == 0
    found = of_config(capsys, root)
    assert set(found) == {"CF16"} and f"{TOPIC} (perm 2)" in found["CF16"]["message"]
    assert run(capsys, "recover", root)[0] == 0


def test_a_group_that_may_not_consume_is_a_note(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """It counts only where the group has unread messages, and asks nothing of recover."""
    root = store_copy("ok_533_clean")

    def edit(document: Any) -> None:
        groups = document["subscriptionGroupTable"]
        groups[GROUP]["consumeEnable"] = False
        groups["pub_static_group"]["retryMaxTimes"] = 0

    change(root, "subscriptionGroup", edit)
    found = of_config(capsys, root)
    assert set(found) == {"CF17"} and found["CF17"]["detail"]["names"] == [GROUP]
    assert ", consumeEnable false)" in found["CF17"]["message"]
    assert run(capsys, "recover", root)[0] == 0
