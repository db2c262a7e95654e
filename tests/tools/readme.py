"""The examples of README.md, rmqtool-recovery(7) and rmqtool-python(7): run, compared, written.

    python -m tests.tools.readme   runs every example and writes outputs that differ into the documents

A console block is one command line (`$ rmqtool ...`) and its output, both streams as they come; a
Python block is a whole program, its output in comments is not looked at. Those of the README and of
rmqtool-python(7) run in a folder that `prepare` makes, those of the recovery page one after the other in
one that `prepare_recovery` makes. In an output `...` stands for any text, on a line of its
own for any lines.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rmqtool.commands.python_page import TEXT as PYTHON_TEXT
from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.read.kernels import load_kernels
from rmqtool.read.store import Store
from tests import ROOT
from tests.conftest import SURROUNDINGS
from tests.support import stores
from tests.support.trees import copy_tree

README = ROOT / "README.md"
CASE = "ok_540_clean"
RECOVERY = ROOT / "commands" / "recovery_page.py"
RECOVERY_CASE = "5.4.0:clean:flip-body-last-file:abort"
_SLAVE_END = 3_600_000  # about where the slave of the recovery page ends
_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One block: `command` without the prompt (or the program), and the output that is shown."""

    kind: str
    command: str
    output: str
    start: int
    end: int

    def run(self, folder: Path, binaries: Path | None = None) -> str:
        """What the example prints when it runs in `folder`, on either stream.

        With `binaries` it is run by what is installed there, else by the checkout.
        """
        environment = {**os.environ, **SURROUNDINGS, "COLUMNS": "78"}  # what a page has room for
        python = sys.executable if binaries is None else str(binaries / "python")
        if binaries is None:
            environment["PYTHONPATH"] = str(ROOT)
        if self.kind == "python":
            words = [python, "-c", self.command]
        else:
            words = [python, "-m", *shlex.split(self.command)]
        load_kernels()  # so that no example says that it compiles them
        return subprocess.run(
            words,
            cwd=folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        ).stdout

    def matches(self, output: str) -> bool:
        """Whether `output` is what the block shows."""
        pattern = "".join(
            "(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n"
            for line in self.output.splitlines()
        )
        return re.fullmatch(pattern, output) is not None


def python_examples(*, spark: bool) -> list[Example]:
    """The examples of rmqtool-python(7) that need Spark, or those that do not."""
    return [each for each in examples(PYTHON_TEXT) if ("pyspark" in each.command) == spark]


def examples(text: str) -> Iterator[Example]:
    """The examples of a README; a console block must start with `$ rmqtool `."""
    for match in _BLOCK.finditer(text):
        if match[1] == "python":
            yield Example("python", match[2], "", match.start(2), match.end(2))
            continue
        prompt, _, output = match[2].partition("\n")
        assert prompt.startswith("$ rmqtool "), prompt
        yield Example("console", prompt.removeprefix("$ "), output, match.start(2), match.end(2))


def prepare(cases: stores.Library, folder: Path) -> None:
    """Put a sound `store` into `folder`, and `damaged`, the damaged one of the recovery page."""
    cases.copy(CASE, folder / "store")
    _copy_damaged(cases, folder / "damaged")


def prepare_recovery(cases: stores.Library, folder: Path) -> None:
    """Put the damaged `store` of the recovery page into `folder`, and a sound `slave` that is behind."""
    _copy_damaged(cases, folder / "store")
    slave = cases.copy(CASE, folder / "slave")
    with Store.open(slave) as opened:
        end = max(each.physical_offset for each in opened.messages() if each.physical_offset < _SLAVE_END)
        for key, queue in opened.layout.consume_queues.items():
            first = next((n for n, unit in opened.queues[key].units() if unit.physical_offset >= end), None)
            for file in queue.files if first is not None else ():
                cut_file(file.path, max(first * UNIT_SIZE - file.file_from_offset, 0))
        newest = opened.layout.commit_log[-1]
    cut_file(newest.path, end - newest.file_from_offset)


def _copy_damaged(cases: stores.Library, to: Path) -> None:
    linked = cases.variant(RECOVERY_CASE, to.with_name("linked"))
    copy_tree(linked, to)
    shutil.rmtree(linked)


def cut_file(path: Path, start: int) -> None:
    """Make everything behind `start` zero."""
    size = path.stat().st_size
    if start < size:
        os.truncate(path, start)
        os.truncate(path, size)


def renewed(text: str, folder: Path) -> str:
    """The text of a document with the outputs that its examples have in `folder`, in their order."""
    pieces, done = [], 0
    for example in examples(text):
        output = example.run(folder)
        pieces.append(text[done : example.start])
        done = example.end
        changed = example.kind == "console" and not example.matches(output)
        pieces.append(f"$ {example.command}\n{output}" if changed else text[example.start : example.end])
    return "".join((*pieces, text[done:]))


def main() -> None:
    """Writes the documents anew where an output differs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for made in (folder / "cases", folder / "readme", folder / "recovery"):
            made.mkdir()
        cases = stores.Library(folder / "cases")
        prepare(cases, folder / "readme")
        prepare_recovery(cases, folder / "recovery")
        for document, place in ((README, "readme"), (RECOVERY, "recovery")):
            text = document.read_text("utf-8")
            document.write_text(renewed(text, folder / place), "utf-8")


if __name__ == "__main__":
    main()
