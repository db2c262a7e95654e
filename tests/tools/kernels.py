"""Compiles the kernels before the tests: else each process of `make test` would compile what it needs.

    python -m tests.tools.kernels

Kernels are compiled when a command needs them. So commands run over small stores: those that read in one
process, those that write in another, at the same time. Where all are compiled this takes a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from rmqtool import StoreWriter
from rmqtool.cli import main as rmqtool
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK
from rmqtool.read import by_key, log_items
from rmqtool.read.kernels import are_cached
from rmqtool.report.dump import messages
from rmqtool.write.ingest import json_rows
from tests import ROOT
from tests.faults.readers import COMMANDS
from tests.support.whole_store import write_everything

PARTS = ("read", "write")
ROWS = 5000
COMPILED_FROM = (
    (log_items, "PLAIN_BYTES"), (messages, "PLAIN_BYTES"), (by_key, "_MANY"), (json_rows, "COMPILED_FROM"),
)  # fmt: skip
"""What decides whether a command uses plain Python or kernels: here always kernels."""
READING = (
    "dump {store} --format csv", "dump {store}", "dump {store} --grep x", "dump {store} --filter TAGS='a'",
    "dump {store} --topic TopicTest --format jsonl", "lookup {store} --keys-from {keys}",
    "export {store} -o {new}.parquet", "stats {store} --by tag", "verify {store} --pass bodies",
)  # fmt: skip
WRITING = (
    "append {new} --create --create-topic --input {rows}", "append {new} --input {table}",
    "dump {new} --stats-only", "recover {new}", "rebuild {new} --apply --force", "verify {new}",
)  # fmt: skip


def lines(part: str, folder: Path) -> Iterator[str]:
    """The commands of a part, over files in the new folder."""
    names = {name: folder / name for name in ("store", "new", "keys", "rows", "table")}
    if part == "read":
        write_everything(names["store"])
        names["keys"].write_text("order1\norder3\n")
        for line in (*READING, *COMMANDS):
            if not line.startswith("copy"):
                yield line.format(**names)
        return
    numbers = np.arange(ROWS)
    table = pa.table({"topic": ["T"] * ROWS, "body": numbers.astype("U9").tolist(), "queue_id": numbers % 2})
    with StoreWriter.create(folder / "columns", auto_create_queues=2) as writer:
        writer.put_table(table)
    names["rows"] = names["rows"].with_suffix(".jsonl")
    names["table"] = names["table"].with_suffix(".csv")
    rows = [
        {
            "topic": f"T{n % 3}",
            "body": f"body {n}",
            "keys": [f"k{n}"],
            "tags": "a",
            "properties": {"p": f"{n}"},
        }
        for n in range(ROWS)
    ]
    names["rows"].write_text("".join(json.dumps(row) + "\n" for row in rows))
    names["table"].write_text("topic,body,keys\n" + "".join(f"T0,{n},k{n}\n" for n in range(ROWS)))
    for line in WRITING:
        yield line.format(**names)


def main(arguments: list[str]) -> int:
    """Run a part, or both, each in a process of its own."""
    if not arguments:
        print("compiling the kernels" if not are_cached() else "looking for the kernels", flush=True)  # noqa: T201
        started = [
            subprocess.Popen([sys.executable, "-m", "tests.tools.kernels", part], cwd=ROOT) for part in PARTS
        ]
        return max(process.wait() for process in started)
    for module, name in COMPILED_FROM:
        setattr(module, name, -1)
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("wb") as nowhere:
        with os.fdopen(os.dup(2), "w") as stderr:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            for line in lines(arguments[0], Path(folder)):
                if (code := rmqtool(line.split())) not in (EXIT_OK, EXIT_FINDINGS):
                    stderr.write(f"tests.tools.kernels: exit code {code}: rmqtool {line}\n")
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
