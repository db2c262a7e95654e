"""What a server has done: numbers for the status line, and for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from rmqtool.formats.remoting_codes import Request

_NAMED = 100  # left-out records that are reported one by one
_PLACES = 100_000  # left-out records that are remembered, so that each is counted once

_CODES = frozenset(map(int, Request))
OTHER_CODE = -1

Samples = Iterable[tuple[dict[str, str], float]]
Family = tuple[str, str, str, Samples]
"""Name, type, help and samples of a metric."""


class Counters:
    """Counts since the start."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self.requests: Counter[int] = Counter()
        self.answers: Counter[int] = Counter()
        self.messages: Counter[str] = Counter()
        self.bytes_sent = 0
        self.bytes_received = 0
        self.connections = 0
        self.refused_connections = 0
        self.bad_frames = 0
        self.left_out: Counter[str] = Counter()
        self._left_out_places: set[tuple[str, int, int]] = set()

    def request(self, code: int) -> None:
        """A request has come. Codes that name no request count together: a client may send any number."""
        self.requests[code if code in _CODES else OTHER_CODE] += 1

    def leave_out(self, topic: str, queue_id: int, queue_offset: int, reason: str) -> None:
        """A record was not sent; each is counted once, and the first ones are reported."""
        place = topic, queue_id, queue_offset
        if place in self._left_out_places or len(self._left_out_places) >= _PLACES:
            return
        self._left_out_places.add(place)
        self.left_out[topic] += 1
        count = len(self._left_out_places)
        if count <= _NAMED:
            self._note(f"left out: {topic} queue {queue_id} offset {queue_offset}: {reason}")
        if count == _NAMED:
            self._note("more records are left out without a line; the metrics count them")

    @property
    def left_out_total(self) -> int:
        """All records that were left out."""
        return len(self._left_out_places)

    def text(self, gauges: Iterable[Family]) -> str:
        """Everything in the text form of Prometheus, and `gauges`."""
        return prometheus_text("serve", (*self._families(), *gauges))

    def _families(self) -> Iterator[Family]:
        requests = (({"code": _request_name(code)}, count) for code, count in self.requests.items())
        yield "requests_total", "counter", "Requests by their code.", requests
        answers = (({"code": str(code)}, count) for code, count in self.answers.items())
        yield "answers_total", "counter", "Answers by their response code.", answers
        sent = (({"topic": topic}, count) for topic, count in self.messages.items())
        yield "messages_sent_total", "counter", "Records sent in answers to pulls.", sent
        left = (({"topic": topic}, count) for topic, count in self.left_out.items())
        yield "messages_left_out_total", "counter", "Records left out of answers: they are damaged.", left
        for name, help_text, value in (
            ("sent_bytes_total", "Bytes sent to clients.", self.bytes_sent),
            ("received_bytes_total", "Bytes received from clients.", self.bytes_received),
            ("connections_total", "Connections that were accepted.", self.connections),
            ("refused_connections_total", "Connections above the limit.", self.refused_connections),
            ("bad_frames_total", "Connections closed for bytes that are not a frame.", self.bad_frames),
        ):
            yield name, "counter", help_text, [({}, value)]


def _request_name(code: int) -> str:
    try:
        return Request(code).name
    except ValueError:
        return "other"


def prometheus_text(command: str, families: Iterable[Family]) -> str:
    """Metrics of a command in the text form of Prometheus."""
    return "".join(
        _family(f"rmqtool_{command}_{name}", kind, text, samples) for name, kind, text, samples in families
    )


def _family(full: str, kind: str, text: str, samples: Samples) -> str:
    lines = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    merged: dict[str, float] = {}
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
        label = f"{{{inside}}}" if inside else ""
        merged[label] = merged.get(label, 0) + value
    lines += [f"{full}{label} {value:g}" if value % 1 else f"{full}{label} {int(value)}"
              for label, value in merged.items()]  # fmt: skip
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
