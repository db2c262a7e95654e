"""Expiry: what we say that a broker deletes of a store with old files is what the real one deletes.

The store library does its own passes, here and now, in all cases but one: there its timer does them, a
minute after start. What is compared: every file that is gone, and the minimum offset of every queue.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rmqtool.read.store import Store
from rmqtool.repair.expire import Expiry, Request, plan_expiry
from rmqtool.storage.profile import named
from tests.interop.after_repair import check_library, conf_of, run, verify_finds
from tests.interop.brokers import BROKER_VERSIONS
from tests.interop.lab_stores import MANY, LabStore, Shelf
from tests.interop.processes import Program, store_library, wait_until
from tests.interop.verdicts import Library, hashes, libraries
from tests.support.stores import Library as Cases

HOUR_S = 3600
ALL_HOURS = ";".join(map(str, range(24)))
WORKERS = 5
FIRST_PASS_SECONDS = 60
"""How long after start the broker's timer begins; it can not be set."""


@dataclass(frozen=True)
class Case:
    """A store whose log files have ages, in hours by their number, and the settings of its broker.

    Attributes:
        state: of the store; see `lab_stores`.
        ages: hours since the last change by number of the log file; the others are new.
        settings: beside those that the store was written with.
        passes: how often the broker looks.
    """

    name: str
    state: str = MANY
    ages: Mapping[int, float] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    passes: int = 1

    def __str__(self) -> str:
        """For the test's name."""
        return self.name


def old(files: range, hours: float = 100) -> dict[int, float]:
    """Ages of files."""
    return dict.fromkeys(files, hours)


def other_hour() -> str:
    """An hour of the day that will not come for a while."""
    return str((time.localtime().tm_hour + 12) % 24)


ANY_TIME = {"deleteWhen": ALL_HOURS, "fileReservedTime": "72"}
CASES = (
    Case("some-old", ages=old(range(5)), settings=ANY_TIME),
    Case("fixture", "clean", ages=old(range(2)), settings=ANY_TIME),
    Case("not-the-hour", ages=old(range(5)), settings={"deleteWhen": other_hour()}),
    Case("young-one-between", ages=old(range(2)) | old(range(3, 6)), settings=ANY_TIME),
    Case("all-old-one-pass", ages=old(range(40)), settings=ANY_TIME),
    Case("all-old-three-passes", ages=old(range(40)), settings=ANY_TIME, passes=3),
    Case("reserved-one-hour", ages=old(range(3), 1.5), settings=ANY_TIME | {"fileReservedTime": "1"}),
    Case("disk-over-ten-percent", ages=old(range(4)),
         settings={"deleteWhen": other_hour(), "diskMaxUsedSpaceRatio": "5"}),
    Case("nothing-old", settings=ANY_TIME),
)  # fmt: skip


@pytest.fixture(scope="module")
def shelf(cases: Cases, tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(cases, tmp_path_factory.mktemp("sound"))


def aged(case: Case, sound: LabStore, target: Path) -> Path:
    """A copy of the store whose log files are as old as the case says."""
    root, now = sound.copy(target), time.time()
    for number, path in enumerate(sorted((root / "commitlog").iterdir())):
        then = now - case.ages.get(number, 0) * HOUR_S
        os.utime(path, (then, then))
    return root


def settings_of(case: Case, sound: LabStore) -> dict[str, str]:
    """What the broker is told."""
    return {name: str(value) for name, value in sound.settings.items()} | dict(case.settings)


def plan(root: Path, sound: LabStore, settings: Mapping[str, str]) -> Expiry:
    """What we say that a broker with these settings does of it now."""
    request = Request(int(time.time() * 1000), rules_of=named(sound.profile))
    with Store.open(root, broker_conf=conf_of(root, settings)) as store:
        return plan_expiry(store, request)


def ranges(program: Program) -> dict[tuple[str, int], tuple[int, int]]:
    """Minimum and maximum offset of every queue, as the library says."""
    return {
        (row["topic"], row["queueId"]): (row["minOffset"], row["maxOffset"]) for row in program.call("ranges")
    }


def let_broker_expire(
    program: Program, root: Path, settings: Mapping[str, str], passes: Callable[[], None]
) -> tuple[set[str], dict[tuple[str, int], tuple[int, int]]]:
    """(files gone, queue ranges after the next start) of what the library does in `passes`."""
    assert program.call("open", store=str(root), settings=dict(settings)) == {"load": True}
    program.call("start")
    before = hashes(root).keys()
    passes()
    gone = before - hashes(root).keys()
    program.call("shutdown")
    assert program.call("open", store=str(root), settings=dict(settings)) == {"load": True}
    program.call("start")
    after = ranges(program)
    program.call("shutdown")
    return gone, after


def compare(
    expiry: Expiry, passes: int, gone: set[str], after: dict[tuple[str, int], tuple[int, int]]
) -> None:
    """The same files, and queues with the same offsets; what the log's last passes take is left out."""
    log = {
        decision.path
        for decision in expiry.expired
        if decision.kind == "commitlog" and (decision.round or 1) <= passes
    }
    assert {name for name in gone if name.startswith("commitlog/")} == log
    if any((decision.round or 1) > passes for decision in expiry.expired):
        return  # queues and index are told for the end of the last pass
    followers = {
        decision.path for decision in expiry.expired if decision.kind not in ("commitlog", "timerlog")
    }
    assert {name for name in gone if not name.startswith("commitlog/")} == followers
    ours = {(each.topic, each.queue_id): (each.min_after, each.max_offset) for each in expiry.effects.queues}
    assert ours == {key: after[key] for key in ours}
    assert all(offset == 0 for key in after.keys() - ours.keys() for offset in after[key])


def by_timer(version: str, shelf: Shelf, folder: Path) -> None:
    """The library's own timer expires a store: a minute after start, then again and again."""
    case = Case("timer", ages=old(range(12)), settings=ANY_TIME | {"cleanResourceInterval": "300"})
    sound = shelf.get(version, case.state)
    root, settings = aged(case, sound, folder / f"{version}-timer"), settings_of(case, sound)
    expiry = plan(root, sound, settings)
    expired = [root / decision.path for decision in expiry.expired]
    assert len(expired) >= 12

    def passes() -> None:
        time.sleep(FIRST_PASS_SECONDS - 5)
        assert all(path.exists() for path in expired)
        wait_until(lambda: not any(path.exists() for path in expired), "the old files are gone")

    with store_library(version, folder / f"home-{version}") as program:
        compare(expiry, 99, *let_broker_expire(program, root, settings, passes))


@pytest.fixture(scope="module", autouse=True)
def timers(shelf: Shelf, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """`by_timer` of each version: a minute of waiting in which the other tests run."""
    folder = tmp_path_factory.mktemp("timers")
    for version in BROKER_VERSIONS:
        shelf.get(version, MANY)
    with ThreadPoolExecutor(len(BROKER_VERSIONS)) as pool:
        yield {version: pool.submit(by_timer, version, shelf, folder) for version in BROKER_VERSIONS}


@pytest.mark.parametrize("version", BROKER_VERSIONS)
def test_broker_deletes_what_the_plan_says(version: str, shelf: Shelf, tmp_path: Path) -> None:
    """All cases, the library's passes one behind the other."""

    def check(library: Library, case: Case) -> str:
        sound = shelf.get(version, case.state)
        root, settings = aged(case, sound, tmp_path / f"{version}-{case}"), settings_of(case, sound)
        expiry = plan(root, sound, settings)
        program = library.program

        def passes() -> None:
            for _ in range(case.passes):
                program.call("clean")

        try:
            compare(expiry, case.passes, *let_broker_expire(program, root, settings, passes))
        except AssertionError as error:
            library.close()
            return f"{case}: {error}"
        return ""

    for case in CASES:
        shelf.get(version, case.state)
    with libraries(version, tmp_path, WORKERS) as pool:
        wrong = [text for text in pool.each(check, CASES) if text]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("version", BROKER_VERSIONS)
def test_library_goes_on_after_our_expire(version: str, shelf: Shelf, tmp_path: Path) -> None:
    """`expire --apply` deletes what it said, `verify` is clean, and all that stays is served."""

    def expired() -> Iterator[tuple[Path, dict[str, str]]]:
        for case in (CASES[0], CASES[1], CASES[3]):
            sound = shelf.get(version, case.state)
            root, settings = aged(case, sound, tmp_path / f"{version}-{case}"), settings_of(case, sound)
            expiry, before = plan(root, sound, settings), hashes(root)
            conf, archive = conf_of(root, settings), root.with_name(f"{root.name}.archive")
            arguments = ("--broker-conf", conf, "--archive", archive, "--apply", "--force", "--quiet")
            assert run("expire", root, *arguments) == 0
            assert before.keys() - hashes(root).keys() == {decision.path for decision in expiry.expired}
            assert verify_finds(root, conf) == []
            yield root, settings

    def check(library: Library, item: tuple[Path, dict[str, str]]) -> None:
        check_library(library, *item)

    with libraries(version, tmp_path, 3) as pool:
        assert list(pool.each(check, expired())) == [None] * 3


@pytest.mark.parametrize("version", BROKER_VERSIONS)
def test_brokers_timer_deletes_what_the_plan_says(version: str, timers: dict[str, Future[None]]) -> None:
    """As it happens in a running broker. Last in the file: see `timers`."""
    timers[version].result()
