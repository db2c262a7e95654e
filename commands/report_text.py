"""The page of `rmqtool report`: what it says, part by part, and the template that it goes through.

Every text of a store passes `escape` (control characters, marks that turn the direction of writing) and
Jinja2's autoescape; long names lose their middle. The page needs no network and no script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from rmqtool import __version__
from rmqtool.commands import doctor_text, recover_verdicts, verdicts
from rmqtool.commands.report_plot import (
    Chart,
    Shape,
    classes,
    delay_texts,
    log_map,
    number,
    rates,
    size,
    size_texts,
)
from rmqtool.formats.body import compression_of
from rmqtool.formats.message import COMPRESSED
from rmqtool.terminal import counted, escape, format_size
from rmqtool.times import format_duration, format_time

if TYPE_CHECKING:
    from rmqtool.report.doctor.diagnosis import Diagnosis, Start
    from rmqtool.report.summary.collect import Summary
    from rmqtool.storage.layout import StoreLayout

Row = dict[str, Any]
Command = Callable[[Sequence[str]], str | None]

COLOURS = 8
"""Topics that have a colour of their own."""
_ROWS = 25  # topics, queues, groups shown
_PLACES = 100  # places of findings shown
_QUEUES_DRAWN = 64
_NAME, _NAME_LONG = 48, 200
_LEVELS = {"error": "bad", "warning": "warn", "note": "note"}


def page(
    found: Summary,
    layout: StoreLayout,
    command: Command,
    zone: tzinfo | None,
    now_ms: int,
    redact: Callable[[str], str] = str,
) -> Iterator[bytes]:
    """Yield the page in pieces.

    Args:
        found: what is known of the store.
        layout: the store's.
        command: returns the command line for the words of one.
        zone: of the times.
        now_ms: the time that the page names as its own.
        redact: replaces the names in a text; every text of the page passes it before it is shortened.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: escape(redact(value)) if type(value) is str else value,
    )  # fmt: skip
    short = partial(name, redact=redact)
    environment.filters |= {"name": short, "long_name": partial(short, length=_NAME_LONG)}
    source = files("rmqtool.commands").joinpath("report_page.html").read_text("utf-8")
    context = _Page(found, layout, command, zone, now_ms, short).context()
    for piece in environment.from_string(source).generate(context):
        yield piece.encode("utf-8", "backslashreplace")


class _Shown(str):
    """A text as the page shows it."""

    __slots__ = ()


def name(text: object, *, length: int = _NAME, redact: Callable[[str], str] = str) -> str:
    """Return a name of at most `length` characters; a longer one loses its middle."""
    shown = escape(redact(str(text)))
    half = length // 2
    return _Shown(shown if len(shown) <= length else f"{shown[:half]}…{shown[half - length + 1 :]}")


class _Page:
    """The parts of the page, as values for the template."""

    def __init__(
        self,
        found: Summary,
        layout: StoreLayout,
        command: Command,
        zone: tzinfo | None,
        now_ms: int,
        short: Callable[[object], str],
    ) -> None:
        self.short = short
        self.found, self.layout, self.zone, self.now_ms = found, layout, zone, now_ms
        self.examination = found.examination
        self.info = found.examination.info
        self.command = command
        codes = {value: code for code, value in enumerate(found.log.topics.values)}
        self.codes = codes
        self.kinds = {row["topic"]: f"t{place}" for place, row in enumerate(found.topics[:COLOURS], 1)}

    def context(self) -> Row:
        """Return all values of the template."""
        level = next((_LEVELS[each.severity] for each in self.examination.diagnoses), "ok").replace(
            "note", "ok"
        )
        starts = [self.start(each) for each in self.examination.starts]
        return {
            "version": __version__,
            "path": str(self.info["path"]),
            "kind": "" if self.info["kind"] == "store" else f", {self.info['kind']} alone",
            "made": self.time(self.now_ms),
            "level": level,
            "verdict": list(doctor_text.verdict(self.examination)),
            "next": list(self.next()),
            "facts": list(self.facts()),
            "diagnoses": [self.diagnosis(each) for each in self.examination.diagnoses],
            "starts": starts,
            "places": list(self.places()),
            "places_left": sum(self.found.findings.counts.values()) - _PLACES,
            "map": self.map(),
            "legend": [(topic, kind) for topic, kind in self.kinds.items()],
            "rates": rates(self.found.log.timeline, self.zone),
            "topics": self.topics(),
            "sizes": classes("sizes", "size of the record", self.found.log.sizes,
                             size_texts(self.found.log.sizes.edges), "a size of"),
            "queues": list(self.queues()),
            "queues_left": max(len(self.info["topics"]) - _ROWS, 0),
            "lags": list(self.lags()),
            "lags_left": max(len(self.found.lags) - _ROWS, 0),
            "lag_verdict": verdicts.of_lag(self.found.lags),
            "lag_known": self.found.lag_known,
            "delays": classes("delays", "delay", self.found.log.delays,
                              delay_texts(self.found.log.delays.edges), "a delay of"),
            "compression": list(self.compression()),
            "storage": list(self.storage()),
            "omissions": [
                (each.what, each.reason, self.command(each.command)) for each in self.examination.omissions
            ],
            "seconds": format_duration(round(self.examination.seconds * 1000)),
            "read": size(self.examination.log_read_bytes),
        }  # fmt: skip

    def time(self, time_ms: int | None) -> str:
        """Return a time for people, to the second."""
        text = None if time_ms is None else format_time(time_ms, self.zone)
        return "unknown" if text is None else f"{text[:10]} {text[11:19]} {text[23:]}"

    # What is wrong

    def next(self) -> Iterator[tuple[str, str]]:
        """Yield (what for, command line), the most urgent first, each once."""
        seen: set[str] = set()
        for each in self.examination.diagnoses:
            line = self.command(each.command)
            if line is not None and line not in seen and each.severity != "note" and len(seen) < 3:
                seen.add(line)
                yield _sentence(each.cure or each.message), line

    def facts(self) -> Iterator[tuple[str, str, str]]:
        """Yield (label, value, remark) of the numbers at the top."""
        log, info = self.found.log, self.info
        yield "Messages", number(log.count), f"{counted(len(self.found.topics), 'topic')} in the log"
        files = info["commit_log"]["files"] if info["commit_log"] else 0
        yield "Commit log", size(log.bytes), f"of sound records in {counted(files, 'file')}"
        if info["commit_log"] and log.count:
            first = info["commit_log"]["first_store_timestamp"]
            last = info["commit_log"]["last_store_timestamp"]
            if first is not None and last is not None:
                yield "Time covered", format_duration(max(last - first, 0)), f"until {self.time(last)}"
        if info["topics"]:
            queues = sum(topic["queue_count"] for topic in info["topics"])
            yield "Queues", f"{queues:,}", f"of {counted(len(info['topics']), 'topic')}"
        if self.found.lag_known:
            groups = {row["group"] for row in self.found.lags}
            lag = sum(row["lag_messages"] or 0 for row in self.found.lags)
            yield "Groups", f"{len(groups):,}", f"lag {number(lag)} messages"
        disk = self.examination.disk
        if disk is not None:
            yield "Disk", f"{disk['used_ratio']:.0%}", f"used, {size(disk['free_bytes'])} free"
        count = self.examination.count
        others = [counted(count("warning"), "warning"), counted(count("note"), "note")]
        yield "Errors", f"{count('error'):,}", ", ".join(others)

    def diagnosis(self, each: Diagnosis) -> Row:
        """Return one result."""
        return {
            "level": _LEVELS[each.severity], "severity": each.severity, "certainty": each.certainty,
            "name": each.name, "path": each.path, "message": _sentence(each.message),
            "effect": "Broker" if each.cost.startswith("broker: ") else "Effect",
            "cost": each.cost.removeprefix("broker: "),
            "cure": each.cure, "command": self.command(each.command), "count": each.count,
            "paths": each.paths[1:],
        }  # fmt: skip

    def places(self) -> Iterator[Row]:
        """Yield the places that are wrong, the worst first."""
        for place, each in enumerate(self.found.findings.worst_first()):
            if place == _PLACES:
                return
            yield {
                "code": each.problem.code, "level": _LEVELS[each.problem.severity],
                "severity": each.problem.severity, "message": each.message or each.problem.message,
                "path": each.path, "offset": each.physical_offset, "length": each.length,
            }  # fmt: skip

    def start(self, start: Start) -> Row:
        """Return what a start of one broker would do."""
        own = start.broker in (self.info.get("written_by_candidates") or ())
        row: Row = {"broker": start.broker, "own": own, "level": "ok", "facts": []}
        if start.prediction is None:
            fails = start.error is not None
            text = (
                f"fails: {start.error}"
                if fails
                else "loads the store; its effect on the log was not looked at"
            )
            return row | {"level": "bad" if fails else "warn", "text": text}
        prediction = start.prediction.row()
        for which in ("first", "last"):
            timestamp = prediction[f"{which}_abandoned_timestamp_ms"]
            prediction[f"{which}_abandoned_time"] = (
                None if timestamp is None else format_time(timestamp, self.zone)
            )
        cost = recover_verdicts.cost_of_start(prediction)
        facts = [
            ("log ends at", f"{prediction['end_offset']:,}"),
            ("sound messages given up", f"{prediction['messages_abandoned']:,}"),
            ("queues lost", f"{start.prediction.queues_lost:,}"),
            ("messages without a unit", _optional(prediction["messages_unreachable"])),
            ("dispatched again", f"{prediction['dispatched_again']:,}"),
            ("files deleted", f"{len(prediction['files_deleted']):,}"),
        ]
        return row | {"level": "bad" if cost else "ok", "text": cost or "loses nothing", "facts": facts}

    # What the log holds

    def map(self) -> Chart | None:
        """Return the map of the log."""
        topics = [
            (self.codes[topic], self.short(topic), kind)
            for topic, kind in self.kinds.items()
            if topic in self.codes
        ]
        files = [file.file_from_offset for file in self.layout.commit_log]
        places = self.found.findings.worst_first()
        return log_map(self.found.log.map, topics, places, files, self.zone)

    def topics(self) -> Row:
        """Return the rows of the largest topics, and the sum of the others."""
        rows, total = self.found.topics, self.found.log.bytes or 1
        shown = [
            {
                "topic": row["topic"], "kind": self.kinds.get(row["topic"], "t-other"),
                "count": f"{row['count']:,}",
                "bytes": size(row["bytes"]), "share": row["bytes"] / total * 100,
                "mean": size(row["size_mean_bytes"]), "p99": size(row["size_p99_bytes"]),
                "max": size(row["size_max_bytes"]), "delay_p50": _delay(row["delay_p50_ms"]),
                "delay_p99": _delay(row["delay_p99_ms"]), "delay_max": _delay(row["delay_max_ms"]),
            }
            for row in rows[:_ROWS]
        ]  # fmt: skip
        rest = rows[_ROWS:]
        others = None
        if rest:
            others = {
                "topics": len(rest), "count": f"{sum(row['count'] for row in rest):,}",
                "bytes": size(sum(row["bytes"] for row in rest)),
                "share": sum(row["bytes"] for row in rest) / total * 100,
            }  # fmt: skip
        return {"rows": shown, "others": others}

    def queues(self) -> Iterator[Row]:
        """Yield the topics with the most messages, and how these are spread over their queues."""
        topics = sorted(self.info["topics"], key=lambda topic: (-topic["messages"], topic["topic"]))
        for topic in topics[:_ROWS]:
            depths = [queue["messages"] for queue in topic["queues"]]
            mean = sum(depths) / len(depths)
            skew = max(depths) / mean if mean else None
            yield {
                "topic": topic["topic"], "kind": self.kinds.get(topic["topic"], "t-other"),
                "queues": f"{len(depths):,}", "messages": f"{topic['messages']:,}",
                "least": f"{min(depths):,}", "most": f"{max(depths):,}",
                "skew": "" if skew is None or len(depths) < 2 else f"{skew:.1f}×",
                "is_skewed": skew is not None and skew >= 2,
                "strip": _strip(depths[:_QUEUES_DRAWN]), "left": max(len(depths) - _QUEUES_DRAWN, 0),
            }  # fmt: skip

    def lags(self) -> Iterator[Row]:
        """Yield groups and topics, the largest lag first."""
        most = max((row["lag_messages"] or 0 for row in self.found.lags), default=0)
        for row in self.found.lags[:_ROWS]:
            lag, age = row["lag_messages"], row["age_ms"]
            status = [each.replace("_", " ") for each in row["status"] if each != "ok"]
            yield {
                "group": row["group"], "topic": row["topic"], "messages": _optional(lag),
                "share": 100 * (lag or 0) / most if most else 0,
                "bytes": "" if row["lag_bytes"] is None else size(row["lag_bytes"]),
                "age": "" if age is None else format_duration(age), "status": ", ".join(status),
                "lost": row["lost_messages"] or 0,
            }  # fmt: skip

    def compression(self) -> Iterator[Row]:
        """Yield topic and codec of compressed bodies, the most bytes first."""
        log = self.found.log
        total = {row["topic"]: row["count"] for row in self.found.topics}
        found = sorted(log.compression.found.items(), key=lambda item: (-item[1].stored, item[0]))
        for (code, kind), codec in found[:_ROWS]:
            topic = log.topics.values[code] if code >= 0 else None
            ratio = codec.sample_plain / codec.sample_stored if codec.sample_stored else None
            yield {
                "topic": topic, "codec": _codec(kind), "count": f"{codec.count:,}",
                "part": f"{codec.count / total[topic]:.0%}" if total.get(topic) else "",
                "stored": size(codec.stored), "ratio": "" if ratio is None else f"{ratio:.1f}×",
                "samples": f"{codec.samples:,}", "unreadable": codec.unreadable,
            }  # fmt: skip

    def storage(self) -> Iterator[tuple[str, str]]:
        """Yield (label, value): how and where the store is kept."""
        info, layout = self.info, self.layout
        if info["written_by"] is not None:
            from rmqtool.storage.profile import WrittenBy

            versions = ", ".join(str(version) for version in info["record_versions"]) or "none"
            yield "Written by", f"broker {WrittenBy.of_row(info)}, record version {versions}"
        if info["kind"] == "store":
            yield "State", _state(info["state"])
        if info["commit_log"] is not None:
            log, each = info["commit_log"], info["sizes"]["commit_log_file_size"]
            yield (
                "Commit log",
                (
                    f"{counted(log['files'], 'file')} of {format_size(each['value'])} ({each['from']}),"
                    f" offsets {log['min_offset']:,} to {log['end_offset']:,}"
                ),
            )
        units = [file for queue in layout.unit_queues for file in queue.files]
        if units:
            yield (
                "Queue files",
                f"{counted(len(units), 'file')}, {size(sum(file.size for file in units))} by name",
            )
        if info["index"] is not None:
            index = info["index"]
            yield "Index", f"{counted(index['files'], 'file')}, {index['entries']:,} entries"
        behind = info["behind"]
        for what in ("queues", "index"):
            if behind[f"{what}_bytes"]:
                yield f"{what.capitalize()} lag", f"{size(behind[f'{what}_bytes'])} behind the log"
        if info["checkpoint"] is not None:
            flushed = info["checkpoint"]["physic_msg_timestamp"]
            yield "Checkpoint", f"log flushed up to {self.time(flushed)}" if flushed else "never flushed"
        risk = info["power_failure"]
        if risk is not None and risk["records"] and info["state"]["lock"] != "free":
            count = (
                f"up to {risk['records']:,}" if risk["records_exact"] else f"more than {risk['records']:,}"
            )
            yield "Not flushed", f"{count} records may be in memory only; a power failure now could lose them"
        yield from self.disk()

    def disk(self) -> Iterator[tuple[str, str]]:
        """Yield what is known of the disk, and when it is full."""
        disk = self.examination.disk
        if disk is None:
            return
        yield (
            "Disk",
            (
                f"{disk['used_ratio']:.0%} used, {size(disk['free_bytes'])} of"
                f" {size(disk['total_bytes'] - disk['reserved_bytes'])} free; a broker refuses messages above"
                f" {disk['refused_ratio']:.0%}"
            ),
        )
        rate, seconds = disk["store_bytes_per_second"], disk["refused_after_seconds"]
        if rate is not None and seconds is not None:
            yield "Growth", f"{size(rate * 3600)} an hour: full in {format_duration(round(seconds * 1000))}"


def _sentence(text: str) -> str:
    """Return the text with a capital letter, unless it begins with the name of a thing."""
    first = text.partition(" ")[0].rstrip(",:;")
    is_word = first.isalpha() and first.islower() and first != "rmqtool"
    return text[:1].upper() + text[1:] if is_word else text


def _optional(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _delay(delay_ms: int) -> str:
    return format_duration(delay_ms)


def _codec(kind: int) -> str:
    from rmqtool.errors import FormatError

    try:
        return compression_of(COMPRESSED | kind << 8)
    except FormatError:
        return f"type {kind}"


def _state(state: Mapping[str, Any]) -> str:
    if state["repair_unfinished"]:
        return "a repair was interrupted"
    if state["lock"] == "held":
        pid = state["lock_holder_pid"]
        return f"in use{f' by process {pid}' if pid else ''}; the page shows what was there when it was made"
    return "not stopped cleanly: the next start recovers" if state["abort"] else "stopped cleanly"


def _strip(depths: Iterable[int]) -> list[Shape]:
    """Return the bars of a small chart: one for each queue, 24 pixels high at most."""
    values = list(depths)
    most = max(values, default=0) or 1
    width = 100 / max(len(values), 8)
    bars = []
    for place, value in enumerate(values):
        height = max(value / most * 24, 1 if value else 0.4)
        bars.append(
            Shape("rect", {"x": f"{place * width:.2f}%", "y": f"{24 - height:.1f}", "class": "bar bar0",
                           "width": f"{width * 0.8:.2f}%", "height": f"{height:.1f}"})
        )  # fmt: skip
    return bars
