"""The process of `Runner`: it has `faults.c` preloaded, takes requests, and answers each by a child's end."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import Any

from rmqtool.cli import main
from rmqtool.read.kernels import load_kernels
from tests.faults import HOWS, KINDS
from tests.support.confined import confined
from tests.support.whole_store import write_everything


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.faults_arm.argtypes = [
        ctypes.c_char_p, ctypes.c_uint, ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_int,
        ctypes.c_longlong, ctypes.c_longlong, ctypes.c_longlong, ctypes.c_int,
    ]  # fmt: skip
    library.faults_arm.restype = None
    library.faults_count.restype = ctypes.c_long
    library.faults_hit.restype = ctypes.c_char_p
    return library


def answer(library: ctypes.CDLL, request: dict[str, Any], log: int) -> dict[str, Any]:
    """Run the command of a request in a child, under its fault."""
    fault = request["fault"]
    kinds = sum(1 << KINDS.index(kind) for kind in fault["kinds"])
    os.ftruncate(log, 0)
    os.lseek(log, 0, os.SEEK_SET)

    def action() -> int:
        library.faults_arm(
            os.fsencode(fault["below"]), kinds, HOWS.index(fault["how"]), fault["error"], fault["first"],
            fault["sticky"], *fault["part"], fault["size"], log if request["logged"] else -1,
        )  # fmt: skip
        try:
            return main(request["arguments"])
        finally:
            library.faults_disarm()

    ended = confined(action)
    lines = os.pread(log, os.fstat(log).st_size, 0).decode("utf-8", "replace").splitlines()
    return {
        "code": ended.code,
        "stdout": b64encode(ended.stdout).decode(),
        "stderr": b64encode(ended.stderr).decode(),
        "count": library.faults_count(),
        "hit": library.faults_hit().decode("utf-8", "replace"),
        "operations": lines,
    }


def warm_up() -> None:
    """Run commands once, in this process: what they load is loaded for every child."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    kept = [os.dup(number) for number in (1, 2)]
    for number in (1, 2):
        os.dup2(nothing, number)
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        write_everything(Path(store))
        for line in (
            f"verify {store}",
            f"info {store}",
            f"dump {store} --gaps --format jsonl",
            f"stats {store} --all --format json",
            f"export {store} -o {folder}/x.parquet",
            f"export {store} -o {folder}/x.jsonl",
            f"recover {store}",
            f"rebuild {store}",
            f"lookup {store} --key order3",
            f"tail {store}",
            f"diff {store} {store}",
            f"copy {store} -o {folder}/new",
            f"expire {store} --keep-hours 0",
            f"deliver {store}",
            f"append {store} --topic TopicTest --body x",
            f"recover {store} --apply -y",
        ):
            main(line.split())
    for number, before in zip((1, 2), kept, strict=True):
        os.dup2(before, number)
        os.close(before)
    os.close(nothing)


if __name__ == "__main__":
    answers = os.dup(1)
    os.dup2(2, 1)
    loaded, operations = _library(), os.memfd_create("operations")
    load_kernels()
    warm_up()
    for line in sys.stdin:
        row = answer(loaded, json.loads(line), operations)
        os.write(answers, json.dumps(row).encode() + b"\n")
