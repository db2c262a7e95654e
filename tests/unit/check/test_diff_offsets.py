"""The committed offsets of stores whose logs have parted: which fit, and the lines that set them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.formats import config_json
from rmqtool.formats.index import Shape
from rmqtool.storage import config_files
from tests.support.diffs import Pair, diff_of, run
from tests.support.records import record
from tests.support.whole_store import keyed, write_config, write_whole

pytestmark = pytest.mark.usefixtures("unbroken")

Capture = pytest.CaptureFixture[str]
Committed = dict[str, tuple[int | None, int | None]]  # offsets of A and B by group

PARTS_AT, END = 25, 40  # of both queues of TopicTest


@pytest.fixture
def parted(tmp_path: Path) -> Pair:
    """Two stores whose queues of TopicTest part at PARTS_AT; the queue of Other does not."""
    common = [*keyed(50), *keyed(6, topic="Other", queues=1)]
    own = keyed(30, first=50)
    later = [
        record(
            each.topic, each.body, each.properties_bytes.replace(b"U0", b"V0"), queue_id=each.queue_id,
            queue_offset=each.queue_offset, born_timestamp=each.born_timestamp + 1,
            store_timestamp=each.store_timestamp + 1,
        )
        for each in own
    ]  # fmt: skip
    for name, content in (("a", own), ("b", later)):
        write_whole(tmp_path / name, [*common, *content], log_file_size=8192, shape=Shape(50, 600))
    return tmp_path / "a", tmp_path / "b"


def commit(pair: Pair, offsets: Committed, topic: str = "TopicTest") -> None:
    for number, root in enumerate(pair):
        found = {group: both[number] for group, both in offsets.items() if both[number] is not None}
        table = {f"{topic}@{group}": {"0": offset} for group, offset in found.items()}
        write_config(root, "consumerOffset.json", {"offsetTable": table})


def committed(root: Path, topic: str, group: str) -> int:
    document = config_files.read_config(root / "config", "consumerOffset.json").document
    return config_json.consumer_offsets(document)[topic, group][0]


@pytest.mark.parametrize(
    ("topic", "a", "b", "fits"),
    [
        ("TopicTest", 10, 10, None),
        ("TopicTest", PARTS_AT, PARTS_AT, None),
        ("TopicTest", 10, 20, (20, 20)),
        ("TopicTest", None, 12, (12, 12)),
        ("TopicTest", 30, 10, (30, PARTS_AT)),
        ("TopicTest", 10, 30, (PARTS_AT, 30)),
        ("TopicTest", 30, 35, (30, 35)),
        ("TopicTest", 99, None, (END, PARTS_AT)),
        ("TopicTest", 30, 30, (PARTS_AT, PARTS_AT)),  # in one of them it names messages of the other
        ("Other", 6, 6, None),
        ("Other", 2, 6, (6, 6)),
        ("Other", 99, 4, (6, 6)),  # no queue has that many
    ],
)
def test_offsets_that_fit(
    topic: str, a: int | None, b: int | None, fits: tuple[int, int] | None, parted: Pair
) -> None:
    commit(parted, {"g": (a, b), "CID_RMQ_SYS_TRANS": (1, 2)}, topic)
    found = diff_of(*parted).offsets
    assert found is not None and (found.groups, found.compared, found.unknown) == (1, 1, ())
    assert [(each.fits_a, each.fits_b) for each in found.others] == ([] if fits is None else [fits])
    for each in found.others:
        assert each.parts_at == (PARTS_AT if topic == "TopicTest" else None)
        assert each.is_past == (topic == "TopicTest" and max(a or 0, b or 0) > PARTS_AT)


def test_text_of_offsets_that_fit_both(parted: Pair, capfd: Capture) -> None:
    commit(parted, {"g": (10, 10), "h": (3, 3)})
    main(["diff", *map(str, parted)])
    out = capfd.readouterr().out
    line = (
        "\noffsets      2 committed offsets of 2 groups: equal in A and B, and none is past the place where"
        " its queue parts: they fit both stores\n"
    )
    assert line in out and "reset-offset" not in out


def test_offsets_past_the_parting_are_set(parted: Pair, capfd: Capture) -> None:
    """The line that is printed for the store that stays; once it has run, no line is printed."""
    commit(parted, {"g": (30, 10), "h": (3, 3)})
    main(["diff", *map(str, parted)])
    out = capfd.readouterr().out
    assert "\noffsets      of 2 committed offsets of 2 groups 1 fits both stores: equal in A and B" in out
    assert (
        f"             group g, TopicTest queue 0, which parts at {PARTS_AT}: A 30, B 10. 30 fits A,"
        f" {PARTS_AT} fits B. In B 30 names another message; if B stays, the group receives 5 messages of A"
        " again\n"
    ) in out
    (line,) = [each[13:] for each in out.splitlines() if "reset-offset" in each]
    assert out.index("\nif B stays") < out.index(line)
    assert line == (
        f"rmqtool reset-offset {parted[1]} --group g --topic TopicTest --queue 0 --from {PARTS_AT} --apply"
    )
    subprocess.run([sys.executable, "-m", *shlex.split(line)], check=True, capture_output=True, timeout=300)
    assert committed(parted[1], "TopicTest", "g") == PARTS_AT
    main(["diff", *map(str, parted)])
    assert "reset-offset" not in capfd.readouterr().out


def test_queues_of_a_topic_share_a_sentence(parted: Pair, capfd: Capture) -> None:
    """What both logs have given out, and one sentence for all queues in which a group is past it."""
    table = {"offsetTable": {"TopicTest@g": {"0": 30, "1": 28}}}
    write_config(parted[0], "consumerOffset.json", table)
    write_config(parted[1], "consumerOffset.json", {"offsetTable": {"TopicTest@g": {"0": 10, "1": 10}}})
    _, row = run(capfd, *parted)
    assert row["queues"]["given_twice"] == [
        {"topic": "TopicTest", "queue_id": number, "from_offset": PARTS_AT, "to_offset": END}
        for number in (0, 1)
    ]
    main(["diff", *map(str, parted)])
    out = capfd.readouterr().out
    assert (
        "\ngiven twice  30 queue offsets, since the logs parted: in A of one message, in B of another"
        "\n             30 of TopicTest: queue 0 25 to 39, queue 1 25 to 39\n"
    ) in out
    assert (
        "\n             group g, TopicTest, 2 queues. In B A's offsets past the parting name other messages;"
        " if B stays, the group receives 8 messages of A again"
        f"\n               queue 0, which parts at {PARTS_AT}: A 30, B 10. 30 fits A, {PARTS_AT} fits B"
        f"\n               queue 1, which parts at {PARTS_AT}: A 28, B 10. 28 fits A, {PARTS_AT} fits B\n"
    ) in out
    assert run(capfd, parted[0], parted[0])[1]["queues"]["given_twice"] == []


def test_offsets_that_are_lost_are_unknown(parted: Pair, capfd: Capture) -> None:
    commit(parted, {"g": (30, 10)})
    for path in (parted[1] / "config").glob("consumerOffset*"):
        path.unlink()
    main(["diff", *map(str, parted)])
    out = capfd.readouterr().out
    assert "\noffsets      those of B are unknown: " in out and "reset-offset" not in out


def test_stores_that_have_not_parted_say_nothing(parted: Pair, capfd: Capture) -> None:
    assert run(capfd, parted[0], parted[0])[1]["committed_offsets"] is None


def test_a_store_that_holds_every_message_of_the_other(parted: Pair, capfd: Capture) -> None:
    """After the messages were carried over: said, no line to run again, and times in their order."""
    commit(parted, {"g": (10, 10)})
    main(["diff", *map(str, parted)])
    out = capfd.readouterr().out
    assert "holds every message" not in out
    lines = out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("if B stays"))
    assert (
        lines[place] == "if B stays   30 messages only in A: 30 of TopicTest" and "more than once" not in out
    )
    line = lines[place + 1][13:].replace("rmqtool ", f"{shlex.quote(sys.executable)} -m rmqtool ")
    subprocess.run(line, shell=True, check=True, capture_output=True, timeout=300)
    assert main(["diff", *map(str, parted)]) == 1
    out = capfd.readouterr().out
    assert "B holds every message of A, by unique key; A lacks 30 messages of B." in " ".join(out.split())
    assert "\nif B stays   Nothing: B holds every message of A already, by unique key. Empty A before" in out
    said = " ".join(out.split())
    assert "if A stays 60 messages: 30 already in A by unique key, 30 only in B (30 of TopicTest)" in said
    assert out.count("\nrun ") == 1 and "more than once" not in out
    _, row = run(capfd, *parted)
    held = row["commit_log"]["diverged"]["b"]
    assert held["first_store_timestamp_ms"] <= held["last_store_timestamp_ms"]
    assert "is damaged" not in out and "\nfirst " not in out
    (parted[1] / "abort").touch()
    main(["diff", *map(str, parted)])
    assert (
        "\nfirst        Whichever store stays: B was not stopped cleanly: repair it" in capfd.readouterr().out
    )
    (parted[1] / "abort").unlink()
    line = [each for each in lines if each.startswith("run ")][0][13:]  # in the other direction, all of it
    line = line.replace("rmqtool ", f"{shlex.quote(sys.executable)} -m rmqtool ")
    subprocess.run(line, shell=True, check=True, capture_output=True, timeout=300)
    main(["diff", *map(str, parted)])
    out = capfd.readouterr().out
    assert "Each holds every message of the other, by unique key.\n" in out
    assert "\ncarry over   Nothing: each store holds every message of the other already" in out
    assert "more than once" not in out
    first = next(line for line in lines if line.startswith("run "))
    again = re.sub(r"--to-offset \d+", "--limit 7", first[13:].split(" | ")[0]), first.split(" | ")[1]
    again_line = " | ".join(again).replace("rmqtool ", f"{shlex.quote(sys.executable)} -m rmqtool ")
    done = subprocess.run(again_line, shell=True, check=True, capture_output=True, timeout=300)
    assert re.search(
        r"the store already has 7 of the first 7 messages of the input, by unique key \(the first at \d+\);"
        rf" they are stored again: rmqtool stats {parted[0]} --duplicates\n",
        done.stderr.decode(),
    )
    main(["diff", *map(str, parted)])
    (said,) = [each for each in capfd.readouterr().out.splitlines() if "more than once" in each]
    assert said == (
        f"repeated     A has 7 messages of B more than once: rmqtool stats {parted[0]} --duplicates"
    )
    assert json.dumps(held["first_store_time"]) <= json.dumps(held["last_store_time"])
