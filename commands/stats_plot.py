"""The charts of `rmqtool stats --plot`: sizes, messages and bytes over time, lag of consumer groups.

They are drawn by matplotlib (extra `plot`) with a backend that needs no screen. Names from a store are
untrusted: they are escaped, shortened, and never read as formulas.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.commands.options import local_file
from rmqtool.errors import InputError, UsageError
from rmqtool.terminal import escape, format_size

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.report.stats.overview import Charts

GROUPS_DRAWN = 20
_LABEL_MAX = 40
_COUNT_COLOUR, _BYTES_COLOUR = "#3465a4", "#c4a000"
_YEARS_MS = (-62_135_596_800_000, 253_402_300_799_999)  # what a calendar can show


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
    with mpl.rc_context({"svg.hashsalt": "rmqtool", "text.parse_math": False, "font.family": "sans-serif"}):
        figure = Figure(figsize=(10, 11), layout="constrained")
        sizes, rate, lag = figure.subplots(3, 1)
        figure.suptitle(label(title, 80))
        _sizes(sizes, charts)
        _rate(rate, charts, tz)
        _lag(lag, charts)
        kind = path.suffix.lower().removeprefix(".")
        # Fonts may lack characters of other scripts: boxes instead of them are not worth a warning.
        picture = io.BytesIO()
        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
        _save(figure, picture, kind, metadata)
    write_new(path, [picture.getvalue()])


def label(text: str, length: int = _LABEL_MAX) -> str:
    """Return a text from a store as a label: without control characters, and shortened."""
    shown = escape(text)
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"


def _save(figure: Any, picture: io.BytesIO, kind: str, metadata: dict[str, Any]) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(picture, format=kind, dpi=110, metadata=metadata)


def _sizes(axes: Any, charts: Charts) -> None:
    rows = charts.sizes
    names = [format_size(row["size_from_bytes"]).replace(".0", "") for row in rows]
    places = range(len(rows))
    axes.bar([place - 0.2 for place in places], [row["count"] for row in rows], 0.4, color=_COUNT_COLOUR)
    axes.set_xticks(list(places), names, rotation=20)
    axes.set_title("Messages and bytes by size of the record (from this size up to twice that)")
    axes.set_ylabel("messages", color=_COUNT_COLOUR)
    other = axes.twinx()
    other.bar([place + 0.2 for place in places], [row["bytes"] for row in rows], 0.4, color=_BYTES_COLOUR)
    _bytes_axis(other, "bytes")


def _rate(axes: Any, charts: Charts, tz: tzinfo | None) -> None:
    starts, counts, sizes = charts.timeline.points()
    seconds = charts.timeline.step_ms / 1000
    axes.set_title(f"Rate by store time, in steps of {seconds:g} s")
    axes.set_ylabel("messages/s", color=_COUNT_COLOUR)
    chosen = (starts >= _YEARS_MS[0]) & (starts <= _YEARS_MS[1])
    moments = [_moment(start, tz) for start in starts[chosen].tolist()]
    axes.plot(moments, counts[chosen] / seconds, color=_COUNT_COLOUR, drawstyle="steps-post", marker=".")
    other = axes.twinx()
    other.plot(moments, sizes[chosen] / seconds, color=_BYTES_COLOUR, drawstyle="steps-post")
    _bytes_axis(other, "bytes/s")
    axes.tick_params(axis="x", rotation=20)


def _moment(time_ms: int, tz: tzinfo | None) -> datetime:
    """Return a time without a zone, as a clock in the zone `tz` shows it: axes have no zones."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    try:
        moment = moment.astimezone(tz)
    except (OverflowError, ValueError, OSError):
        return moment.replace(tzinfo=None)
    return moment.replace(tzinfo=None)


def _lag(axes: Any, charts: Charts) -> None:
    from rmqtool.report.stats.lag import worst_groups

    rows: Sequence[Any] = worst_groups(charts.lags)[:GROUPS_DRAWN][::-1]
    axes.set_title(
        "Lag of consumer groups, messages" if rows else "No consumer group has committed an offset"
    )
    places = range(len(rows))
    values = [row["lag_messages"] if row["lag_messages"] is not None else 0 for row in rows]
    bars = axes.barh(list(places), values, color=_COUNT_COLOUR)
    axes.set_yticks(list(places), [label(row["group"]) for row in rows])
    shown = ["not known" if row["lag_messages"] is None else str(row["lag_messages"]) for row in rows]
    axes.bar_label(bars, shown, padding=3)


def _bytes_axis(axes: Any, name: str) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_ylabel(name, color=_BYTES_COLOUR)
    axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.set_ylim(bottom=0)
