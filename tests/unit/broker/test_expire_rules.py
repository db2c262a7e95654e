"""Which files expire, as tables: settings and their limits, disks, passes, an operator's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from rmqtool.broker.expiry_rules import (
    Chain,
    Decision,
    Disk,
    Disks,
    FollowFile,
    LogFile,
    Trigger,
    by_broker,
    expired_count,
    next_delete_time,
    trigger,
)
from rmqtool.broker.expiry_settings import Settings, settings_of
from rmqtool.errors import FormatError
from rmqtool.repair.expire.expiry import WINDOW_MS, forecast, growth
from rmqtool.repair.expire.own_rules import OwnRules, by_own_rules
from rmqtool.storage.broker_conf import BrokerConf
from rmqtool.storage.profile import PROFILES
from rmqtool.times import DAY_MS, HOUR_MS

MB = 1 << 20
NOW = int(datetime(2026, 3, 10, 4, 30, tzinfo=UTC).timestamp() * 1000)  # in the hour of deleteWhen
NOON = NOW + 8 * HOUR_MS
DEFAULTS = Settings()
EMPTY = Disks({1: Disk(10 * MB, 990 * MB)}, (1,), 1)


def files(ages_hours: Sequence[float], *, now: int = NOW) -> list[LogFile]:
    """Log files of 1 MiB that were changed so many hours ago."""
    return [
        LogFile(f"commitlog/{n:020}", n * MB, MB, MB, round(now - age * HOUR_MS), 1)
        for n, age in enumerate(ages_hours)
    ]


def used(log: int, queue: int | None = None) -> Disks:
    """Disks that are so many percent full; one for both without `queue`. -1: there is none."""
    by_id = {n: Disk(p * MB, (100 - p) * MB) for n, p in ((1, log), (2, queue)) if p is not None and p >= 0}
    return Disks(by_id, (1,), 1 if queue is None else 2)


def decided(
    log: Sequence[LogFile],
    *,
    disks: Disks = EMPTY,
    settings: Settings = DEFAULTS,
    now: int = NOW,
    chains: Sequence[Chain] = (),
    is_5: bool = True,
    end_offset: int | None = None,
) -> list[Decision]:
    """What the broker's passes do."""
    end = log[-1].start if end_offset is None and log else end_offset or 0
    return by_broker(log, chains, disks, settings, now, UTC, is_5=is_5, end_offset=end)[0]


def rounds(decisions: Sequence[Decision]) -> list[int | None]:
    """The pass that deletes each file."""
    assert all((each.round is not None) == each.expires for each in decisions)
    return [each.round for each in decisions]


def conf(text: str) -> BrokerConf:
    """A broker.conf of `name=value` lines."""
    return BrokerConf(Path("broker.conf"), dict(line.split("=", 1) for line in text.split("\n")))


# settings


def test_defaults_are_those_of_message_store_config() -> None:
    """4.9.7, 5.3.3 and 5.4.0 agree."""
    for profile in PROFILES.values():
        found = settings_of(None, profile)
        assert replace(found, origins={}) == DEFAULTS
        assert set(found.origins.values()) == {"default"}
    assert (DEFAULTS.reserved_ms, DEFAULTS.delete_hours, DEFAULTS.batch_files) == (72 * HOUR_MS, (4,), 10)
    assert (DEFAULTS.max_used_ratio, DEFAULTS.forcible_ratio, DEFAULTS.warning_ratio) == (0.75, 0.85, 0.9)


@pytest.mark.parametrize(
    ("given", "ratio"),
    [(9, 0.1), (-5, 0.1), (10, 0.1), (11, 0.11), (94, 0.94), (95, 0.95), (96, 0.95), (100, 0.95)],
)
@pytest.mark.parametrize("profile", PROFILES)
def test_max_used_ratio_is_limited(profile: str, given: int, ratio: float) -> None:
    """10 to 95, in all versions. Source: MessageStoreConfig#getDiskMaxUsedSpaceRatio, by javap."""
    found = settings_of(conf(f"diskMaxUsedSpaceRatio={given}"), PROFILES[profile])
    assert found.max_used_ratio == ratio
    assert found.configured == ({} if 10 <= given <= 95 else {"max_used_ratio": given})
    assert found.origins["max_used_ratio"] == "file"


def test_upper_ratios_are_limited_in_5_and_fixed_in_4() -> None:
    """Source: CleanCommitLogService#getDiskSpaceWarningLevelRatio, #getDiskSpaceCleanForciblyRatio."""
    for given, ratios in (((99, 99), (0.9, 0.85)), ((1, 1), (0.35, 0.3)), ((60, 50), (0.6, 0.5))):
        text = f"diskSpaceWarningLevelRatio={given[0]}\ndiskSpaceCleanForciblyRatio={given[1]}"
        found = settings_of(conf(text), PROFILES["5.3"])
        assert (found.warning_ratio, found.forcible_ratio) == ratios
        found = settings_of(conf(f"{text}\ndeleteFileBatchMax=3"), PROFILES["4.9"])
        assert (found.warning_ratio, found.forcible_ratio, found.batch_files) == (0.9, 0.85, 10)


def test_values_of_broker_conf() -> None:
    """Every number that decides can be set."""
    found = settings_of(
        conf("fileReservedTime=48\ndeleteWhen=02;14;\ncleanFileForciblyEnable=FALSE\ndeleteFileBatchMax=0\n"
             "replicasPerDiskPartition=3\nlogicalDiskSpaceCleanForciblyThreshold=0.7\n"
             "cleanResourceInterval=5000\nredeleteHangedFileInterval=1"),
        PROFILES["5.4"],
    )  # fmt: skip
    assert (found.reserved_hours, found.delete_hours, found.forcible) == (48, (2, 14), False)
    assert (found.batch_files, found.replicas_per_disk, found.shared_forcible_ratio) == (1, 3, 0.7)
    assert (found.clean_interval_ms, found.redelete_interval_ms, found.destroy_interval_ms) == (
        5000,
        1,
        120_000,
    )
    assert settings_of(conf("deleteWhen=;"), PROFILES["5.4"]).delete_hours == ()


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [("fileReservedTime=3d", "reserved_hours", 72), ("fileReservedTime=48 ", "reserved_hours", 72),
     ("fileReservedTime=", "reserved_hours", 72),
     ("diskMaxUsedSpaceRatio=abc", "max_used_ratio", 0.75),
     ("diskMaxUsedSpaceRatio=" + "9" * 30, "max_used_ratio", 0.75),
     ("cleanFileForciblyEnable=true ", "forcible", False), ("deleteWhen=", "delete_hours", ()),
     ("logicalDiskSpaceCleanForciblyThreshold=x", "shared_forcible_ratio", 0.8),
     ("logicalDiskSpaceCleanForciblyThreshold=.5 ", "shared_forcible_ratio", 0.5)],
)  # fmt: skip
def test_values_as_a_broker_takes_them(line: str, name: str, value: object) -> None:
    """By MixAll#properties2Object: what is no number leaves the default, and blanks behind belong to it."""
    found = settings_of(conf(line), PROFILES["5.4"])
    assert getattr(found, name) == value
    text = line.partition("=")[2]
    ignored = value in (72, 0.75, 0.8)
    assert found.origins[name] == ("default" if ignored else "file")
    assert found.configured == ({name: text} if ignored else {})


@pytest.mark.parametrize("line", ["deleteWhen=04:00", "deleteWhen=;4", "deleteWhen=4; 5", "deleteWhen=4 "])
def test_value_that_no_broker_reads(line: str) -> None:
    """With such a deleteWhen a broker never deletes: it is said, not guessed."""
    with pytest.raises(FormatError):
        settings_of(conf(line), PROFILES["5.4"])


# the disk


@pytest.mark.parametrize(
    ("disk", "ratio"),
    [(Disk(75, 25), 0.75), (Disk(7501, 2499), 0.76), (Disk(1, 999_999), 0.01), (Disk(0, 100), 0.0),
     (Disk(100, 0), 1.0), (Disk(0, 0), -1.0)],
)  # fmt: skip
def test_ratio_is_rounded_up(disk: Disk, ratio: float) -> None:
    """Source: UtilAll#getDiskPartitionSpaceUsedPercent."""
    assert disk.ratio == ratio


# (log disk, queue disk) in percent -> by_space, forced, disk_full
_TRIGGERS = [
    (75, 75, (False, False, False)),
    (76, 10, (True, False, False)),
    (10, 76, (True, False, False)),
    (85, 10, (True, False, False)),
    (86, 10, (True, True, False)),
    (10, 86, (True, True, False)),
    (91, 10, (True, True, True)),
    (10, 91, (True, True, True)),
    (-1, 10, (True, False, False)),
    (10, -1, (True, False, False)),
]


@pytest.mark.parametrize("is_5", [False, True])
@pytest.mark.parametrize(("log", "queue", "wanted"), _TRIGGERS)
def test_disk_triggers(is_5: bool, log: int, queue: int, wanted: tuple[bool, bool, bool]) -> None:
    """Limits are exceeded, not reached; a path that is not there counts as too full."""
    found = trigger(DEFAULTS, used(log, queue), 12, is_5=is_5)
    assert (found.by_space, found.forced, found.disk_full) == wanted
    assert not found.by_time and bool(found.reason) == found.by_space
    assert trigger(DEFAULTS, used(log, queue), 4, is_5=is_5).by_time


def test_limit_above_the_forcible_one() -> None:
    """4.x deletes nothing by itself between the two, but the hour of deleteWhen then takes every file."""
    settings = replace(DEFAULTS, max_used_ratio=0.95)
    assert trigger(settings, used(92, 10), 12, is_5=False) == Trigger(
        False, False, True, False, "log disk 92% used, above 85%: forced at any age"
    )
    assert trigger(settings, used(92, 10), 12, is_5=True).by_space
    young = files([1, 1, 1])
    assert rounds(decided(young, disks=used(92), settings=settings, now=NOON, is_5=False)) == [None] * 3
    assert rounds(decided(young, disks=used(92), settings=settings, is_5=False)) == [1, 1, None]


def test_the_file_of_the_newest_message_stays() -> None:
    """An empty file after it is none of a broker's: it goes at a start. One that begins at the end is."""
    log = files([80] * 5)
    assert rounds(decided(log, disks=used(92), end_offset=3 * MB + 1)) == [1, 1, 1, None, None]
    assert rounds(decided(log, disks=used(92), end_offset=4 * MB)) == [1, 1, 1, 1, None]
    last, unused = decided(log, disks=used(92), end_offset=3 * MB + 1)[3:]
    assert last.reason == "is the last file, which always stays"
    assert unused.reason == "begins after the newest message, and follows a file that always stays"
    assert rounds(decided(log[:1], end_offset=-1)) == [None] and decided([], end_offset=-1) == []


def test_forced_deletion_can_be_off() -> None:
    """Then the disk still makes any hour an hour of deleteWhen."""
    settings = replace(DEFAULTS, forcible=False)
    assert rounds(decided(files([80, 1, 1]), disks=used(99), settings=settings, now=NOON)) == [1, None, None]


def test_least_used_folder_of_the_log_counts() -> None:
    """Source: CleanCommitLogService#isSpaceToDelete: the minimum over storePathCommitLog."""
    disks = Disks({1: Disk(95, 5), 2: Disk(20, 80)}, (1, 2), 2)
    assert not trigger(DEFAULTS, disks, 12, is_5=True).on
    assert trigger(DEFAULTS, replace(disks, log=(1,)), 12, is_5=True).forced


def test_brokers_that_share_a_disk() -> None:
    """5.x compares the store's own files with the broker's part of the disk."""
    settings = replace(DEFAULTS, replicas_per_disk=2)
    disks = used(80)  # of 100 MiB: a part has 50
    for size, wanted in ((37, (False, False)), (38, (True, False)), (40, (True, False)), (41, (True, True))):
        found = trigger(settings, disks, 12, is_5=True, store_bytes=size * MB)
        assert (found.by_space, found.forced) == wanted, size
    assert trigger(settings, disks, 12, is_5=False, store_bytes=0).by_space, "4.x has no such setting"
    old = files([100, 100, 100], now=NOON)  # 3 MiB; the part of the disk has 50
    for kind, count in (("consumequeue", 2), ("index", 2), ("timerlog", 0)):
        chain = Chain(kind, (FollowFile("a", 35 * MB, 0, None, 1),))
        decisions = decided(old, disks=disks, settings=settings, now=NOON, chains=[chain])
        assert sum(each.expires for each in decisions) == count, kind


# passes


@pytest.mark.parametrize(
    ("ages", "wanted"),
    [
        ([], []),
        ([100], [None]),
        ([100, 100], [1, None]),
        ([72, 71.99, 100], [1, None, None]),
        ([72, 71.999, 100], [1, 2, None]),  # old enough ten seconds later
        ([100, 1, 100, 100], [1, None, None, None]),
        ([100] * 25, [1] * 10 + [2] * 10 + [3] * 4 + [None]),
    ],
)
def test_files_by_age(ages: list[float], wanted: list[int | None]) -> None:
    """Ten in a pass, up to the first that stays, never the last one."""
    for is_5 in (False, True):
        assert rounds(decided(files(ages), is_5=is_5)) == wanted


def test_hour_of_delete_when() -> None:
    """At another hour nothing goes; a pass after the hour finds it over."""
    assert rounds(decided(files([100] * 5, now=NOON), now=NOON)) == [None] * 5
    waits = decided(files([100, 1, 1], now=NOON), now=NOON)
    assert waits[0].reason == "old enough (changed 4d04h ago, kept 72h), waits for deleteWhen (04)"
    assert [each.reason for each in waits[1:]] == [
        "follows a file that is kept", "is the last file, which always stays"
    ]  # fmt: skip
    late = NOW + HOUR_MS // 2 - 15_000  # 04:59:45: passes at :45 and :55
    assert rounds(decided(files([100] * 40, now=late), now=late)) == [1] * 10 + [2] * 10 + [None] * 20


def test_full_disk_takes_files_until_it_is_not() -> None:
    """What a pass frees counts for the next: forced down to 85 %, then by age alone."""
    settings = replace(DEFAULTS, batch_files=2)
    young = files([1] * 10, now=NOON)
    disks = Disks({1: Disk(89 * MB, 11 * MB)}, (1,), 1)
    assert rounds(decided(young, disks=disks, settings=settings, now=NOON)) == [1, 1, 2, 2] + [None] * 6
    old = files([100] * 8 + [1, 1], now=NOON)
    found = decided(old, disks=Disks({1: Disk(79 * MB, 21 * MB)}, (1,), 1), settings=settings, now=NOON)
    assert rounds(found) == [1, 1, 2, 2] + [None] * 6
    assert found[0].reason.endswith("the disk is too full to wait for deleteWhen")


def test_queue_files_that_follow_free_space_too() -> None:
    """Here a queue file that goes with the first log file is what ends the shortage."""
    settings = replace(DEFAULTS, batch_files=1)
    disks = Disks({1: Disk(89 * MB, 11 * MB)}, (1,), 1)
    young = files([1] * 5, now=NOON)
    chain = Chain("consumequeue", (FollowFile("a", MB, 3 * MB, MB - 1, 1), FollowFile("b", MB, MB, None, 1)))
    assert (
        rounds(decided(young, disks=disks, settings=settings, now=NOON, chains=[chain])) == [1] + [None] * 4
    )
    assert rounds(decided(young, disks=disks, settings=settings, now=NOON)) == [1, 2, 3, 4, None]


def test_next_hour_of_delete_when() -> None:
    """Now in the hour, else its start; a clock that skips the hour makes it the day after."""
    assert next_delete_time(DEFAULTS, NOW, UTC) == NOW
    assert next_delete_time(DEFAULTS, NOON, UTC) == NOW - HOUR_MS // 2 + DAY_MS
    assert next_delete_time(replace(DEFAULTS, delete_hours=(99,)), NOW, UTC) is None
    berlin = ZoneInfo("Europe/Berlin")
    spring = int(datetime(2026, 3, 28, 12, tzinfo=berlin).timestamp() * 1000)  # 02:00 becomes 03:00 at night
    found = next_delete_time(replace(DEFAULTS, delete_hours=(2,)), spring, berlin)
    assert found == int(datetime(2026, 3, 30, 2, tzinfo=berlin).timestamp() * 1000)
    kathmandu = ZoneInfo("Asia/Kathmandu")
    found = next_delete_time(DEFAULTS, NOON, kathmandu)
    assert found is not None and datetime.fromtimestamp(found / 1000, kathmandu).strftime("%H:%M") == "04:00"


# what follows


@pytest.mark.parametrize(
    ("ends", "start", "count"),
    [
        ([], 100, 0),
        ([5], 100, 0),
        ([5, 6], 100, 1),
        ([99, 100, 5, None], 100, 1),
        ([0, 0, 0], 1, 2),
        ([None, 5, 6], 100, 0),
        ([5, None, 6, 7], 100, 1),
        ([-1, 50, 60, 200], 100, 3),
    ],
)
def test_chain_goes_up_to_the_first_file_that_knows_of_more(
    ends: list[int | None], start: int, count: int
) -> None:
    """A file whose newest record is not known stays, and so does the last."""
    chain = Chain("index", tuple(FollowFile(str(n), 1, 1, end) for n, end in enumerate(ends)))
    assert expired_count(chain, start) == count


# own rules


_LOG = [
    replace(file, first_ms=NOW - 10 * DAY_MS + n * DAY_MS)
    for n, file in enumerate(files([96, 72, 48, 24, 0]))
]


@pytest.mark.parametrize(
    ("rules", "count"),
    [
        (OwnRules(keep_hours=72), 2),
        (OwnRules(keep_hours=24.5), 3),
        (OwnRules(keep_hours=0), 4),
        (OwnRules(before_offset=2 * MB - 1), 1),
        (OwnRules(before_offset=2 * MB), 2),
        (OwnRules(before_offset=1 << 60), 4),
        (OwnRules(before_offset=0), 0),
        (OwnRules(before_ms=NOW - 8 * DAY_MS), 1),
        (OwnRules(before_ms=NOW - 8 * DAY_MS + 1), 2),
        (OwnRules(until_free=992 * MB), 2),
        (OwnRules(until_free=990 * MB), 0),
        (OwnRules(until_free=1 << 60), 4),
        (OwnRules(keep_hours=48, until_free=1 << 60), 3),
        (OwnRules(keep_hours=0, before_offset=3 * MB, until_free=991 * MB), 1),
    ],
)
def test_own_rules(rules: OwnRules, count: int) -> None:
    """Each alone, and together all must agree; the last file stays."""
    found = by_own_rules(_LOG, [], EMPTY, rules, NOW, 5 * MB)
    assert [each.expires for each in found] == [True] * count + [False] * (5 - count)
    assert all(each.reason for each in found)


def test_own_rules_keep_the_newest_message() -> None:
    """Behind it there is only a file made ahead, which is no reason to delete it."""
    everything = OwnRules(before_offset=1 << 60)
    found = by_own_rules(_LOG, [], EMPTY, everything, NOW, 3 * MB)
    assert [each.expires for each in found] == [True, True, False, False, False]
    assert found[2].reason == "holds the newest message, and always stays"
    assert by_own_rules([], [], EMPTY, everything, NOW, 0) == []


def test_time_needs_the_next_files_first_message() -> None:
    """Where it does not begin with one nobody knows, so the file stays."""
    log = [_LOG[0], replace(_LOG[1], first_ms=None), *_LOG[2:]]
    assert not any(
        each.expires for each in by_own_rules(log, [], EMPTY, OwnRules(before_ms=NOW), NOW, 5 * MB)
    )


# growth


def test_growth_is_that_of_the_last_day() -> None:
    """Points: physical offset, store time; the window begins at one, at the first in a short log."""
    assert growth([]) is None and growth([(0, 5)]) is None and growth([(0, 5), (10, 5)]) is None
    assert growth([(0, 0), (500, 1000)]) == (500.0, 0, 1000)
    assert growth([(0, 0), (500, 1000), (750, 10)]) == (750.0, 0, 1000)  # an old message, stored again
    points = [(0, 0), (10_000, 10 * WINDOW_MS), (20_000, 11 * WINDOW_MS), (30_000, 12 * WINDOW_MS)]
    assert growth(points) == (10_000 * 1000 / WINDOW_MS, 11 * WINDOW_MS, 12 * WINDOW_MS)


def test_forecast() -> None:
    """100 bytes a second of log and as much beside it, on a disk of 10,000 with 3,000 in use."""
    log = [LogFile("a", 0, 1000, 1000, 0, 1, first_ms=1000), LogFile("b", 1000, 1000, 1000, 0, 1)]
    chain = Chain("index", (FollowFile("i", 5000, 500, 0, 1),))
    disks = Disks({1: Disk(3000, 7000)}, (1,), 1)
    found = forecast(log, [chain], disks, DEFAULTS, (500, 6000))
    assert (found.log_bytes_per_s, found.store_bytes_per_s) == (100, 200)
    assert [(each.ratio, each.after_ms) for each in found.reached] == [
        (0.75, 22_500), (0.85, 27_500), (0.9, 30_000)
    ]  # fmt: skip
    assert found.reserved_bytes == 200 * 72 * 3600
    assert found.hours_that_fit == pytest.approx((7500 - 3000 + 2500) / 200 / 3600)
    full = forecast(log, [chain], Disks({1: Disk(9000, 1000)}, (1,), 1), DEFAULTS, (500, 6000))
    assert [each.after_ms for each in full.reached] == [0, 0, 0]
    assert forecast(log, [], disks, DEFAULTS, (500, None)).store_bytes_per_s is None
