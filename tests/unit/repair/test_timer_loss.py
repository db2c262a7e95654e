"""The timer after one of its files is lost: every pending message once, no delivered one again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rmqtool.cli import main
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK
from rmqtool.formats import timer
from rmqtool.repair.recover.timer_loss import DEFAULT_LOG_FILE_SIZE, Timed, _files, _units
from rmqtool.storage.layout import StoreLayout
from tests.support.build_store import patch
from tests.support.stores import Library
from tests.support.sweep import sample
from tests.support.whole_store import codes_of, findings_of

STORE = "kind_tiered_540"  # three timer messages were delivered, four are pending
CHECK = "config/timercheck"
LOST = (("timerwheel",), ("timerlog",), (CHECK,), ("timerwheel", "timerlog"), ("timerlog", CHECK),
        ("timerwheel", CHECK), ("timerwheel", "timerlog", CHECK))  # fmt: skip
DUE = [1795420807000, 1795424407000, 1795428007000, 1795672807000]
PLACES = [28406, 28764, 29122, 29481]
DELIVERED_MS = 1795417211000
READ_MS = 1795417258000
CONF = "mappedFileSizeTimerLog=1048576\n"


def units_of(root: Path) -> list[timer.LogUnit]:
    found = []
    for path in sorted((root / "timerlog").iterdir()):
        found += [unit for _, unit in timer.decode_log(path.read_bytes()) if isinstance(unit, timer.LogUnit)]
    return found


def slots_of(root: Path) -> dict[int, timer.Slot]:
    slots = np.frombuffer((root / "timerwheel").read_bytes(), timer.SLOT.dtype)
    return {int(number): timer.Slot(*slots[number].tolist()) for number in np.flatnonzero(slots["num"])}


def lose(root: Path, names: Sequence[str]) -> None:
    for name in names:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.sweep
@pytest.mark.parametrize("names", sample(LOST, 2), ids="+".join)
def test_every_pending_message_is_there_once(
    names: tuple[str, ...], cases: Library, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root, conf = cases.copy(STORE, tmp_path / "store"), tmp_path / "broker.conf"
    before = units_of(root)
    assert not codes_of(root, passes=["timer"])
    conf.write_text(CONF)
    lose(root, names)
    assert codes_of(root, passes=["timer"]) == ["TM03"]
    assert main(["recover", str(root), "--broker-conf", str(conf)]) == EXIT_FINDINGS
    assert main(["recover", str(root), "--broker-conf", str(conf), "--apply"]) == EXIT_OK
    check = timer.decode_check((root / CHECK).read_bytes())
    assert check.last_timer_queue_offset == check.master_timer_queue_offset == 7
    assert check.last_read_time == (DELIVERED_MS + 1000 if CHECK in names else READ_MS)
    if names == ("timerwheel",):
        assert units_of(root) == before and len(slots_of(root)) == 7
    else:
        units = units_of(root)
        assert check.last_timer_log_flush_position == 52 * len(units)
        assert [unit.physical_offset for unit in units] == PLACES
        assert [unit.deliver_time for unit in units[:3]] == DUE[:3]
        assert [unit.magic for unit in units] == [1, 1, 1, 3]
        assert [unit.topic_hash for unit in units] == [unit.topic_hash for unit in before[3:]]
        assert units[3].delay == 172_800_000
    slots = slots_of(root)
    for position, unit in enumerate(units_of(root)):
        slot = slots[unit.deliver_time // 1000 % timer.DEFAULT_SLOTS]
        assert slot == timer.Slot(unit.deliver_time // 1000, 52 * position, 52 * position, 1)
    assert not codes_of(root, passes=["timer"])
    assert (root / "timerlog" / f"{0:020}").stat().st_size == 1 << 20
    capfd.readouterr()
    assert main(["recover", str(root), "--broker-conf", str(conf)]) == EXIT_OK


def test_the_text_says_what_a_broker_would_do(
    cases: Library, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = {
        "timerlog": "the timer log is lost: a broker never delivers 4 pending messages",
        CHECK: "timercheck is lost: a broker delivers 4 pending messages twice, and 3 delivered ones again",
    }
    for name, text in expected.items():
        root = cases.copy(STORE, tmp_path / name.replace("/", "-"))
        lose(root, [name])
        assert main(["stats", str(root), "--delayed", "--json"]) == EXIT_OK
        rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert sum(row["count"] for row in rows if row["kind"] == "timer") == len(DUE)
        assert main(["verify", str(root)]) == EXIT_FINDINGS
        out, err = capfd.readouterr()
        assert text in out and "TM03" in out and f"rmqtool recover {root}" in err
        assert main(["recover", str(root)]) == EXIT_FINDINGS
        out, err = capfd.readouterr()
        assert text in out
        assert ("the new ones have the default, 100 MiB" in out + err) == (name == "timerlog")


LOG = f"timerlog/{0:020}"


def pending_of(root: Path, before: int, capfd: pytest.CaptureFixture[str]) -> list[int]:
    """The number of pending timer messages: as stats, as expire up to `before`, and as verify says."""
    capfd.readouterr()
    assert main(["stats", str(root), "--delayed", "--json"]) == EXIT_OK
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert main(["expire", str(root), "--before", str(before), "--json"]) in (EXIT_OK, EXIT_FINDINGS)
    pending = json.loads(capfd.readouterr().out)["pending"]
    main(["verify", str(root), "--pass", "timer", "--json"])
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    return [
        sum(row["count"] for row in rows if row["kind"] == "timer"),
        *(row["messages"] for row in pending if row["kind"] == "timer"),
        *(row["detail"]["pending"] for row in found if "pending" in row.get("detail", {})),
    ]


GONE = "units of the timer log are gone: a broker runs out of memory at the first of 4 pending messages"


def test_units_that_are_gone(cases: Library, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """All commands know the pending messages from the log, and say what a start does."""
    root = cases.copy("torn_540_killed", tmp_path / "store")
    before = 4 << 20
    assert pending_of(root, before, capfd) == [4, 4]
    patch(root / LOG, 512, bytes(512))
    assert pending_of(root, before, capfd) == [4, 4, 4]
    for words in (["verify", "--pass", "timer"], ["doctor"], ["recover"]):
        main([words[0], str(root), *words[1:]])
        out = " ".join("".join(capfd.readouterr()).split())
        assert GONE in out and "loses nothing" not in out, words
    trace = ["lookup", str(root), "--key", "pendingTimer0", "--trace", "--json"]
    assert main(trace) == EXIT_OK
    assert [json.loads(line)["state"] for line in capfd.readouterr().out.splitlines()] == ["waiting"]
    assert main(["recover", str(root), "--apply"]) == EXIT_OK
    assert not codes_of(root, passes=["timer"]) and pending_of(root, before, capfd) == [4, 4]
    assert main(trace) == EXIT_OK
    assert [json.loads(line)["state"] for line in capfd.readouterr().out.splitlines()] == ["waiting"]


def test_units_that_are_gone_and_that_no_pending_message_needs(cases: Library, tmp_path: Path) -> None:
    root = cases.copy(STORE, tmp_path / "store")
    check = timer.decode_check((root / CHECK).read_bytes())
    later = check._replace(last_timer_log_flush_position=check.last_timer_log_flush_position + 104)
    (root / CHECK).write_bytes(timer.encode_check(later))
    (found,) = findings_of(root, passes=["timer"])
    assert (found.problem.code, found.path, found.physical_offset, found.length) == ("TM02", LOG, 364, 104)
    assert found.message == "units of the timer log are gone; no pending message needs them"
    assert main(["recover", str(root), "--apply"]) == EXIT_OK
    assert [unit.physical_offset for unit in units_of(root)] == PLACES
    assert not codes_of(root, passes=["timer"])


WRONG = {
    "no record": (3, 28, 28167, "no record is at 28167"),
    "another topic": (6, 28, 0, "the record at 0 is not one of rmq_sys_wheel_timer"),
    "size": (5, 36, 99, "the record at 29122 has 359 bytes, not 99"),
    "link of another slot": (6, 4, 52, "its link does not lead to an earlier unit of the same slot"),
    "link behind it": (6, 4, 9984, "its link does not lead to an earlier unit of the same slot"),
    "after the log": (3, 28, 1 << 50, f"no record is at {1 << 50}"),
    "slot that was read": (0, 28, 28167, ""),
}
"""A unit, a field of it, its new value, and what is wrong then."""


@pytest.mark.parametrize("name", WRONG)
def test_units_that_cannot_be_followed(
    name: str, cases: Library, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The files are made again; where messages are after the log, its units end, and a broker reads on."""
    number, field, value, reason = WRONG[name]
    root = cases.copy(STORE, tmp_path / "store")
    data = value.to_bytes(4 if field == 36 else 8, "big")
    patch(root / LOG, 52 * number + field, data)
    found = findings_of(root, passes=["timer"])
    assert [(each.problem.code, each.path, each.physical_offset) for each in found] == (
        [("TM02", LOG, 52 * number)] * bool(reason)
    )
    if reason:
        assert found[0].message == f"a unit of the timer log cannot be followed: {reason}"
        is_cut = "truncates the timer log" in str(found[0].problem.repair)
        assert is_cut == (name == "after the log")
        main(["doctor", str(root)])
        assert "loses nothing" not in capfd.readouterr().out
        assert main(["recover", str(root), "--apply"]) == EXIT_OK
        assert ("of the timer log cannot be followed: a broker" in capfd.readouterr().out) != is_cut
        places = [unit.physical_offset for unit in units_of(root)]
        assert places == ([27362, 27710, 28058] if is_cut else PLACES) and len(slots_of(root)) == len(places)
    assert not codes_of(root, passes=["timer"])


def test_units_of_one_slot(cases: Library, tmp_path: Path) -> None:
    """Their links are right as a broker writes them: to the unit before, in any file."""
    root = cases.copy(STORE, tmp_path / "store")
    due = timer.decode_log_unit((root / LOG).read_bytes(), 156).deliver_time
    for number in (4, 5, 6):
        unit = timer.decode_log_unit((root / LOG).read_bytes(), 52 * number)
        unit = unit._replace(delay=due - unit.write_time + number, previous_position=52 * (number - 1))
        patch(root / LOG, 52 * number, timer.encode_log_unit(unit))
    assert not codes_of(root, passes=["timer"])


@pytest.mark.parametrize("names", [(), ("timerwheel", "timerlog")], ids="+".join)
def test_a_read_time_in_the_future(names: tuple[str, ...], cases: Library, tmp_path: Path) -> None:
    """A broker of 5.4.0 delivered none of the pending messages: their slots count as read."""
    root, conf = cases.copy(STORE, tmp_path / "store"), tmp_path / "broker.conf"
    conf.write_text(CONF)
    data = (root / CHECK).read_bytes()
    (root / CHECK).write_bytes(b"A" + data[1:])
    lose(root, names)
    (found,) = findings_of(root, passes=["timer"])
    assert (found.problem.code, found.path, found.detail["pending"]) == ("TM03", CHECK, len(DUE))
    assert found.message == (
        "timercheck has a read time in the future: a broker never delivers 4 pending messages"
    )
    assert main(["recover", str(root), "--broker-conf", str(conf), "--apply"]) == EXIT_OK
    check = timer.decode_check((root / CHECK).read_bytes())
    assert check.last_read_time == DELIVERED_MS + 1000 and check.last_timer_queue_offset == 7
    assert [unit.physical_offset for unit in units_of(root)] == PLACES and len(slots_of(root)) == len(DUE)
    assert not codes_of(root, passes=["timer"])


COMBINED = "kind_combine_index_timer_540"  # a timer in RocksDB: three delivered, eight pending
LOST_DATABASE = (
    "the timer in RocksDB is lost, with 8 pending messages: a broker reads them from the log again and"
    " delivers 3 delivered ones again"
)
UNREADABLE_DATABASE = "the timer is in rocksdbstore, which cannot be read, with 8 pending messages"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("rocksdbstore",), LOST_DATABASE),
        (("rocksdbstore", "timerwheel"), LOST_DATABASE),
        (("rocksdbstore/000013.sst",), UNREADABLE_DATABASE),
        (("rocksdbstore/000014.sst", "timerwheel"), UNREADABLE_DATABASE),
        (("timerwheel",), ""),
    ],
)
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_timer_in_rocksdb(
    names: tuple[str, ...], text: str, is_killed: bool, cases: Library, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Its loss is seen without broker.conf, from the log; recover makes no files of it."""
    root = cases.copy(COMBINED, tmp_path / "store")
    lose(root, names)
    if is_killed:
        (root / "abort").touch()
    assert codes_of(root, passes=["timer"]) == ["TM04"] * bool(text)
    main(["stats", str(root), "--delayed", "--json"])
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert sum(row["count"] for row in rows if row["kind"] in ("timer", "pop")) == 8
    for words in (["verify", str(root), "--pass", "timer"], ["doctor", str(root)], ["recover", str(root)]):
        main(words)
        out = " ".join("".join(capfd.readouterr()).split())
        assert text in out and ("TM04" in out) == bool(text)
        assert "loses nothing" not in out or not text
    assert not (root / "timerlog").exists()


def test_broker_conf_says_where_the_timer_is(cases: Library, tmp_path: Path) -> None:
    """With timerRocksDBEnable the messages that wait are in RocksDB, whatever timercheck says."""
    root, conf = cases.copy(COMBINED, tmp_path / "store"), tmp_path / "broker.conf"
    conf.write_text("timerRocksDBEnable=true\n")
    assert codes_of(root, passes=["timer"], broker_conf=conf) == []
    lose(root, ["rocksdbstore", CHECK])
    assert codes_of(root, passes=["timer"]) == ["TM03"]
    assert codes_of(root, passes=["timer"], broker_conf=conf) == ["TM04"]


def test_messages_before_the_queue_offset_of_the_files(cases: Library, tmp_path: Path) -> None:
    """A broker that was started once more has noted in timercheck how far RocksDB was: it continues there."""
    root = cases.copy(COMBINED, tmp_path / "store")
    lose(root, ["rocksdbstore"])
    data = (root / CHECK).read_bytes()
    check = timer.decode_check(data)._replace(last_timer_queue_offset=7, master_timer_queue_offset=7)
    (root / CHECK).write_bytes(timer.encode_check(check))
    (found,) = findings_of(root, passes=["timer"])
    assert found.message.startswith("the timer in RocksDB is lost, with 8 pending messages: a broker never")
    assert found.detail == {"pending": 8, "delivered": 3}


def test_a_lost_wheel_says_what_a_broker_does(cases: Library, tmp_path: Path) -> None:
    """It makes the slots again from the newest files; messages of older ones are never delivered."""
    root = cases.copy(STORE, tmp_path / "store")
    lose(root, ["timerwheel"])
    (found,) = findings_of(root, passes=["timer"])
    assert "delivers each message once" in found.message and "never" not in found.problem.reaction
    (file,) = (root / "timerlog").iterdir()
    file.with_name(f"{file.stat().st_size:020}").write_bytes(bytes(file.stat().st_size))
    (found, *_) = (each for each in findings_of(root, passes=["timer"]) if each.path == "timerwheel")
    assert "never delivers messages of which only older files have units" in found.message


EMPTY = {
    "timerwheel": (("timerwheel", 0), ("timerwheel", None)),
    "timerlog": (("timerlog/" + "0" * 20, 0),),
    CHECK: ((CHECK, 0), (CHECK, None)),
}
"""Files of the timer whose content is lost: (name, new size), None: it is filled with zeros."""


@pytest.mark.parametrize(
    ("lost", "name", "size"), [(k, *each) for k, found in EMPTY.items() for each in found]
)
def test_files_without_content(
    lost: str, name: str, size: int | None, cases: Library, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """They are lost too, and recover makes what it makes for a file that is missing."""
    made = []
    conf = tmp_path / "broker.conf"
    conf.write_text(CONF)
    for number in range(2):
        root = cases.copy(STORE, tmp_path / str(number))
        if number:
            lose(root, [lost])
        else:
            path = root / name
            path.write_bytes(bytes(path.stat().st_size if size is None else size))
        assert codes_of(root, passes=["timer"]) == ["TM03"]
        assert main(["recover", str(root), "--broker-conf", str(conf), "--apply"]) == EXIT_OK
        assert not codes_of(root, passes=["timer"])
        made.append((units_of(root), slots_of(root), (root / CHECK).read_bytes()))
    assert made[0] == made[1]
    capfd.readouterr()


def test_snapshots_of_the_wheel(cases: Library, tmp_path: Path) -> None:
    """With timerWheelSnapshotFlush a broker reads the newest: it counts as wheel, and goes with the log."""
    root, conf = cases.copy(STORE, tmp_path / "store"), tmp_path / "broker.conf"
    conf.write_text(CONF)
    for position in (312, 364):
        shutil.copyfile(root / "timerwheel", root / f"timerwheel.{position}")
    (root / "timerwheel").unlink()
    assert not codes_of(root, passes=["timer"])
    assert main(["recover", str(root), "--broker-conf", str(conf)]) == EXIT_OK
    log = root / "timerlog" / ("0" * 20)
    before = log.read_bytes()
    log.write_bytes(before[:260] + b"\xff" * 52 + before[312:])
    assert main(["recover", str(root), "--broker-conf", str(conf), "--apply"]) == EXIT_OK
    assert len(slots_of(root)) == len(PLACES) and not list(root.glob("timerwheel.*"))
    shutil.copyfile(root / "timerwheel", root / "timerwheel.364")
    lose(root, ["timerlog"])
    assert main(["recover", str(root), "--broker-conf", str(conf), "--apply"]) == EXIT_OK
    assert [unit.physical_offset for unit in units_of(root)] == PLACES
    assert not list(root.glob("timerwheel.*")) and not codes_of(root, passes=["timer"])


def test_a_sound_timer_and_one_that_was_never_used_stay(cases: Library, tmp_path: Path) -> None:
    root = cases.copy(STORE, tmp_path / "store")
    assert main(["recover", str(root)]) == EXIT_OK
    fresh = cases.copy("kind_compaction_540", tmp_path / "fresh")
    assert main(["recover", str(fresh)]) == EXIT_OK


def test_units_of_several_files_and_of_one_slot(tmp_path: Path) -> None:
    """Chains lead back through the slot, files end in blanks, recalls count down."""
    read = 1_000_000_000_000
    pending = [
        Timed(100 * n, 90, n, f"k{n}", read, read + 1000 * (n % 3) - 5000 * (n == 4), "T", n == 5)
        for n in range(7)
    ]
    layout = StoreLayout(tmp_path, "store")
    size = 3 * 52 + 16
    layout.timer_log = ()

    class Conf:
        def integer(self, name: str) -> int | None:
            return size if name == "mappedFileSizeTimerLog" else None

    layout.broker_conf = Conf()  # type: ignore[assignment]
    units = list(_units(pending, read, 1000, 10**9))
    assert units[4].deliver_time == read and units[5].magic == timer.MAGIC_DEFAULT | timer.MAGIC_DELETE
    actions = _files(layout, units, 1000, "lost")
    logs = {action.path: action for action in actions if action.path.startswith("timerlog")}
    assert sorted(logs) == [f"timerlog/{n * size:020}" for n in range(3)]
    written: dict[int, timer.LogUnit] = {}
    for number, action in enumerate(each for each in actions if each.kind == "write"):
        assert action.content is not None
        for place, unit in timer.decode_log(action.content):
            if isinstance(unit, timer.LogUnit):
                written[number * size + place] = unit
            else:
                assert unit.size == size - place
    assert len(written) == 7
    (wheel,) = (action.content for action in actions if action.path == "timerwheel")
    assert wheel is not None
    slots = np.frombuffer(wheel, timer.SLOT.dtype)
    counts = {}
    for number in np.flatnonzero(slots["time"]):
        slot = timer.Slot(*slots[number].tolist())
        chain, at = [], slot.last_position
        while at >= 0:
            chain.append(at)
            assert written[at].deliver_time // 1000 == slot.time
            at = written[at].previous_position
        assert chain[-1] == slot.first_position and chain == sorted(chain, reverse=True)
        counts[slot.time - read // 1000] = (len(chain), slot.num)
    assert counts == {0: (4, 4), 1: (1, 1), 2: (2, 0)}
    assert DEFAULT_LOG_FILE_SIZE == 100 << 20
