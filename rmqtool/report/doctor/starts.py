"""What the start of each broker would do to a store, and what of that is wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rmqtool.broker.config import unread_config
from rmqtool.broker.predict import (
    NOT_PREDICTED,
    Prediction,
    brokers_of,
    load_failures,
    log_bytes,
    predict_all,
)
from rmqtool.broker.rules import rules_of
from rmqtool.errors import RmqtoolError, UnreadableError
from rmqtool.read.store import Store
from rmqtool.report.doctor.diagnosis import STORE, Certainty, Diagnosis, Examination, Omission, Start, listed
from rmqtool.report.doctor.names import result
from rmqtool.sizes import format_size
from rmqtool.storage.config_files import FOLDER


def add_starts(
    store: Store, found: Examination, left: int, *, is_live: bool, reported: Collection[str] = ()
) -> None:
    """Add what the start of each broker would do, as far as `left` bytes may be read for it.

    `reported` are the paths of findings: one on the configuration says itself that a start fails.
    """
    what, command = "what a broker's start would do", ("rmqtool", "recover", STORE)
    if is_live:
        found.omissions.append(Omission(what, "a broker is using the store"))
        return
    try:
        brokers = brokers_of(store)
        failures = load_failures(store, brokers)
        predictions = _predictions(store, brokers, left)
    except RmqtoolError as error:
        if isinstance(error, UnreadableError):
            store.note_failure(error)
        found.omissions.append(Omission(what, error.message))
        return
    has_ledger = store.layout.ledger is not None
    for broker, failure in failures.items():
        prediction = predictions.get(broker)
        unread = next(iter(unread_config(store.layout, rules_of(broker))), None)
        if unread is not None and unread.ends:
            found.starts.append(Start(broker, unread.reason, unread.path, prediction))
        elif prediction is not None:
            found.starts.append(Start(broker, prediction.load_error, prediction.load_path, prediction))
        elif failure is not None or not has_ledger:
            why, path = failure or (None, None)
            name = None if path is None else store.layout.relative(path)
            found.starts.append(Start(broker, why, name, None))
    if has_ledger and len(found.starts) < len(failures):
        found.omissions.append(Omission(what, NOT_PREDICTED))
    unknown = [start.broker for start in found.starts if start.prediction is None and start.error is None]
    if unknown:
        reason = f"it does not fit the limit of {format_size(found.read_limit_bytes)}"
        found.omissions.append(
            Omission(f"what a start of broker {listed(unknown)} would do", reason, command)
        )
    found.diagnoses += _of_starts(store, found.starts, reported)


def _predictions(store: Store, brokers: Sequence[str], left: int) -> dict[str, Prediction]:
    """The predictions for which `left` bytes of queues and log are enough."""
    log = store.layout.commit_log
    left -= sum(file.allocated_bytes for queue in store.layout.unit_queues for file in queue.files[-3:])
    if left < (log_bytes(log, log[-1].file_from_offset) if log else 0):  # no start scans less than that
        return {}
    found = predict_all(store, brokers, unreachable=log_bytes(log, 0) <= left, scan_limit=left)
    return {prediction.broker: prediction for prediction in found}


def _of_starts(store: Store, starts: Sequence[Start], reported: Collection[str]) -> Iterator[Diagnosis]:
    """One diagnosis for each way in which a start goes wrong, with the brokers that go that way.

    Only the brokers that may have written the store count: what others would do does not matter to it.
    """
    own = store.written_by.candidates
    ways: dict[tuple[str, str, str], list[str]] = {}
    for start in (each for each in starts if each.broker in own):
        for way in _ways(start) if not _is_reported(start, reported) else ():
            ways.setdefault(way, []).append(start.broker)
    for (name, path, message), brokers in ways.items():
        certainty: Certainty = "certain" if name == "start_fails" and set(own) <= set(brokers) else "likely"
        text = f"a start of broker {listed(brokers)} {message}"
        yield result(name, certainty, path, text, detail={"brokers": brokers})


def _is_reported(start: Start, reported: Collection[str]) -> bool:
    """Whether a start fails on a part of the configuration, a file or a folder, that a finding names."""
    if start.error is None or start.path is None or not start.path.startswith(f"{FOLDER}/"):
        return False
    names = (start.path, f"{start.path}.bak")
    return any(path in names or path.startswith(f"{start.path}/") for path in reported)


def _ways(start: Start) -> Iterator[tuple[str, str, str]]:
    """(name, path, message) of everything that goes wrong in one start."""
    if start.error is not None:
        yield "start_fails", start.path or ".", f"fails: {start.error}"
        return
    found = start.prediction
    if found is None:
        return
    if found.crashes:
        message = f"runs out of memory: a damaged record claims {format_size(found.claimed_bytes or 0)}"
        yield "start_crashes", "commitlog", message
    if found.hangs:
        yield "start_hangs", "commitlog", "never ends: dispatch waits forever"
    if found.messages_abandoned:
        topics = len(found.topics_abandoned)
        message = (
            f"ends the log at {found.end_offset} and gives up {found.messages_abandoned} sound messages of"
            f" {topics} topic{'' if topics == 1 else 's'}"
        )
        yield "start_loses_messages", "commitlog", message
    if count := found.messages_hidden:
        what = "1 message" if count == 1 else f"{count} messages"
        message = f"leaves {what} that consumers of the queue never receive: it lacks units for them"
        yield "start_leaves_messages", "consumequeue", message
