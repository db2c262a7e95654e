"""What follows a cut beside log, queues and index: offsets, timer, epoch file, checkpoint, abort, strays."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from rmqtool.check.verify import verify
from rmqtool.cli import main
from rmqtool.formats import checkpoint, epoch
from rmqtool.formats import timer as timer_format
from rmqtool.read.consumer_offsets import consumer_offsets
from rmqtool.read.half_checks import find_checks
from rmqtool.read.store import Store
from rmqtool.repair.plan import Action
from rmqtool.repair.rebuild import plan_rebuild
from rmqtool.repair.recover import offsets, side_files, state, timer
from rmqtool.repair.recover.after import After
from tests.support.records import record
from tests.support.whole_store import write_whole

StoreCopy = Callable[[str], Path]
WHEEL = timer_format.WHEEL_SIZE
UNIT = timer_format.LOG_UNIT.size
HALF, OP, CHECKS = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "CID_RMQ_SYS_TRANS"


def as_it_is(root: Path) -> After:
    """What a plan that keeps the log and the queues would leave."""
    with Store.open(root) as store:
        newest = next(store.messages(reverse=True, damage="skip"))
        return After(
            log_end=store.end_offset(),
            last_store_timestamp=newest.message.store_timestamp,
            index_timestamp=0,
            queues={key: (store.min_offset(*key), store.max_offset(*key)) for key in store.queues},
            changes=False,
        )


def do(root: Path, actions: Iterable[Action]) -> None:
    """The changes, without any care."""
    for action in actions:
        path = root / action.path
        if action.kind in ("create", "replace"):
            assert action.content is not None
            path.write_bytes(action.content)
        elif action.kind == "delete":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        else:
            data = action.content if action.content is not None else bytes(action.length)
            with path.open("r+b") as file:
                file.seek(action.offset)
                file.write(data)


def codes(root: Path, *passes: str) -> set[str]:
    """What `verify` finds in these passes."""
    with Store.open(root) as store:
        return {found.problem.code for found in verify(store, passes=passes)}


# Offsets


def offset_actions(root: Path, after: After) -> list[Action]:
    with Store.open(root) as store:
        actions, warnings = offsets.offset_actions(store, after, None)
    assert warnings == []
    return actions


@pytest.mark.parametrize(
    ("case", "code", "moved"),
    [
        ("bad_cf04_consumer_offset", "CF04", 1),
        ("bad_cf05_delay_offset", "CF05", 1),
    ],
)
def test_offsets_beyond_a_queue_go_back_to_its_end(
    store_copy: StoreCopy, case: str, code: str, moved: int
) -> None:
    """Only those; all other text of the file stays, and there is nothing left to move.

    For groups a field is added: without it, the .bak would look like what was lost (CF11).
    """
    root = store_copy(case)
    after = as_it_is(root)
    (action,) = offset_actions(root, after)
    before = (root / action.path).read_text()
    assert (action.problem, action.detail["offsets"]) == (code, moved)
    for change in action.detail["moved"]:
        topic = change.get("topic", "SCHEDULE_TOPIC_XXXX")
        queue = (topic, change.get("queue_id", change.get("level", 1) - 1))
        assert change["to"] == after.queues[queue][1] < change["from"]
    assert code in codes(root, "config", "log", "queues")
    do(root, [action])
    assert code not in codes(root, "config", "log", "queues")
    text = (root / action.path).read_text()
    noted = '\n\t},\n\t"rmqtoolOffsetsSetBack":true\n}'
    assert text.endswith(noted) == (code == "CF04")
    text = text.replace(noted, "\n\t}\n}")
    lines = [pair for pair in zip(before.splitlines(), text.splitlines(), strict=True) if pair[0] != pair[1]]
    assert len(lines) == moved
    assert offset_actions(root, after) == []


def test_offsets_beyond_a_queue_name_group_and_queue(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the messages at stake, and a line that makes the group receive them again; it is run."""
    root = store_copy("bad_cf04_consumer_offset")
    monkeypatch.setenv("COLUMNS", "10000")

    def shown(*words: str) -> str:
        capsys.readouterr()
        main([*words])
        return "".join(capsys.readouterr())

    names = (
        "pubipv6_group is past the end of queue 0 of pubipv6B: set to the end, it skips what it has not read"
    )
    line = f"rmqtool reset-offset {root} --group pubipv6_group --topic pubipv6B --queue 0 --from earliest"
    for command in ("verify", "recover"):
        out = shown(command, str(root))
        assert f"{names} there, up to 121 messages; to repeat all of them instead" in out and line in out
    (row,) = [json.loads(each) for each in lines_of(capsys, "verify", str(root), "--json") if "CF04" in each]
    assert row["detail"]["messages"] == 121
    assert row["message"] == (
        "the committed offset of pubipv6_group in queue 0 of pubipv6B is 9999, past its end, 121"
    )
    out = shown("doctor", str(root))
    assert "--from latest skips what it has not" in out and out.splitlines()[-1].endswith(line)
    out = shown("recover", str(root), "--apply")
    assert names in out and line in out and "after --apply:" not in out
    assert main([*shlex.split(line)[1:], "--apply"]) == 0
    with Store.open(root) as store:
        assert consumer_offsets(store)["pubipv6B", "pubipv6_group"] == {0: 0}


def lines_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """What a command writes to standard output."""
    capsys.readouterr()
    main([*words])
    return capsys.readouterr().out.splitlines()


def test_a_queue_that_loses_its_end_takes_its_groups_back(store_copy: StoreCopy) -> None:
    """Every group's offset behind the new end; the same plan a second time."""
    root = store_copy("ok_540_clean")
    before = as_it_is(root)
    with Store.open(root) as store:
        from rmqtool.storage.config_files import read_config

        document = read_config(root / "config", "consumerOffset.json").document
        committed = offsets.config_json.consumer_offsets(document)
        assert store.queues
    name, queues = next((name, queues) for name, queues in committed.items() if any(queues.values()))
    queue_id, offset = next(item for item in queues.items() if item[1])
    shorter = {**before.queues, (name[0], queue_id): (0, offset - 1)}
    after = replace(before, queues=shorter)
    actions = offset_actions(root, after)
    moved = [change for action in actions for change in action.detail["moved"] if "group" in change]
    assert {
        "topic": name[0],
        "group": name[1],
        "queue_id": queue_id,
        "from": offset,
        "to": offset - 1,
        "queue_end": offset - 1,
        "messages": offset - 1,
    } in moved
    assert offset_actions(root, after) == actions


def test_offsets_that_cannot_be_understood_are_named_and_kept(store_copy: StoreCopy) -> None:
    """No change, a warning."""
    root = store_copy("ok_540_small_ipv6")
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (root / "config" / name).write_text('{"offsetTable":{"a@b":[]}}')
    with Store.open(root) as store:
        actions, warnings = offsets.offset_actions(store, as_it_is(root), None)
    assert actions == []
    assert len(warnings) == 1 and warnings[0].startswith("config/consumerOffset.json ")


def checked_store(root: Path, half_offset: int, op_offset: int) -> None:
    """Half messages 0 to 6: a filler, finished, put back (as 4), open, the copy, finished, given up.

    The op records name 1 and 5. Message 4 is open as well.
    """
    real = {"REAL_TOPIC": "T", "REAL_QID": "0"}
    halves = [record(HALF, b"x", queue_offset=0)]
    for queue_offset, key in enumerate(("B", "C", "D", "C", "F", "G"), 1):
        halves.append(record(HALF, b"x", {"UNIQ_KEY": key, **real}, queue_offset=queue_offset))
    ops = [record(OP, body, queue_offset=n) for n, body in enumerate((b"1", b"5,"))]
    given_up = record("TRANS_CHECK_MAX_TIME_TOPIC", b"x", {"UNIQ_KEY": "G", **real})
    write_whole(root, [*halves, *ops, given_up])
    table = {f"{HALF}@{CHECKS}": {"0": half_offset}, f"{OP}@{CHECKS}": {"0": op_offset}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))


@pytest.mark.parametrize(
    ("half_offset", "op_offset", "half", "op", "count"),
    [
        (99, 99, 3, 1, 2),  # the first open one, and the op record that names 5
        (99, 2, 3, 1, 1),  # without that record 5 would be checked again
        (99, 1, 3, 1, 1),
        (7, 99, 7, 2, 1),
        (2, 99, 2, 1, 1),
    ],
)
def test_the_checks_of_half_messages_go_on_at_the_first_open_one(
    half_offset: int, op_offset: int, half: int, op: int, count: int, tmp_path: Path
) -> None:
    """Not at the end, where no open transaction would be checked; of op records at the first one needed."""
    checked_store(tmp_path, half_offset, op_offset)
    (action,) = offset_actions(tmp_path, as_it_is(tmp_path))
    assert action.reason.startswith(f"{count} committed offset")
    assert [each["open"] for each in action.detail["moved"] if "open" in each] == [2] * (half_offset == 99)
    do(tmp_path, [action])
    with Store.open(tmp_path) as store:
        assert consumer_offsets(store) == {(HALF, CHECKS): {0: half}, (OP, CHECKS): {0: op}}
    assert offset_actions(tmp_path, as_it_is(tmp_path)) == []


@pytest.mark.parametrize("case", ["ok_533_clean", "ok_540_clean", "ok_540_expired"])
def test_the_checks_go_on_where_a_broker_had_them(case: str, store_copy: StoreCopy) -> None:
    """Found from the log alone: the very offsets that a real broker had committed."""
    with Store.open(store_copy(case)) as store:
        committed, (checks,) = consumer_offsets(store), find_checks(store).values()
        halves, ops = ((store.first_live(topic, 0), store.max_offset(topic, 0)) for topic in (HALF, OP))
    first = checks.first_open(halves)
    assert committed[HALF, CHECKS] == {0: first} and halves[0] < first < halves[1]
    assert committed[OP, CHECKS] == {0: checks.first_op(first, ops)}


def test_no_line_resets_a_group_of_the_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be refused; verify, doctor and recover name recover, and what it does."""
    checked_store(tmp_path, 99, 1)
    monkeypatch.setenv("COLUMNS", "10000")

    def shown(*words: str) -> str:
        capsys.readouterr()
        main([*words])
        return "".join(capsys.readouterr())

    assert f"the first of them: rmqtool recover {tmp_path}" in shown("verify", str(tmp_path))
    out = shown("doctor", str(tmp_path))
    assert f"rmqtool recover sets that of {CHECKS}" in out
    assert out.splitlines()[-1] == f"next      rmqtool recover {tmp_path}"
    for words in (("recover", str(tmp_path)), ("recover", str(tmp_path), "--apply")):
        out = shown(*words)
        assert f"{CHECKS} is past the end of queue 0 of {HALF}: set to 3, the first of 2 open half" in out
        assert "reset-offset" not in out
    assert "CF04" not in shown("doctor", str(tmp_path))


# Timer


def timer_actions(root: Path, after: After) -> list[Action]:
    with Store.open(root) as store:
        actions, warnings = timer.timer_actions(store, after)
    assert warnings == []
    return actions


def units_of(root: Path) -> list[timer_format.LogUnit]:
    data = (root / "timerlog" / f"{0:020}").read_bytes()
    return [unit for _, unit in timer_format.decode_log(data) if isinstance(unit, timer_format.LogUnit)]


def slots_of(root: Path) -> dict[int, timer_format.Slot]:
    """Every slot that is in use, by index."""
    data, size = (root / "timerwheel").read_bytes(), timer_format.SLOT.size
    return {
        number: timer_format.decode_slot(data, number * size)
        for number in range(len(data) // size)
        if any(data[number * size : (number + 1) * size])
    }


def test_a_sound_timer_needs_no_change(store_copy: StoreCopy) -> None:
    """Nothing is planned for it."""
    root = store_copy("ok_540_clean")
    assert units_of(root) and slots_of(root)
    assert timer_actions(root, as_it_is(root)) == []


def test_a_wheel_of_wrong_size_is_made_anew_from_its_log(store_copy: StoreCopy) -> None:
    """Each slot's chain begins and ends where the broker's own wheel has it."""
    root = store_copy("ok_540_clean")
    own = slots_of(root)
    os.truncate(root / "timerwheel", 32_000)
    (action,) = timer_actions(root, as_it_is(root))
    assert (action.kind, action.length, action.problem) == ("replace", WHEEL, "TM01")
    do(root, [action])
    made = slots_of(root)
    assert {n: (s.time, s.first_position, s.last_position) for n, s in made.items()} == {
        n: (s.time, s.first_position, s.last_position) for n, s in own.items()
    }
    assert codes(root, "timer") == set()


def test_units_behind_the_logs_end_go_and_their_slots_follow(store_copy: StoreCopy) -> None:
    """The timer log ends at the first of them; no slot points there; timercheck is not ahead."""
    root = store_copy("ok_540_clean")
    units = units_of(root)
    cut = len(units) // 2
    after = replace(as_it_is(root), log_end=units[cut].physical_offset)
    do(root, timer_actions(root, after))
    assert units_of(root) == units[:cut]
    assert all(
        0 <= slot.first_position <= slot.last_position < cut * UNIT for slot in slots_of(root).values()
    )
    for slot in slots_of(root).values():
        unit = units[slot.last_position // UNIT]
        assert unit.deliver_time // 1000 == slot.time
    check = timer_format.decode_check((root / "config" / "timercheck").read_bytes())
    assert check.last_timer_log_flush_position <= cut * UNIT
    assert timer_actions(root, after) == []


@pytest.mark.parametrize("damage", ["a unit", "the first unit", "zeros"])
def test_after_a_damaged_unit_the_pending_messages_get_units(damage: str, store_copy: StoreCopy) -> None:
    """A broker would end the timer log there and write its units again, with links to themselves."""
    name = "bad_tm02_timer_unit" if damage == "a unit" else "ok_540_clean"
    root = store_copy(name)
    with (root / "timerlog" / f"{0:020}").open("r+b") as file:
        if damage == "the first unit":
            file.write(struct.pack(">i", 51))
        elif damage == "zeros":
            file.seek(10 * UNIT - 8)
            file.write(bytes(512))
    after = as_it_is(root)
    assert codes(root, "timer") == {"TM02"}
    do(root, timer_actions(root, after))
    assert codes(root, "timer") == set()
    assert [unit.physical_offset for unit in units_of(root)] == [3684021, 3684578, 3684945, 3685308]
    check = timer_format.decode_check((root / "config" / "timercheck").read_bytes())
    assert check.last_timer_queue_offset == after.queues["rmq_sys_wheel_timer", 0][1]
    assert timer_actions(root, after) == []


def test_units_that_are_gone_of_messages_that_have_expired(
    store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer log ends there, and neither slots nor timercheck lead behind it."""
    monkeypatch.setattr("rmqtool.read.timer_loss._records", lambda store: iter(()))
    root = store_copy("ok_540_clean")
    units = units_of(root)
    with (root / "timerlog" / f"{0:020}").open("r+b") as file:
        file.seek(10 * UNIT)
        file.write(bytes(2 * UNIT))
    after = as_it_is(root)
    assert codes(root, "timer") == {"TM02"}
    do(root, timer_actions(root, after))
    assert codes(root, "timer") == set() and units_of(root) == units[:10]
    assert all(slot.last_position < 10 * UNIT for slot in slots_of(root).values())
    assert timer_actions(root, after) == []


def test_bytes_behind_the_timer_logs_end_are_zeroed(store_copy: StoreCopy) -> None:
    """What verify names for TM02 is done, and no unit goes."""
    root = store_copy("ok_540_clean")
    units, slots = units_of(root), slots_of(root)
    with (root / "timerlog" / f"{0:020}").open("r+b") as file:
        file.seek((len(units) + 2) * UNIT + 7)
        file.write(b"\x5d")
    after = as_it_is(root)
    assert codes(root, "timer") == {"TM02"}
    actions = timer_actions(root, after)
    assert [(action.kind, action.path, action.offset) for action in actions] == [
        ("cut", f"timerlog/{0:020}", len(units) * UNIT)
    ]
    do(root, actions)
    assert codes(root, "timer") == set() and timer_actions(root, after) == []
    assert (units_of(root), slots_of(root)) == (units, slots)


def test_of_two_times_that_share_a_slot_the_later_stands() -> None:
    """Positions and counts are those of its units alone."""
    import numpy as np

    ring = timer_format.DEFAULT_SLOTS
    times = np.array([5, 5 + ring, 7, 5, 5 + ring], np.int64)
    units = timer.TimedUnits(np.arange(5, dtype=np.int64) * UNIT, times)
    data = timer.new_wheel(units)
    assert timer_format.decode_slot(data, 5 * 32) == (5 + ring, UNIT, 4 * UNIT, 2, 0)
    assert timer_format.decode_slot(data, 7 * 32) == (7, 2 * UNIT, 2 * UNIT, 1, 0)
    assert len(data) == WHEEL and data.count(0) > WHEEL - 64


# The small files


def test_epochs_behind_the_logs_end_are_taken_out(store_copy: StoreCopy) -> None:
    """One that begins at the end stays: a new master has written nothing yet."""
    root = store_copy("ok_540_small_ipv6")
    after = as_it_is(root)
    end = after.log_end
    path = root / "epochFileCheckpoint"
    path.write_bytes(epoch.encode([epoch.Entry(1, 0), epoch.Entry(2, end), epoch.Entry(3, end + 1)]))
    with Store.open(root) as store:
        (action,), warnings = side_files.epoch_actions(store, after)
    assert warnings == []
    do(root, [action])
    assert epoch.decode(path.read_bytes()) == [(1, 0), (2, end)]
    with Store.open(root) as store:
        assert side_files.epoch_actions(store, after) == ([], [])


def test_a_damaged_epoch_file_is_its_bak_or_named(store_copy: StoreCopy) -> None:
    """Without a sound .bak nobody knows the epochs."""
    root = store_copy("bad_ep01_epoch_file")
    after = as_it_is(root)
    with Store.open(root) as store:
        actions, warnings = side_files.epoch_actions(store, after)
    assert actions == [] and len(warnings) == 1
    good = epoch.encode([epoch.Entry(1, 0)])
    (root / "epochFileCheckpoint.bak").write_bytes(good)
    with Store.open(root) as store:
        (action,), _ = side_files.epoch_actions(store, after)
    assert action.content == good


def test_a_compaction_checkpoint_that_cannot_be_read_goes_or_is_its_bak(store_copy: StoreCopy) -> None:
    """Compaction begins anew, or where the .bak says."""
    root = store_copy("bad_cc01_compaction")
    with Store.open(root) as store:
        (action,) = side_files.compaction_actions(store)
    assert action.kind == "delete"
    bak = root / "compaction" / "position-checkpoint.bak"
    bak.write_text('{"empty":false,"queueOffsetMap":{"t_0":3}}')
    with Store.open(root) as store:
        (action,) = side_files.compaction_actions(store)
    do(root, [action])
    assert codes(root, "timer") == set()


def test_strays_among_queues_and_index_go(store_copy: StoreCopy) -> None:
    """Files and folders alike."""
    for case in ("bad_cq11_stray_entry", "bad_ix07_stray_entry"):
        root = store_copy(case)
        assert codes(root, "files") != set()
        with Store.open(root) as store:
            actions = plan_rebuild(store, strays=True).actions
        do(root, actions)
        assert codes(root, "files") == set()


@pytest.mark.parametrize(
    ("case", "changes", "kinds"),
    [
        ("ok_540_clean", False, []),
        ("ok_540_clean", True, []),
        ("old_cp07_checkpoint_behind", False, []),
        ("old_cp07_checkpoint_behind", True, ["replace checkpoint"]),
        ("old_cp01_checkpoint_missing", False, ["create checkpoint"]),
        ("bad_cp02_checkpoint_size", False, ["replace checkpoint"]),
        ("bad_cp03_checkpoint_in_future", False, ["replace checkpoint"]),
        ("torn_540_killed", False, ["replace checkpoint", "delete abort"]),
        ("torn_497_killed", False, ["replace checkpoint", "delete abort"]),
    ],
)
def test_checkpoint_and_abort(store_copy: StoreCopy, case: str, changes: bool, kinds: list[str]) -> None:
    """Written where it is wrong, or where something else has changed; the second time nothing is left."""
    root = store_copy(case)
    after = replace(as_it_is(root), changes=changes)
    with Store.open(root) as store:
        actions = state.closing_actions(store, after)
    found = [f"{action.kind} {action.path}" for action in actions]
    if case == "ok_540_clean" and changes:
        found = [each for each in found if each != "replace checkpoint"]  # no index file is full
    assert found == kinds
    do(root, actions)
    assert codes(root, "checkpoint", "log") & {"CP01", "CP02", "CP03", "CP04"} == set()
    if actions:
        values = checkpoint.decode((root / "checkpoint").read_bytes())
        assert values.physic_msg_timestamp == values.logics_msg_timestamp == after.last_store_timestamp
    with Store.open(root) as store:
        assert state.closing_actions(store, after) == []
