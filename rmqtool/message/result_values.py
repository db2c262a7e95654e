"""Values of the results of a query as rows show them, whichever engine ran it: Spark or DuckDB."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from itertools import chain, count

from rmqtool.times import format_time

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def numbered(names: Sequence[str]) -> list[str]:
    """The names; a number is appended to a repeated one, and makes it different from all others."""
    found: list[str] = []
    for place, name in enumerate(names, 1):
        others = chain((name,), (f"{name}_{number}" for number in count(place)))
        used = {*found, *names} if name in found else set(found)
        found.append(next(each for each in others if each not in used))
    return found


def shown_time(value: datetime, tz: tzinfo | None) -> str | None:
    """A time in a zone, with microseconds where it has them; one without a zone is local."""
    if value.microsecond % 1000:
        return value.astimezone(tz).isoformat(timespec="microseconds")
    time_ms = (value.astimezone(UTC) - _EPOCH) // _MS
    return format_time(time_ms, tz) or format_time(time_ms, UTC)


def shown_plain_time(value: datetime) -> str:
    """A time of no zone as it is."""
    return value.isoformat(timespec="microseconds" if value.microsecond % 1000 else "milliseconds")


def shown_float(value: float) -> float | str:
    """A number, or the name of what is none."""
    return value if math.isfinite(value) else _NOT_FINITE[str(value)]


def shown_interval(value: timedelta) -> str:
    """`[-]DAYS HH:MM:SS[.ffffff]`, as SQL writes it."""
    sign, value = ("-", -value) if value < timedelta(0) else ("", value)
    hours, rest = divmod(value.seconds, 3600)
    seconds = f"{rest // 60:02}:{rest % 60:02}" + (f".{value.microseconds:06}" if value.microseconds else "")
    return f"{sign}{value.days} {hours:02}:{seconds}"


def shown_decimal(value: Decimal) -> int | float | str:
    """A number where JSON's readers get the same one, else its digits."""
    if value == value.to_integral_value():
        return int(value)
    near = float(value)
    return near if Decimal(repr(near)) == value else format(value, "f")


def shown_key(value: object) -> str:
    """The key of a map as a name in JSON."""
    return str(value).lower() if isinstance(value, bool) else str(value)
