"""Writes the man pages: `python -m rmqtool.manpages [--check] man`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from rmqtool import __version__
from rmqtool.cli import build_app
from rmqtool.commands.pages import PROGRAM, all_pages
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK
from rmqtool.page import roff
from rmqtool.terminal import print_error


def pages() -> dict[str, str]:
    """Every page: file name to text."""
    group: Any = typer.main.get_command(build_app())
    version = f"{PROGRAM} {__version__}"
    return {f"{each.name}.{each.section}": roff(each, version) for each in all_pages(group)}


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
