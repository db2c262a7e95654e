"""The charts of `rmqtool stats --plot`: groups, queues, messages over time, sizes, lag of consumer groups.

They are drawn by matplotlib (extra `plot`) with a backend that needs no screen. Names from a store are
untrusted: they are escaped, shortened, and never read as formulas.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from datetime import tzinfo
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.commands.options import local_file
from rmqtool.errors import InputError, UsageError
from rmqtool.terminal import counted, escape, format_size
from rmqtool.times import format_duration

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.report.stats.charts import Charts
    from rmqtool.report.stats.timeline import Bars

_ROWS = 9  # groups of a panel
_STEPS = 120
_SHOWN = {"hour": "hour_time", "day": "day_time", "size": "size_from_bytes", "queue": "queue_id"}
_LABEL_MAX = 44
_COUNT_COLOUR, _BYTES_COLOUR = "#2f6fb3", "#c05a1c"
_COLOURS = ("#2f6fb3", "#c05a1c", "#2e7d46", "#8a4fbf", "#0e7c86", "#b0307a")
_SOFT, _LINE = "#57606a", "#d8dee4"
_LOOK: dict[str, Any] = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.axisbelow": True,
    "axes.edgecolor": _SOFT, "xtick.color": _SOFT, "ytick.color": _SOFT, "xtick.labelsize": 9,
    "ytick.labelsize": 9, "ytick.left": False,
}  # fmt: skip


def check_plot(text: str, store: Store) -> Path:
    """Return the path of the picture; raise an error for one that cannot be drawn, before any work.

    Raises:
        UsageError: neither .svg nor .png, or a URL of elsewhere.
        RefusedError: the file exists, or would lie in the store.
        InputError: matplotlib is not installed.
    """
    from rmqtool.report.export.new_file import check_new
    from rmqtool.storage.output_guard import keep_out

    path = local_file(text, "--plot")
    if path.suffix.lower() not in (".svg", ".png"):
        raise UsageError("--plot writes only .svg and .png files", path=path)
    keep_out(store.layout, path, "the file", location=store.location.path)
    check_new(path)
    logging.getLogger("matplotlib").setLevel(logging.CRITICAL)  # it warns of caches that it cannot write
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError("charts need matplotlib", hint="pip install 'rmqtool[plot]'") from None
    return path


def draw(charts: Charts, path: Path, tz: tzinfo | None, *, title: str) -> None:
    """Draw the charts into a new file, which appears when it is complete.

    Raises:
        RefusedError: the file exists.
        UnwritableError: it cannot be written; nothing is left of it.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from rmqtool.report.export.new_file import write_new

    # The same store gives the same file: no date in it, no random names. A dollar sign begins no formula.
    settings: Any = {
        "svg.hashsalt": "rmqtool",
        "text.parse_math": False,
        "font.family": "sans-serif",
        **_LOOK,
    }
    with mpl.rc_context(settings):
        heights = (1.45, 1, 1, 1.15) if charts.lags else (1.45, 1, 1)
        inches = 1.2 + 3.26 * sum(heights)
        figure = Figure(figsize=(13, inches))
        panels = figure.subplots(len(heights), 2, height_ratios=heights)
        # Fixed places: a long name must not push the charts aside.
        top, bottom = 1 - 1.4 / inches, 0.7 / inches
        figure.subplots_adjust(left=0.06, right=0.975, top=top, bottom=bottom, hspace=0.42, wspace=0.16)
        figure.suptitle(
            label(title, 80), x=0.06, y=1 - 0.35 / inches, ha="left", fontsize=15, fontweight="bold"
        )
        bars = charts.timeline.bars(_STEPS)
        figure.text(0.06, 1 - 0.72 / inches, _subtitle(charts, bars, tz), fontsize=10.5, color=_SOFT)
        _groups(panels[0, 0], charts)
        _skew(panels[0, 1], charts)
        _rates(panels[1], bars, tz)
        _sizes(panels[2], charts)
        if charts.lags:
            _lag(panels[3, 0], charts)
            _backlog(panels[3, 1], charts, tz)
        kind = path.suffix.lower().removeprefix(".")
        # Fonts may lack characters of other scripts: boxes instead of them are not worth a warning.
        picture = io.BytesIO()
        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
        _save(figure, picture, kind, metadata)
    write_new(path, [picture.getvalue()])


def label(text: str, length: int = _LABEL_MAX) -> str:
    """Return a text from a store as a label: without control characters, a long one without its middle."""
    shown = escape(text)
    half = length // 2
    return shown if len(shown) <= length else f"{shown[:half]}…{shown[half - length + 1 :]}"


def _save(figure: Any, picture: io.BytesIO, kind: str, metadata: dict[str, Any]) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(picture, format=kind, dpi=110, metadata=metadata)


def _subtitle(charts: Charts, bars: Bars | None, tz: tzinfo | None) -> str:
    """Return what the charts cover: messages, bytes, first and last store time."""
    from rmqtool.commands.report_plot import time_text

    count, size = (sum(row[name] for row in charts.sizes) for name in ("count", "bytes"))
    if bars is None:
        return "no messages"
    moments = [
        each
        for row in charts.sizes
        for each in (row["first_store_timestamp_ms"], row["last_store_timestamp_ms"])
    ]
    first, last = time_text(min(moments), tz), time_text(max(moments), tz)
    text = f"{counted(count, 'message')}, {format_size(size)}, stored {first} to {last}"
    text += "" if charts.lags else "; no consumer group has committed an offset"
    return f"{text}; {bars.left_out} far from all others are not drawn over time" if bars.left_out else text


def _titled(axes: Any, title: str, remark: str = "") -> None:
    axes.set_title(title, loc="left", fontsize=11.5, fontweight="bold", pad=20 if remark else 8)
    if remark:
        axes.annotate(
            remark, (0, 1), (0, 6), "axes fraction", textcoords="offset points", fontsize=9, color=_SOFT
        )


def _nothing(axes: Any, text: str) -> None:
    """Leave a panel empty, and say why."""
    axes.set_axis_off()
    axes.text(0, 0.9, text, transform=axes.transAxes, color=_SOFT)


def _named_bars(axes: Any, rows: Sequence[tuple[str, float, str]], colour: str) -> None:
    """Draw horizontal bars with their names above them and their values after them."""
    rows = rows[::-1]
    places = [float(place) for place in range(len(rows))]
    axes.barh(places, [value for _, value, _ in rows], 0.38, color=colour)
    most = max((value for _, value, _ in rows), default=0) or 1
    for place, (name, value, text) in zip(places, rows, strict=True):
        axes.text(0, place + 0.27, name, va="bottom", fontsize=8.5)
        axes.annotate(text, (value, place), (4, 0), textcoords="offset points", va="center", fontsize=8.5,
                      color=_SOFT)  # fmt: skip
    axes.set(xlim=(0, most * 1.2), ylim=(-0.5, len(rows) - 0.1), yticks=[])
    axes.spines["left"].set_visible(True)
    axes.spines["bottom"].set_visible(False)
    axes.xaxis.set_visible(False)


def _groups(axes: Any, charts: Charts) -> None:
    """Draw bytes and messages by the names of --by, without the consumer group."""
    shown = [_SHOWN.get(each, each) for each in charts.by]
    is_time = charts.by[0] in ("hour", "day")
    rows = charts.groups if is_time else sorted(charts.groups, key=lambda row: -row["bytes"])
    kept, rest = (rows[-_ROWS:], rows[:-_ROWS]) if is_time else (rows[:_ROWS], rows[_ROWS:])
    total = sum(row["bytes"] for row in charts.groups) or 1

    def bar(name: str, rows: Sequence[Any]) -> tuple[str, float, str]:
        size = sum(row["bytes"] for row in rows)
        count = sum(row["count"] for row in rows)
        return name, size, f"{format_size(size)} ({size / total:.0%}), {count:,}"

    bars = [bar(label(", ".join(_value(row[name], name) for name in shown), 64), [row]) for row in kept]
    if rest:
        bars.append(bar(f"{len(rest)} others", rest))
    if not bars:
        return _nothing(axes, "No messages")
    _titled(axes, f"Bytes and messages by {', '.join(charts.by)}")
    _named_bars(axes, bars, _BYTES_COLOUR)


def _value(value: Any, name: str) -> str:
    if name == "size_from_bytes":
        return f"from {_size(value)}"
    if name == "queue_id":
        return f"queue {value}"
    if name.endswith("_time"):
        return str(value)[:16].replace("T", " ")
    return "none" if value is None else str(value)


def _skew(axes: Any, charts: Charts) -> None:
    """Draw for each of the largest topics the messages of its queues, as parts of their mean."""
    topics = [(topic, list(queues.values())) for topic, queues in charts.queues.items() if len(queues) > 1]
    topics = sorted(topics, key=lambda each: -sum(each[1]))[:_ROWS][::-1]
    if not topics:
        return _nothing(axes, "No topic has messages in more than one queue")
    remark = "each dot is a queue: its messages as a multiple of the mean of its topic"
    _titled(axes, "Queue skew", remark)
    most = 2.0
    for place, (topic, counts) in enumerate(topics):
        mean = sum(counts) / len(counts)
        values = [count / mean for count in counts]
        most = max(most, *values)
        axes.plot([min(values), max(values)], [place, place], color=_LINE, linewidth=2, zorder=1)
        axes.scatter(
            values, [place] * len(values), s=26, color=_COUNT_COLOUR, alpha=0.75, linewidths=0, zorder=2
        )
        axes.text(
            0, place + 0.2, f"{label(topic)}: {counted(len(counts), 'queue')}", va="bottom", fontsize=8.5
        )
    axes.axvline(1, color=_SOFT, linewidth=0.8, linestyle=":")
    axes.set(xlim=(0, most * 1.06), ylim=(-0.5, len(topics) - 0.1), yticks=[])


def _rates(panels: Sequence[Any], bars: Bars | None, tz: tzinfo | None) -> None:
    """Draw messages and bytes per second; times without messages stay empty."""
    for axes, name, colour in zip(panels, ("messages", "bytes"), (_COUNT_COLOUR, _BYTES_COLOUR), strict=True):
        if bars is None:
            _nothing(axes, "No messages")
            continue
        _titled(axes, f"{name.capitalize()} per second, by store time",
                f"steps of {format_duration(bars.step_ms)}")  # fmt: skip
        sums = bars.counts if name == "messages" else bars.bytes
        values = [value / (bars.step_ms / 1000) for value in sums]
        _over_time(axes, bars, tz)
        places = [place + 0.5 for place in range(len(values))]
        axes.bar(places, values, 0.9 if len(values) < 90 else 1.0, color=colour)
        _value_axis(axes, name)


def _sizes(panels: Sequence[Any], charts: Charts) -> None:
    """Draw messages and bytes by size class; a class without messages has its place too."""
    for axes, name, colour in zip(panels, ("count", "bytes"), (_COUNT_COLOUR, _BYTES_COLOUR), strict=True):
        rows = {row["size_from_bytes"]: row for row in charts.sizes}
        if not rows:
            _nothing(axes, "No messages")
            continue
        first, last = min(rows).bit_length(), max(rows).bit_length()
        edges = [1 << (power - 1) for power in range(first, last + 1)]
        values = [rows[edge][name] if edge in rows else 0 for edge in edges]
        _titled(axes, f"{'Messages' if name == 'count' else 'Bytes'} by size of the record")
        axes.bar([place + 0.5 for place in range(len(edges))], values, 0.86, color=colour)
        axes.set_xlim(0, len(edges))
        ticks = [*edges, edges[-1] * 2]
        every = -(-len(ticks) // 8)
        axes.set_xticks(range(0, len(ticks), every), [_size(edge) for edge in ticks[::every]])
        _value_axis(axes, "messages" if name == "count" else "bytes")


def _lag(axes: Any, charts: Charts) -> None:
    from rmqtool.report.stats.lag import worst_groups

    rows: Sequence[Any] = worst_groups(charts.lags)
    _titled(axes, "Lag of consumer groups, messages")
    bars = [
        (label(row["group"], 64), row["lag_messages"] or 0,
         "unknown" if row["lag_messages"] is None else f"{row['lag_messages']:,}")
        for row in rows[:_ROWS]
    ]  # fmt: skip
    if len(rows) > _ROWS:
        rest = sum(row["lag_messages"] or 0 for row in rows[_ROWS:])
        bars.append((f"{len(rows) - _ROWS} others", rest, f"{rest:,}"))
    _named_bars(axes, bars, _COUNT_COLOUR)


def _backlog(axes: Any, charts: Charts, tz: tzinfo | None) -> None:
    """Draw how the messages that the worst groups have not consumed came together."""
    found = {group: timeline.bars(_STEPS) for group, timeline in charts.backlog.items()}
    lines = {group: bars for group, bars in found.items() if bars is not None}
    whole = charts.timeline.bars(_STEPS)
    if not lines or whole is None:
        return _nothing(axes, "No group lags behind the selected messages")
    remark = "by the offsets committed now; before, a group lagged at least this much"
    _titled(axes, "Lag over time, messages", remark)
    end = whole.start_ms + len(whole.counts) * whole.step_ms
    for (group, bars), colour in zip(lines.items(), _COLOURS, strict=False):
        starts = [bars.start_ms + place * bars.step_ms for place in range(len(bars.counts) + 1)]
        sums = [0, *accumulate(bars.counts)]
        places = [(min(start, end) - whole.start_ms) / whole.step_ms for start in [*starts, end]]
        axes.step(
            places, [*sums, sums[-1]], where="post", color=colour, linewidth=1.8, label=label(group, 40)
        )
    _over_time(axes, whole, tz)
    axes.legend(loc="best", fontsize=8.5, framealpha=0.85, edgecolor="none")
    _value_axis(axes, "messages")


def _over_time(axes: Any, bars: Bars, tz: tzinfo | None) -> None:
    """Label the x axis, whose unit is a step, with round times and dates."""
    from rmqtool.commands.report_plot import time_ticks

    end = bars.start_ms + len(bars.counts) * bars.step_ms
    ticks = list(time_ticks(bars.start_ms, end, tz))
    axes.set_xlim(0, len(bars.counts))
    axes.set_xticks([left / 100 * len(bars.counts) for left, _ in ticks], [text for _, text in ticks])


def _value_axis(axes: Any, unit: str) -> None:
    """Begin the y axis at 0, in powers of 1024 for bytes."""
    from matplotlib.ticker import FuncFormatter

    from rmqtool.commands.report_plot import number, steps_of

    values = steps_of(axes.dataLim.y1, binary=unit == "bytes")
    axes.set_ylim(0, values[-1])
    axes.set_yticks(values)
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: (_size if unit == "bytes" else number)(value))
    )
    axes.grid(axis="y", color=_LINE, linewidth=0.7)


def _size(value: float) -> str:
    return format_size(round(value)).replace(".0 ", " ")
