"""What a start would do, held against what the real store library did: every verdict, every state."""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rmqtool.broker.predict import predict, predict_all
from rmqtool.broker.reput import LogFile, Reput
from rmqtool.broker.rules import StartSettings, rules_of
from rmqtool.errors import RefusedError, UnreadableError, UsageError
from rmqtool.message.system_topics import parse_delay_levels
from rmqtool.read.store import Store
from rmqtool.repair.recover.broker_log import broker_actions
from rmqtool.storage.layout import GUARD_NAME
from tests.support.damage import PARTS, random_edits
from tests.support.stores import (
    VERSIONS,
    Bench,
    Case,
    Library,
    case,
    damage,
    find_variant,
    real_case,
    real_cases,
    variant_id,
    variants,
)  # fmt: skip
from tests.support.sweep import paired, sample
from tests.support.trees import copy_tree, tree_rows
from tests.support.verdicts import SIZES, differences

pytestmark = pytest.mark.sweep

HEAP_BYTES = 256 << 20  # what the JVM of the verdicts could allocate
LEVELS = "1s 3s 5s 1h"


def settings_of(values: dict[str, Any]) -> StartSettings:
    """The settings of a state's broker."""
    return StartSettings(
        checks_property_crc=values.get("forceVerifyPropCRC") == "true",
        delays_ms=parse_delay_levels(values["messageDelayLevel"])
        if "messageDelayLevel" in values
        else StartSettings().delays_ms,
        heap_bytes=HEAP_BYTES,
    )


@pytest.mark.parametrize("state", ["clean", "killed", "killed-burst"])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_verdict(version: str, state: str, cases: Library, tmp_path: Path) -> None:
    """Load, crash, hang, offsets, queues, index headers and files of every variant; no byte changes."""
    base = cases.path(real_case(version, state).name)
    bench = Bench(base, tmp_path / state)
    settings = settings_of({"messageDelayLevel": LEVELS})
    failures = []
    chosen = [variant for variant in variants(version) if variant["base"] == state]
    assert chosen
    facts = real_case(version, state).facts()
    for variant in sample(chosen, 80):
        with bench.damaged(variant["edits"]) as path, Store.open(path, file_sizes=SIZES) as store:
            found = predict_all(store, (version[:3],), settings=settings, index_slots=True)[0]
            failures += [
                f"{variant_id(variant)}: {text}" for text in differences(found, variant, path, facts)
            ]
    assert not failures, "\n".join(failures)
    assert tree_rows(bench.root) == tree_rows(base)


@pytest.mark.parametrize("name", sample(real_cases(), 2))
def test_every_state(name: str, cases: Library) -> None:
    """The stores as brokers left them: the log ends behind its last record, the queues as Java says."""
    this = case(name)
    with Store.open(cases.path(name), file_sizes=SIZES) as store:
        found = predict(store, this.profile, settings=settings_of(this.settings))  # type: ignore[arg-type]
    spans = {key: (queue.min_after, queue.max_after) for key, queue in found.queues.items()}
    assert found.loads
    assert (found.queues_lost, found.messages_unreachable) == (0, 0)
    assert spans == {
        (row["topic"], row["queueId"]): (row["minOffset"], row["maxOffset"]) for row in this.queues
    }
    assert found.end_offset == max(ends_of(this))
    assert (found.messages_abandoned, found.never_dispatched) == (0, 0)
    assert found.bytes_abandoned == 0 and found.log_files_deleted == found.empty_files_deleted


def ends_of(this: Case) -> list[int]:
    """The physical offsets behind the records of a case."""
    return [row["physicalOffset"] + row["storeSize"] for row in this.facts() if "physicalOffset" in row]


# -- several brokers at once ------------------------------------------------------------------------


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("name", [
    "5.4.0:clean:flip-body-second-last-file:noabort", "5.3.3:clean:cq-and-index-delete:noabort",
    "4.9.7:killed-burst:none:noabort", "5.4.0:clean:none:noabort",
])  # fmt: skip
def test_one_walk_for_all(name: str, abort: bool, cases: Library, tmp_path: Path) -> None:
    """All brokers at once say what each says alone."""
    path = cases.variant(name, tmp_path / "store")
    with Store.open(path, file_sizes=SIZES) as store:
        together = predict_all(store, abort=abort)
        alone = [predict(store, prediction.broker, abort=abort) for prediction in together]  # type: ignore[arg-type]
    assert [prediction.broker for prediction in together] == ["4.9", "5.3", "5.4"]
    assert together == alone
    assert json.loads(json.dumps([prediction.row() for prediction in together]))


def test_long_topics_end_the_log_for_4_9(cases: Library, tmp_path: Path) -> None:
    """A record of the second version is no record for 4.x: the rest of the log is abandoned."""
    facts = [row for row in real_case("5.4.0", "clean").facts() if "physicalOffset" in row]
    first = next(row["physicalOffset"] for row in facts if row["version"] == 2)
    behind = [row for row in facts if row["physicalOffset"] >= first]
    path = cases.variant("5.4.0:clean:checkpoint-delete:abort", tmp_path / "store")
    with Store.open(path, file_sizes=SIZES) as store:
        found, _, newest = predict_all(store)
    assert (found.start_file, found.end_offset) == (0, first)
    assert found.log_files_deleted == tuple(f"commitlog/{k << 20:020}" for k in (1, 2, 3))
    assert found.messages_abandoned == len(behind) and not found.empty_files_deleted
    assert found.topics_abandoned == Counter(row["topic"] for row in behind)
    assert found.first_abandoned_timestamp == min(row["storeTimestamp"] for row in behind)
    assert found.last_abandoned_timestamp == max(row["storeTimestamp"] for row in behind)
    assert found.bytes_abandoned == behind[-1]["physicalOffset"] + behind[-1]["storeSize"] - first
    assert newest.messages_abandoned == 0


def test_unknown_broker(cases: Library) -> None:
    """Brokers before 4.9 are named as not modelled."""
    with (
        Store.open(cases.path("ok_540_clean")) as store,
        pytest.raises(UsageError, match=r"4\.3.*not modelled"),
    ):
        predict_all(store, ("4.3",))


def test_only_a_whole_store(cases: Library) -> None:
    """A folder of log files is no store to start with."""
    with (
        Store.open(cases.path("ok_540_clean") / "commitlog") as store,
        pytest.raises(UsageError, match="root"),
    ):
        predict_all(store)


def test_the_guard_keeps_brokers_out(store_copy: Callable[[str], Path]) -> None:
    """With the guard load() fails before anything is touched."""
    root = store_copy("ok_540_clean")
    (root / "commitlog" / GUARD_NAME).write_bytes(b"\0")
    with Store.open(root) as store:
        for found in predict_all(store):
            assert (found.loads, found.load_path) == (False, f"commitlog/{GUARD_NAME}")
            assert (found.files_deleted, found.files_changed, found.start_file) == ((), (), None)


def test_lost_queues(cases: Library, tmp_path: Path) -> None:
    """A queue folder is gone: the queue is in the prediction with what the log holds, and its end is 0."""
    with Store.open(
        cases.variant("5.4.0:clean:cq-delete-topic:noabort", tmp_path / "store"), file_sizes=SIZES
    ) as store:
        four, three, newest = predict_all(store)
        plain = predict(store, "5.4", unreachable=False)
    assert (newest.queues_lost, newest.messages_unreachable, newest.never_dispatched) == (1, 1400, 0)
    row = next(row for row in newest.row()["queues"] if row["topic"] == "pubTopicOne")
    assert row["lost"] and row["messages_unreachable"] == 1400
    assert (row["log_min"], row["log_max"]) == (0, 1400)
    assert (row["max_before"], row["min_after"], row["max_after"]) == (None, 0, 0)
    assert any(beyond.topic == "pubTopicOne" for beyond in newest.consumer_offsets_beyond)
    assert three.messages_unreachable == 1400
    assert (four.queues_lost, four.messages_unreachable) == (3, 1412)
    assert any("batchconsumequeue" in note for note in four.notes)
    assert plain.messages_unreachable is None and ("pubTopicOne", 0) not in plain.queues


def test_messages_of_a_deleted_queue_are_no_cost_of_a_start(cases: Library) -> None:
    """Its topic was made again: no queue refers to the old messages, before and after a start or recover."""
    with Store.open(cases.path("old_cl16_queue_made_anew")) as store:
        found = predict(store, "5.4")
    assert (found.messages_unreachable, found.messages_hidden) == (101, 0)
    assert found.row()["messages_hidden"] == 0 and not any("unreachable" in note for note in found.notes)
    queue = found.queues["pubipv6A", 0]
    assert (queue.unreachable, queue.former, queue.max_after) == (101, 101, 2)


@pytest.mark.parametrize(("heap", "crashes"), [(2 << 30, False), (256 << 20, True), (8 << 30, False)])
def test_the_heap_decides(heap: int, crashes: bool, cases: Library, tmp_path: Path) -> None:
    """A record that claims 500 MiB: 4.9 allocates that, and ends where its heap is smaller."""
    name = "4.9.7:clean:totalsize-500MiB:noabort"
    with Store.open(cases.variant(name, tmp_path / "store"), file_sizes=SIZES) as store:
        four, *others = predict_all(store, settings=StartSettings(heap_bytes=heap))
    assert (four.crashes, four.claimed_bytes, four.heap_bytes) == (crashes, 500 << 20, heap)
    assert all((each.crashes, each.claimed_bytes) == (False, None) for each in others)


def test_the_first_record_of_a_file_is_allocated_too(store_copy: Callable[[str], Path]) -> None:
    """The log ends where one file ends and the next begins: the damaged record is that of the next."""
    root = store_copy("ok_497_clean")
    (root / "abort").touch()
    with sorted((root / "commitlog").iterdir())[-1].open("r+b") as file:
        file.write((500 << 20).to_bytes(4, "big"))
    with Store.open(root) as store:
        found = predict(store, "4.9", settings=StartSettings(heap_bytes=256 << 20))
    assert (found.crashes, found.claimed_bytes) == (True, 500 << 20)


def test_no_array_is_longer_than_a_jvm_has(cases: Library, tmp_path: Path) -> None:
    """A size field of 2^31 - 1 ends 4.9 whatever its heap is."""
    name = "4.9.7:clean:totalsize-huge:noabort"
    with Store.open(cases.variant(name, tmp_path / "store"), file_sizes=SIZES) as store:
        found = predict(store, "4.9", settings=StartSettings(heap_bytes=64 << 30))
    assert found.crashes


# -- settings, and what nobody expects --------------------------------------------------------------


def test_settings_of_a_broker_conf(cases: Library, tmp_path: Path) -> None:
    """What changes a start comes from broker.conf; without one the broker's defaults."""
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "checkCRCOnRecover=false\nforceVerifyPropCRC=true\nmessageIndexEnable=false\nmessageIndexSafe=true\n"
        "commitLogRecoverMaxNum=2\nbrokerId=1\nmessageDelayLevel=1s 2m\n"
    )
    with Store.open(cases.path("ok_540_clean"), broker_conf=conf) as store:
        found = StartSettings.of(store.layout.broker_conf)
    assert found == StartSettings(False, True, False, True, 2, False, (1000, 120_000))
    assert StartSettings.of(None) == StartSettings() == StartSettings(files_back=10, is_master=True)


def test_settings_change_the_start(cases: Library, tmp_path: Path) -> None:
    """No CRC check: the record with a bad body counts. Few files back: 5.4 begins there, others do not."""
    path = cases.variant("5.4.0:clean:flip-body-last-file:abort", tmp_path / "flipped")
    with Store.open(path, file_sizes=SIZES) as store:
        plain, lax = predict(store, "5.4"), predict(store, "5.4", settings=StartSettings(checks_crc=False))
    assert lax.end_offset > plain.end_offset
    assert lax.messages_abandoned == 0 < plain.messages_abandoned
    path = cases.variant("5.4.0:clean:checkpoint-delete:abort", tmp_path / "anew")
    with Store.open(path, file_sizes=SIZES) as store:
        starts = [each.start_file for each in predict_all(store, settings=StartSettings(files_back=2))]
    assert starts == [0, 0, 2 << 20]


def rename_last(root: Path, part: str, name: str) -> None:
    """Give the last file of a folder another name."""
    last = max((root / part).iterdir())
    last.rename(last.with_name(name))


@pytest.mark.parametrize("spoil", [
    lambda root: rename_last(root, "commitlog", "09223372036854775807"),
    lambda root: rename_last(root, "consumequeue/pubTopicOne/0", "09223372036854770000"),
    lambda root: max((root / "consumequeue/pubTopicOne/0").iterdir()).write_bytes(
        struct.pack(">qiq", (1 << 63) - 1, (1 << 31) - 1, 0) * 1000),
    lambda root: max((root / "index").iterdir()).write_bytes(
        struct.pack(">4q2i", -1, 1, -5, -(1 << 63), (1 << 31) - 1, -7).ljust(84_040, b"\0")),
    lambda root: (root / "checkpoint").write_bytes(struct.pack(">5q", *[-(1 << 63)] * 5)),
    lambda root: (root / "config/topics.json").write_bytes(b"{"),
], ids=["log name", "queue name", "units", "index header", "checkpoint", "topics"])  # fmt: skip
@pytest.mark.parametrize("abort", [False, True])
def test_odd_numbers(spoil: Callable[[Path], Any], abort: bool, store_copy: Callable[[str], Path]) -> None:
    """Numbers beyond all use are results, not errors of ours."""
    root = store_copy("ok_540_clean")
    spoil(root)
    with Store.open(root, file_sizes=SIZES) as store:
        for found in predict_all(store, abort=abort, index_slots=True):
            assert json.loads(json.dumps(found.row()))["broker"] == found.broker


@pytest.mark.parametrize(("name", "seed"), paired(["ok_540_clean", "torn_497_killed_burst"], range(6)))
def test_random_damage(name: str, seed: int, cases: Library, tmp_path: Path) -> None:
    """Whatever is damaged: one walk says what three say, and the broker's outcome can be planned."""
    base = cases.path(name)
    root = damage(base, tmp_path / "store", random_edits(base, seed, parts=PARTS, most=5))
    before = tree_rows(root)
    with Store.open(root, file_sizes=SIZES) as store:
        together = predict_all(store, abort=bool(seed % 2))
        assert together == [predict_all(store, (each.broker,), abort=each.abort)[0] for each in together]
        for found in together:
            with suppress(RefusedError):
                list(broker_actions(store, found))
    assert tree_rows(root) == before


def test_a_checkpoint_that_cannot_be_read(store_copy: Callable[[str], Path]) -> None:
    """Nothing is guessed where the broker would read something."""
    root = store_copy("ok_540_clean")
    (root / "checkpoint").unlink()
    (root / "checkpoint").mkdir()
    with Store.open(root) as store, pytest.raises(UnreadableError) as error:
        predict_all(store)
    assert error.value.path == root / "checkpoint"


# -- messages lost and kept -------------------------------------------------------------------------


def test_abandoned_messages(cases: Library, tmp_path: Path) -> None:
    """Behind a bad body: how many sound messages, of which topics, when."""
    name = "5.4.0:clean:flip-body-last-file:abort"
    about = find_variant(name)[1]["about"]
    facts = [row for row in real_case("5.4.0", "clean").facts() if "physicalOffset" in row]
    behind = [row for row in facts if row["physicalOffset"] > about["record"]]
    bad = next(row for row in facts if row["physicalOffset"] == about["record"])
    with Store.open(cases.variant(name, tmp_path / "store"), file_sizes=SIZES) as store:
        found = predict(store, "5.4")
    assert found.end_offset == about["record"]
    assert found.messages_abandoned == len(behind) > 0
    assert found.topics_abandoned == Counter(row["topic"] for row in behind)
    assert found.bytes_abandoned == facts[-1]["physicalOffset"] + facts[-1]["storeSize"] - about["record"]
    assert any("slave" in note for note in found.notes)
    offsets = {(row["topic"], row["queueId"]): row["queueOffset"] for row in reversed([bad, *behind])}
    for key, offset in offsets.items():
        if key in found.queues and found.queues[key].cut_to is not None:
            assert found.queues[key].cut_to == offset


def test_the_first_record_is_left_out_by_5(store_copy: Callable[[str], Path]) -> None:
    """The newest unit is lost, then a clean stop: 5.x leaves that record out, 4.9 dispatches it."""
    root = store_copy("ok_540_clean")
    with Store.open(root) as store:
        lasts = {key: store.queues[key].last_unit() for key in store.layout.consume_queues}
        offsets = {key: unit.physical_offset for key, unit in lasts.items() if unit is not None}
        newest = max(offsets, key=lambda key: offsets[key])
        end = store.max_offset(*newest)
        file = store.layout.consume_queues[newest].files[-1]
    with file.path.open("r+b") as out:
        out.seek((end - 1) * 20 - file.file_from_offset)
        out.write(bytes(20))
    with Store.open(root) as store:
        four, *others = predict_all(store)
    assert four.queues[newest].max_after == end
    for found in others:
        assert (found.queues[newest].max_after, found.never_dispatched) == (end - 1, 1)


def test_consumer_offsets_beyond(cases: Library, tmp_path: Path) -> None:
    """Groups that have consumed what is then cut."""
    name = "5.4.0:clean:log-delete-last:noabort"
    with Store.open(cases.variant(name, tmp_path / "store"), file_sizes=SIZES) as store:
        found = predict(store, "5.4")
    assert found.consumer_offsets_beyond
    for beyond in found.consumer_offsets_beyond:
        queue = found.queues[beyond.topic, beyond.queue_id]
        assert beyond.offset > beyond.queue_end == queue.max_after
    assert any(queue.cut_to is not None for queue in found.queues.values())


@pytest.mark.parametrize("size", [0, 60_000])
def test_a_log_file_that_shrinks_is_no_endless_start(size: int, cases: Library, tmp_path: Path) -> None:
    """Dispatch reads it after the scan has: with fewer bytes it would go back and forth for ever."""
    root = copy_tree(cases.path("torn_497_killed"), tmp_path / "store")
    with Store.open(root) as store:
        last = store.layout.commit_log[-1]
        log = [LogFile(last, last.size)]
        os.truncate(last.path, size)
        reput = Reput(log, last.size, rules_of("4.9"), lambda batch, count: None, is_master=True)
        with pytest.raises(UnreadableError, match="has become shorter"):
            reput.run(last.file_from_offset)
