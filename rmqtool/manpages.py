"""The man pages, made from the program itself: `python -m rmqtool.manpages [--check] man`.

    rmqtool.1 and one rmqtool-<command>.1    from the Typer app: options, help texts, exit codes
    rmqtool-store.5                          from the declarations in `formats/`
    rmqtool-problems.7                       from the table of problems
    rmqtool-recovery.7                       from the text in `recovery_page.py`
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
    "UN": "Out of reach",
}
_VARIABLES = (
    ("NO_COLOR", "If not empty: no colours."),
    ("RMQTOOL_BROKER_CONF", "The value of `--broker-conf` where that is left out."),
    ("RMQTOOL_STORE", "STORE where that is left out and nothing is changed; named on standard error then."),
    ("TZ", "The local zone, in which times are read and shown unless `--tz` says otherwise."),
)
_OUTPUT = (
    "Commands that show rows know the formats table, jsonl, json, csv and tsv: a table on a terminal, else "
    "jsonl (one JSON object a line). A table shows few columns, and on a terminal cuts long texts to its "
    "width; the others show all. "
    "Commands that show one object know text and json. Control characters are escaped on a terminal.",
    "Times in JSON are RFC 3339 text with an offset beside integers in milliseconds (`_ms`). In csv an empty "
    'cell is null and `""` the empty text; lists and objects are JSON. In tsv tab, line ends and backslash '
    "are `\\t`, `\\n`, `\\r` and `\\\\`.",
)
_TIMES = (
    "A TIME is ISO 8601, an integer (milliseconds since 1970), `now`, `today`, `yesterday`, `14:30` or "
    "`14:30:05` (today), or `2h ago`, `1d12h ago` (units ms, s, m, h, d, w). Without an offset it is in the "
    "zone of `--tz`. Ranges are half-open: `--since` is included, `--until` is not.",
    "A SIZE is bytes, or a number with K, M, G or T (powers of 1024; KB, MB, ... are powers of 1000).",
)
_STORE_TEXT = (
    "Every structure of the store as rmqtool declares it. Offsets and sizes are bytes; an offset that "
    "depends on a length before it is shown as a dash. i32 is a signed, u32 an unsigned integer of 32 bits; "
    "all integers are big-endian unless the text says otherwise."
)
_WRITE_RULES = (
    (
        "commit log",
        "Files of one size, named by their first offset; the next one is made ahead and taken from "
        "the disk when it is made. A record, or a batch as a whole, of n bytes goes where n + 8 bytes"
        " are left; else a blank ends the file. Queue offset, physical offset and store time are "
        "given under one lock.",
    ),
    (
        "consume queue",
        "One unit per record, for ordinary and committed messages; prepared and rolled back ones get "
        "none. A queue that begins late is filled from its file's start with units 0, 7FFFFFFF, 0. A "
        "unit below the queue's end is there already and is not written again. The files are sparse.",
    ),
    (
        "index",
        "For each record: unique key, then each key, then (5.4) the tags. The next file is made when "
        "an entry finds no place; it is named by the local time.",
    ),
    (
        "order",
        "The lock is taken first; `abort` is there as long as the store is open. Data goes to the "
        "device before queues and index, these before the checkpoint, and `abort` is deleted last. "
        "Config files are replaced with their .bak as the broker of the profile does it.",
    ),
    (
        "profile 4.9",
        "Record version 1; properties without a last 02, in the order of a map of 16 buckets, without"
        " WAIT; checkpoint of 3 fields; empty `abort`.",
    ),
    (
        "profile 5.3",
        "Version 2 for topics over 127 characters; properties with a last 02, in the order of a map "
        "of 128 buckets, with MSG_REGION and TRACE_ON; checkpoint of 5 fields; the process id in "
        "`abort`; the items of a batch carry the properties of the batch.",
    ),
    (
        "profile 5.4",
        "As 5.3, but the items of a batch carry their own properties only, tags are indexed, and a "
        "committed message loses REAL_TOPIC and REAL_QID.",
    ),
)
_PROBLEMS_TEXT = (
    "Each problem has a stable code. A note is normal after a crash or mended by the next start of a broker; "
    "a warning deserves a look; an error is damage. A command ends with 1 when there is a warning or an "
    "error, and with 3 when something could not be read."
)

_GUIDES = (
    ("recovery", "when the broker does not start, or messages are gone", RECOVERY_TEXT,
     "info(1)", "recover(1)", "verify(1)", "diff(1)", "rebuild(1)", "expire(1)", "problems(7)"),
    ("spark", "message stores as data frames and streams of Spark", options_page.text(),
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
    """Text as roff: special characters escaped, `code` in bold."""
    escaped = "".join(
        _ROFF.get(c, c if c.isascii() else f"\\[u{ord(c):04X}]") for c in " ".join(text.split())
    )
    return _guard(re.sub(r"`([^`]+)`", r"\\fB\1\\fP", escaped))


def _guard(line: str) -> str:
    # A line that starts with a full stop would be a request.
    return "\\&" + line if line.startswith(".") else line


def _verbatim(lines: list[str]) -> str:
    """Lines as they are, in a constant font."""
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
    """A term, already roff, and its paragraphs, plain text."""
    first, *others = (_roff(paragraph) for paragraph in paragraphs)
    return "\n".join((".TP", term, first, *(f".IP\n{paragraph}" for paragraph in others)))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _paragraphs(text: str) -> Iterator[str]:
    """Help text: paragraphs are filled, those marked with a backspace (Typer's rule) are kept."""
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
        _section("Findings", _roff(f"A finding has: {findings}. The problems are in rmqtool-problems(7).")),
        _section("Environment", *(_entry(f"\\fB{name}\\fP", text) for name, text in _VARIABLES)),
        _exit_status(code for code, _ in EXIT_STATUS),
        _see_also(
            *(f"{PROGRAM}-{name}(1)" for name in commands),
            *(f"{PROGRAM}-{name}" for name in ("store(5)", "problems(7)", "spark(7)")),
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
        "every kind of damage that rmqtool finds",
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
    """Writes the pages into a folder, or with `--check` compares them; 1 when they differ."""
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
