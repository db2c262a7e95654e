"""The results of `rmqtool doctor` as text: for people, for Nagios and for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rmqtool.commands.recover_verdicts import (
    CONFIG_FILES,
    READS_DAMAGE,
    config_lost_sentence,
    cost_of_start,
    offsets_lost_sentence,
    offsets_old_sentence,
    start_sentences,
)
from rmqtool.commands.rocksdb_text import rocksdb_parts
from rmqtool.commands.verdicts import (
    LOG_MISSING,
    LOG_NOT_FOUND,
    by_name,
    denied_sentence,
    disk_text,
    missed_sentence,
    next_lines,
    undelivered_sentence,
    usage_text,
)
from rmqtool.problems import BY_CODE
from rmqtool.read.lost_config import NAMED
from rmqtool.terminal import counted, escape, format_size

if TYPE_CHECKING:
    from rmqtool.report.doctor.diagnosis import Diagnosis, Examination, Start

_WIDTH = 80  # columns, however wide the terminal is: it is read over ssh and pasted into tickets
_LABEL = 10
_SERVICE = "RMQTOOL"

Command = Callable[[Sequence[str]], str | None]
"""Returns the command line for the words of a diagnosis."""


def verdict(found: Examination) -> Iterator[str]:
    """Yield the sentences that answer: is it damaged, and may a broker start."""
    numbers = (("warning", found.count("warning")), ("note", found.count("note")))
    counts = [counted(number, what) for what, number in numbers if number]
    errors = found.count("error")
    back = next((each for each in found.diagnoses if each.name == _WENT_BACK), None)
    if any(each.name == LOG_MISSING for each in found.diagnoses):
        yield LOG_NOT_FOUND
    if found.config_lost:
        yield config_lost_sentence(each.name for each in found.diagnoses)
        if files := [each.name for each in found.diagnoses if each.name in _PUT_BACK]:
            codes = ", ".join(files)
            yield f"Files of the log are missing or too short ({codes}): put copies of them back too."
    if errors:
        others = f" Also {' and '.join(counts)}." if counts else ""
        yield f"Act now: {counted(errors, 'error')}.{others}"
    elif found.count("warning"):
        yield f"No error was found, but {' and '.join(counts)}."
    else:
        what = (
            "Nothing is damaged" if found.missed or found.undelivered or back else "Nothing wrong was found"
        )
        yield f"{what}{f' ({counts[0]})' if counts else ''}."
    if back is not None:
        groups, again = (counted(back.detail[f"{what}s"], what) for what in ("group", "message"))
        yield f"Committed offsets of {groups} went back ({again} received again): see {back.name}."
    yield from undelivered_sentence(found.undelivered)
    yield from missed_sentence(found.missed)
    if denied := sum(each.count for each in found.diagnoses if each.is_denied):
        yield denied_sentence(denied)
    elif any(each.is_misnamed for each in found.diagnoses):
        yield "Do not start the broker yet: a file of the log only has a wrong name, and gets its own back."
    else:
        yield from _start_sentence(found)


def _start_sentence(found: Examination) -> Iterator[str]:
    """What a start of the brokers that may have written the store costs: in the words of recover."""
    starts = _own_starts(found)
    if found.lost:
        are = "is" if sum(found.lost.values()) == 1 else "are"
        names = f": {'; '.join(found.lost_names)}" if found.lost_names else ""
        least = "" if found.lost_are_all else "At least "
        yield f"{least}{by_name(found.lost, 'message')} {are} damaged or already lost{names}."
    if found.info["state"]["lock"] == "held":
        yield "A broker is using the store."
    elif not starts:
        return
    elif all(start.prediction is not None for start in starts):
        offsets_lost = offsets_lost_sentence(f"{each.name} {each.message}" for each in found.diagnoses)
        timer = [
            each.message for each in found.diagnoses if each.name in _OF_TIMER and "pending" in each.detail
        ]
        yield from start_sentences(
            _predictions(starts), more=bool(found.lost), offsets_lost=offsets_lost, is_said=found.config_lost,
            timer=next(iter(timer), ""), codes=[each.name for each in found.diagnoses],
            offsets_old=offsets_old_sentence(f"{each.name} {each.cost}" for each in found.diagnoses),
        )  # fmt: skip
    elif any(start.error is not None for start in starts) or any(
        each.severity == "error" and each.name.startswith("start_") for each in found.diagnoses
    ):
        yield "Do not start the broker before you have read what follows."
    else:
        yield "Whether a start loses messages was not looked at."


def _own_starts(found: Examination) -> list[Start]:
    own = set(found.info.get("written_by_candidates") or ())
    return [start for start in found.starts if start.broker in own]


def _predictions(starts: Sequence[Start]) -> list[dict[str, Any]]:
    return [start.prediction.row() for start in starts if start.prediction is not None]


def cost(found: Examination, each: Diagnosis, *, in_short: bool = False) -> str:
    """Return what a result costs if nothing is done: of damage of the log what a start would do, if known.

    With `in_short` the verdict, which says that, is shown too.
    """
    starts = _own_starts(found)
    is_known = starts and all(start.prediction is not None for start in starts)
    is_of_log = each.name.startswith("CL") and each.name not in _KEPT
    is_repairable = is_of_log and BY_CODE[each.name].repair is not None
    if not (is_repairable and each.severity != "note" and is_known):
        return each.cost
    rows = _predictions(starts)
    if in_short and any(map(cost_of_start, rows)):
        return "what was there is lost; the verdict says what else a start costs"
    sentences = [f"a start of {row['broker']} {cost_of_start(row) or 'loses nothing more'}" for row in rows]
    return f"what was there is lost: {READS_DAMAGE}; {'; '.join(sentences)}"


def unread_verdict(message: str) -> str:
    """Return the sentence on a store that cannot be examined now."""
    return f"It could not be examined: {message}"


_ONLY_IN_FULL = frozenset({"read_ahead"})
"""Notes on the host that say the same of most hosts: in short they would hide what is new."""
_WENT_BACK = "CF11"
"""A note that is shown like a warning: the next write of consumerOffset.json makes it hard to undo."""
_IN_VERDICT = frozenset({"start_leaves_messages"})
"""Named by the verdict already: in short, its lines are for what other warnings cost."""
_KEPT = ("CL25",)
"""Damage of the log that loses nothing by itself."""
_OF_TIMER = ("TM02", "TM03", "TM04")
"""Losses of a timer, which no start of a broker shows in the log."""
_PUT_BACK = ("CL20", "CL21")
"""Files of the log that are missing or too short: a copy of them is to be put back before anything else."""
_USAGE_SHOWN = 3
_LINES = 23  # of a terminal with 24 lines, one is for the prompt


def lines(found: Examination, command: Command, *, everything: bool) -> Iterator[str]:
    """Yield the lines for people: the verdict, the results, what was not looked at, the next command.

    Without `everything` they fit a terminal of 80 columns and 24 lines: the worst results are shown, the
    others named.
    """
    from rmqtool.report.doctor.diagnosis import next_words

    words = next_words(found)
    head, tail = list(_head(found)), []
    hidden = [] if everything else [each.name for each in found.diagnoses if each.name in _ONLY_IN_FULL]
    if hidden:
        found = replace(found, diagnoses=[each for each in found.diagnoses if each.name not in hidden])
    last = command(words)
    if last is not None:
        tail = ["", *next_lines(last, _LABEL)]
    if everything:
        yield from head
        for each in found.diagnoses:
            yield ""
            yield from _block(found, _as_next(each, words), command)
        yield ""
        yield from _omission_lines(found)
        yield from tail
        return
    unknown = ["", *_omissions_in_short(found)]
    body = list(_worst(found, words, command, _LINES - len(head) - len(unknown) - len(tail)))
    if hidden and len(head) + len(body) + len(unknown) + len(tail) + 2 <= _LINES:
        body += ["", f"{'also':<{_LABEL}}{', '.join(hidden)}: rmqtool doctor --all shows it in full"]
    yield from head
    yield from body
    if len(head) + len(body) + len(unknown) + len(tail) <= _LINES or last is None:
        yield from unknown  # less than the next command, which stays on the screen
    yield from tail


def _head(found: Examination) -> Iterator[str]:
    info = found.info
    yield from _wrapped("verdict", " ".join(verdict(found)))
    kind = "store" if info["kind"] == "store" else "part"
    yield from _wrapped(kind, _shortened(info["path"], _WIDTH - _LABEL))
    parts = [f"{part} {where}" for part, where in rocksdb_parts(info)]
    if info["ledger"] is not None:
        parts.insert(0, f"log in DLedger ({info['ledger']['path']})")
    if parts:
        yield from _wrapped("parts", "; ".join(parts))
    if found.disk is not None:
        disk = found.disk
        text = disk_text(disk["used_ratio"], disk["free_bytes"], disk["reserved_bytes"])
        if any(each.name.startswith("disk_") for each in found.diagnoses) and disk["usage"]:
            text += f"; this store takes {usage_text(disk['usage'], _USAGE_SHOWN)}"
        yield from _wrapped("disk", text)


def _worst(found: Examination, words: Sequence[str], command: Command, room: int) -> Iterator[str]:
    """Yield the worst results in `room` lines: as many as fit, first what is wrong, then cost and cure.

    The others are named with a few words each.
    """
    wrong = [each for each in found.diagnoses if each.severity != "note" or each.name == _WENT_BACK]
    starts = _own_starts(found)
    if len(wrong) > 1 and starts and all(start.prediction is not None for start in starts):
        wrong = [wrong[0], *(each for each in wrong[1:] if each.name not in _IN_VERDICT)]
    notes = (each for each in found.diagnoses if each.severity == "note" and each.name != _WENT_BACK)
    ordered = [*wrong, *notes]
    parts = [_Parts(found, each, words, command) for each in wrong]

    def need() -> int:
        rest = ordered[len(parts) :]
        return sum(1 + len(list(part.lines())) for part in parts) + _lines_of_rest(rest)

    for part in parts[:1]:
        part.chosen |= {"cost", "cure"}
    while len(parts) > 1 and need() > room:
        parts.pop()
    if found.config_lost and parts[0].name in CONFIG_FILES and need() > room:
        # The verdict says what to copy, and the last line where the steps are.
        parts[0].chosen.discard("cure")
    left, said = room - need(), {" ".join(part.cure) for part in parts[:1]}
    if any(part.name in _PUT_BACK for part in parts[1:]) and parts[0].is_cure_next:
        left += len(parts[0].cure)  # the last line says it
        parts[0].chosen.discard("cure")
    for part in parts[1:]:
        for name in ("cure", "cost"):
            more: list[str] = getattr(part, name)
            if " ".join(more) not in said and len(more) <= left:
                left -= len(more)
                part.chosen.add(name)
                said.add(" ".join(more))
    rest = ordered[len(parts) :]
    if found.config_lost:
        rest = _with_config_as_one(rest)
    if any(each.severity == "error" for each in rest) and left < 1 and parts:
        left += len(parts[0].cost)  # another error says more than what the first one costs
        parts[0].chosen.discard("cost")
    for part in parts:
        yield ""
        yield from part.lines()
    yield from _rest_lines(found, rest, left + _lines_of_rest(rest))


def _with_config_as_one(rest: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Return the results; the lost files of config/, which the verdict names, as one."""
    files = [each for each in rest if each.name in CONFIG_FILES]
    others = [each for each in rest if each.name not in CONFIG_FILES]
    if not files:
        return others
    names = ", ".join(each.name for each in files)
    joined = replace(files[0], name=names, message="the lost files of config/")
    return [*others[: rest.index(files[0])], joined, *others[rest.index(files[0]) :]]


_FEW_WORDS = 66
_COST_WORDS = 62  # what remains of a line after its label


def _lines_of_rest(rest: Sequence[Diagnosis]) -> int:
    """Return the lines that `rest` takes at least: an empty one, two of its results, one with a command."""
    return 2 + sum(map(_lines_of_named, rest[:2])) if rest else 0


def _lines_of_named(each: Diagnosis) -> int:
    """Return the lines of a result that is only named: an error has a second one, with its cost."""
    return 2 if each.severity == "error" else 1


def _rest_lines(found: Examination, rest: Sequence[Diagnosis], room: int) -> Iterator[str]:
    """Yield the other results with a few words each, in `room` lines with the empty one before them.

    The last ones, for which there is no room, have only their names; a single one has no cost then.
    """
    if not rest:
        return
    yield ""
    left = max(room - 2, 1)
    named = list(rest)
    if sum(map(_lines_of_named, named)) > left:
        while len(named) > 1 and sum(map(_lines_of_named, named)) > left - 1:
            named.pop()
    has_room = sum(map(_lines_of_named, named)) <= left
    label = "also"
    for each in named:
        count = f" ({each.count})" if each.count > 1 else ""
        message = f"{each.path} {each.message}" if each.is_unread else each.message
        message = message.replace("this file", each.path)  # the path is shown nowhere else
        severity = "ERROR " if each.severity == "error" else ""
        yield f"{label:<{_LABEL}}{_ended(f'{severity}{each.name}{count}: {message}', _FEW_WORDS)}"
        label = ""
        if each.severity == "error" and has_room:
            yield f"{label:<{_LABEL}}  cost: {_clauses(cost(found, each, in_short=True), _COST_WORDS)}"
    more = rest[len(named) :]
    if more:
        text = ", ".join(map(_named, more))
        if len(text) > _FEW_WORDS:  # the codes come before what they stand for
            text = _ended(", ".join(each.name for each in more), _FEW_WORDS)
        yield f"{label:<{_LABEL}}{text}"
    is_one = len(rest) == 1 and ", " not in rest[0].name
    yield f"{'':<{_LABEL}}rmqtool doctor --all shows {'it' if is_one else 'them'} in full"


def _named(each: Diagnosis) -> str:
    """Return the name, and of a code what it stands for."""
    return f"{each.name} {BY_CODE[each.name].name}" if each.name in BY_CODE else each.name


def _ended(text: str, width: int) -> str:
    """Return `text`; if it is longer than `width`, its first words."""
    if len(text) <= width:
        return text
    return f"{text[: width - 1].rpartition(' ')[0] or text[: width - 1]}…"


def _clauses(text: str, width: int) -> str:
    """Return `text`; if it is longer than `width`, its first clauses, or of a longer one its first words."""
    if len(text) <= width:
        return text
    ends = [number for number in range(width) if text.startswith(("; ", ", ", " (", ": "), number)]
    return text[: ends[-1]] if ends else _ended(text, width)


class _Parts:
    """The lines of one result; `chosen` names those that are shown besides what is wrong.

    `is_cure_next`: the cure only describes the next command.
    """

    def __init__(self, found: Examination, each: Diagnosis, words: Sequence[str], command: Command) -> None:
        """`words` are those of the next command."""
        cure = _as_next(each, words).cure or ""
        self.chosen: set[str] = set()
        self.name = each.name
        self.is_cure_next = each.name.startswith("start_") and tuple(each.command) == tuple(words)
        self.what = list(_what(each))
        self.cost = list(_wrapped("cost", cost(found, each, in_short=True), indent=2))
        self.cure = list(_wrapped("do", cure, indent=2)) if cure else []
        if each.name == _WENT_BACK:  # the next command is another one
            self.cure += _run_lines(each, command)

    def lines(self) -> Iterator[str]:
        """Yield the chosen lines."""
        yield from self.what
        for name in ("cost", "cure"):
            if name in self.chosen:
                yield from getattr(self, name)


def _as_next(each: Diagnosis, words: Sequence[str]) -> Diagnosis:
    """Return the result with recover for rebuild if recover is the next command: it does both."""
    if tuple(words[:2]) != ("rmqtool", "recover"):
        return each
    cure = each.cure and each.cure.replace("rmqtool rebuild ", "rmqtool recover ")
    own = tuple(words) if each.command[:2] == ("rmqtool", "rebuild") else each.command
    return replace(each, cure=cure, command=own)


def _what(each: Diagnosis) -> Iterator[str]:
    more = f" (and {each.count - 1} more)" if each.count > 1 else ""
    yield f"{each.severity.upper()}, {each.certainty}: {each.name} {_shortened(each.path, 38)}{more}"
    yield from _wrapped("", each.message, indent=2)


def _block(found: Examination, each: Diagnosis, command: Command) -> Iterator[str]:
    yield from _what(each)
    names = each.detail.get("names", ())
    for number, name in enumerate(names if len(names) > NAMED else ()):
        yield f"  {'' if number else 'names':<{_LABEL - 2}}{escape(name)}"
    yield from _wrapped("cost", cost(found, each), indent=2)
    if each.cure is not None:
        yield from _wrapped("do", each.cure, indent=2)
    yield from _run_lines(each, command)


def _run_lines(each: Diagnosis, command: Command) -> Iterator[str]:
    line = command(each.command)
    if line is not None:
        yield f"  {'run':<{_LABEL - 2}}{line}"


def _omissions_in_short(found: Examination) -> Iterator[str]:
    """Yield what was not looked at, in at most two lines."""
    if not found.omissions:
        yield from _wrapped("looked at", "the whole store")
        return
    whats = [each.what.partition(":")[0] for each in found.omissions]
    for count in range(len(whats), 0, -1):  # whole phrases, as many as fit
        wrapped = list(_wrapped("unknown", "; ".join(whats[:count])))
        if len(wrapped) <= 2:
            break
    yield from wrapped
    if count < len(whats):
        yield f"{'':<{_LABEL}}and more: rmqtool doctor --all shows it"


def _omission_lines(found: Examination) -> Iterator[str]:
    if not found.omissions:
        yield f"looked at everything that fits {format_size(found.read_limit_bytes)}: the whole store"
        return
    yield "unknown"
    for each in found.omissions:
        yield from _wrapped("-", f"{each.what}: {each.reason}", indent=2, label=4)


def _wrapped(title: str, text: str, *, indent: int = 0, label: int = _LABEL) -> Iterator[str]:
    """Yield `text` after a label, in lines of at most 80 columns."""
    from textwrap import wrap

    left = label if title else indent
    pieces = wrap(text, _WIDTH - left, break_on_hyphens=False) or [""]
    head = f"{' ' * indent}{title}".ljust(left)
    for number, piece in enumerate(pieces):
        yield f"{head if number == 0 else ' ' * left}{piece}"


def _shortened(path: str, width: int) -> str:
    """Return `path` with its middle left out if it is longer than `width`."""
    if len(path) <= width:
        return path
    half = (width - 1) // 2
    return f"{path[:half]}…{path[-(width - 1 - half) :]}"


# Nagios


def nagios(found: Examination) -> tuple[str, int]:
    """Return the line of a plugin and its exit code: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.

    A part that could not be read is UNKNOWN if nothing worse was found, and so are files that this user may
    not read.
    """
    errors, warnings = found.count("error"), found.count("warning")
    state, code = "OK", 0
    if any(each.severity == "error" and not each.is_denied for each in found.diagnoses):
        state, code = "CRITICAL", 2
    elif warnings:
        state, code = "WARNING", 1
    elif any(each.is_unread for each in found.diagnoses):
        state, code = "UNKNOWN", 3
    worst = found.diagnoses[0] if found.diagnoses and code else None
    text = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
    if worst is not None:
        text += f"; {worst.name} {worst.path}: {worst.message}"
    numbers = [f"errors={errors};;0", f"warnings={warnings};0"]
    if found.disk is not None:
        limits = (found.disk["max_used_ratio"], found.disk["refused_ratio"])
        warning, refused = (f"{100 * ratio:.0f}" for ratio in limits)
        numbers.append(f"disk_used={100 * found.disk['used_ratio']:.0f}%;{warning};{refused};0;100")
    numbers.append(f"time={found.seconds:.3f}s")
    return f"{_SERVICE} {state} - {_plugin_text(text)} | {' '.join(numbers)}", code


def nagios_unknown(message: str) -> tuple[str, int]:
    """Return the line and the exit code for an error."""
    return f"{_SERVICE} UNKNOWN - {_plugin_text(message)}", 3


def _plugin_text(text: str) -> str:
    """Return the text of a plugin's line: a bar would begin the numbers."""
    return escape(text).replace("|", "/")


# Prometheus

_UP = ("doctor_up", "Whether the store could be examined.")


def exposition(found: Examination) -> list[str]:
    """Return the lines of the metrics, in the text format 0.0.4."""
    store = {"store": str(found.info["path"])}
    state, log, disk = found.info["state"], found.info["commit_log"], found.disk or {}
    metrics = _Metrics(store)
    metrics.add(*_UP, [({}, 1)])
    metrics.add("doctor_results", "Results by severity.", [
        ({"severity": "error"}, found.count("error")),
        ({"severity": "warning"}, found.count("warning")),
        ({"severity": "note"}, found.count("note")),
    ])  # fmt: skip
    metrics.add("doctor_result", "One result; the value is how many findings it stands for.", [
        ({"name": each.name, "severity": each.severity, "certainty": each.certainty}, each.count)
        for each in found.diagnoses
    ])  # fmt: skip
    metrics.add("doctor_start_loads", "Whether a start of this broker version loads the store.", [
        ({"broker": start.broker}, int(start.error is None)) for start in found.starts
    ])  # fmt: skip
    metrics.add("doctor_unread", "Whether a part of the store could not be read.", [
        ({}, int(any(each.is_unread for each in found.diagnoses)))
    ])  # fmt: skip
    metrics.add("doctor_not_looked_at", "How many parts were not looked at.", [({}, len(found.omissions))])
    if found.info["kind"] == "store":
        metrics.add("store_in_use", "Whether a process holds the lock.", [({}, int(state["lock"] == "held"))])
        metrics.add("store_abort", "Whether the abort file is there.", [({}, int(state["abort"]))])
    if log is not None:
        metrics.add("store_log_bytes", "Length of the commit log.", [
            ({}, log["end_offset"] - log["min_offset"])
        ])  # fmt: skip
    for name, text in (
        ("used_ratio", "Part of the disk in use, as a broker computes it."),
        ("refused_ratio", "The part in use above which a broker refuses messages."),
        ("free_bytes", "Free bytes of the disk."),
        ("refused_after_seconds", "When a broker refuses messages if the log goes on growing as it does."),
    ):
        if disk.get(name) is not None:
            metrics.add(f"store_disk_{name}", text, [({}, disk[name])])
    metrics.add("doctor_seconds", "How long the examination took.", [({}, round(found.seconds, 3))])
    metrics.add("doctor_timestamp_seconds", "When it ended.", [({}, round(time.time(), 3))])
    return metrics.lines


def exposition_unread(path: str) -> list[str]:
    """Return the lines of the metrics of a store that cannot be read now: no other values are known."""
    metrics = _Metrics({"store": path})
    metrics.add(*_UP, [({}, 0)])
    return metrics.lines


class _Metrics:
    """Lines of metrics, each with the labels `common`."""

    def __init__(self, common: Mapping[str, str]) -> None:
        self._common = common
        self.lines: list[str] = []

    def add(self, name: str, text: str, samples: Sequence[tuple[Mapping[str, str], float]]) -> None:
        """Add a gauge, unless it has no samples."""
        if samples:
            self.lines += [f"# HELP rmqtool_{name} {text}", f"# TYPE rmqtool_{name} gauge"]
        for labels, value in samples:
            pairs = ",".join(f'{key}="{_label(each)}"' for key, each in {**self._common, **labels}.items())
            self.lines.append(f"rmqtool_{name}{{{pairs}}} {value}")


def _label(value: str) -> str:
    """Return the value of a label as the format quotes it; control characters as `escape` shows them."""
    return escape(value).replace("\\", "\\\\").replace('"', '\\"')
