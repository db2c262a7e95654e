"""The examples of README.md: run, compared, written anew.

    python -m tests.readme        runs every example and writes the outputs that differ into README.md

A console block is one command line (`$ rmqtool ...`) and its output, both streams as they come; a
Python block is a whole program, its output in comments is not looked at. They run in a folder that
holds the case `ok_540_clean` as `store`. In an output `...` stands for any text, on a line of its
own for any lines.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rmqtool.scan.kernels import load_kernels
from tests import stores
from tests.conftest import SURROUNDINGS

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
CASE = "ok_540_clean"
_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One block: `command` without the prompt (or the program), and the output that is shown."""

    kind: str
    command: str
    output: str
    start: int
    end: int

    def run(self, folder: Path) -> str:
        """What the example prints when it runs in `folder`, on either stream."""
        if self.kind == "python":
            words = [sys.executable, "-c", self.command]
        else:
            words = [sys.executable, "-m", *shlex.split(self.command)]
        environment = {**os.environ, **SURROUNDINGS, "PYTHONPATH": str(ROOT)}
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


def examples(text: str) -> Iterator[Example]:
    """The examples of a README; a console block must start with `$ rmqtool `."""
    for match in _BLOCK.finditer(text):
        if match[1] == "python":
            yield Example("python", match[2], "", match.start(2), match.end(2))
            continue
        prompt, _, output = match[2].partition("\n")
        assert prompt.startswith("$ rmqtool "), prompt
        yield Example("console", prompt.removeprefix("$ "), output, match.start(2), match.end(2))


def main() -> None:
    """Writes README.md anew where an output differs."""
    text = README.read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        cases = Path(folder) / "cases"
        cases.mkdir()
        stores.Library(cases).copy(CASE, Path(folder) / "store")
        for example in reversed(list(examples(text))):
            output = example.run(Path(folder))
            if example.kind == "console" and not example.matches(output):
                text = f"{text[: example.start]}$ {example.command}\n{output}{text[example.end :]}"
    README.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
