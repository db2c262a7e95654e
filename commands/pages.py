"""The pages of the manual, made from the program itself: its commands, declarations and tables.

    rmqtool(1), rmqtool-<command>(1)    from the Typer app, and the examples of `guide.py`
    rmqtool-store(5)                    from the declarations in `formats/`
    rmqtool-problems(7)                 from the table of problems
    rmqtool-concepts(7)                 from the text in `concepts_page.py`
    rmqtool-recovery(7)                 from the text in `recovery_page.py`
    rmqtool-python(7)                   from the text in `python_page.py`
    rmqtool-spark(7)                    from the options and columns of the Spark source

Only facts are taken from Typer (names, help, defaults, variables); the rendering is ours (`page.py`), so
that the pages do not change with Typer, the terminal, the locale or the day. `--help` shows the parts of the
same pages in another order.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rmqtool.commands import GROUPS, guide
from rmqtool.errors import EXIT_STATUS
from rmqtool.lazy_pattern import pattern
from rmqtool.page import (
    Entry,
    Grid,
    Page,
    Paragraph,
    Part,
    Section,
    Usage,
    Verbatim,
    entry,
    paragraphs,
    section,
)

if TYPE_CHECKING:
    from rmqtool.formats.declare import Field, Layout
    from rmqtool.formats.parts import Part as FormatPart
    from rmqtool.message.columns import Column
    from rmqtool.problems import Problem
    from rmqtool.report.doctor.names import Named

PROGRAM = "rmqtool"
LITERAL_WIDTH = 78  # of lines that are shown as they are: a terminal has 80 columns, pages are indented
_WORD = pattern(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
_EXITS = "Exits with "  # how the paragraph on the exit status begins
_AREAS = {
    "CL": "Commit log",
    "DL": "DLedger log",
    "CQ": "Consume queues",
    "IX": "Index",
    "CP": "Checkpoint, abort file, repair guard",
    "CF": "Config",
    "TM": "Timer",
    "RD": "RocksDB",
    "EP": "Epoch file",
    "CC": "Compaction",
    "TS": "Tiered storage",
    "UN": "Not readable by rmqtool",
}
_VARIABLES = (
    ("NO_COLOR", "Disables colours if it is not empty."),
    (
        "PAGER",
        "The program that shows tables and pages of the manual on a terminal; default: less. `cat` disables"
        " it. less gets the options FRX if LESS is not set: it ends at once if a screen is enough.",
    ),
    ("RMQTOOL_BROKER_CONF", "Default of `--broker-conf`."),
    (
        "RMQTOOL_FORMAT",
        "Default of `--format`: text, table, jsonl, json, csv or tsv. Commands that show one object take json"
        " and jsonl as json, and the others as text; commands that show rows take text as table.",
    ),
    (
        "RMQTOOL_STORE",
        "Default of STORE. Commands that use it print it on standard error. Commands that can change a"
        " store ignore it.",
    ),
    ("TZ", "Local time zone. Times are read and shown in this zone unless `--tz` names another."),
)
_OUTPUT = (
    "Commands that show rows support the formats table, jsonl (one JSON object per line), json, csv and tsv. "
    "The default is table; RMQTOOL_FORMAT changes it. A table shows only the main columns, and on a terminal "
    "shortens long values to fit; the other formats show everything. Commands that show one object support "
    "text, the default, and json. `--json` stands for jsonl or json. A pipe changes neither format nor "
    "values. Control characters are escaped on a terminal.",
    "JSON contains each time twice: as RFC 3339 text with an offset, and as an integer in milliseconds "
    '(`_ms`). In csv an empty cell is null and `""` is the empty string; lists and objects are JSON. In tsv '
    "tab, line feed, carriage return and backslash are `\\t`, `\\n`, `\\r` and `\\\\`.",
)
_TIMES = (
    "A TIME is ISO 8601, an integer (milliseconds since 1970), `now`, `today`, `yesterday`, `14:30`, "
    "`14:30:05` or `14:30:05.250` (today), or `2h ago`, `1d12h ago` (units ms, s, m, h, d, w). A time "
    "without an offset is in the zone of `--tz`. Ranges are half-open: `--since` is inclusive, `--until` is "
    "exclusive. Where a command finds nothing, or a time is in the future, a note gives the date and time.",
    "A SIZE is bytes, or a number with K, M, G or T (powers of 1024; KB, MB, ... are powers of 1000).",
)
_CACHE = (
    "rmqtool scans with code that it compiles at its first use: this takes seconds, on a busy host up to some"
    " minutes. It keeps the code in a folder `kernels-...`, in the first of these places that only this user"
    " can write: NUMBA_CACHE_DIR, `log/__pycache__` of the installed package, and `rmqtool` in XDG_CACHE_HOME"
    " (default `~/.cache`). Where none of them can be written, each run that scans compiles again. A folder"
    " can be deleted at any time.",
)
_STORE_TEXT = (
    "This page lists every structure of the store as rmqtool declares it. Offsets and sizes are in bytes; an"
    " offset that depends on an earlier length is shown as a dash. i32 is a signed and u32 an unsigned"
    " integer of 32 bits. All integers are big-endian unless the text says otherwise."
)
_WRITE_RULES = (
    (
        "commit log",
        "All files have the same size and are named by their first offset. The next file is created in"
        " advance, and its space is allocated at that time. A record, or a whole batch, of n bytes needs n"
        " + 8 free bytes; otherwise a blank ends the file. Queue offset, physical offset and store time are"
        " assigned under one lock.",
    ),
    (
        "consume queue",
        "Ordinary and committed messages get one unit per record; prepared and rolled back messages get"
        " none. If the first unit of a queue is not at the start of its file, the units before it are"
        " fillers (0, 7FFFFFFF, 0). A unit below the end of the queue exists already and is not written"
        " again. The files are sparse.",
    ),
    (
        "index",
        "Each record adds its unique key, then each key, then (5.4) the tags. The next file is created when "
        "an entry no longer fits; it is named by the local time.",
    ),
    (
        "order",
        "The lock is taken first. `abort` exists while the store is open and is deleted last. Records reach"
        " the device before queues and index, and these before the checkpoint. Config files and their .bak"
        " are replaced in the same way as the broker of the profile does.",
    ),
    (
        "profile 4.9",
        "Record version 1. Properties have no final 02, are in the order of a map of 16 buckets, and exclude "
        "WAIT. The checkpoint has 3 fields. `abort` is empty.",
    ),
    (
        "profile 5.3",
        "Record version 2 for topics longer than 127 characters. Properties have a final 02, are in the"
        " order of a map of 128 buckets, and include MSG_REGION and TRACE_ON. The checkpoint has 5 fields."
        " `abort` contains the process id. The items of a batch carry the properties of the batch.",
    ),
    (
        "profile 5.4",
        "As 5.3, but the items of a batch carry only their own properties, tags are indexed, and a committed "
        "message loses REAL_TOPIC and REAL_QID.",
    ),
)
_PROBLEMS_TEXT = (
    "Each problem has a stable code. A note is normal after a crash, or the next start of a broker repairs "
    "it. A warning needs attention. An error is damage. A command exits with 1 when there is a warning or an "
    "error, and with 3 when something could not be read."
)

TOPICS: dict[str, tuple[int, str]] = {
    "recovery": (7, "what to do when a broker does not start or messages are missing"),
    "problems": (7, "every kind of damage that rmqtool reports"),
    "concepts": (7, "the parts of a message store, and the path of a message through them"),
    "store": (5, "the files of a RocketMQ message store"),
    "python": (7, "message stores in Python programs"),
    "spark": (7, "message stores as Spark data frames and streams"),
}
"""The pages that are not those of a command: section and summary."""


def all_pages(group: Any) -> Iterator[Page]:
    """Yields every page of the program whose Typer group is `group`."""
    yield _main_page(group)
    for name, command in _commands(group).items():
        yield _command_page(name, command)
    for name in TOPICS:
        yield _topic_page(name)


def page_names(group: Any) -> list[str]:
    """Returns the names that `page` knows: the program, its commands, the topics."""
    return list(dict.fromkeys((PROGRAM, *_commands(group), *TOPICS)))


def page(group: Any, name: str) -> Page:
    """Returns the page of a name; for `problems`, a command and a topic, that of the topic."""
    if name == PROGRAM:
        return _main_page(group)
    return _topic_page(name) if name in TOPICS else _command_page(name, group.commands[name])


def _topic_page(name: str) -> Page:
    number, summary = TOPICS[name]
    sections = tuple(_TOPIC_SECTIONS[name]())
    return Page(f"{PROGRAM}-{name}", number, summary, (*sections, _see_also(_RELATED_TOPICS[name])))


def _commands(group: Any) -> dict[str, Any]:
    return {name: each for name, each in group.commands.items() if not each.hidden}


def _see_also(names: str) -> Section:
    """The section that names other pages; `names` are separated by spaces, with their sections."""
    full = [name if name.startswith(f"{PROGRAM}(") else f"{PROGRAM}-{name}" for name in names.split()]
    return section("See also", Usage(", ".join(f"`{name[:-3]}`{name[-3:]}" for name in full)))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


# the program and its commands


def _main_page(group: Any) -> Page:
    from rmqtool.message.columns import COLUMNS
    from rmqtool.problems import PROBLEMS, Finding

    summary, description, _ = _split_help(group.help)
    findings = ", ".join(Finding(PROBLEMS[0], "").row())
    topics = " ".join(f"{name}({number})" for name, (number, _) in TOPICS.items())
    return Page(
        PROGRAM,
        1,
        summary,
        (
            section("Synopsis", Usage(f"`{PROGRAM}` *COMMAND* [*STORE*] [*options*]")),
            section("Description", *description),
            section(
                "Commands",
                *(
                    entry(f"`{PROGRAM}-{name}`(1)", _split_help(command.help)[0])
                    for name, command in _commands(group).items()
                ),
            ),
            section("Options", *map(_option, _visible(group))),
            section("Output", *map(Paragraph, _OUTPUT)),
            section("Times and sizes", *map(Paragraph, _TIMES)),
            section("Message rows", *map(_column, COLUMNS)),
            section(
                "Findings", Paragraph(f"A finding has: {findings}. rmqtool-problems(7) lists the problems.")
            ),
            section("Environment", *(entry(f"`{name}`", text) for name, text in _VARIABLES)),
            section("Compiled code", *map(Paragraph, _CACHE)),
            _examples(PROGRAM),
            _exit_status(),
            _see_also(" ".join(f"{name}(1)" for name in _commands(group)) + " " + topics),
        ),
    )


def _command_page(name: str, command: Any) -> Page:
    summary, description, exits = _split_help(command.help)
    return Page(
        f"{PROGRAM}-{name}",
        1,
        summary,
        (
            section("Synopsis", _usage(name, command)),
            section("Description", *(description or [Paragraph(summary)])),
            *_parameters(name, command),
            _examples(name),
            _exit_status(exits),
            _see_also(f"{PROGRAM}(1) {guide.RELATED[name]}"),
        ),
    )


def command_help(name: str, command: Any) -> Iterator[Section]:
    """Yields what `--help` of a command shows: how to use it first, the details last."""
    summary, description, exits = _split_help(command.help)
    yield section(f"{summary}.")
    yield section("Usage", _usage(name, command))
    if name in guide.EXAMPLES:
        yield _examples(name)
    yield from _parameters(name, command)
    if description:
        yield section("Details", *description)
    yield _exit_status(exits)
    if name in guide.RELATED:
        names = dict.fromkeys(each[:-3] for each in guide.RELATED[name].split())
        yield section("See also", Paragraph(", ".join(f"{PROGRAM} help {each}" for each in names)))


def overview(group: Any) -> Iterator[Section]:
    """Yields what the program shows without a command: one screen of 80 x 24 leads to a command."""
    summary, description, _ = _split_help(group.help)
    yield section(f"{summary}.", *(part for part in description if isinstance(part, Verbatim)))
    named = [entry(title, " ".join(names).replace("_", "-")) for title, names in GROUPS.items()]
    topics = f"{' '.join(TOPICS)} {PROGRAM} (exit codes, RMQTOOL_STORE)"
    manual = entry("Manual", f"{PROGRAM} help COMMAND or TOPIC: {topics}")
    yield section("Commands", *named, manual)


def main_help(group: Any) -> Iterator[Section]:
    """Yields what `--help` of the program shows."""
    summary, description, _ = _split_help(group.help)
    yield section(f"{summary}.")
    yield section("Usage", Usage(f"`{PROGRAM}` *COMMAND* *STORE* [*options*]"), *description)
    commands = _commands(group)
    for title, names in GROUPS.items():
        shown = [name for each in names if (name := each.replace("_", "-")) in commands]
        if shown:
            yield section(
                title, *(entry(f"`{name}`", f"{_split_help(commands[name].help)[0]}.") for name in shown)
            )
    yield section("Manual", *(entry(f"`help {name}`", _sentence(text)) for name, (_, text) in TOPICS.items()))
    yield section("Options", *map(_option, _visible(group)))
    codes = "exits with 0 if nothing is wrong, with 1 if something was found, and with other codes for errors"
    yield section(
        "Store and exit codes",
        Paragraph(f"Without STORE, RMQTOOL_STORE names it. {PROGRAM} {codes}: {PROGRAM} help {PROGRAM}."),
    )


def _split_help(text: str) -> tuple[str, list[Part], str]:
    """The summary (without its full stop), the description, and the exit status of a help text."""
    summary, _, rest = text.partition("\n\n")
    parts = list(paragraphs(rest))
    exits = ""
    match parts:
        case [*_, Paragraph(text)] if text.startswith(_EXITS):
            exits = text
            parts.pop()
    return " ".join(summary.split()).removesuffix("."), parts, exits


def _usage(name: str, command: Any) -> Usage:
    words = [f"`{PROGRAM} {name}`"]
    words += (f"*{each.metavar}*" for each in command.params if each.param_type_name == "argument")
    return Usage(" ".join([*words, "[*options*]"]))


def _examples(name: str) -> Section:
    lines: list[str] = []
    for what, command in guide.EXAMPLES[name]:
        title = textwrap.wrap(f"# {what}", LITERAL_WIDTH, subsequent_indent="# ")
        lines += ("", *title, *_continued(command))
    return section("Examples", Verbatim(tuple(lines[1:])))


def _continued(command: str) -> Iterator[str]:
    """A command line for a shell, continued on lines of at most LITERAL_WIDTH columns."""
    line = ""
    for word in _WORD.findall(command):
        if len(line) + len(word) + 3 > LITERAL_WIDTH and line.strip():
            yield f"{line} \\"
            line = "   "
        line = f"{line} {word}" if line else word
    yield line


def _visible(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]


def _parameters(name: str, command: Any) -> Iterator[Section]:
    """The arguments, then the options by purpose."""
    parameters = _visible(command)
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    if arguments:
        yield section("Arguments", *map(_argument, arguments))
    by_purpose: dict[str, list[Part]] = {}
    for each in parameters:
        if each not in arguments:
            title = guide.purpose(name, max(each.opts, key=len))
            by_purpose.setdefault(title, []).append(_option(each))
    for title in guide.PURPOSES:
        if title in by_purpose:
            yield section(title, *by_purpose[title])


def _argument(parameter: Any) -> Entry:
    text = f" Default: the value of {parameter.envvar}." if parameter.envvar and parameter.show_envvar else ""
    return entry(f"*{parameter.metavar}*", parameter.help + text)


def _option(parameter: Any) -> Entry:
    names = sorted(parameter.opts, key=len) + list(parameter.secondary_opts)
    term = ", ".join(f"`{name}`" for name in names)
    if not parameter.is_flag:
        term += f" *{parameter.metavar}*"
    text = parameter.help
    if not parameter.is_flag and parameter.default not in (None, [], ()):
        text += f" Default: {parameter.default}."
    if parameter.envvar:
        text += f" Default: the value of {parameter.envvar}."
    return entry(term, text)


def _exit_status(exits: str = "") -> Section:
    """The one text on the exit status of a command: its own, if it has one, and the rules for all."""
    if exits:
        return section(
            "Exit status", Paragraph(exits), Paragraph("rmqtool(1) lists the codes of all commands.")
        )
    return section("Exit status", *(entry(f"`{code}`", text) for code, text in EXIT_STATUS))


def _column(column: Column) -> Entry:
    unit = f" ({column.unit})" if column.unit else ""
    return entry(f"`{column.name}`{unit}", _sentence(column.text))


# topics


def _store_sections() -> Iterator[Section]:
    from rmqtool.formats import STRUCTURES

    yield section("Description", Paragraph(_STORE_TEXT))
    for title, declaration, text in STRUCTURES:
        yield _structure(title, declaration, text)
    yield section("Writing", *(entry(f"`{term}`", text) for term, text in _WRITE_RULES))


def _structure(title: str, declaration: FormatPart | Layout, text: str) -> Section:
    from rmqtool.formats.declare import Layout, fields_of

    fields = declaration.fields if isinstance(declaration, Layout) else tuple(fields_of(declaration))
    return section(title, *paragraphs(text), Grid(tuple(_field_rows(fields))))


def _field_rows(fields: Sequence[Field]) -> Iterator[tuple[str, str]]:
    width = max(len(field.name) for field in fields)
    yield f"offset  size  type   {'field':{width}}  ", "text"
    for field in fields:
        offset, size = ("-" if value is None else str(value) for value in (field.offset, field.size))
        yield f"{offset:>6}  {size:>4}  {field.kind:5}  {field.name:{width}}  ", field.text


def _problems_sections() -> Iterator[Section]:
    from rmqtool.problems import PROBLEMS
    from rmqtool.report.doctor.names import NAMES

    areas: dict[str, list[Problem]] = {}
    for problem in PROBLEMS:
        areas.setdefault(_AREAS[problem.code[:2]], []).append(problem)
    yield section("Description", Paragraph(_PROBLEMS_TEXT))
    for area, problems in areas.items():
        yield section(area, *map(_problem, problems))
    yield section("Names of rmqtool doctor", *map(_named, NAMES.values()))


def _named(named: Named) -> Entry:
    return entry(
        f"`{named.name}` ({named.severity})",
        _sentence(named.message),
        f"Cost: {named.cost}.",
        f"Do: {named.cure}.",
    )


def _problem(problem: Problem) -> Entry:
    repair = [f"Repair: {problem.remedy}."] if problem.remedy else []
    return entry(
        f"`{problem.code}` {problem.name} ({problem.severity})",
        _sentence(problem.message),
        f"Broker: {problem.broker}.",
        *repair,
    )


def _recovery_sections() -> Iterator[Section]:
    from rmqtool.commands.recovery_page import TEXT

    return _guide_sections(TEXT)


def _concepts_sections() -> Iterator[Section]:
    from rmqtool.commands.concepts_page import SPEED, TEXT

    return _guide_sections(TEXT + SPEED)


def _python_sections() -> Iterator[Section]:
    from rmqtool.commands.python_page import TEXT

    return _guide_sections(TEXT)


def _spark_sections() -> Iterator[Section]:
    from rmqtool.spark import options_page

    return _guide_sections(options_page.text())


def _guide_sections(text: str) -> Iterator[Section]:
    """The sections of a guide: `## headings`, paragraphs, `- ` entries and fenced blocks."""
    for part in text.split("\n## ")[1:]:
        title, _, rest = part.partition("\n")
        yield section(title, *_guide_parts(rest))


def _guide_parts(text: str) -> Iterator[Part]:
    for number, part in enumerate(text.split("```")):
        if number % 2:
            yield Verbatim(tuple(part.rstrip("\n").split("\n")[1:]))
            continue
        for paragraph in filter(None, map(str.strip, part.split("\n\n"))):
            if not paragraph.startswith("- "):
                yield Paragraph(paragraph)
                continue
            for each in paragraph.removeprefix("- ").split("\n- "):
                term, _, rest = each.partition(". ")
                yield entry(f"`{term}`", rest)


_TOPIC_SECTIONS: dict[str, Callable[[], Iterator[Section]]] = {
    "recovery": _recovery_sections,
    "problems": _problems_sections,
    "concepts": _concepts_sections,
    "store": _store_sections,
    "python": _python_sections,
    "spark": _spark_sections,
}
_RELATED_TOPICS = {
    "recovery": "info(1) recover(1) verify(1) diff(1) rebuild(1) expire(1) problems(7)",
    "problems": "rmqtool(1) verify(1) recover(1) recovery(7) store(5)",
    "concepts": "store(5) recovery(7) python(7)",
    "store": "rmqtool(1) concepts(7) problems(7)",
    "python": "store(5) problems(7) spark(7)",
    "spark": "spark-scan(1) problems(7) python(7)",
}
