"""`recover --apply` on damaged stores: sound afterwards, nothing valid lost, the same again, and back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random

import pytest

from rmqtool.cli import main
from rmqtool.errors import RefusedError, StoreInUseError, UnsupportedStoreError, UsageError
from rmqtool.problems import BY_CODE
from rmqtool.read.store import Store
from rmqtool.repair import plan as plans
from rmqtool.repair.recover import BROKERS, Request, plan_recover, predictions, recover_store, undo_recover
from rmqtool.storage import lock
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.support.build_store import LOG_FILE_SIZE, patch
from tests.support.records import record
from tests.support.recover_checks import (
    BEST,
    codes,
    is_filler,
    log_bytes,
    must_have_kept,
    opener,
    records,
    recovered,
)
from tests.support.salvage_stores import log_path, made
from tests.support.stores import Library, case, case_names, is_large, variant_id, variants
from tests.support.sweep import IS_WHOLE, in_sweeps, sample
from tests.support.trees import copy_tree, tree_rows
from tests.support.whole_store import keyed

pytestmark = pytest.mark.sweep

StoreCopy = Callable[[str], Path]
Unchanged = Callable[[Path], AbstractContextManager[None]]

# What recover leaves: sound for a broker and its consumers, or without a rule that would mend it.
STAYS = {
    "bad_cf13_old_offsets": {"CF13"},
    "bad_cf08_consumer_offsets_missing": {"CF08"},
    "bad_cf09_groups_missing": {"CF09"},
    "bad_cf10_offsets_replaced": {"CF10"},
    "bad_cl13_bad_properties": {"CL13"},
    "bad_cl17_no_store_time": {"CL17"},
    "bad_ep01_epoch_file": {"EP01"},
    "gap_rd10_table_missing": {"RD10", "TM04"},
    "gap_rd11_log_missing": {"RD11"},
    "gap_rd13_database_missing": {"RD13"},
    "gap_rd14_pop_database_missing": {"RD14"},
    "gap_rd15_manifest_cut": {"RD15"},
    "gap_tm04_timer_database_lost": {"RD13", "TM04"},
    "old_cl16_queue_made_anew": {"CL16"},
}
OF_COPIES = {"CC02", "CC03", "CC04", "CC05", *(f"TS{number:02}" for number in range(1, 8))}
"""In compaction logs and tiered storage, which recover does not touch."""
OUT_OF_REACH = {
    "old_un01_tiered", "gap_cl26_log_missing", "bad_cl12_unreadable", "bad_cp06_unreadable",
    "bad_cp08_wrong_type", "bad_cq15_unreadable", "bad_ix11_unreadable",
}  # fmt: skip
# Stores outside of the classic files are answered or refused by name: `tests/unit/check/test_kinds.py`.
CLASSIC = tuple(
    name
    for name in case_names()
    if not name.startswith(("kind_", "bad_dl", "gap_dl")) and not case(name).as_user
)
MENDED = tuple(name for name in CLASSIC if name not in OUT_OF_REACH)


def left(name: str) -> set[str]:
    """What recover leaves of a case."""
    found = set(case(name).codes or ())
    return found if found & OF_COPIES else STAYS.get(name, set())


@pytest.mark.parametrize(
    "name",
    [
        *sample([name for name in MENDED if not is_large(name)], 12),
        *in_sweeps(list(filter(is_large, MENDED))),
    ],
)
def test_every_fixture_is_sound_afterwards(store_copy: StoreCopy, name: str, tmp_path: Path) -> None:
    """Only notes are left, valid records stay, a second run changes nothing, undo gives all back."""
    root = store_copy(name)
    rows, before, log = tree_rows(root), records(root), log_bytes(root)
    outcome = recovered(root, backup=tmp_path / "backup")
    assert codes(root) == left(name)
    errors = {code for code in left(name) if BY_CODE[code].severity == "error"}
    seen = {code for code in errors if code[:2] not in ("CC", "RD", "TS")} - {"CL17"}
    assert seen <= set(outcome.recovery.plan.summary["remaining"])
    must_have_kept(before, log, records(root), outcome)
    again = tree_rows(root)
    second = recovered(root, backup=tmp_path / "second")
    assert (second.recovery.is_needed, tree_rows(root)) == (False, again)
    assert not (tmp_path / "second").exists()
    if name == "bad_cp05_repair_unfinished":
        return  # the guard alone was left: nothing to give back
    if outcome.backup is not None:
        undo_recover(opener(root), outcome.backup)
    lock_made = {row for row in tree_rows(root) if row[0] in (".", "lock")}
    assert {row for row in tree_rows(root)} - lock_made == {
        row for row in rows if row[0] not in (".", "lock")
    }


@pytest.mark.parametrize("name", sample(CLASSIC, 8))
def test_a_plan_changes_nothing(cases: Library, unchanged: Unchanged, name: str) -> None:
    """Not a byte, not a time, for no kind of damage."""
    root = cases.path(name)
    with unchanged(root), Store.open(root) as store:
        plan_recover(store, BEST)


@pytest.mark.parametrize(
    "name", ["gap_cl02_zero_hole", "gap_ix10_index_missing", "bad_cf06_topics_missing", "torn_540_killed"]
)
def test_a_plan_comes_out_the_same_again(cases: Library, name: str) -> None:
    """Whoever does it from a file makes it once more, and compares."""
    rows = []
    for _ in range(2):
        with Store.open(cases.path(name)) as store:
            rows.append(plan_recover(store, BEST).plan.rows())
    assert rows[0] == rows[1] != []


def sampled(version: str) -> list[str]:
    """Some variants of each kind of damage, with and without abort."""
    names = [variant_id(variant) for variant in variants(version)]
    return [f"{version}:{name}" for name in Random(version).sample(names, 6 if IS_WHOLE else 1)]


@pytest.mark.parametrize(
    "name", [name for version in ("4.9.7", "5.3.3", "5.4.0") for name in sampled(version)]
)
def test_a_damaged_variant_is_sound_afterwards(cases: Library, tmp_path: Path, name: str) -> None:
    """As the fixtures; these stores are what real brokers have left, and were judged by them."""
    cases.variant(name, tmp_path / "linked")
    root = copy_tree(tmp_path / "linked", tmp_path / "store")
    before, log = records(root), log_bytes(root)
    outcome = recovered(root, yes=True)
    assert codes(root) <= {"CL13", "CL14", "CL15", "CL16", "CF02", "CF07", "CF08", "CF09", "EP01"}
    must_have_kept(before, log, records(root), outcome)
    assert recovered(root).recovery.plan.actions == ()


@pytest.mark.parametrize("broker", BROKERS)
def test_mode_broker_ends_the_log_where_the_broker_does(cases: Library, tmp_path: Path, broker: str) -> None:
    """The prediction's end; zeros behind, so that nothing comes back; sound afterwards."""
    version = {"4.9": "4.9.7", "5.3": "5.3.3", "5.4": "5.4.0"}[broker]
    cases.variant(f"{version}:clean:flip-body-last-file:abort", tmp_path / "linked")
    root = copy_tree(tmp_path / "linked", tmp_path / "store")
    with Store.open(root) as store:
        (predicted,) = predictions(store, [broker])
    request = Request("broker", broker)
    with pytest.raises(RefusedError, match="sound"):
        recovered(root, request)
    outcome = recovered(root, request, yes=True)
    assert outcome.recovery.plan.summary["log_end"] == predicted["end_offset"]
    assert outcome.recovery.plan.summary["given_up_messages"] == predicted["messages_abandoned"] > 0
    after = records(root)
    assert max(place + len(record[3]) for place, record in after.items()) == predicted["end_offset"]
    assert not any(map(is_filler, after.values()))
    assert codes(root) == set()
    with Store.open(root) as store:
        (then,) = predictions(store, [broker])
    assert (then["end_offset"], then["messages_abandoned"]) == (predicted["end_offset"], 0)
    assert recovered(root, request).recovery.plan.actions == ()


def test_mode_broker_tells_what_the_start_after_it_does(store_copy: StoreCopy) -> None:
    """A start after a crash looks at the newest file only; the one after it finds the damage before."""
    root = store_copy("ok_497_clean")
    with sorted((root / "commitlog").iterdir())[-2].open("r+b") as file:
        file.seek(600_000)
        file.write(b"\x55" * 3000)
    (root / "abort").touch()
    with Store.open(root) as store:
        end = store.end_offset()
        plan = plan_recover(store, Request("broker", "4.9")).plan
    (warning,) = plan.summary["warnings"]
    recovered(root, Request("broker", "4.9"))
    with Store.open(root) as store:
        assert store.end_offset() == end
        (then,) = predictions(store, ["4.9"])
    assert then["end_offset"] < end
    assert f"ends the log at {then['end_offset']}" in warning


def test_mode_broker_once_more_says_why_it_cuts_again(tmp_path: Path) -> None:
    """4.9 looks at the last three files: when those behind the damage are gone, at an earlier one.

    The first run warns of it, and each names what is wrong where it cuts.
    """
    root = tmp_path / "store"
    stored = made(root, keyed(55, body=200))
    first_of = {one.physical_offset // LOG_FILE_SIZE: one for one in reversed(stored)}
    damaged = [stored[stored.index(first_of[number]) + 1] for number in (3, 1)]
    assert max(first_of) == 4
    for one in damaged:
        patch(log_path(root, one.physical_offset), one.physical_offset % LOG_FILE_SIZE + 100, b"!!!!")
    request = Request("broker", "4.9")
    plans = [recovered(root, request, tmp_path / name, yes=True).recovery.plan for name in ("a", "b", "c")]
    ends = [one.physical_offset for one in damaged]
    assert [plan.summary["log_end"] for plan in plans] == [*ends, ends[1]]
    assert plans[2].actions == ()
    for plan, end in zip(plans[:2], ends, strict=True):
        cut = next(action for action in plan.actions if action.kind == "cut")
        assert cut.problem == "CL03"
        assert f"ends the log at {end} because of CL03, the body does not match its CRC" in cut.reason
    again = [text for text in plans[0].summary["warnings"] if "a second run truncates the log there" in text]
    assert len(again) == 1 and f"ends the log at {ends[1]}" in again[0]
    assert not any("a second run" in text for text in plans[1].summary["warnings"])


def test_without_fillers_the_tail_goes_to_a_file_for_append(cases: Library, tmp_path: Path) -> None:
    """The log ends at the hole; the messages behind it can be put again."""
    from rmqtool.cli import main

    cases.variant("5.4.0:clean:flip-body-last-file:noabort", tmp_path / "linked")
    root = copy_tree(tmp_path / "linked", tmp_path / "store")
    before = records(root)
    request = Request(fill="none")
    with pytest.raises(RefusedError, match="sound"):
        recovered(root, request)
    outcome = recovered(root, request, yes=True)
    after = records(root)
    lost = {place: record for place, record in before.items() if place not in after}
    assert all(after[place] == before[place] for place in after) and lost
    assert outcome.tail.path is not None and outcome.tail.messages == len(lost)
    assert (outcome.tail.incomplete, outcome.tail.refused) == (0, 0)
    assert codes(root) == set()
    assert main(["append", str(root), "--input", str(outcome.tail.path), "--quiet"]) == 0
    put = sorted(
        (record[0], record[3][-200:]) for place, record in records(root).items() if place not in after
    )
    assert len(put) == len(lost)


def test_an_index_of_expired_records_before_one_that_is_made_anew(store_copy: StoreCopy) -> None:
    """The keys of its newest record are not in the log any more, and not in the new files."""
    root = store_copy("ok_497_clean")
    (root / "commitlog" / "00000000000000000000").unlink()
    with (root / "commitlog" / "00000000000001048576").open("r+b") as file:
        file.seek(6806)
        file.write(b"\x12\x34\x56\x78")
    assert recovered(root, BEST).recovery.plan.actions
    assert codes(root) == set()
    assert recovered(root, BEST).recovery.plan.actions == ()


def test_without_fillers_a_log_whose_first_record_is_lost_is_emptied(
    store_copy: StoreCopy, tmp_path: Path
) -> None:
    """Its queues too, at their offsets: a unit behind the log's end would name what comes there later."""
    root = store_copy("ok_540_expired")
    oldest = min((root / "commitlog").iterdir())
    with oldest.open("r+b") as file:
        file.seek(100)
        file.write(bytes(50))
    with Store.open(root) as store:
        ends = {queue: store.max_offset(*queue) for queue in store.queues}
    outcome = recovered(root, Request(fill="none"), yes=True)
    assert not records(root) and outcome.tail.messages > 400
    assert codes(root) == set()
    assert recovered(root, Request(fill="none")).recovery.plan.actions == ()
    with Store.open(root) as store:
        for queue in store.queues:
            end = store.max_offset(*queue)
            assert end <= ends[queue] and store.min_offset(*queue) in (end, -1)


def test_a_plan_file_is_done_as_it_was_shown(store_copy: StoreCopy, tmp_path: Path) -> None:
    """And refused, naming the file, once the store has changed."""
    root, other = store_copy("gap_cl02_zero_hole"), tmp_path / "other"
    copy_tree(root, other)
    with Store.open(root) as store:
        recovery = plan_recover(store, BEST)
    plans.write_plan(recovery.plan, store.layout, tmp_path / "plan")
    outcome = recover_store(opener(root), None, plan_file=tmp_path / "plan")
    assert outcome.recovery.plan.rows() == recovery.plan.rows()
    assert codes(root) == set()
    (other / "config" / "topics.json").touch()
    with pytest.raises(RefusedError, match="topics.json"):
        recover_store(opener(other), None, plan_file=tmp_path / "plan")


def test_a_store_in_use_is_not_touched(store_copy: StoreCopy, unchanged: Unchanged) -> None:
    """Exit code 5."""
    root = store_copy("torn_540_killed")
    held = lock.acquire(root / "lock")
    try:
        with unchanged(root), pytest.raises(StoreInUseError):
            recovered(root)
    finally:
        held.release()


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("ok_540_small_ipv6", "config/topics/CURRENT"),
        ("ok_540_small_ipv6", "config/tieredStoreMetadata.json"),
        ("gap_cl26_log_missing", ""),
    ],
)
def test_what_is_out_of_reach_or_would_empty_queues_is_refused(
    store_copy: StoreCopy, unchanged: Unchanged, name: str, mark: str
) -> None:
    """RocksDB, tiered storage, a log without files. Nothing is changed but the lock file."""
    root = store_copy(name)
    if mark:
        (root / mark).parent.mkdir(exist_ok=True)
        (root / mark).write_text("MANIFEST-000004\n")
    if not (root / "lock").exists():
        (root / "lock").write_bytes(b"lock")
    with unchanged(root), pytest.raises((RefusedError, UnsupportedStoreError)):
        recovered(root)


def test_the_log_of_a_slave_is_changed_only_by_force(store_copy: StoreCopy, tmp_path: Path) -> None:
    """Queues and index of a slave are its own."""
    root = store_copy("gap_cl02_zero_hole")
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerRole=SLAVE\n")

    def open_store() -> Store:
        return Store.open(root, broker_conf=conf)

    with pytest.raises(RefusedError, match="SLAVE"):
        recover_store(open_store, BEST)
    recover_store(open_store, BEST, force=True)
    assert codes(root) == set()
    queue = store_copy("bad_cq05_wrong_unit")
    recover_store(lambda: Store.open(queue, broker_conf=conf), BEST)
    assert codes(queue) == set()


def test_undo_is_refused_once_a_broker_has_written(store_copy: StoreCopy, tmp_path: Path) -> None:
    """Here an append has."""
    from rmqtool import NewMessage

    root = store_copy("gap_cl02_zero_hole")
    outcome = recovered(root, backup=tmp_path / "backup")
    assert outcome.backup is not None
    with StoreWriter.open(root, auto_create_queues=1) as writer:
        writer.put(NewMessage("Fresh", b"new", queue_id=0))
    rows = tree_rows(root)
    with pytest.raises(RefusedError):
        undo_recover(opener(root), outcome.backup)
    assert tree_rows(root) == rows


def test_requests_that_contradict_themselves_are_usage_errors() -> None:
    """A broker's outcome needs one broker, and fills nothing."""
    for values in (("broker",), ("best", "5.4"), ("broker", "5.4", "none")):
        with pytest.raises(UsageError):
            Request(*values)


def test_light_queues_are_written_anew(tmp_path: Path) -> None:
    """What records say of light queues is enough; units in them are no strays."""
    root = tmp_path / "store"
    names = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
    made_of = [
        record("Real", b"x" * 50, {**names, "INNER_MULTI_QUEUE_OFFSET": f"{n},{n}"}, queue_offset=n)
        for n in range(30)
    ]
    made(root, made_of)
    recovered(root, backup=tmp_path / "first")
    before = tree_rows(root / "consumequeue")
    shutil.rmtree(root / "consumequeue/%LMQ%b")
    recovered(root, backup=tmp_path / "second")
    with Store.open(root) as store:
        ends = {key: store.max_offset(*key) for key in store.queues}
    assert ends == {("Real", 0): 30, ("%LMQ%a", 0): 30, ("%LMQ%b", 0): 30}
    assert [row[:2] for row in tree_rows(root / "consumequeue")] == [row[:2] for row in before]
    assert codes(root) == {"CF08"}  # a store in use without config has lost its offsets
    assert recovered(root).recovery.plan.actions == ()


def test_a_record_has_fewer_keys_than_a_full_index_file_has_entries_for_it(tmp_path: Path) -> None:
    """The last record of the file has lost its last bytes, with a key: the file stays, others are made."""
    root = tmp_path / "store"
    with StoreWriter.create(root, auto_create_queues=1, index_slots=10, index_entries=40) as writer:
        results = [
            writer.put(NewMessage("Topic", b"body", keys=[f"key{number}"], tags="Tag"))
            for number in range(30)
        ]
    last = results[12]  # a file has 39 entries, a message three keys
    path = next((root / "commitlog").iterdir())
    data = path.read_bytes()[last.physical_offset : last.physical_offset + last.size]
    lost = max(data.index(b"KEYS"), data.index(b"TAGS"))
    patch(path, last.physical_offset + lost, bytes(last.size - lost))
    first, *others = sorted((root / "index").iterdir())
    before = first.read_bytes()
    for other in others:
        other.unlink()
    recovered(root)
    assert first.read_bytes() == before
    assert codes(root) <= {"CL13", "IX08", "CF08"}
    assert main(["lookup", str(root), "--key", "key20", "--topic", "Topic", "--scan", "never"]) == 0
