"""The charts of `rmqtool report`, as shapes for the template: it escapes every text and writes the SVG.

A chart is as wide as the screen: the x positions of shapes are percentages, heights are pixels, so texts keep
their size on a phone. Every chart comes with its numbers as a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from datetime import UTC, datetime, tzinfo
from math import ceil
from typing import TYPE_CHECKING, Any

from rmqtool.lazy_dataclass import dataclass
from rmqtool.terminal import counted, escape, format_size
from rmqtool.times import format_duration, format_time

if TYPE_CHECKING:
    from rmqtool.problems import Finding
    from rmqtool.report.stats.timeline import Timeline
    from rmqtool.report.summary.records import Classes, LogMap

BARS_MAX = 160
_TOP, _BOTTOM = 22, 22  # pixels above and below the plot
_MAP, _DENSE, _LANE = (8.0, 178.0), (204.0, 254.0), 276.0  # rows of the map: upper and lower edge; damage
_MARKS = 400  # places of the lane of damage
_FILES_DRAWN = 60
_LABELS_MAX = 6
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_LETTER, _GAP = 6.4, 8  # pixels of a letter, at most, and between labels
_NARROW, _WIDE = 280, 500  # pixels of a chart: on a phone, and from where it has labels of the class minor
_TIME_STEPS = (
    _SECOND, 2 * _SECOND, 5 * _SECOND, 10 * _SECOND, 15 * _SECOND, 30 * _SECOND, _MINUTE, 2 * _MINUTE,
    5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE, _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR,
    _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 30 * _DAY, 90 * _DAY, 365 * _DAY, 3650 * _DAY,
)  # fmt: skip
_YEARS_MS = (-62_135_596_800_000, 253_402_300_799_999)  # what a calendar can show
_SEVERITIES = ("error", "warning", "note")


Layer = tuple[str, str, list[int]]
"""A topic of the map: its name, its class, its bytes per step."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One element of a chart: its tag, its attributes, its text, and what a pointer shows."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    tip: str = ""


@dataclass
class Chart:
    """A chart: what it shows, in words too, its shapes, and its numbers as rows."""

    name: str
    title: str
    description: str
    height: int
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)

    def rect(self, left: float, top: float, width: float, height: float, kind: str, tip: str = "") -> None:
        """Add a rectangle: x in percent, y in pixels."""
        self.shapes.append(
            Shape("rect", {"x": f"{left:.3f}%", "y": f"{top:.1f}", "width": f"{max(width, 0.05):.3f}%",
                           "height": f"{max(height, 0):.1f}", "class": kind}, tip=tip)
        )  # fmt: skip

    def line(self, left: float, top: float, right: float, bottom: float, kind: str) -> None:
        """Add a line."""
        self.shapes.append(
            Shape("line", {"x1": f"{left:.3f}%", "y1": f"{top:.1f}", "x2": f"{right:.3f}%",
                           "y2": f"{bottom:.1f}", "class": kind})
        )  # fmt: skip

    def label(self, left: float, top: float, text: str, kind: str = "tick") -> None:
        """Add a text; those at the edges stay inside of the chart."""
        self.shapes.append(
            Shape("text", {"x": f"{min(max(left, 0), 100):.3f}%", "y": f"{top:.1f}",
                           "text-anchor": _anchor(left, text), "class": kind}, text)
        )  # fmt: skip

    def labels(self, top: float, ticks: Sequence[tuple[float, str]]) -> None:
        """Add texts of one line, without those that meet others; a wide chart has more (class minor)."""
        major = _apart(ticks, _NARROW)
        for tick in _apart(ticks, _WIDE, major):
            self.label(tick[0], top, tick[1], "tick" if tick in major else "tick minor")

    def ordered(self) -> list[Shape]:
        """Return the shapes as they are drawn: texts over all others."""
        return sorted(self.shapes, key=lambda shape: shape.tag == "text")


def _anchor(left: float, text: str) -> str:
    """Return where a text at `left` percent is anchored: it stays inside of the narrowest chart."""
    half = len(text) * _LETTER * 50 / _NARROW
    return "start" if left < half else "end" if left > 100 - half else "middle"


def _apart(
    ticks: Sequence[tuple[float, str]], width: int, kept: Sequence[tuple[float, str]] = ()
) -> list[tuple[float, str]]:
    """Return `kept`, and the first of the other ticks that meet none in a chart of `width` pixels."""

    def ends(tick: tuple[float, str]) -> tuple[float, float]:
        left, text = tick
        length = len(text) * _LETTER
        begin = left * width / 100 - length * {"start": 0, "middle": 0.5, "end": 1}[_anchor(left, text)]
        return begin - _GAP / 2, begin + length + _GAP / 2

    found = [*kept]
    for tick in ticks:
        begin, end = ends(tick)
        if tick not in found and all(end <= low or high <= begin for low, high in map(ends, found)):
            found.append(tick)
    return found


def number(value: float) -> str:
    """Return a count for people: `1,234`, `12.3 M`."""
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if abs(value) >= 10 * size or (abs(value) >= size and value % size):
            return f"{value / size:,.1f} {unit}"
    if value and abs(value) < 10 and value != int(value):
        return f"{value:.1f}" if abs(value) >= 0.1 else f"{value:.2g}"
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Return a size for people."""
    return format_size(round(value)).replace(".0 ", " ")


def steps_of(top: float, *, binary: bool) -> list[float]:
    """Return the values of three to five grid lines from 0 on; the last is at least `top`."""
    if top <= 0:
        return [0, 1]
    base = 1.0
    while binary and top / base >= 1000:
        base *= 1024
    raw = top / base / 4
    power = 10.0 ** (len(str(int(raw))) - 1) if raw >= 1 else 1.0
    while raw < power:
        power /= 10
    step = next(each for each in (1, 2, 2.5, 5, 10) if each * power >= raw) * power * base
    if not binary and top >= 4:
        step = max(ceil(step), 1)
    return [step * each for each in range(ceil(top / step) + 1)]


def _grid(chart: Chart, top: float, texts: Any, *, binary: bool, area: tuple[float, float]) -> float:
    """Draw the grid and its labels within `area` (upper and lower edge); return pixels per unit."""
    values = steps_of(top, binary=binary)
    upper, lower = area
    scale = (lower - upper) / values[-1]
    for value in values:
        y = lower - value * scale
        chart.line(0, y, 100, y, "axis" if value == 0 else "grid")
        if value:
            chart.label(0, y - 4, texts(value), "tick value")
    return scale


# Rates


def rates(timeline: Timeline, zone: tzinfo | None) -> list[Chart]:
    """Return the charts of messages and bytes over time; none without messages."""
    bars = timeline.bars(BARS_MAX)
    if bars is None:
        return []
    start, step, left_out = bars.start_ms, bars.step_ms, bars.left_out
    sums = list(zip(bars.counts, bars.bytes, strict=True))
    steps = len(sums)
    seconds = step / 1000
    note = (
        f" {counted(left_out, 'message')} with a store time far from all others are left out."
        if left_out
        else ""
    )
    charts = []
    for name, title, column, text in (
        ("rate-messages", "Messages per second", 0, number),
        ("rate-bytes", "Bytes per second", 1, size),
    ):
        values = [each[column] / seconds for each in sums]
        top = max(values)
        when = time_text(start + values.index(top) * step, zone)
        chart = Chart(
            name, f"{title}, per step of {format_duration(step)}",
            f"The highest is {text(top)}/s, at {when}.{note}", 190,
            ("from", "messages", "bytes", "per second"),
        )  # fmt: skip
        area = (_TOP, chart.height - _BOTTOM)
        scale = _grid(chart, top, lambda value, text=text: f"{text(value)}/s", binary=column == 1, area=area)
        width = 100 / steps
        for place, value in enumerate(values):
            if not value:
                continue
            moment = time_text(start + place * step, zone)
            tip = f"{moment}: {number(sums[place][0])} messages, {size(sums[place][1])}; {text(value)}/s"
            height = max(value * scale, 1)
            chart.rect(place * width, area[1] - height, width * 0.86, height, f"bar bar{column}", tip)
            chart.rows.append((moment, f"{sums[place][0]:,}", size(sums[place][1]), f"{text(value)}/s"))
        chart.labels(chart.height - 6, list(time_ticks(start, start + steps * step, zone)))
        charts.append(chart)
    return charts


def time_text(time_ms: int, zone: tzinfo | None) -> str:
    """Return a time for people, without what a chart does not need."""
    text = format_time(time_ms, zone)
    return f"{time_ms} ms" if text is None else f"{text[:10]} {text[11:19]}"


def time_ticks(low: int, high: int, zone: tzinfo | None) -> Iterator[tuple[float, str]]:
    """Yield (place in percent, label) of round times."""
    if high <= low:
        return
    step = next((each for each in _TIME_STEPS if (high - low) / each <= 6), _TIME_STEPS[-1])
    shift = _offset_ms(low, zone)
    day = None
    ticks = range(-(-(low + shift) // step) * step - shift, high, step)
    for tick in ticks[:12]:
        moment = _moment(tick, zone)
        if moment is None:
            continue
        left = (tick - low) / (high - low) * 100
        if left > 97 or (left < 3 and left):
            continue
        if step >= _DAY:
            text = f"{moment:%d %b}" if step < 365 * _DAY else f"{moment:%Y}"
        else:
            text = f"{moment:%H:%M:%S}" if step < _MINUTE else f"{moment:%H:%M}"
            if moment.date() != day:
                text = f"{moment:%d %b} {text}"
            day = moment.date()
        yield left, text


def _moment(time_ms: int, zone: tzinfo | None) -> datetime | None:
    if not _YEARS_MS[0] <= time_ms <= _YEARS_MS[1]:
        return None
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return None


def _offset_ms(time_ms: int, zone: tzinfo | None) -> int:
    moment = _moment(time_ms, zone)
    offset = moment.utcoffset() if moment is not None else None
    return 0 if offset is None else int(offset.total_seconds() * 1000)


# Classes


def classes(name: str, title: str, found: Classes, texts: Sequence[str], what: str) -> list[Chart]:
    """Return two charts of the same classes, messages and bytes; the first and last class have messages."""
    counts, stored = found.counts.tolist(), found.bytes.tolist()
    used = [place for place, count in enumerate(counts) if count]
    if not used:
        return []
    places = range(used[0], used[-1] + 1)
    most = max(places, key=lambda place: counts[place])
    charts = []
    for suffix, values, text, word in (
        ("messages", counts, number, "Messages"),
        ("bytes", stored, size, "Bytes"),
    ):
        chart = Chart(
            f"{name}-{suffix}", f"{word} by {title}",
            f"Most messages have {what} {texts[most]}: {number(counts[most])} of {number(sum(counts))}.", 170,
            (title, "messages", "bytes"),
        )  # fmt: skip
        area = (_TOP, chart.height - _BOTTOM)
        top = max(values[place] for place in places)
        scale = _grid(chart, top, text, binary=suffix == "bytes", area=area)
        width = 100 / len(places)
        for number_, place in enumerate(places):
            left, value = number_ * width, values[place]
            tip = f"{texts[place]}: {number(counts[place])} messages, {size(stored[place])}"
            height = max(value * scale, 1) if value else 0
            chart.rect(left + width * 0.1, area[1] - height, width * 0.8, height,
                       "bar bar0" if suffix == "messages" else "bar bar1", tip)  # fmt: skip
            chart.rows.append((texts[place], f"{counts[place]:,}", size(stored[place])))
        names = [texts[place].split(" to ")[0] for place in places]
        every = -(-len(places) // _LABELS_MAX)
        chart.labels(chart.height - 6, [((n + 0.5) * width, names[n]) for n in range(0, len(names), every)])
        charts.append(chart)
    return charts


def size_texts(edges: Sequence[int]) -> list[str]:
    """Return the names of classes of sizes, lower edge first."""
    names = [format_size(edge).replace(".0", "") for edge in edges]
    middle = [f"{low} to {high}" for low, high in zip(names, names[1:], strict=False)]
    return [f"0 B to {names[0]}", *middle, f"{names[-1]} and more"]


def delay_texts(edges: Sequence[int]) -> list[str]:
    """Return the names of classes of delays; the first is that of negative ones."""
    names = [
        format_duration(edge).replace("m00s", "m").replace("h00m", "h").replace("d00h", "d") for edge in edges
    ]
    middle = [f"{low} to {high}" for low, high in zip(names, names[1:], strict=False)]
    return ["negative", *middle, f"{names[-1]} and more"]


# The map of the log


def log_map(
    found: LogMap,
    topics: Sequence[tuple[int, str, str]],
    places: Iterable[Finding],
    files: Sequence[int],
    zone: tzinfo | None,
) -> Chart | None:
    """Return the map of the commit log; None if it has no bytes.

    Args:
        found: the sums.
        topics: (code, name, class) of the topics that have a colour of their own; the rest are others.
        places: findings on the log.
        files: physical offsets where files begin.
        zone: of the times.
    """
    length = found.end - found.start
    if length <= 0 or not len(found.counts):
        return None
    counts, whole = found.counts.tolist(), found.bytes().tolist()
    layers: list[Layer] = [(name, kind, found.bytes_of(code).tolist()) for code, name, kind in topics]
    known = [sum(values) for values in zip(*(layer[2] for layer in layers), strict=True)] or [0] * len(whole)
    layers.append(("other topics", "t-other", [all_ - some for all_, some in zip(whole, known, strict=True)]))
    chart = Chart(
        "log-map", f"The commit log from offset {found.start} to {found.end}",
        f"Each column is {size(found.width)} of the log. Its height is the part that sound records fill, by"
        " topic. The second row is the number of messages per MiB, the third marks damage.",
        330, ("from offset", "stored from", "messages", "bytes", "largest topic"),
    )  # fmt: skip
    for part in (0.0, 0.5, 1.0):
        y = _MAP[1] - (_MAP[1] - _MAP[0]) * part
        chart.line(0, y, 100, y, "axis" if part == 0 else "grid")
    _columns(chart, found, counts, whole, layers)
    _damage(chart, found, places)
    for file in files[1:] if len(files) <= _FILES_DRAWN else ():
        if found.start < file < found.end:
            left = (file - found.start) / length * 100
            chart.line(left, _MAP[0] - 6, left, _MAP[1], "file")
    sizes, times = [], []
    for part in (0, 50, 100, 25, 75):  # the last two only where there is room
        place = min(len(counts) * part // 100, len(counts) - 1)
        sizes.append((part, size(found.start + length * part / 100)))
        if counts[place]:
            moment = found.last_ms[place] if part == 100 else found.first_ms[place]
            times.append((part, _short_time(int(moment), zone)))
    chart.labels(304, sizes)
    chart.labels(320, times)
    for place, count in enumerate(counts):
        start = place * found.width
        when = time_text(int(found.first_ms[place]), zone) if count else "no record"
        largest = max(layers, key=lambda layer: layer[2][place])[0] if count else ""
        tip = f"offset {found.start + start}, {when}: {number(count)} messages, {size(whole[place])}"
        tip += f", most of {largest}" if count else ""
        width = min(found.width, length - start) / length * 100
        chart.rect(start / length * 100, _MAP[0], width, _LANE + 12 - _MAP[0], "hit", tip)
        chart.rows.append((str(found.start + start), when, f"{count:,}", size(whole[place]), largest))
    return chart


def _columns(
    chart: Chart, found: LogMap, counts: Sequence[int], whole: Sequence[int], layers: Sequence[Layer]
) -> None:
    """Draw the columns of topics, and messages per MiB below them."""
    length = found.end - found.start
    dense = [
        count / (min(found.width, length - place * found.width) / (1 << 20))
        for place, count in enumerate(counts)
    ]
    most = max(dense) or 1
    for place, count in enumerate(counts):
        start = place * found.width
        step = min(found.width, length - start)
        left, width = start / length * 100, step / length * 92
        y = _MAP[1]
        for _, kind, values in layers:
            height = min(values[place] / step, 1) * (_MAP[1] - _MAP[0])
            if height > 0:
                y -= height
                chart.rect(left, y, width, height, kind)
        if count:
            height = max(dense[place] / most * (_DENSE[1] - _DENSE[0]), 1)
            chart.rect(left, _DENSE[1] - height, width, height, "bar bar0")
    chart.label(0, _DENSE[0] - 6, f"messages per MiB (up to {number(most)})", "tick value")
    chart.line(0, _DENSE[1], 100, _DENSE[1], "axis")


def _damage(chart: Chart, found: LogMap, places: Iterable[Finding]) -> None:
    """Draw the lane of damage: marks of the worst severity at each place."""
    length = found.end - found.start
    worst: dict[int, tuple[int, str]] = {}
    count = 0
    for each in places:
        if not each.problem.code.startswith("CL") or each.physical_offset is None:
            continue
        count += 1
        first = (each.physical_offset - found.start) * _MARKS // length
        last = (each.physical_offset + max(each.length or 1, 1) - 1 - found.start) * _MARKS // length
        severity = _SEVERITIES.index(each.problem.severity)
        tip = f"{each.problem.code} {each.message or each.problem.message}, offset {each.physical_offset}"
        for place in range(min(max(first, 0), _MARKS - 1), min(max(last, 0), _MARKS - 1) + 1):
            if place not in worst or worst[place][0] > severity:
                worst[place] = severity, escape(tip)
    chart.label(0, _LANE - 6, f"damage: {counted(count, 'place')}" if count else "damage: none", "tick value")
    chart.rect(0, _LANE, 100, 10, "lane")
    for place, (severity, tip) in sorted(worst.items()):
        kind = _SEVERITIES[severity]
        chart.rect(min(place * 100 / _MARKS, 99.5), _LANE, max(100 / _MARKS, 0.5), 10, f"mark-{kind}", tip)


def _short_time(time_ms: int, zone: tzinfo | None) -> str:
    moment = _moment(time_ms, zone)
    return f"{time_ms} ms" if moment is None else f"{moment:%d %b %H:%M}"
