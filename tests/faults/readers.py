"""The commands that read, run again and again on one store, and what of their output stays the same."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults import Fault, Ran, Runner

DATA = ("read", "pread", "populate")
COMMANDS = (
    "verify {store} --format jsonl --severity note",
    "dump {store} --format jsonl --gaps",
    "dump {store} --stats-only --format jsonl",
    "dump {store} --raw",
    "dump {store} --what consumequeue --format jsonl",
    "dump {store} --what index --part entries --format jsonl",
    "dump {store} --what config",
    "info {store}",
    "doctor {store}",
    "stats {store} --by topic,queue --format jsonl",
    "lookup {store} --key order3 --fields physical_offset,topic --format jsonl",
    "lookup {store} --key order3 --trace --format jsonl",
    "lookup {store} --time 2023-11-14T22:13:20Z --topic TopicTest --format jsonl",
    "tail {store} --format jsonl",
    "warm {store} --queues --index --fields part,files,bytes,left_out_bytes --format jsonl",
    "recover {store}",
    "rebuild {store} --format jsonl",
    "diff {store} {store}",
    "expire {store} --before 3000 --at 2026-01-01T00:00:00Z --format json",
    "deliver {store} --format jsonl",
    "export {store} -o {new}.jsonl",
    "copy {store} -o {new}",
)
# What is another one at every run: times, speeds, what is free of the disk, names.
_VARYING = re.compile(
    rb"new-\d+|\d+\.\d+ s\b|[\d.]+ [KMGT]?i?B/s|\d+% used, [\d.]+ [KMGT]?i?B free(?:, [^\n]*)?"
    rb'|"(?:used|usable|free|total)(?:_after)?_bytes": \d+|"[a-z_]*ratio": [\d.]+'
    rb'|"hours_that_fit": [^,]*|"after_ms": \d+,\s+"at_timestamp_ms": \d+,\s+"at_time": "[^"]*"'
)


class Runs:
    """One command again and again, each time with a new name for what it makes."""

    def __init__(self, runner: Runner, root: Path, line: str, folder: Path) -> None:
        self.runner, self.root, self.line, self.folder = runner, root, line, folder
        self.number = 0

    def run(self, fault: Fault, *, logged: bool = False) -> Ran:
        self.number += 1
        new = self.made.with_suffix("")
        return self.runner.run(self.line.format(store=self.root, new=new).split(), fault, logged=logged)

    @property
    def made(self) -> Path:
        """The file that the last run of `export` wrote; names of one length, for columns have their width."""
        return self.folder / f"new-{self.number:06}.jsonl"

    def output(self, ran: Ran) -> bytes:
        """What it shows, and what it made, without what varies."""
        return _VARYING.sub(b"", ran.stdout) + (self.made.read_bytes() if self.made.exists() else b"")


def is_named(root: Path, ran: Ran) -> bool:
    """Whether the file of the fault is named, or a folder that it is in below the store."""
    path = Path(ran.hit.partition(" ")[2])
    text = ran.text + ran.stdout.decode("utf-8", "replace")
    if path == root:
        return True
    names = [path, *path.parents][: len(path.relative_to(root).parts)]
    return any(name.relative_to(root).as_posix() in text for name in names) or (
        path.parent.name == "config" and path.name in text  # there is one file of that name
    )
