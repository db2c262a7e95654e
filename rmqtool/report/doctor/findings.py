"""What the findings of `verify` mean for a store, and which repair fits it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from rmqtool.message.system_topics import TRANSACTION_GROUP
from rmqtool.near_names import listed
from rmqtool.problems import (
    BY_CODE,
    IF_NOT_RESET,
    LEDGER_CURE,
    NEEDS_STORE,
    OF_CONFIG_PAGE,
    OR_SINGLE_GROUPS,
    Finding,
    leaves_ledger,
    messages_of,
    rename_line,
)
from rmqtool.read.lost_config import is_group_of_brokers
from rmqtool.read.offsets_back import bak_words
from rmqtool.read.store import Store
from rmqtool.report.doctor.diagnosis import (
    BEYOND_END,
    OFFSETS_MAX,
    PATHS_MAX,
    STORE,
    WENT_BACK,
    Certainty,
    Diagnosis,
    Severity,
)
from rmqtool.report.doctor.names import line_of, result
from rmqtool.sizes import largest_counts

_OF_QUERIES = frozenset({"IX01", "IX03", "IX04", "IX06"})
"""Errors that only queries by key suffer from: consumers receive everything."""
_INFERRED = frozenset({"CF07", "CF08", "CF09"})  # damage only if a broker has used the store long enough
_OF_PARTS = ("CQ", "IX")  # a running broker changes these parts while they are compared with the log
_SOUND_LOG = frozenset({"CL01", "CL24"})
"""Codes of a log that rebuild can work from."""


def of_findings(store: Store, findings: Iterable[Finding], *, is_live: bool) -> Iterator[Diagnosis]:
    """One diagnosis for each code; the same place counts once."""
    by_code: dict[str, dict[tuple[object, ...], Finding]] = {}
    for each in findings:
        place = (each.path, each.physical_offset)
        if each.problem.code == BEYOND_END:
            place += tuple(each.detail[name] for name in ("group", "topic", "queue_id"))
        by_code.setdefault(each.problem.code, {}).setdefault(place, each)
    repair = _Repair(
        is_live=is_live,
        is_of_store=store.layout.kind == "store",
        is_local=store.is_local,
        is_ledger=store.layout.ledger is not None,
        is_config_in_files=store.layout.rocksdb_config is None,
        # rebuild refuses a store that was not closed cleanly, and leaves queues of a damaged log
        is_of_log=store.layout.abort is not None or not _SOUND_LOG.issuperset(_of_log(by_code)),
    )
    if store.layout.ledger is not None and not (store.layout.consume_queues or store.layout.batch_queues):
        yield from _queues_gone(by_code.pop("CQ01", {}).values())
    for code, places in by_code.items():
        found = list(places.values())
        if code == BEYOND_END:
            found.sort(key=_by_loss)
        first, problem = found[0], found[0].problem
        reason = _facts(first) or _messages(found)
        message = (first.message or problem.message) + (f" ({reason})" if reason else "")
        cure, command = repair.of(code, problem.repair)
        if (line := rename_line(problem)) is not None:
            from shlex import split

            cure, command = "gives the file its name back; then run doctor again", tuple(split(line))
        if code == WENT_BACK and repair.is_local:  # no damage, but a person decides what it means
            cure, command = f"{IF_NOT_RESET}, put the .bak back; {OR_SINGLE_GROUPS}", bak_words(store)
        if code == BEYOND_END and repair.is_of_files:  # a person decides whether to skip or to repeat
            cure, command = _of_beyond(found)
        if code == "CL13" and first.physical_offset is not None:
            command = ("rmqtool", "dump", STORE, "--explain", str(first.physical_offset))
        yield Diagnosis(
            name=code,
            severity=_severity(first),
            certainty=_certainty(code, is_live=is_live),
            path=first.path,
            message=message,
            cost=problem.reaction,
            cure=cure if problem.severity != "note" or code == WENT_BACK else None,
            command=command if problem.severity != "note" or code == WENT_BACK else (),
            count=len(found),
            paths=tuple(dict.fromkeys(each.path for each in found))[:PATHS_MAX],
            physical_offsets=tuple(sorted(_places(found)))[:OFFSETS_MAX],
            detail=first.detail,
            is_unread=problem.input_unread,
        )


def _by_loss(found: Finding) -> tuple[bool, int]:
    """Committed offsets past the end of most messages first, those of the broker's own groups last."""
    return is_group_of_brokers(found.detail["group"]), -(found.detail["messages"] or 0)


def _of_beyond(found: Sequence[Finding]) -> tuple[str, tuple[str, ...]]:
    """What to do about committed offsets past the ends of queues, and the words for the first of them.

    They are in the order of `_by_loss`: reset-offset refuses those of the broker's own groups.
    """
    clients = [each.detail for each in found if not is_group_of_brokers(each.detail["group"])]
    of_brokers = {each.detail["group"] for each in found[len(clients) :]}
    recover = f"rmqtool recover sets that of {listed(sorted(of_brokers))}"
    if TRANSACTION_GROUP in of_brokers:
        recover += ", so that the broker checks every open half message"
    if not clients:
        return recover, ("rmqtool", "recover", STORE)
    messages, first = sum(each["messages"] or 0 for each in clients), clients[0]
    names = ("--group", first["group"], "--topic", first["topic"], "--queue", str(first["queue_id"]))
    text = (
        "rmqtool reset-offset sets it: --from earliest, or --since TIME, lets the group receive messages"
        f" again; --from latest skips what it has not read, up to {messages} message{'s'[messages == 1 :]},"
        " and so does rmqtool recover"
    )
    text += f"; {recover}" if of_brokers else ""
    return text, ("rmqtool", "reset-offset", STORE, *names, "--from", "earliest")


def _queues_gone(found: Collection[Finding]) -> Iterator[Diagnosis]:
    """All queues are gone, of a log in DLedger: whether a start makes them again is not predicted."""
    if found:
        queues, messages = len(found), sum(each.detail["records"] for each in found)
        text = f"{queues} queue{'s'[queues == 1 :]} with {messages} message{'s'[messages == 1 :]}"
        yield result(
            "queues_missing", "certain", "consumequeue", f"consumequeue is missing: {text}",
            count=queues, paths=tuple(each.path for each in found)[:PATHS_MAX],
            detail={"queues": queues, "messages": messages},
        )  # fmt: skip


def _places(findings: Iterable[Finding]) -> set[int]:
    """Where in the commit log findings are."""
    return {each.physical_offset for each in findings
            if each.problem.code.startswith("CL") and each.physical_offset is not None}  # fmt: skip


def _facts(found: Finding) -> str | None:
    """What a person needs besides the message: where it is in the log, or the finding's own reason."""
    detail, code = found.detail, found.problem.code
    if "expected_bytes" in detail:
        return f"{detail['expected_bytes']} bytes expected"
    if code == "UN01":
        return None if "reason" in detail else f"{detail['what']} in {detail['form']}"
    if "declared_size" in detail or "records" in detail and code.startswith("CL"):
        record = detail.get("record_physical_offset")
        its_record = "" if record is None else f", its record at {record}"
        return f"at {found.physical_offset}, {found.length} bytes{its_record}"
    return detail.get("reason")


def _messages(found: Iterable[Finding]) -> str | None:
    """How many messages of which topics lack their right unit; None of other findings."""
    counts: dict[str, int] = {}
    for each in found:
        if count := messages_of(each.problem.code, each.detail):
            counts[each.detail["topic"]] = counts.get(each.detail["topic"], 0) + count
    return f"messages: {', '.join(largest_counts(counts, 'topic'))}" if counts else None


def _severity(found: Finding) -> Severity:
    code, severity = found.problem.code, found.problem.severity
    if severity == "note" or (code == "UN01" and found.detail["what"] != "commit log"):
        return "note"
    return "error" if severity == "error" and code not in _OF_QUERIES else "warning"


def _certainty(code: str, *, is_live: bool) -> Certainty:
    if code == WENT_BACK:
        return "possible"
    return "likely" if code in _INFERRED or (is_live and code[:2] in _OF_PARTS) else "certain"


def _of_log(codes: Iterable[str]) -> set[str]:
    return {code for code in codes if code.startswith("CL") and BY_CODE[code].severity == "error"}


class _Repair(NamedTuple):
    """What a repair of this store can be."""

    is_live: bool
    is_of_store: bool
    is_local: bool
    is_ledger: bool
    is_config_in_files: bool
    is_of_log: bool

    @property
    def is_of_files(self) -> bool:
        """Whether reset-offset can write the offsets."""
        return self.is_of_store and self.is_local and self.is_config_in_files and not self.is_live

    def of(self, code: str, repair: str | None) -> tuple[str | None, tuple[str, ...]]:
        """What a repair does, and the words of its command line; without one, of that which explains it."""
        explains = (
            ("rmqtool", "help", "recovery") if code in OF_CONFIG_PAGE else ("rmqtool", "problems", code)
        )
        if repair is None:
            return None, explains
        words, effect = line_of(repair)
        if not words:
            return repair, explains
        if not self.is_of_store:
            return NEEDS_STORE, explains
        if self.is_ledger and leaves_ledger(BY_CODE[code]):
            return LEDGER_CURE, ("rmqtool", "copy", STORE, "--output", "NEW")
        if words[1] == "rebuild" and self.is_of_log:
            words = ("rmqtool", "recover", STORE)
        first = "stop the broker first; " if self.is_live else ""
        if not self.is_local:
            first = "copy the whole store to a local disk first; "
        return f"{first}{' '.join(words[:2])} {effect}", words


def of_fillers(fillers: dict[str, int], where: str) -> Iterator[Diagnosis]:
    """Fillers of recover: no damage, but each stands for a lost message."""
    if fillers:
        count, topics = sum(fillers.values()), len(fillers)
        of = f"{topics} topic{'s'[topics == 1 :]}"
        text = f"{count} filler{'s'[count == 1 :]} of rmqtool recover in {of}{where}"
        detail = {"fillers": count, "topics": dict(sorted(fillers.items()))}
        yield result("fillers", "certain", "commitlog", text, detail=detail)
