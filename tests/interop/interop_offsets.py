"""Committed offsets that `reset-offset` wrote: real brokers start with them, and real groups begin there.

The offsets of a broker's store are lost, or its whole config. One group then gets the time at which it
begins, another one the end of the topic. A consumer of each asks to begin with the first message, as a group
without an offset does.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rmqtool.errors import EXIT_OK
from rmqtool.formats import config_json
from rmqtool.formats.config_change import OFFSETS_LOST, OFFSETS_SET_BACK
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from tests.interop.after_repair import conf_of, run
from tests.interop.brokers import Broker, wait_for_topic
from tests.interop.lab_stores import LabStore, Shelf
from tests.support.stores import Library

TOPIC, QUEUES, FILE = "pubTopicEight", 8, "config/consumerOffset.json"
GROUPS = BEGINS, SKIPS = "lab_begins", "lab_skips"
CASES = (("4.9.7", "offsets"), ("5.3.3", "config"), ("5.4.0", "offsets"))
Places = list[tuple[int, int]]
"""Queue ids and queue offsets."""


def make(sound: LabStore, root: Path, lost: str) -> Places:
    """A copy of a store whose offsets were lost and set; the messages that `BEGINS` must get."""
    conf = conf_of(sound.copy(root), sound.settings)
    if lost == "config":
        shutil.rmtree(root / "config")
        assert run("recover", root, "--apply", "--broker-conf", conf, "--quiet") == EXIT_OK
    for name in (FILE, f"{FILE}.bak"):
        (root / name).unlink(missing_ok=True)
    with Store.open(root) as store:
        stored = [found.message for found in store.messages(Selection(topics=(TOPIC,)))]
    time_ms = stored[len(stored) // 2].store_timestamp
    # The first one is set back by the second one, which the file notes.
    for group, start in (
        (BEGINS, ("--from", "latest")),
        (BEGINS, ("--since", str(time_ms))),
        (SKIPS, ("--from", "latest")),
    ):
        chosen = ("--group", group, "--topic", TOPIC, *start)
        assert run("reset-offset", root, *chosen, "--apply", "--quiet") == EXIT_OK
    document = config_json.parse((root / FILE).read_bytes())
    assert document[OFFSETS_LOST] is document[OFFSETS_SET_BACK] is True
    wanted = [(each.queue_id, each.queue_offset) for each in stored if each.store_timestamp >= time_ms]
    assert 0 < len(wanted) < len(stored)
    return wanted


def got(events: list[Any], group: str) -> Places:
    """What a group has received."""
    rows = [each["message"] for each in events if each["kind"] == "consumed" and each["group"] == group]
    return [(row["queueId"], row["queueOffset"]) for row in rows]


def live(sound: LabStore, folder: Path, root: Path, wanted: Places) -> None:
    """A broker with a consumer of each group: both get what they must, a new message too, and no other."""
    settings = {name: str(value) for name, value in sound.settings.items()}
    with Broker(sound.version, folder, root, settings) as broker:
        broker.start()
        with broker.client() as client:
            wait_for_topic(client, [TOPIC])
            for group in GROUPS:
                client.call("consume", group=group, topics={TOPIC: "*"})

            def both(events: list[Any]) -> str:
                return f"{len(got(events, BEGINS))} of {len(wanted)}, and {got(events, SKIPS)}"

            client.wait_events(lambda events: len(got(events, BEGINS)) >= len(wanted), both)
            sent = client.call(
                "send", topic=TOPIC, queue_id=0, tags="t", keys="k", body="bmV3", properties={}
            )
            new = (0, sent["queueOffset"])
            events = client.wait_events(
                lambda events: all(new in got(events, group) for group in GROUPS), both
            )
            client.call("close")
        broker.stop()
    assert sorted(got(events, BEGINS)) == sorted([*wanted, new])
    assert got(events, SKIPS) == [new]
    document = config_json.parse((root / FILE).read_bytes())
    assert not {OFFSETS_LOST, OFFSETS_SET_BACK} & document.keys()  # the broker has written the file
    committed = config_json.consumer_offsets(document)
    with Store.open(root) as store:
        ends = {queue_id: store.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES)}
    assert committed[TOPIC, BEGINS] == committed[TOPIC, SKIPS] == ends


def test_groups_begin_where_they_were_set(cases: Library, tmp_path: Path) -> None:
    """The brokers run at the same time: they mostly wait."""
    shelf, lives = Shelf(cases, tmp_path), list[Callable[[], None]]()
    for version, lost in CASES:
        sound, root = shelf.get(version, "clean"), tmp_path / version / "store"
        root.parent.mkdir()
        wanted = make(sound, root, lost)
        lives.append(lambda sound=sound, root=root, wanted=wanted: live(sound, root.parent, root, wanted))  # type: ignore[misc]
    with ThreadPoolExecutor(len(lives)) as pool:
        for done in [pool.submit(each) for each in lives]:
            done.result()
