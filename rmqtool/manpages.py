"""The man pages, made from the program itself: `python -m rmqtool.manpages [--check] man`.

    rmqtool.1 and one rmqtool-<command>.1    from the Typer app: options, help texts, exit codes
    rmqtool-store.5                          from the declarations in `formats/`
    rmqtool-problems.7                       from the table of problems
    rmqtool-concepts.7                       from the text in `concepts_page.py`
    rmqtool-recovery.7                       from the text in `recovery_page.py`
    rmqtool-python.7                         from the text in `python_page.py`
    rmqtool-spark.7                          from the options and columns of the Spark source

Only facts are taken from Typer (names, help, defaults, variables); the rendering is ours, so that
the pages do not change with Typer, the terminal, the locale or the day.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rmqtool import __version__
from rmqtool.cli import EXIT_STATUS, PROGRAM, build_app
from rmqtool.commands.concepts_page import SPEED
from rmqtool.commands.concepts_page import TEXT as CONCEPTS_TEXT
from rmqtool.commands.python_page import TEXT as PYTHON_TEXT
from rmqtool.commands.recovery_page import TEXT as RECOVERY_TEXT
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK, EXIT_USAGE
from rmqtool.formats import STRUCTURES
from rmqtool.formats.declare import Field, Layout, fields_of
from rmqtool.message.columns import COLUMNS, Column
from rmqtool.problems import PROBLEMS, Finding, Problem
from rmqtool.spark import options_page
from rmqtool.terminal import print_error

if TYPE_CHECKING:
    from rmqtool.formats.parts import Part

TABLE_WIDTH = 72
_ROFF = {"\\": r"\e", "-": r"\-", "'": r"\(aq", "^": r"\(ha", "~": r"\(ti"}
_AREAS = {
    "CL": "Commit log",
    "CQ": "Consume queues",
    "IX": "Index",
    "CP": "Checkpoint, abort file, repair guard",
    "CF": "Config",
    "TM": "Timer",
    "EP": "Epoch file",
    "CC": "Compaction",
    "UN": "Not readable by rmqtool",
}
_VARIABLES = (
    ("NO_COLOR", "Disables colours if it is not empty."),
    ("RMQTOOL_BROKER_CONF", "Default of `--broker-conf`."),
    (
        "RMQTOOL_STORE",
        "Default of STORE. Commands that use it print it on standard error. Commands that can change a"
        " store ignore it.",
    ),
    ("TZ", "Local time zone. Times are read and shown in this zone unless `--tz` names another."),
)
_OUTPUT = (
    "Commands that show rows support the formats table, jsonl (one JSON object per line), json, csv and tsv. "
    "The default is table on a terminal and jsonl otherwise. A table shows only the main columns, and on a "
    "terminal shortens long values to fit; the other formats show everything. Commands that show one object "
    "support text and json. Control characters are escaped on a terminal.",
    "JSON contains each time twice: as RFC 3339 text with an offset, and as an integer in milliseconds "
    '(`_ms`). In csv an empty cell is null and `""` is the empty string; lists and objects are JSON. In tsv '
    "tab, line feed, carriage return and backslash are `\\t`, `\\n`, `\\r` and `\\\\`.",
)
_TIMES = (
    "A TIME is ISO 8601, an integer (milliseconds since 1970), `now`, `today`, `yesterday`, `14:30` or "
    "`14:30:05` (today), or `2h ago`, `1d12h ago` (units ms, s, m, h, d, w). A time without an offset is in "
    "the zone of `--tz`. Ranges are half-open: `--since` is inclusive, `--until` is exclusive.",
    "A SIZE is bytes, or a number with K, M, G or T (powers of 1024; KB, MB, ... are powers of 1000).",
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

_OVERVIEWS = ("store(5)", "concepts(7)", "problems(7)", "recovery(7)", "python(7)", "spark(7)")
_GUIDES = (
    ("concepts", "the parts of a message store, and the way of a message through them", CONCEPTS_TEXT + SPEED,
     "store(5)", "recovery(7)"),
    ("recovery", "what to do when a broker does not start or messages are missing", RECOVERY_TEXT,
     "info(1)", "recover(1)", "verify(1)", "diff(1)", "rebuild(1)", "expire(1)", "problems(7)"),
    ("python", "message stores in Python programs", PYTHON_TEXT, "store(5)", "problems(7)", "spark(7)"),
    ("spark", "message stores as Spark data frames and streams", options_page.text(),
     "spark-scan(1)", "problems(7)"),
)  # fmt: skip


def pages() -> dict[str, str]:
    """Every page: file name to text."""
    group: Any = typer.main.get_command(build_app())
    commands: dict[str, Any] = {name: each for name, each in group.commands.items() if not each.hidden}
    result = {f"{PROGRAM}.1": _main_page(group, commands)}
    for name, command in commands.items():
        result[f"{PROGRAM}-{name}.1"] = _command_page(name, command)
    result[f"{PROGRAM}-store.5"] = _store_page()
    result[f"{PROGRAM}-problems.7"] = _problems_page()
    for guide, *parts in _GUIDES:
        result[f"{PROGRAM}-{guide}.7"] = _guide(guide, *parts)
    return result


# rendering


def _roff(text: str) -> str:
    """The text as roff: special characters escaped, `code` in bold."""
    escaped = "".join(
        _ROFF.get(c, c if c.isascii() else f"\\[u{ord(c):04X}]") for c in " ".join(text.split())
    )
    return _guard(re.sub(r"`([^`]+)`", r"\\fB\1\\fP", escaped))


def _guard(line: str) -> str:
    # roff would take a line that starts with a full stop as a request.
    return "\\&" + line if line.startswith(".") else line


def _verbatim(lines: list[str]) -> str:
    """The lines unchanged, in a constant-width font."""
    body = "\n".join(_guard("".join(_ROFF.get(c, c) for c in line)) for line in lines)
    return f".nf\n\\f(CW{body}\\fP\n.fi"


def _page(name: str, section: int, summary: str, *parts: str) -> str:
    manual = {1: "User commands", 5: "File formats", 7: "Overview"}[section]
    head = (
        '.\\" Made by `make man`; do not edit.\n'
        f'.TH {_roff(name.upper())} {section} "" "{PROGRAM} {__version__}" "{manual}"\n'
        f".SH NAME\n{_roff(name)} \\- {_roff(summary)}\n"
    )
    return head + "".join(f"{part}\n" for part in parts)


def _section(title: str, *parts: str) -> str:
    return "\n".join((f".SH {title.upper()}", *parts))


def _entry(term: str, *paragraphs: str) -> str:
    """A list entry: `term` is roff already, the paragraphs are plain text."""
    first, *others = (_roff(paragraph) for paragraph in paragraphs)
    return "\n".join((".TP", term, first, *(f".IP\n{paragraph}" for paragraph in others)))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text, filled; a backspace (Typer's rule) marks those that keep their lines."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b"):
            yield ".PP\n" + _verbatim(paragraph.splitlines()[1:])
        else:
            yield ".PP\n" + _roff(paragraph)


def _see_also(*names: str) -> str:
    return _section("See also", ",\n".join(f"\\fB{_roff(name[:-3])}\\fP{name[-3:]}" for name in names))


# section 1


def _main_page(group: Any, commands: dict[str, Any]) -> str:
    summary, description = _split_help(group.help)
    findings = ", ".join(Finding(PROBLEMS[0], "").row())
    return _page(
        PROGRAM,
        1,
        summary,
        _section("Synopsis", f"\\fB{PROGRAM}\\fP \\fICOMMAND\\fP [\\fISTORE\\fP] [\\fIoptions\\fP]"),
        _section("Description", *_paragraphs(description)),
        _section(
            "Commands",
            *(
                _entry(f"\\fB{_roff(f'{PROGRAM}-{name}')}\\fP(1)", _split_help(command.help)[0])
                for name, command in commands.items()
            ),
        ),  # fmt: skip
        _section("Options", *map(_option, _visible(group))),
        _section("Output", *(f".PP\n{_roff(text)}" for text in _OUTPUT)),
        _section("Times and sizes", *(f".PP\n{_roff(text)}" for text in _TIMES)),
        _section("Message rows", *map(_column, COLUMNS)),
        _section("Findings", _roff(f"A finding has: {findings}. rmqtool-problems(7) lists the problems.")),
        _section("Environment", *(_entry(f"\\fB{name}\\fP", text) for name, text in _VARIABLES)),
        _exit_status(code for code, _ in EXIT_STATUS),
        _see_also(
            *(f"{PROGRAM}-{name}(1)" for name in commands),
            *(f"{PROGRAM}-{name}" for name in _OVERVIEWS),
        ),
    )


def _command_page(name: str, command: Any) -> str:
    summary, description = _split_help(command.help)
    parameters = _visible(command)
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    usage = "".join(f"\\fI{_roff(argument.metavar)}\\fP " for argument in arguments)
    return _page(
        f"{PROGRAM}-{name}",
        1,
        summary,
        _section("Synopsis", f"\\fB{PROGRAM} {_roff(name)}\\fP {usage}[\\fIoptions\\fP]"),
        _section("Description", *_paragraphs(description or summary)),
        *([_section("Arguments", *map(_argument, arguments))] if arguments else []),
        _section("Options", *(_option(parameter) for parameter in parameters if parameter not in arguments)),
        _exit_status(
            (EXIT_OK, EXIT_FINDINGS, EXIT_USAGE, *(code for code, _ in EXIT_STATUS if code > EXIT_USAGE))
        ),
        _see_also(f"{PROGRAM}(1)", f"{PROGRAM}-store(5)", f"{PROGRAM}-problems(7)"),
    )


def _split_help(text: str) -> tuple[str, str]:
    """The summary (first paragraph, without its full stop) and the rest of a help text."""
    summary, _, rest = text.partition("\n\n")
    return " ".join(summary.split()).removesuffix("."), rest


def _visible(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]


def _argument(parameter: Any) -> str:
    text = f" Default: the value of {parameter.envvar}." if parameter.envvar and parameter.show_envvar else ""
    return _entry(f"\\fI{_roff(parameter.metavar)}\\fP", parameter.help + text)


def _option(parameter: Any) -> str:
    names = sorted(parameter.opts, key=len) + list(parameter.secondary_opts)
    term = ", ".join(f"\\fB{_roff(name)}\\fP" for name in names)
    if not parameter.is_flag:
        term += f" \\fI{_roff(parameter.metavar)}\\fP"
    text = parameter.help
    if not parameter.is_flag and parameter.default not in (None, [], ()):
        text += f" Default: {parameter.default}."
    if parameter.envvar:
        text += f" Default: the value of {parameter.envvar}."
    return _entry(term, text)


def _exit_status(codes: Any) -> str:
    texts = dict(EXIT_STATUS)
    return _section("Exit status", *(_entry(f"\\fB{code}\\fP", texts[code]) for code in codes))


def _column(column: Column) -> str:
    unit = f" ({_roff(column.unit)})" if column.unit else ""
    return _entry(f"\\fB{_roff(column.name)}\\fP{unit}", _sentence(column.text))


# section 5


def _store_page() -> str:
    return _page(
        f"{PROGRAM}-store",
        5,
        "the files of a RocketMQ message store",
        _section("Description", _roff(_STORE_TEXT)),
        *(_structure(title, declaration, text) for title, declaration, text in STRUCTURES),
        _section("Writing", *(_entry(f"\\fB{_roff(term)}\\fP", text) for term, text in _WRITE_RULES)),
        _see_also(f"{PROGRAM}(1)", f"{PROGRAM}-problems(7)"),
    )


def _structure(title: str, declaration: Part | Layout, text: str) -> str:
    fields = declaration.fields if isinstance(declaration, Layout) else tuple(fields_of(declaration))
    return _section(_roff(title), *_paragraphs(text), ".PP", _verbatim(_field_table(fields)))


def _field_table(fields: tuple[Field, ...]) -> list[str]:
    width = max(len(field.name) for field in fields)
    lines = [f"offset  size  type   {'field':{width}}  text"]
    for field in fields:
        offset, size = ("-" if value is None else str(value) for value in (field.offset, field.size))
        head = f"{offset:>6}  {size:>4}  {field.kind:5}  {field.name:{width}}  "
        text = textwrap.wrap(field.text, max(TABLE_WIDTH - len(head), 24)) or [""]
        lines += [head + text[0], *(" " * len(head) + line for line in text[1:])]
    return [line.rstrip() for line in lines]


# section 7


def _problems_page() -> str:
    areas: dict[str, list[Problem]] = {}
    for problem in PROBLEMS:
        areas.setdefault(_AREAS[problem.code[:2]], []).append(problem)
    return _page(
        f"{PROGRAM}-problems",
        7,
        "every kind of damage that rmqtool reports",
        _section("Description", _roff(_PROBLEMS_TEXT)),
        *(_section(area, *map(_problem, problems)) for area, problems in areas.items()),
        _see_also(f"{PROGRAM}(1)", f"{PROGRAM}-verify(1)", f"{PROGRAM}-store(5)"),
    )


def _problem(problem: Problem) -> str:
    term = f"\\fB{problem.code}\\fP {_roff(problem.name)} ({problem.severity})"
    repair = [f"Repair: {problem.repair}."] if problem.repair else []
    broker = f"The broker: {problem.broker}."
    return _entry(term, _sentence(problem.message), broker, *repair)


def _guide(name: str, summary: str, text: str, *see_also: str) -> str:
    sections = (part.partition("\n") for part in text.split("\n## ")[1:])
    return _page(
        f"{PROGRAM}-{name}",
        7,
        summary,
        *(_section(_roff(title), *_guide_parts(each)) for title, _, each in sections),
        _see_also(*(f"{PROGRAM}-{name}" for name in see_also)),
    )


def _guide_parts(text: str) -> Iterator[str]:
    """The paragraphs, entries and blocks of one section of a guide."""
    for number, part in enumerate(text.split("```")):
        if number % 2:
            yield ".PP\n" + _verbatim(part.rstrip("\n").split("\n")[1:])
            continue
        for paragraph in filter(None, map(str.strip, part.split("\n\n"))):
            if not paragraph.startswith("- "):
                yield ".PP\n" + _roff(paragraph)
                continue
            for entry in paragraph.removeprefix("- ").split("\n- "):
                term, _, rest = entry.partition(". ")
                yield _entry(f"\\fB{_roff(term)}\\fP", rest)


def main(arguments: list[str]) -> int:
    """Writes the pages into a folder, or with `--check` compares them; returns 1 if they differ."""
    check = "--check" in arguments
    folder = Path(arguments[-1])
    texts = pages()
    stale = {path.name for path in folder.iterdir()} - set(texts)
    for name, text in texts.items():
        path = folder / name
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale.add(name)
        if not check:
            path.write_text(text, "utf-8")
    if check and stale:
        print_error(f"not what the program says, run `make man`: {', '.join(sorted(stale))}")
        return EXIT_FINDINGS
    for name in stale - set(texts):
        (folder / name).unlink()
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
