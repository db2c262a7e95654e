"""What an examination of a store finds, as values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from rmqtool.errors import AS_OWNER, EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, worst_exit_code
from rmqtool.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from rmqtool.broker.predict import Prediction

Severity = Literal["error", "warning", "note"]
Certainty = Literal["certain", "likely", "possible"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
CERTAINTIES: tuple[Certainty, ...] = ("certain", "likely", "possible")
STORE = "STORE"
"""In the words of a command line: the store's path with the options that open it."""
WENT_BACK = "CF11"
BEYOND_END = "CF04"
"""A note with a cure: committed offsets went back, on purpose or not."""
PATHS_MAX = 5
"""Paths of one diagnosis."""
OFFSETS_MAX = 20
"""Physical offsets of one diagnosis."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that is wrong, or that a person should know.

    Attributes:
        name: what it is: the code of a finding, or a word such as `disk_full`; the same in every version.
        severity: error: messages are lost, or no broker starts, unless somebody acts; warning: needs
            attention; note: normal, or explains something.
        certainty: certain: it was seen; likely: it was concluded from what was seen; possible: it depends on
            what cannot be seen from here.
        path: the subject, relative to the store root if it lies in the store.
        message: what is wrong.
        cost: its effect if nothing is done.
        cure: the effect of the command, or what else to do; None if nothing is to be done.
        command: words of the command line to run next, STORE for the store; empty if there is none.
        count: how many findings it stands for.
        paths: the first of their paths.
        physical_offsets: the first of their places in the commit log.
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
    physical_offsets: tuple[int, ...] = ()
    detail: dict[str, Any] = field(default_factory=dict)
    is_unread: bool = False

    @property
    def is_denied(self) -> bool:
        """Whether this user may not read its file, so that nothing is known of what it holds."""
        return self.cure == AS_OWNER

    @property
    def is_misnamed(self) -> bool:
        """Whether it is a log file that only has to get its name back, by its command."""
        return "own_name" in self.detail and bool(self.command)

    @property
    def rank(self) -> tuple[int, int]:
        """The smaller, the worse."""
        return SEVERITIES.index(self.severity), CERTAINTIES.index(self.certainty)

    def row(self) -> dict[str, Any]:
        """As JSON, without the command."""
        names = ("severity", "certainty", "name", "path", "message", "cost", "cure", "count")
        return {name: getattr(self, name) for name in names} | {
            "paths": list(self.paths), "physical_offsets": list(self.physical_offsets), "detail": self.detail,
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
        counts = ("messages_abandoned", "queues_lost", "messages_unreachable", "messages_hidden")
        for name in ("hangs", "crashes", *counts):
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
        undelivered: how many delayed messages expired before they were due, by level.
        lost: how many messages of each topic the damage of the log has destroyed, as far as queues show.
        lost_names: these messages by name, if they are few.
        lost_are_all: whether there can be no others that queues do not show.
        config_lost: whether the whole folder config/ was lost.
        topics: those of the records that were read; empty with `examine(walk=...)`, which passes them on.
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
    lost_names: list[str] = field(default_factory=list)
    lost_are_all: bool = True
    missed: dict[str, int] = field(default_factory=dict)
    undelivered: dict[int, int] = field(default_factory=dict)
    config_lost: bool = False
    topics: set[str] = field(default_factory=set)

    def add(self, more: Iterable[Diagnosis]) -> None:
        """Add diagnoses; the worst stay first."""
        self.diagnoses = sorted([*self.diagnoses, *more], key=lambda each: each.rank)

    @property
    def exit_code(self) -> int:
        """1 if a diagnosis is an error or a warning, 3 if something could not be read, otherwise 0."""
        codes = [EXIT_INPUT if each.is_unread else EXIT_OK for each in self.diagnoses]
        codes += [EXIT_FINDINGS for each in self.diagnoses if each.severity != "note"]
        return worst_exit_code(*codes)

    def count(self, severity: Severity) -> int:
        """The number of diagnoses of a severity."""
        return sum(each.severity == severity for each in self.diagnoses)


def next_words(found: Examination) -> tuple[str, ...]:
    """The words of the one command line to run next.

    The repair of the log comes first: it also repairs what was built from the log. It does not come
    first if what is worst needs something else. Without anything wrong it is the command that looks at what
    was not looked at, what a start would do before all else.
    """
    wrong = [each for each in found.diagnoses if each.severity != "note" and each.command]
    if renames := [each.command for each in wrong if each.is_misnamed]:
        return renames[0]
    worst = [each.command for each in wrong if each.severity == wrong[0].severity]
    if any(words[1] in _REPAIRS for words in worst):
        return min((each.command for each in wrong if each.command[1] in _REPAIRS), key=_by_repair)
    looks = sorted((each.command for each in found.omissions if each.command), key=_is_not_recover)
    return next(iter([*worst, *looks]), ())


_REPAIRS = ("recover", "copy", "rebuild")


def _is_not_recover(words: tuple[str, ...]) -> bool:
    return words[1] != "recover"


def _by_repair(words: tuple[str, ...]) -> int:
    return _REPAIRS.index(words[1])


def listed(names: Sequence[str]) -> str:
    """Names as text: `a, b or c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
