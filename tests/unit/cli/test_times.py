"""Points in time: everything that is accepted, everything that is refused, and printing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.cli import main
from rmqtool.errors import UsageError
from rmqtool.times import format_duration, format_time, parse_duration, parse_time, parse_zone
from tests.support.dumps import SMALL
from tests.support.stores import Library

NOW = 1_772_366_400_123  # 2026-03-01T12:00:00.123Z
FIRST_MS = -62_135_596_800_000  # 0001-01-01T00:00:00Z
LAST_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z


@pytest.fixture
def shanghai() -> Iterator[None]:
    """The local zone is Asia/Shanghai."""
    os.environ["TZ"] = "Asia/Shanghai"
    time.tzset()
    yield
    os.environ["TZ"] = "UTC"
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1772366400123", NOW),
        ("-5", -5),
        ("now", NOW),
        ("NOW", NOW),
        ("today", 1_772_323_200_000),
        ("yesterday", 1_772_236_800_000),
        ("00:00", 1_772_323_200_000),
        ("9:05", 1_772_355_900_000),
        ("23:59:59", 1_772_409_599_000),
        ("23:59:59.25", 1_772_409_599_250),  # tables print three digits
        ("2h ago", NOW - 7_200_000),
        ("1d12h ago", NOW - 36 * 3_600_000),
        ("30 minutes ago", NOW - 1_800_000),
        ("500ms ago", NOW - 500),
        ("2026-03-01", 1_772_323_200_000),
        ("2026-03-01T12:00:00", 1_772_366_400_000),
        ("2026-03-01 12:00", 1_772_366_400_000),
        (" 2026-03-01T12:00:00.123 ", NOW),
        ("2026-03-01T12:00:00.123999", NOW),
        ("2026-03-01T12:00:00Z", 1_772_366_400_000),
        ("2026-03-01T20:00:00+08:00", 1_772_366_400_000),
        ("20260301T120000Z", 1_772_366_400_000),
        ("1969-12-31T23:59:59.9995Z", -1),
    ],
)
def test_time_is_read(text: str, expected: int) -> None:
    """Every form that the manual names means this instant, rounded down to milliseconds."""
    assert parse_time(text, UTC, NOW) == expected


@pytest.mark.parametrize(
    "text",
    ["", "tomorrow", "24:00", "12:60", "12:0", "1:2:3", "2h", "h ago", "ago", "-2h ago", "2 parsecs ago",
     "2026-13-01", "1.5",
     "1e3", "0x10", "١٢", "9" * 19, "9" * 30, "2026-03-01T25:00", "nowish", "99999999999999999999d ago",
     "0001-01-01T00:00:00+25:00"],
)  # fmt: skip
def test_anything_else_is_a_usage_error(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(UsageError):
        parse_time(text, UTC, NOW)


@pytest.mark.parametrize("text", ["1772366400", "+1772366400", "0000000005"])
def test_seconds_are_refused_with_the_milliseconds_they_mean(text: str) -> None:
    """As milliseconds they would be a day in 1970, and select everything or nothing."""
    with pytest.raises(UsageError) as caught:
        parse_time(text, UTC, NOW)
    assert "milliseconds" in str(caught.value.hint)
    assert parse_time("-1772366400", UTC, NOW) == -1_772_366_400


def test_time_without_offset_is_in_the_zone() -> None:
    """The zone counts for times without an offset and for `today`, and for nothing else."""
    zone = parse_zone("Asia/Shanghai")
    assert parse_time("2026-03-01T20:00:00", zone, NOW) == 1_772_366_400_000
    assert parse_time("2026-03-01T12:00:00Z", zone, NOW) == 1_772_366_400_000
    assert parse_time("today", zone, NOW) == 1_772_294_400_000
    assert parse_time("yesterday", zone, NOW) == 1_772_208_000_000
    assert parse_time("20:00", zone, NOW) == 1_772_366_400_000
    assert parse_time("now", zone, NOW) == NOW


def test_local_zone_follows_its_own_rules(shanghai: None) -> None:
    """None is the local zone, in both directions."""
    assert parse_zone(None) is None
    assert parse_zone("local") is None
    assert parse_time("2026-03-01T20:00:00", None, NOW) == 1_772_366_400_000
    assert parse_time("today", None, NOW) == 1_772_294_400_000
    assert format_time(NOW, None) == "2026-03-01T20:00:00.123+08:00"


def test_time_that_the_zone_has_twice_is_the_earlier_one() -> None:
    """02:30 on the night when summer time ends."""
    assert parse_time("2026-10-25T02:30", parse_zone("Europe/Berlin"), NOW) == parse_time(
        "2026-10-25T02:30+02:00", UTC, NOW
    )


@pytest.mark.parametrize("year", ["0001-01-01", "9999-12-31T23:59:59"])
def test_ends_of_the_calendar_are_a_usage_error_or_a_time(year: str) -> None:
    """No overflow escapes as something else."""
    for zone in (
        timezone(timedelta(hours=14)),
        timezone(timedelta(hours=-12)),
        None,
        parse_zone("Asia/Shanghai"),
    ):
        try:
            parse_time(year, zone, NOW)
        except UsageError:
            continue


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("UTC", 0), ("utc", 0), ("Z", 0), ("+08:00", 480), ("-0330", -210), ("Asia/Kolkata", 330)],
)
def test_zone_is_read(text: str, minutes: int) -> None:
    """UTC, offsets and names."""
    zone = parse_zone(text)
    assert zone is not None
    assert zone.utcoffset(datetime(2026, 3, 1)) == timedelta(minutes=minutes)


@pytest.mark.parametrize(
    "text", ["", "Europe", "Nowhere/City", "../etc/passwd", "/etc/localtime", "+25:00", "+01:99", "\0"]
)
def test_unknown_zone_is_a_usage_error(text: str) -> None:
    """A folder, a path and nonsense all end the same way."""
    with pytest.raises(UsageError):
        parse_zone(text)


@pytest.mark.parametrize("text", ["5", "", "s", "1h-2m", "1h 2", "1y", "1" * 16 + "s"])
def test_bad_duration_is_a_usage_error(text: str) -> None:
    """A bare number has no unit."""
    with pytest.raises(UsageError):
        parse_duration(text)


def test_time_is_printed_with_milliseconds_and_offset() -> None:
    """RFC 3339, the offset always there."""
    assert format_time(0, UTC) == "1970-01-01T00:00:00.000+00:00"
    assert format_time(-1, UTC) == "1969-12-31T23:59:59.999+00:00"
    assert format_time(NOW, parse_zone("-03:30")) == "2026-03-01T08:30:00.123-03:30"


def test_offset_of_local_mean_time_has_whole_minutes() -> None:
    """Shanghai was at +08:05:43 before 1901; RFC 3339 cannot say that."""
    printed = format_time(-2_500_000_000_000, parse_zone("Asia/Shanghai"))
    assert printed is not None
    assert printed.endswith("+08:05")
    assert parse_time(printed, UTC, NOW) == -2_500_000_000_000


@pytest.mark.parametrize("value", [FIRST_MS - 1, LAST_MS + 1, 2**63 - 1, -(2**63)])
def test_time_outside_the_calendar_is_none(value: int) -> None:
    """A damaged record may hold any integer."""
    assert format_time(value, UTC) is None
    assert format_time(value, None) is None


@given(st.integers(FIRST_MS, LAST_MS), st.sampled_from(["UTC", "local", "+13:45", "America/New_York"]))
def test_what_is_printed_reads_back(value: int, zone: str) -> None:
    """Printing loses nothing, except at the very ends of the calendar, where a zone may leave it."""
    printed = format_time(value, parse_zone(zone))
    assert printed is None or parse_time(printed, UTC, 0) == value
    assert printed is not None or not FIRST_MS + 86_400_000 < value < LAST_MS - 86_400_000


@given(st.text(max_size=30))
def test_any_text_is_a_time_or_a_usage_error(text: str) -> None:
    """No other exception, whatever is typed."""
    try:
        assert isinstance(parse_time(text, None, NOW), int)
    except UsageError:
        pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0ms"), (999, "999ms"), (1000, "1s"), (59_999, "59s"), (125_000, "2m05s"), (11_400_000, "3h10m"),
     (1_051_200_000, "12d04h"), (315_359_999_999, "3649d23h"), (10**12, "31y"), (-125_000, "-2m05s")],
)  # fmt: skip
def test_duration_is_printed_in_two_units(value: int, expected: str) -> None:
    """Short enough for a line, and never rounded up."""
    assert format_duration(value) == expected


@pytest.mark.parametrize(
    "words",
    [
        ["dump"], ["tail"], ["stats"], ["export", "--output", "e.parquet"], ["copy", "--output", "new"],
        ["sql", "select count(*) from messages"], ["lookup", "--key", "none"],
        ["reset-offset", "--group", "*"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_commands_that_find_nothing_say_which_time_they_understood(
    words: list[str],
    cases: Library,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A time of day is today's, though a table may have shown it for another day."""
    monkeypatch.chdir(tmp_path)
    command, *options = words
    store, last = str(cases.path("ok_540_clean")), "the last message was stored at 2026-11-21T08:51:16.716"
    main([command, store, *options, "--since", "2200-01-01T08:50:33.100", "--tz", "UTC"])
    text = "--since is 2200-01-01T08:50:33.100+00:00, which is in the future; "
    assert f"rmqtool: {text}{last}+00:00" in capsys.readouterr().err


def test_times_are_named_only_where_that_helps(cases: Library, capsys: pytest.CaptureFixture[str]) -> None:
    """Of what is found only a time in the future; of nothing the bounds, and the last message if older."""
    store = str(cases.path(SMALL))

    def dumped(*options: str) -> str:
        main(["dump", store, "--tz", "UTC", "--limit", "1", *options])
        return "".join(line for line in capsys.readouterr().err.splitlines(True) if " is 2" in line)

    assert dumped("--since", "2020-01-01", "--until", "2100-01-01") == (
        "rmqtool: --until is 2100-01-01T00:00:00.000+00:00, which is in the future\n"
    )
    assert dumped("--until", "2020-01-01") == "rmqtool: --until is 2020-01-01T00:00:00.000+00:00\n"
    assert dumped("--since", "2020-01-01") == ""
    born = dumped("--since", "2100-01-01", "--time-field", "born")
    assert born.endswith("in the future\n")  # when messages were stored says nothing of when they were born
    main(["verify", store, "--since", "2100-01-01", "--tz", "UTC"])
    assert "--since is 2100-01-01T00:00:00.000+00:00, which is in the future\n" in capsys.readouterr().err
