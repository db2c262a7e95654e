"""The first look at a store: what is wrong, how sure that is, what it costs and what to run next.

`examine` reads heads and tails of files, the small files, and as much of the rest as a limit permits:

    always              names, sizes and gaps of files, checkpoint, config, ends of queues, headers of
                        the index, heads of the log's files, the disk, whether load() of each broker fails
    half of the limit   the newest part of the log, record by record
    what fits the rest  units of queues, entries of the index, the timer log, the start of each broker

A part is read as a whole or not at all; `Examination.omissions` names what was not looked at. The checks are
those of `verify`, the starts those of `broker.predict`, the forecast of the disk is that of `expire`.

With a `WholeWalk` log, queues, index and timer are read as a whole, in one walk, and the limit is that of the
starts alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rmqtool.broker.expiry_settings import HOUR_MS, Settings, settings_of
from rmqtool.broker.predict import BROKERS, Prediction, ScanTooLongError, load_failure, log_bytes, predict_all
from rmqtool.check.verify import context as verify_context
from rmqtool.check.verify import damaged_ranges, state, topics_at_stake, verify
from rmqtool.errors import (
    EXIT_FINDINGS,
    EXIT_INPUT,
    EXIT_OK,
    FormatError,
    RmqtoolError,
    UnreadableError,
    UnwritableError,
    worst_exit_code,
)
from rmqtool.formats import index as index_format
from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.formats.filler import TAG
from rmqtool.lazy_dataclass import dataclass
from rmqtool.problems import BY_CODE, OF_CONFIG_PAGE, Finding, finding
from rmqtool.read.consumer_offsets import expired_unread
from rmqtool.read.store import Store
from rmqtool.repair.expire.expiry import Forecast, forecast_now
from rmqtool.report.info import store_info
from rmqtool.sizes import format_size
from rmqtool.storage import durable
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.open_files import allocated_bytes, read_head
from rmqtool.storage.queue_logs.find import copy_sizes
from rmqtool.times import format_duration

if TYPE_CHECKING:
    from rmqtool.log.frames import Frames
    from rmqtool.storage.source import RateLimiter

Severity = Literal["critical", "warning", "notice"]
Certainty = Literal["certain", "likely", "possible"]

SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "notice")
CERTAINTIES: tuple[Certainty, ...] = ("certain", "likely", "possible")
STORE = "STORE"
"""In the words of a command line: the store's path with the options that open it."""

DEFAULT_READ_LIMIT = 256 << 20
_PARTS = {"timer": "the timer log", "tiered": "the tiered copy", "compaction": "the logs of compacted topics"}
_NO_SERVICE = "no client can send or consume"
_ALL = 1 << 63
_PATHS_MAX = 5  # paths of one diagnosis
_LAG_BYTES = 64 << 20  # a running broker dispatches faster than this builds up
_MEASURED_MIN_MS = 600_000  # a rate of less time says nothing about tomorrow
_SOON_MS = 24 * HOUR_MS
_STALE_MS = HOUR_MS  # after so long without a message, the rate may not be that of today
_OF_QUERIES = frozenset({"IX01", "IX03", "IX04", "IX06"})
"""Errors that only queries by key suffer from: consumers receive everything."""
_INFERRED = frozenset({"CF07", "CF08", "CF09"})  # damage only if a broker has used the store long enough
_OF_PARTS = ("CQ", "IX")  # a running broker changes these parts while they are compared with the log

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that is wrong, or that a person should know.

    Attributes:
        name: what it is: the code of a finding, or a word such as `disk_full`; the same in every version.
        severity: critical: messages are lost, or no broker starts, unless somebody acts; warning: needs
            attention; notice: normal, or explains something.
        certainty: certain: it was seen; likely: it was concluded from what was seen; possible: it depends on
            what cannot be seen from here.
        path: the subject, relative to the store root if it lies in the store.
        message: what is wrong.
        cost: its effect if nothing is done.
        cure: the effect of the command, or what else to do; None if nothing is to be done.
        command: words of the command line to run next, STORE for the store; empty if there is none.
        count: how many findings it stands for.
        paths: the first of their paths.
        detail: the numbers of the first of them.
        is_unread: a part of the input could not be read or understood.
    """

    name: str
    severity: Severity
    certainty: Certainty
    path: str
    message: str
    cost: str
    cure: str | None = None
    command: tuple[str, ...] = ()
    count: int = 1
    paths: tuple[str, ...] = ()
    detail: dict[str, Any] = field(default_factory=dict)
    is_unread: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """The smaller, the worse."""
        return SEVERITIES.index(self.severity), CERTAINTIES.index(self.certainty)

    def row(self) -> dict[str, Any]:
        """As JSON, without the command."""
        names = ("severity", "certainty", "name", "path", "message", "cost", "cure", "count")
        return {name: getattr(self, name) for name in names} | {
            "paths": list(self.paths), "detail": self.detail,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Omission:
    """A part that was not looked at, why, and the words of the command that looks at it."""

    what: str
    reason: str
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """What a start of one broker would do; `prediction` is None if only names and sizes were looked at.

    `error` is why load() fails, `path` what it fails on; both None if it does not fail.
    """

    broker: str
    error: str | None
    path: str | None
    prediction: Prediction | None

    def row(self) -> dict[str, Any]:
        """As JSON."""
        row: dict[str, Any] = {
            "broker": self.broker,
            "looked_at": "names" if self.prediction is None else "log",
            "loads": self.error is None,
            "load_error": self.error,
            "load_path": self.path,
        }
        for name in ("hangs", "crashes", "messages_abandoned", "queues_lost", "messages_unreachable"):
            row[name] = None if self.prediction is None else getattr(self.prediction, name)
        return row


@dataclass
class Examination:
    """The result: diagnoses, the worst first, and the facts that a monitor draws.

    Attributes:
        diagnoses: the worst first.
        omissions: what was not looked at.
        starts: of each broker; empty if a broker uses the store, or it is not a whole store.
        info: the overview of the store, see `info.store_info`.
        log_read_bytes: bytes of the log that were read record by record.
        disk: ratios, bytes and rates; None if the file system is unknown.
        read_limit_bytes: the limit.
        seconds: how long it took.
        host: facts of the host, see `host.Host`; None if it was not looked at.
        missed: how many messages expired before a group read them, by group.
        lost: how many messages of each topic the damage of the log has destroyed, as far as queues show.
    """

    info: dict[str, Any]
    read_limit_bytes: int
    diagnoses: list[Diagnosis] = field(default_factory=list)
    omissions: list[Omission] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    log_read_bytes: int = 0
    disk: dict[str, Any] | None = None
    seconds: float = 0.0
    host: dict[str, Any] | None = None
    lost: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)

    def add(self, more: Iterable[Diagnosis]) -> None:
        """Add diagnoses; the worst stay first."""
        self.diagnoses = sorted([*self.diagnoses, *more], key=lambda each: each.rank)

    @property
    def exit_code(self) -> int:
        """1 if a diagnosis is critical or a warning, 3 if something could not be read, otherwise 0."""
        codes = [EXIT_INPUT if each.is_unread else EXIT_OK for each in self.diagnoses]
        codes += [EXIT_FINDINGS for each in self.diagnoses if each.severity != "notice"]
        return worst_exit_code(*codes)

    def count(self, severity: Severity) -> int:
        """The number of diagnoses of a severity."""
        return sum(each.severity == severity for each in self.diagnoses)


@dataclass(frozen=True, slots=True)
class WholeWalk:
    """Reads log, queues, index and timer as a whole, and passes on what the walk sees.

    Attributes:
        observe: gets the records of every window of the log, from any thread, see `verify`.
        found: gets every finding.
        keep_cache: leave what was read in the page cache.
        limiter: bounds the rate of reading.
    """

    observe: Callable[[StoreFile, Frames], None]
    found: Callable[[Finding], None]
    keep_cache: bool = False
    limiter: RateLimiter | None = None


class _Budget:
    """Bytes that may still be read."""

    def __init__(self, limit: int) -> None:
        self.left = limit

    def take(self, count: int) -> bool:
        """Whether `count` bytes more fit; if so, they are taken."""
        fits = count <= self.left
        self.left -= count if fits else 0
        return fits


def examine(
    store: Store,
    *,
    read_limit: int = DEFAULT_READ_LIMIT,
    now_ms: int | None = None,
    jobs: int = 0,
    progress: Progress | None = None,
    walk: WholeWalk | None = None,
) -> Examination:
    """Look at everything that can be had cheaply; nothing is changed.

    Args:
        store: opened for reading; a broker may be using it.
        read_limit: the most bytes to read of the parts that grow with the store.
        now_ms: the present time, ms since 1970; None: of the clock.
        jobs: threads that read the log; 0: one per processor.
        progress: called with bytes of the log as they are read.
        walk: read everything, and pass on what the walk sees; `read_limit` then bounds the starts alone.

    Raises:
        UsageError, InputError: as `verify` and `store_info`.
    """
    started = time.monotonic()
    found = Examination(store_info(store), read_limit)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    is_live = store.live
    log = found.info["commit_log"]
    of_log = 0 if log is None else max(log["end_offset"] - log["min_offset"], 0)
    found.log_read_bytes = of_log if walk is not None else min(of_log, read_limit // 2)
    budget = _Budget(_ALL if walk is not None else read_limit - found.log_read_bytes)
    is_whole = found.log_read_bytes == of_log
    findings = [*_small_files(store, budget, found, checkpoint=not is_whole)]
    if walk is not None:
        for each in findings:
            walk.found(each)
    findings += _log(store, budget, found, of_log, jobs, progress, walk)
    budget = budget if walk is None else _Budget(read_limit)
    if store.layout.kind == "store":
        ranges = damaged_ranges(findings)
        found.lost = (topics_at_stake(store, ranges) or {}) if ranges else {}
        _starts(store, budget, found, is_live=is_live)
        _disk(store, found, now_ms, is_live=is_live)
        _dispatch(found, is_live=is_live)
        found.missed = expired_unread(store)
    found.diagnoses += _of_findings(store, findings, is_live=is_live)
    found.diagnoses += _unread(store, found, {each.path for each in findings})
    found.diagnoses += _expired(store, found.missed)
    _lock(found)
    found.diagnoses.sort(key=lambda each: each.rank)
    found.seconds = time.monotonic() - started
    return found


# What verify sees


def _small_files(store: Store, budget: _Budget, found: Examination, *, checkpoint: bool) -> Iterator[Finding]:
    """The set of files, config against the ends of the queues, and timer and copies of messages if they fit.

    With `checkpoint` that too: the log is not read as a whole, which would show its newest record best.
    """
    passes = ["files", "config", *(["checkpoint"] if checkpoint else [])]
    sizes = {"timer": _data_bytes(store.layout.timer_log), **copy_sizes(store.layout.root)}
    for name, size in sizes.items():
        if budget.take(size):
            passes.append(name)
        else:
            _omit(found, f"{_PARTS[name]} ({format_size(size)})", name)
    yield from verify(store, passes=passes, jobs=1)


def _log(
    store: Store, budget: _Budget, found: Examination, total: int, jobs: int, progress: Progress | None,
    walk: WholeWalk | None,
) -> Iterator[Finding]:  # fmt: skip
    """The newest part of the log, queues and index: all of them if they fit, otherwise their ends.

    `total` is the length of the log.
    """
    layout, size = store.layout, found.log_read_bytes
    passes = ["log"]
    if size < total:
        what = f"the older {format_size(total - size)} of the commit log's {format_size(total)}"
        _omit(found, what)
    else:
        passes.append("checkpoint")
    if layout.commit_log:
        words = ("rmqtool", "verify", STORE, "--pass", "bodies")
        found.omissions.append(Omission("the content of bodies", "only their CRC is checked", words))
    units = [file for queue in (*layout.unit_queues, *layout.ext_queues.values()) for file in queue.files]
    of_queues = _data_bytes(units)
    if budget.take(of_queues):
        passes.append("queues")
    elif units:
        _omit(found, f"the units of the queues ({format_size(of_queues)}): only the last ones were", "queues")
    of_index = sum(allocated_bytes(file.path, file.size) for file in layout.index_files)
    if budget.take(of_index):
        passes.append("index")
    elif layout.index_files:
        _omit(found, f"the entries of the index ({format_size(of_index)}): only the headers were", "index")
    if "queues" not in passes:
        yield from _queue_ends(store, found.info["commit_log"])
    if "index" not in passes:
        yield from _headers(store)
    bounds = verify_context.Bounds(limit_bytes=size if size < total else None)
    report = verify_context.Report()
    if walk is None:
        yield from verify(store, passes=passes, bounds=bounds, jobs=jobs, progress=progress, report=report)
    else:
        found_by_walk = verify(
            store, passes=passes, bounds=bounds, jobs=jobs, progress=progress, observe=walk.observe,
            keep_cache=walk.keep_cache, limiter=walk.limiter, report=report,
        )  # fmt: skip
        for each in found_by_walk:
            walk.found(each)
            yield each
    found.diagnoses += _of_fillers(report.fillers, "" if size >= total else " in the part that was read")


def _of_fillers(fillers: dict[str, int], where: str) -> Iterator[Diagnosis]:
    """Fillers of recover: no damage, but each stands for a lost message."""
    if fillers:
        count, topics = sum(fillers.values()), len(fillers)
        of = f"{topics} topic{'s'[topics == 1 :]}"
        text = f"{count} filler{'s'[count == 1 :]} of rmqtool recover in {of}{where}"
        yield Diagnosis(
            "fillers", "notice", "certain", "commitlog", text,
            "each stands for a lost message; consumers that subscribe to * receive it",
            "lists them; consumers ignore messages with this tag",
            ("rmqtool", "dump", STORE, "--tag", TAG),
            detail={"fillers": count, "topics": dict(sorted(fillers.items()))},
        )  # fmt: skip


def _queue_ends(store: Store, log: dict[str, Any] | None) -> Iterator[Finding]:
    """The newest unit of every queue against the log: whether a record is where it points."""
    if log is None or store.live:
        return
    layout = store.layout
    for key, (number, unit) in store.newest_units().units.items():
        if unit.is_pre_blank or unit.physical_offset < log["min_offset"]:
            continue
        code = "CQ03" if unit.physical_offset >= log["end_offset"] else "CQ14"
        head = None if code == "CQ03" else store.head(unit.physical_offset)
        if head is None or head.stored_offset != unit.physical_offset:
            queue = layout.consume_queues.get(key) or layout.batch_queues[key]
            yield finding(code, layout.relative(queue.folder), None, queue.unit_size or UNIT_SIZE,
                          topic=key[0], queue_id=key[1], queue_offset=number,
                          unit_physical_offset=unit.physical_offset)  # fmt: skip


def _headers(store: Store) -> Iterator[Finding]:
    """The headers of the index files."""
    from rmqtool.check.verify.index import check_count, check_kept

    layout = store.layout
    context = verify_context.Context(
        store, verify_context.Bounds(), verify_context.Report(), 1, False, None, lambda size: None, store.live
    )
    list(state.read_checkpoint(context))  # reported by its own pass
    for file in layout.index_files:
        try:
            data = read_head(file.path, index_format.HEADER_SIZE)
        except UnreadableError:
            continue  # in the overview
        if data is not None and len(data) == index_format.HEADER_SIZE:
            header, name = index_format.decode_header(data), layout.relative(file.path)
            yield from check_count(name, header, layout.index_entries)
            yield from check_kept(context, name, header)


def _data_bytes(files: Iterable[StoreFile]) -> int:
    return sum(allocated_bytes(file.place, file.size) for file in files)


def _omit(found: Examination, what: str, part: str | None = None) -> None:
    """Note a part of the store that does not fit the limit; `part` is the pass of verify that reads it."""
    reason = f"it does not fit the limit of {format_size(found.read_limit_bytes)}"
    words = ("rmqtool", "verify", STORE) + (() if part is None else ("--pass", part))
    found.omissions.append(Omission(what, reason, words))


def _of_findings(store: Store, findings: Iterable[Finding], *, is_live: bool) -> Iterator[Diagnosis]:
    """One diagnosis for each code; the same place counts once."""
    by_code: dict[str, dict[tuple[str, int | None], Finding]] = {}
    for each in findings:
        by_code.setdefault(each.problem.code, {}).setdefault((each.path, each.physical_offset), each)
    repair = _Repair(
        is_live=is_live,
        is_possible=store.layout.kind == "store" and store.is_local,
        is_ledger=store.layout.ledger is not None,
        # rebuild refuses a store that was not closed cleanly, and leaves queues of a damaged log
        is_of_log=store.layout.abort is not None or not _SOUND_LOG.issuperset(_of_log(by_code)),
    )
    for code, places in by_code.items():
        found = list(places.values())
        first, problem = found[0], found[0].problem
        reason, expected = first.detail.get("reason"), first.detail.get("expected_bytes")
        if expected is not None:
            reason = f"{expected} bytes expected"
        if code == "UN01":
            reason = f"{first.detail['what']} in {first.detail['form']}"
        message = (first.message or problem.message) + (f" ({reason})" if reason else "")
        cure, command = repair.of(code, problem.repair)
        yield Diagnosis(
            name=code,
            severity=_severity(code, problem.severity),
            certainty="likely" if code in _INFERRED or (is_live and code[:2] in _OF_PARTS) else "certain",
            path=first.path,
            message=message,
            cost=problem.reaction,
            cure=cure if problem.severity != "note" else None,
            command=command if problem.severity != "note" else (),
            count=len(found),
            paths=tuple(dict.fromkeys(each.path for each in found))[:_PATHS_MAX],
            detail=first.detail,
            is_unread=problem.input_unread,
        )


def _severity(code: str, severity: str) -> Severity:
    if severity == "note" or code == "UN01":
        return "notice"
    return "critical" if severity == "error" and code not in _OF_QUERIES else "warning"


_SOUND_LOG = frozenset({"CL01", "CL24"})
"""Codes of a log that rebuild can work from."""


def _of_log(codes: Iterable[str]) -> set[str]:
    return {code for code in codes if code.startswith("CL") and BY_CODE[code].severity == "error"}


class _Repair(NamedTuple):
    """What a repair of this store can be."""

    is_live: bool
    is_possible: bool
    is_ledger: bool
    is_of_log: bool

    def of(self, code: str, repair: str | None) -> tuple[str | None, tuple[str, ...]]:
        """What a repair does, and the words of its command line; without one, of that which explains it."""
        explains = (
            ("rmqtool", "help", "recovery") if code in OF_CONFIG_PAGE else ("rmqtool", "problems", code)
        )
        if repair is None:
            return None, explains
        if not repair.startswith("rmqtool "):
            return repair, explains
        line, _, effect = repair.partition(": ")
        if not self.is_possible:
            return "copy the whole store to a local disk first: a repair changes it there", explains
        words = tuple(line.split())
        if self.is_ledger and words[1] == "recover":
            return LEDGER_CURE, ("rmqtool", "copy", STORE, "--output", "NEW")
        if words[1] == "rebuild" and self.is_of_log:
            words = ("rmqtool", "recover", STORE)
        return f"{'stop the broker first; ' if self.is_live else ''}{' '.join(words[:2])} {effect}", words


LEDGER_CURE = (
    "rmqtool never changes a DLedger log: take its folder from a sound replica while the brokers are stopped,"
    " or write the sound messages as a new store (rmqtool help recovery)"
)


def next_words(found: Examination) -> tuple[str, ...]:
    """The words of the one command line to run next.

    The repair of the log comes first: it also repairs what was built from the log. It does not come
    first if what is worst needs something else. Without anything wrong it is the command that looks at what
    was not looked at.
    """
    wrong = [each for each in found.diagnoses if each.severity != "notice" and each.command]
    worst = [each.command for each in wrong if each.severity == wrong[0].severity]
    if any(words[1] in _REPAIRS for words in worst):
        return min((each.command for each in wrong if each.command[1] in _REPAIRS), key=_by_repair)
    return next(iter([*worst, *(each.command for each in found.omissions if each.command)]), ())


_REPAIRS = ("recover", "copy", "rebuild")


def _by_repair(words: tuple[str, ...]) -> int:
    return _REPAIRS.index(words[1])


def _unread(store: Store, found: Examination, known: Collection[str]) -> Iterator[Diagnosis]:
    """What could not be read; `known` are the paths that a check has reported."""
    late = {store.layout.relative(path): failure.reason for path, failure in store.failures.items()}
    paths = late | {row["path"]: row["reason"] for row in found.info["unreadable"]}
    rows = [{"path": path, "reason": reason} for path, reason in paths.items() if path not in known]
    if rows:
        yield Diagnosis(
            "cannot_read", "critical", "certain", rows[0]["path"], f"cannot be read: {rows[0]['reason']}",
            "nothing is known of its content; a broker that cannot read it either does not start",
            "check permissions, and the kernel's log for errors of the disk",
            count=len(rows), paths=tuple(row["path"] for row in rows[:_PATHS_MAX]), is_unread=True,
        )  # fmt: skip


def _expired(store: Store, missed: dict[str, int]) -> Iterator[Diagnosis]:
    """Messages that expired before groups read them: nothing is damaged, but they are gone."""
    if missed:
        total, start = sum(missed.values()), store.commit_log.min_offset
        yield Diagnosis(
            "expired_unread", "notice", "certain", "consumequeue",
            f"{total} messages expired before a group read them: the log begins at {start}",
            "these groups never receive them",
            "shows by group how many; keep files longer (fileReservedTime), or make the consumers faster",
            ("rmqtool", "stats", STORE, "--by", "group"),
            detail={"messages": total, "groups": dict(sorted(missed.items()))},
        )  # fmt: skip


# The lock, dispatch


def _lock(found: Examination) -> None:
    state = found.info["state"]
    if state["lock"] == "unknown" and state["lock_note"]:
        found.omissions.append(Omission("whether a broker is using the store", state["lock_note"]))


def _dispatch(found: Examination, *, is_live: bool) -> None:
    """How far the queues of a running broker lag behind the log."""
    lag = found.info["behind"]["queues_bytes"]
    if is_live and lag is not None and lag > _LAG_BYTES:
        found.diagnoses.append(Diagnosis(
            "queues_lag", "warning", "likely", "consumequeue",
            f"the queues lag {format_size(lag)} behind the commit log",
            "consumers do not receive the newest messages yet",
            "look at the load of the disk; the broker dispatches one record after the other",
            detail={"lag_bytes": lag},
        ))  # fmt: skip


def _starts(store: Store, budget: _Budget, found: Examination, *, is_live: bool) -> None:
    """The start of each broker, as far as the limit permits."""
    what, command = "what a broker's start would do", ("rmqtool", "recover", STORE)
    if is_live:
        found.omissions.append(Omission(what, "a broker is using the store"))
        return
    try:
        failures = {broker: load_failure(store, broker) for broker in BROKERS}
        predictions = _predictions(store, budget, found)
    except RmqtoolError as error:
        if isinstance(error, UnreadableError):
            store.note_failure(error)
        found.omissions.append(Omission(what, error.message))
        return
    for broker, failure in failures.items():
        prediction = predictions.get(broker)
        if prediction is not None:
            found.starts.append(Start(broker, prediction.load_error, prediction.load_path, prediction))
        else:
            why, path = failure or (None, None)
            name = None if path is None else store.layout.relative(path)
            found.starts.append(Start(broker, why, name, None))
    left = [start.broker for start in found.starts if start.prediction is None and start.error is None]
    if left:
        reason = f"it does not fit the limit of {format_size(found.read_limit_bytes)}"
        found.omissions.append(Omission(f"what a start of broker {_listed(left)} would do", reason, command))
    found.diagnoses += _of_starts(store, found.starts)


def _predictions(store: Store, budget: _Budget, found: Examination) -> dict[str, Prediction]:
    """The predictions that fit: of all brokers in one scan, else of each by itself."""
    layout = store.layout
    queues = _data_bytes(file for queue in layout.unit_queues for file in queue.files[-3:])
    if not budget.take(queues):
        return {}
    is_whole = log_bytes(layout.commit_log, 0) <= budget.left
    done: dict[str, Prediction] = {}
    for brokers in (BROKERS, *((broker,) for broker in BROKERS)):
        if done.keys() >= set(brokers):
            continue
        try:
            each = predict_all(store, brokers, unreachable=is_whole, scan_limit=budget.left)
        except ScanTooLongError:
            continue
        done |= {prediction.broker: prediction for prediction in each}
    return done


def _of_starts(store: Store, starts: Sequence[Start]) -> Iterator[Diagnosis]:
    """One diagnosis for each way in which a start goes wrong, with the brokers that go that way.

    Only those ways count that the broker of this store may go: the others do not matter to it.
    """
    own = store.written_by.candidates
    ways: dict[tuple[str, str, str, str], list[str]] = {}
    for start in starts:
        for way in _ways(start):
            ways.setdefault(way, []).append(start.broker)
    for (name, path, message, cost), brokers in ways.items():
        if not set(own) & set(brokers):
            continue
        yield Diagnosis(
            name=name,
            severity="warning" if name == "start_leaves_messages" else "critical",
            certainty="certain" if name == "start_fails" and set(own) <= set(brokers) else "likely",
            path=path,
            message=f"a start of broker {_listed(brokers)} {message}",
            cost=cost,
            cure="rmqtool recover shows what each broker's start would do, and a repair that keeps every"
            " sound message",
            command=("rmqtool", "recover", STORE),
            detail={"brokers": brokers},
        )


def _ways(start: Start) -> Iterator[tuple[str, str, str, str]]:
    """(name, path, message, cost) of everything that goes wrong in one start."""
    if start.error is not None:
        yield "start_fails", start.path or ".", f"fails: {start.error}", _NO_SERVICE
        return
    found = start.prediction
    if found is None:
        return
    if found.crashes:
        message = f"runs out of memory: a damaged record claims {format_size(found.claimed_bytes or 0)}"
        yield "start_crashes", "commitlog", message, _NO_SERVICE
    if found.hangs:
        yield "start_hangs", "commitlog", "never ends: dispatch waits forever", _NO_SERVICE
    if found.messages_abandoned:
        topics = len(found.topics_abandoned)
        message = (
            f"ends the log at {found.end_offset} and gives up {found.messages_abandoned} sound messages of"
            f" {topics} topic{'' if topics == 1 else 's'}"
        )
        yield "start_loses_messages", "commitlog", message, "these messages are lost for good"
    if found.messages_unreachable:
        count = found.messages_unreachable
        what = "1 message without a unit in its" if count == 1 else f"{count} messages without one in their"
        message = f"leaves {what} queue"
        yield "start_leaves_messages", "consumequeue", message, "no consumer ever receives these messages"


def write_file(path: Path, text: str) -> None:
    """Replace a file so that at every moment the old or the new content is complete.

    Raises:
        UnwritableError: the file is then as it was.
    """
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    durable.write_new(new, text.encode("utf-8", "backslashreplace"), like=path, own=True)
    try:
        durable.rename(new, path)
    except BaseException:
        with suppress(UnwritableError):  # the first failure is the one to report
            durable.remove(new)
        raise


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


# The disk


def _disk(store: Store, found: Examination, now_ms: int, *, is_live: bool) -> None:
    """How full the disk is, by the broker's limits, and when it will be full."""
    if not store.is_local or found.info["disk"] is None:
        found.omissions.append(Omission("the disk and when it is full", "the store is not on this machine"))
        return
    profile, conf = store.profile, store.layout.broker_conf
    try:
        settings = settings_of(conf, profile)
    except FormatError as error:
        found.diagnoses.append(Diagnosis(
            "delete_when", "warning", "certain", str(error.path), error.message,
            "the broker never deletes a file, until the disk is full", "correct deleteWhen, for example 04",
        ))  # fmt: skip
        settings = Settings()
    log = found.info["commit_log"]
    if log is None:
        return
    forecast, disks = forecast_now(store, settings, (log["end_offset"], log["last_store_timestamp"]))
    fullest = max((disks.by_id[disk] for disk in disks.log if disk in disks.by_id),
                  key=lambda disk: disk.ratio, default=None)  # fmt: skip
    if fullest is None:
        return
    refused = next(each.after_ms for each in forecast.reached if each.name == "warning_ratio")
    measured = (forecast.measured_to_ms or 0) - (forecast.measured_from_ms or 0)
    is_measured = measured >= _MEASURED_MIN_MS
    found.disk = {
        "used_ratio": fullest.ratio,
        "free_bytes": fullest.usable,
        "total_bytes": fullest.total,
        "reserved_bytes": fullest.reserved,
        "max_used_ratio": settings.max_used_ratio,
        "forcible_ratio": settings.forcible_ratio,
        "refused_ratio": settings.warning_ratio,
        "store_bytes_per_second": forecast.store_bytes_per_s if is_measured else None,
        "refused_after_seconds": refused / 1000 if is_measured and refused is not None else None,
    }
    full = _full(str(store.layout.commit_log_folders[0]), fullest.ratio, settings)
    if full is not None:
        found.diagnoses.append(full)
    elif not is_measured:
        span = format_duration(measured)
        reason = f"the log covers only {span}" if measured else "the log has too few records"
        found.omissions.append(Omission("when the disk is full", reason))
    elif refused is not None:
        last = forecast.measured_to_ms or 0
        certainty: Certainty = "likely" if is_live and now_ms - last < _STALE_MS else "possible"
        found.diagnoses += _fills(str(store.layout.commit_log_folders[0]), forecast, settings, certainty)


def _full(path: str, ratio: float, settings: Settings) -> Diagnosis | None:
    """The disk is above one of the broker's limits."""
    used = f"the disk of the commit log is {ratio:.0%} full"
    cure = "shows which files expire, who would miss their messages, and frees space"
    command = ("rmqtool", "expire", STORE)
    detail = {"used_ratio": ratio}
    if ratio > settings.warning_ratio:
        return Diagnosis(
            "disk_full", "critical", "certain", path,
            f"{used}; above {settings.warning_ratio:.0%} a broker refuses messages",
            "producers get errors; the broker deletes the oldest files, consumed or not",
            cure, command, detail=detail,
        )  # fmt: skip
    if ratio > settings.forcible_ratio and settings.forcible:
        return Diagnosis(
            "disk_forces_deletion", "warning", "certain", path,
            f"{used}; above {settings.forcible_ratio:.0%} a broker deletes the oldest files, however new",
            "groups that lag miss messages", cure, command, detail=detail,
        )  # fmt: skip
    if ratio > settings.max_used_ratio:
        return Diagnosis(
            "disk_deletes_early", "notice", "certain", path,
            f"{used}; above {settings.max_used_ratio:.0%} a broker deletes expired files at any hour",
            "expired files are deleted at once, not at the hour of deleteWhen", cure, command, detail=detail,
        )  # fmt: skip
    return None


def _fills(path: str, forecast: Forecast, settings: Settings, certainty: Certainty) -> Iterator[Diagnosis]:
    """The disk will be full before the files that are on it expire."""
    refused = next(each.after_ms for each in forecast.reached if each.name == "warning_ratio")
    fit, rate = forecast.hours_that_fit, forecast.store_bytes_per_s
    if refused is None or fit is None or rate is None or fit >= settings.reserved_hours:
        return
    yield Diagnosis(
        "disk_fills", "warning" if refused < _SOON_MS else "notice", certainty, path,
        f"at {format_size(round(rate * 3600))} an hour the disk is {settings.warning_ratio:.0%} full in"
        f" {format_duration(refused)}; it has room for {fit:.0f} h of messages, and the broker wants to keep"
        f" {settings.reserved_hours} h (fileReservedTime)",
        f"the broker deletes files before they expire: groups that lag more than {fit:.0f} h miss messages",
        "shows what expires and when each limit is reached", ("rmqtool", "expire", STORE),
        detail={"refused_after_ms": refused, "hours_that_fit": fit},
    )  # fmt: skip
