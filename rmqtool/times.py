"""Points in time: what a user may write, and how a time is printed.

A point in time is an integer everywhere: milliseconds since 1970-01-01T00:00:00Z, as in the store.
This file is the only one that turns it into text and back. A zone is a `tzinfo`, or None for the
local zone of this process: the C library knows its rules, `zoneinfo` does not.

Accepted: ISO 8601 (without an offset it is in the zone given), integers (epoch milliseconds; ten
digits are refused, for they are seconds), `now`, `today` and `yesterday` (midnight in the zone),
`14:30`, `14:30:05` and `14:30:05.250`, as tables print it (today), and `2h ago`, `1d12h ago`. Nothing
else is guessed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo

from rmqtool.errors import UsageError
from rmqtool.lazy_pattern import pattern

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_INT64_MAX = 2**63 - 1
_INTEGER = pattern(r"[+-]?[0-9]{1,19}")
_SECONDS = pattern(r"\+?[0-9]{10}")  # 2001 to 2286 as seconds, January to April 1970 as milliseconds
_CLOCK = pattern(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,3}))?)?")
_OFFSET = pattern(r"([+-])([0-9]{2}):?([0-9]{2})")
_DURATION = pattern(r"(?:[0-9]+ *[a-z]+ *)+")
_DURATION_PART = pattern(r"([0-9]+) *([a-z]+)")
_UNIT_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), HOUR_MS),
    **dict.fromkeys(("d", "day", "days"), DAY_MS),
    **dict.fromkeys(("w", "week", "weeks"), 7 * DAY_MS),
}
_TIME_HINT = (
    "use ISO 8601 (2026-03-01T12:00:00+08:00), epoch milliseconds, 'now', 'today', 'yesterday', '14:30' or "
    "'2h ago'"
)


def parse_zone(text: str | None) -> tzinfo | None:
    """The zone named `text`: `UTC`, `local`, `Area/City` or an offset such as `+08:00`.

    None and `local` give None, the local zone. Raises UsageError for any other text.
    """
    if text is None or text.lower() == "local":
        return None
    if text.upper() in ("UTC", "Z"):
        return UTC
    offset = _OFFSET.fullmatch(text)
    if offset is not None:
        minutes = int(offset[2]) * 60 + int(offset[3])
        if int(offset[3]) < 60 and minutes < 24 * 60:
            return timezone(timedelta(minutes=-minutes if offset[1] == "-" else minutes))
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(text)
    except (KeyError, ValueError, OSError):  # unknown, not a relative name, or a folder such as `Europe`
        raise UsageError(
            f"unknown time zone: {text!r}",
            hint="use UTC, local, an offset such as +08:00, or a name such as Asia/Shanghai",
        ) from None


def parse_time(text: str, zone: tzinfo | None, now_ms: int) -> int:
    """The point in time that `text` means, in epoch milliseconds (rounded down).

    An ISO 8601 time without an offset is in `zone`; a time that the zone has twice, at the end of
    summer time, is the earlier one. `now`, `today`, `yesterday`, a time of day and `... ago` count
    from `now_ms`. Raises UsageError for anything that is not in the list above.
    """
    word = text.strip().lower()
    if _SECONDS.fullmatch(word):
        raise UsageError(
            f"{text!r} looks like seconds", hint=f"integers are milliseconds since 1970: {int(word)}000"
        )
    if _INTEGER.fullmatch(word):
        value = int(word)
        if abs(value) <= _INT64_MAX:
            return value
        raise UsageError(f"not a time: {text!r}", hint="epoch milliseconds have 64 bits")
    if word == "now":
        return now_ms
    try:
        day = _moment(now_ms, zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        if word in ("today", "yesterday"):
            return _to_ms(day - timedelta(days=word == "yesterday"), zone)
        clock = _CLOCK.fullmatch(word)
        if clock is not None:
            hour, minute, second = (int(part or 0) for part in clock.groups()[:3])
            microsecond = int((clock[4] or "").ljust(6, "0"))
            moment = day.replace(hour=hour, minute=minute, second=second, microsecond=microsecond)
            return _to_ms(moment, zone)
        if word.endswith(" ago"):
            return now_ms - parse_duration(word.removesuffix(" ago"))
        return _to_ms(datetime.fromisoformat(text.strip()), zone)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"not a time: {text!r}", hint=_TIME_HINT) from None


def parse_duration(text: str) -> int:
    """Milliseconds of a duration such as `90s`, `2h`, `1d12h` or `30 minutes`.

    Raises UsageError for anything else, a bare number included: it has no unit.
    """
    word = text.strip().lower()
    parts = _DURATION_PART.findall(word) if _DURATION.fullmatch(word) else []
    if not parts or any(unit not in _UNIT_MS or len(number) > 15 for number, unit in parts):
        hint = "use a number and a unit (ms s m h d w), such as 90s or 1d12h"
        raise UsageError(f"not a duration: {text!r}", hint=hint)
    return sum(int(number) * _UNIT_MS[unit] for number, unit in parts)


def format_time(timestamp_ms: int, zone: tzinfo | None) -> str | None:
    """`timestamp_ms` in RFC 3339 with milliseconds and the offset of `zone` at that time.

    None if the time is outside the years 1 to 9999, as in damaged records; the integer next to it in the
    output shows the stored value.
    """
    try:
        moment = _moment(timestamp_ms, zone)
        offset = moment.utcoffset()
        # RFC 3339 has offsets in whole minutes; zones before 1900 or so were on local mean time.
        if offset is not None and offset % timedelta(minutes=1):
            moment = moment.astimezone(timezone(timedelta(minutes=offset // timedelta(minutes=1))))
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds")


def format_duration(duration_ms: int) -> str:
    """`duration_ms` in two units: `850ms`, `42s`, `2m05s`, `3h10m`, `12d04h`; the longest `31y`."""
    if duration_ms < 0:
        return "-" + format_duration(-duration_ms)
    if duration_ms < 1_000:
        return f"{duration_ms}ms"
    seconds = duration_ms // 1_000
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3_600:
        return f"{seconds // 60}m{seconds % 60:02}s"
    if seconds < 86_400:
        return f"{seconds // 3_600}h{seconds // 60 % 60:02}m"
    days = seconds // 86_400
    return f"{days}d{seconds // 3_600 % 24:02}h" if days < 3650 else f"{days // 365}y"


def _moment(timestamp_ms: int, zone: tzinfo | None) -> datetime:
    return (_EPOCH + timestamp_ms * _MILLISECOND).astimezone(zone)


def _to_ms(moment: datetime, zone: tzinfo | None) -> int:
    if moment.tzinfo is None:
        # Without an argument astimezone() regards a naive time as local, which is what None means.
        moment = moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
    return (moment - _EPOCH) // _MILLISECOND
