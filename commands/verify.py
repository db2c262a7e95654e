"""`rmqtool verify`: check a store and show its damage as rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqtool.command_line import command_line
from rmqtool.commands import options
from rmqtool.commands.finding_report import FindingBlocks, finding_row, note_times
from rmqtool.commands.groups import Before, Only, with_groups
from rmqtool.commands.recover_verdicts import (
    beyond_texts,
    config_lost_sentence,
    offsets_lost_sentence,
    offsets_old_sentence,
    start_sentences,
)
from rmqtool.commands.verdicts import LOG_MISSING, LOG_NOT_FOUND, by_name, cure, denied_sentence, listed
from rmqtool.errors import EXIT_OK, RmqtoolError, UsageError, worst_exit_code
from rmqtool.formats.filler import FIELDS, TAG
from rmqtool.lazy_pattern import pattern
from rmqtool.message.system_topics import HALF_TOPICS, TRANSACTION_GROUP
from rmqtool.problems import BY_CODE, IF_NOT_RESET, Finding, Problem, messages_of, rename_line
from rmqtool.terminal import counted, format_size, shortened

if TYPE_CHECKING:
    from rmqtool.check.verify import Report
    from rmqtool.read.store import Store

COLUMNS = ("problem", "severity", "message", "path", "physical_offset", "length", "detail", "repair")
TABLE_COLUMNS = ("problem", "severity", "message", "path", "physical_offset", "length")
SEVERITIES = ("error", "warning", "note")
_SAMPLE = pattern(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")

Passes = Annotated[
    list[str] | None,
    typer.Option(
        "--pass",
        metavar="NAME",
        help="Run only this pass: files, log, queues, index, checkpoint, config, timer, tiered, compaction,"
        " bodies (repeatable). bodies runs log too. Default: all except bodies.",
    ),
]
LimitBytes = Annotated[
    int | None,
    typer.Option(
        "--limit-bytes",
        metavar="SIZE",
        parser=options.parse_size,
        help="Check only the newest SIZE of the log.",
    ),
]
Sample = Annotated[
    str | None,
    typer.Option(
        "--sample", metavar="K/N", help="Check only every N-th commit log file, starting with the K-th."
    ),
]
MinSeverity = Annotated[
    Literal["note", "warning", "error"],
    typer.Option(
        "--severity", metavar="note|warning|error", help="Show only findings of at least this severity."
    ),
]
All = Annotated[
    bool, typer.Option("--all", help="Show every place of a problem in text and tables, not only the first.")
]


@with_groups
def verify(
    *,
    store: options.StoreOptions,
    passes: Passes = None,
    selected: Annotated[options.SelectionOptions, Only("since")],
    limit_bytes: LimitBytes = None,
    sample: Sample = None,
    severity: MinSeverity = "note",
    all: All = False,
    shown: options.RowOutput,
    reading: Annotated[options.ScanOptions, Before("quiet")],
) -> int:
    r"""Check a store and show everything that is wrong with it.

    Reads every record and checks its CRC, compares queues and log in both directions, looks up every key in
    the index, and checks the set of files, the checkpoint and the configuration. Continues after damage and
    reports each damaged range once, with its place and its kind. Nothing is changed. In a store in use,
    everything that was complete when the check started is checked. The tiered copy in a store and the logs
    of compacted topics are checked too. rmqtool problems and rmqtool-problems(7) explain each kind of
    damage and what the broker does with it. Text and tables show five places of the same problem in queues,
    and five in the index, and how many more there are; --all and other formats show all. On a terminal long
    text opens in a pager (PAGER); the summary follows when you leave it.

    Exits with 0 when nothing is wrong; 1 when there is a warning or an error (shown or not); 2 for a usage
    error; 3 when something could not be read or is stored in a form rmqtool cannot read. Notes are normal,
    for example after a crash.
    """
    from rmqtool.check.verify import DEFAULT_PASSES, Report
    from rmqtool.check.verify import verify as run
    from rmqtool.storage.source import RateLimiter

    writer = shown.writer()
    selection = selected.selection(shown.tz)
    bounds = _bounds(selection.since, limit_bytes, sample)
    report, seen = Report(), _Seen(severity)
    with store.open(quiet=shown.quiet) as opened:
        with writer.progress("verify", opened.layout.log_bytes) as bar:
            findings = run(
                opened,
                passes=passes or DEFAULT_PASSES,
                bounds=bounds,
                jobs=reading.jobs,
                keep_cache=reading.keep_cache,
                limiter=RateLimiter(reading.io_limit) if reading.io_limit else None,
                report=report,
                progress=bar.advance,
            )
            command = cache(store.command)  # a damaged store has many findings and few repairs
            found = (finding_row(each, opened.layout, command) for each in seen.shown(findings))
            rows = _shown(found, is_all=all or writer.chosen_format != "table")
            writer.write_rows(rows, COLUMNS, TABLE_COLUMNS, FindingBlocks().lines)
        note_times([opened], selection, writer, shown.zone, found=report.records > 0)
        texts = [*_lost_as_a_whole(opened, seen.problems)]
        chosen = () if set(DEFAULT_PASSES) <= {*(passes or DEFAULT_PASSES)} else report.passes
        texts += [summary(report, seen.counts, chosen, seen.denied), *_at_stake(opened, seen)]
        texts += [*_of_fillers(report, store), *_left(opened, store, seen.ranges)]
        texts += [*_went_back(opened, seen.problems), *_beyond(opened, store, seen.beyond)]
        is_unbounded = not any((selected.since, limit_bytes, sample, reading.io_limit))
        texts += [denied_sentence(seen.denied)] if seen.denied else _next_texts(
            opened, store, seen.counts, seen.problems, is_unbounded=is_unbounded,
            is_all=not chosen, has_cures=writer.shows_text and severity != "error",
        )  # fmt: skip
    for text in texts:
        writer.note(text)
    return worst_exit_code(*seen.exit_codes)


class _Seen:
    """What the findings of a run add up to.

    Args:
        severity: the lowest one that is shown; the others count too.

    Attributes:
        exit_codes: of the problems, and 0.
        counts: findings by severity.
        denied: how many of them are files that this user may not read.
        problems: by code.
        ranges: damaged parts of the log, [first, stop) in physical offsets.
        topics: whose queues are wrong, and how many messages without their unit are known.
        behind: topics whose newest messages are not in their queues yet, and how many.
        beyond: committed offsets past the end of their queue.
    """

    def __init__(self, severity: str) -> None:
        self._severities = SEVERITIES[: SEVERITIES.index(severity) + 1]
        self.exit_codes = {EXIT_OK}
        self.counts: Counter[str] = Counter()
        self.denied = 0
        self.problems: dict[str, Problem] = {}
        self.ranges: list[tuple[int, int]] = []
        self.topics: Counter[str] = Counter()
        self.behind: Counter[str] = Counter()
        self.beyond: list[dict[str, Any]] = []

    def shown(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """The findings that are shown."""
        from rmqtool.check.verify import damaged_ranges

        for finding in findings:
            problem, topic = finding.problem, finding.detail.get("topic")
            self.exit_codes.add(problem.exit_code)
            self.counts[problem.severity] += 1
            self.problems[problem.code] = problem
            self.denied += finding.is_denied
            self.ranges += damaged_ranges([finding])
            self.beyond += [finding.detail] if problem.code == "CF04" else []
            if problem.severity == "error" and problem.code.startswith("CQ") and topic is not None:
                self.topics[str(topic)] += messages_of(problem.code, finding.detail)
            if problem.code == "CQ01" and topic is not None:
                self.behind[str(topic)] += messages_of(problem.code, finding.detail)
            if problem.severity in self._severities:
                yield finding


def _shown(rows: Iterable[dict[str, Any]], *, is_all: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows: all, or of a problem in a folder's files the first ones, and how many follow.

    One cause can make every queue wrong in the same way. Places in the log are all shown.
    """
    if is_all:
        yield from rows
        return
    counts: Counter[tuple[str, str]] = Counter()
    others: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = row["problem"], row["path"].partition("/")[0]
        counts[key] += 1
        if key[1] == "commitlog" or counts[key] <= _ROWS_ALIKE:
            yield row
        else:
            others[key] = row
    for key, row in others.items():
        more = f"{counts[key] - _ROWS_ALIKE} more of {key[0]}: --all shows each"
        yield {**row, "message": more, "path": key[1], "physical_offset": None, "length": None}


_ROWS_ALIKE = 5


def _lost_as_a_whole(opened: Store, present: dict[str, Problem]) -> Iterator[str]:
    """Yield that the log or the folder config is missing: to look for it comes before anything else."""
    from rmqtool.read.lost_config import is_folder_lost

    if LOG_MISSING in present:
        yield LOG_NOT_FOUND
    if is_folder_lost(opened.layout):
        yield config_lost_sentence(present)


_LEFT_READ = 20  # damaged places of which it is found out whether something can be read


def _left(opened: Store, store: options.StoreOptions, ranges: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield that damaged records can be read in part, and the command line that shows the first of them."""
    starts, log = list(dict.fromkeys(start for start, _ in ranges))[:_LEFT_READ], opened.commit_log
    places = list(dict.fromkeys(place for start in starts for place in (start, log.record_place(start))))
    found = [place for place in places if opened.find(place) is not None or opened.remains(place) is not None]
    if found:
        several = "" if len(found) == 1 else f" (of {len(found)} such records the first)"
        line = store.command("dump", "--explain", str(found[0]))
        yield f"a part of a damaged record can still be read{several}: {line}"


def _next_texts(
    opened: Store,
    store: options.StoreOptions,
    counts: Counter[str],
    present: dict[str, Problem],
    *,
    is_unbounded: bool,
    is_all: bool,
    has_cures: bool,
) -> Iterator[str]:
    """Yield the command to run next, or what no command repairs and what that means.

    `present` are the problems that were found; `is_unbounded` is whether nothing limits what may be read,
    `is_all` whether no passes were chosen; `has_cures` is whether the findings were shown with what to do
    about warnings.
    """
    layout = opened.layout
    is_store = layout.kind == "store"
    recover = store.command("recover")
    copy = store.command("copy", "--output", "NEW") if layout.ledger is not None else None
    if "CL25" in present and (rename := rename_line(present["CL25"])) is not None:
        yield f"before a broker starts, give the file its name back and run verify again: {rename}"
        return
    line = cure(present, recover, copy)
    if copy is not None and line == copy:
        yield f"to write the sound messages as a store without DLedger: {copy}"
        return
    if line == recover:
        copied = "" if opened.is_local else ", copied to a local disk"
        said = list(_start_sentences(opened, present)) if is_store and is_unbounded else []
        if said:
            yield " ".join(said)
        if is_store:
            see = "see what its start would do, and " if layout.ledger is None else ""
            what = f"before a broker starts, {see}repair the store"
            if said:
                is_rebuilt = any(
                    (each.repair or "").startswith("rmqtool rebuild ") for each in present.values()
                )
                also = ", which includes what rebuild does" if is_rebuilt else ""
                what = f"to see the plan of a repair{also}"
            yield f"{what}{copied}: {recover}"
        return
    if counts["error"] and line is not None:
        is_config = is_store and is_unbounded and present.keys() & {"CF02", "CF08", "RD10", "RD15"}
        costs = " ".join(_start_sentences(opened, present)) if is_config else ""
        if costs:
            yield costs
        if line not in costs:
            yield f"recover cannot repair this; all steps: {line}"
        return
    if not is_store or not opened.is_local:
        return
    stays = [each for _, each in sorted(present.items()) if each.severity == "warning"]
    stays = [each for each in stays if not each.input_unread]
    if stays:
        yield "recover cannot repair what is left; a broker may be started:"
    for each in stays:
        by_hand = f". To repair it, {each.repair}" if each.repair and not has_cures else ""
        yield f"{each.code}: {each.reaction}{by_hand}"
    is_sound = not (counts["error"] or counts["warning"] or opened.live or layout.ledger)
    if is_sound and is_unbounded and is_all:
        said = list(_start_sentences(opened, present, is_sound=True))
        yield " ".join(said) or f"to see what a start would do: {recover}"


_START_LIMIT = 1 << 30  # bytes of the log that are read once more; more are for recover and doctor
_SOUND_LIMIT = 256 << 20  # the same of a sound store, of which hardly anybody asks


def _start_sentences(
    opened: Store, present: Mapping[str, Problem], *, is_sound: bool = False
) -> Iterator[str]:
    """Yield what a start of the broker that wrote the store costs, if it can be predicted in a moment.

    Of a sound store (`is_sound`) only what a start reads is read once more.
    """
    from rmqtool.broker.predict import predict_all
    from rmqtool.read.lost_config import is_folder_lost

    if opened.live or not opened.is_local:
        return
    try:
        found = predict_all(
            opened,
            opened.written_by.candidates,
            scan_limit=_SOUND_LIMIT if is_sound else _START_LIMIT,
            unreachable=not is_sound,
        )
    except RmqtoolError:
        return  # recover says why
    if not found:
        return
    yield from start_sentences(
        [each.row() for each in found],
        more=any(code.startswith("CL") and BY_CODE[code].severity == "error" for code in present),
        offsets_lost=offsets_lost_sentence(f"{code} {each.repair}" for code, each in present.items()),
        is_said=is_folder_lost(opened.layout),
        timer=next((present[code].message for code in ("TM03", "TM04", "TM02") if code in present), ""),
        offsets_old=offsets_old_sentence(f"{code} {each.reaction}" for code, each in present.items()),
        codes=present,
    )


def _of_fillers(report: Report, store: options.StoreOptions) -> Iterator[str]:
    """Yield how many fillers of recover the log has, no damage, and the command that lists them."""
    if report.fillers:
        count, topics = sum(report.fillers.values()), counted(len(report.fillers), "topic")
        line = store.command("dump", "--tag", TAG, "--fields", FIELDS)
        yield f"{counted(count, 'tagged filler')} of recover in {topics}, for lost messages: {line}"


def _went_back(opened: Store, present: Mapping[str, Problem]) -> Iterator[str]:
    """Yield the command line that puts committed offsets back that went back, if the store is local."""
    from rmqtool.read.offsets_back import bak_words

    if "CF11" in present and opened.is_local:
        yield f"{IF_NOT_RESET}, put the offsets of the .bak back: {command_line(*bak_words(opened))}"


def _beyond(opened: Store, store: options.StoreOptions, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what groups skip whose offsets are past the ends of queues, and what lets them repeat it."""
    if opened.is_local and not opened.live and opened.layout.rocksdb_config is None:
        for text, line in beyond_texts(rows, store.command("reset-offset")):
            yield f"{text}: {line}"
        if any((each["topic"], each["group"]) == (HALF_TOPICS[0], TRANSACTION_GROUP) for each in rows):
            yield (
                f"{TRANSACTION_GROUP} is past the end of the half messages: a broker goes on there, and never"
                f" checks the open ones before it; to set it to the first of them: {store.command('recover')}"
            )


def _at_stake(store: Store, seen: _Seen) -> Iterator[str]:
    """Yield which topics the damage concerns, and how many of their messages."""
    from rmqtool.check.verify import are_all, by_topic, messages_at_stake, names_of

    if store.layout.kind != "store":
        return
    ranges, topics = seen.ranges, seen.topics
    if ranges:
        found = messages_at_stake(store, ranges)
        if found is None:
            yield "at stake in the log: not looked for; rmqtool recover names the lost messages"
        elif found:
            names = f": {'; '.join(names_of(store, found))}" if len(found) <= _NAMED else ""
            least = "" if are_all(store, found, ranges) else "at least "
            yield f"at stake in the log: {least}{by_name(by_topic(found), 'message')}{names}"
        else:
            yield "at stake in the log: unknown, no queue leads there; rmqtool recover names lost messages"
    if topics:
        most = sorted(topics, key=lambda name: (-topics[name], name))[:_TOPICS_SHOWN]
        shown = [
            shortened(name) + (f" ({counted(topics[name], 'message')})" if topics[name] else "")
            for name in most
        ]
        more = len(topics) - len(shown)
        names = listed([*shown, *([f"{more} more"] if more else [])])
        yield f"affected: consumers of {names}"
    if seen.behind:
        yield f"not in the queues yet, until a broker starts: {by_name(seen.behind, 'message')}"


_TOPICS_SHOWN = 3
_NAMED = 3  # messages at stake; of more the numbers say more


def _bounds(since_ms: int | None, limit_bytes: int | None, sample: str | None) -> Any:
    from rmqtool.check.verify import Bounds

    chosen = None
    if sample is not None:
        match = _SAMPLE.fullmatch(sample)
        if match is None or int(match[1]) > int(match[2]):
            raise UsageError(f"{sample!r} is not a sample", hint="use K/N with K from 1 to N, such as 1/10")
        chosen = (int(match[1]), int(match[2]))
    return Bounds(since_ms, limit_bytes, chosen)


def summary(report: Report, counts: Counter[str], chosen: Sequence[str] = (), denied: int = 0) -> str:
    """Return one line on the extent of the check, and its verdict.

    `chosen` are the passes if not all ran, `denied` is how many findings are files this user may not read.
    """
    rate = f", {format_size(int(report.bytes / report.seconds))}/s" if report.seconds and report.bytes else ""
    files = counted(report.files, "file")
    parts = []
    if report.files or "timer" not in report.passes:
        parts.append(f"{report.records} records in {files} ({format_size(report.bytes)}{rate})")
    if "queues" in report.passes:
        parts.append(f"{report.units} queue units")
    if "index" in report.passes:
        more = f" ({report.rocksdb_index_entries} in RocksDB)" if report.rocksdb_index_entries else ""
        parts.append(f"{report.index_entries} index entries{more}, {report.keys} keys")
    if report.timer_entries or not parts:
        parts.append(f"{report.timer_entries} timer {'entry' if report.timer_entries == 1 else 'entries'}")
    if copied := report.copied_records - report.compacted_records:
        parts.append(f"{copied} records of copies")
    if report.compacted_records:
        agree = " do not all" if report.compacted_differ else ""
        parts.append(f"{counted(report.compacted_records, 'compacted record')}{agree} agree with the log")
    if report.left_out:
        parts.append(f"not checked without a whole store: {', '.join(report.left_out)}")
    if report.vanished:
        parts.append(f"{counted(len(report.vanished), 'file')} vanished meanwhile")
    live = " (a broker is using the store)" if report.live else ""
    return f"checked {'; '.join(parts)}{live}: {_verdict(counts, chosen, denied)}"


def _verdict(counts: Counter[str], chosen: Sequence[str], denied: int) -> str:
    found = [counted(counts[severity], severity) for severity in SEVERITIES if counts[severity]]
    word = "damaged" if counts["error"] else "sound, with warnings" if counts["warning"] else "sound"
    if denied and counts["error"] <= denied:
        word = "not read as a whole"
    elif chosen and not counts["error"]:
        several = len(chosen) > 1
        word += f" as far as the pass{'es' * several} {' and '.join(chosen)} look{'s' * (not several)}"
    return f"{word} ({', '.join(found)})" if found else word
