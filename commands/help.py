"""`rmqtool help`: the manual, page by page."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

import typer

from rmqtool.commands import ALIASES, other_words, pages
from rmqtool.commands.problems import Codes, problems
from rmqtool.errors import EXIT_OK, UsageError
from rmqtool.output import Output
from rmqtool.problems import BY_CODE

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[COMMAND|TOPIC]",
        help="A command, or recovery, problems, concepts, store, python or spark. The topic rmqtool"
        " explains formats, times, fields of messages and environment variables. Default: an overview.",
    ),
]


def help(context: typer.Context, name: Name = None, codes: Codes = None) -> int:
    """Show the manual of a command or a topic.

    On a terminal the page opens in the program that PAGER names, by default less; elsewhere it is printed
    as plain text. The pages are the man pages of rmqtool, which need not be installed. Codes after the topic
    problems are explained as by rmqtool problems.

    Exits with 0, or with 2 if no page has that name.
    """
    assert context.parent is not None
    group: Any = context.parent.command
    if name is None:
        Output().write_page(pages.main_help(group))
        return EXIT_OK
    known = pages.page_names(group)
    wanted = name.lower()
    if wanted != pages.PROGRAM:
        wanted = wanted.removeprefix(f"{pages.PROGRAM}-")
    if codes and wanted != "problems":
        raise UsageError("help shows one page", hint="codes are for the page problems")
    if codes:
        return problems(codes=codes)
    if wanted not in known:
        wanted = ALIASES.get(wanted, wanted).replace("_", "-")
    if wanted not in known:
        near = get_close_matches(wanted, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"topics are: {', '.join(pages.TOPICS)}"
        if wanted.upper() in BY_CODE:
            hint = f"rmqtool problems {wanted.upper()}"
        hint = other_words.command_for(wanted) or hint
        raise UsageError(f"there is no manual page on {name!r}", hint=hint)
    Output().write_page(pages.page(group, wanted).all_sections())
    return EXIT_OK
