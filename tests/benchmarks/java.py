"""The broker's own store library as a contender: JVMs that are started for a round, or stay warm.

A program that is started for a round tells the seconds of its own work too, without the start of the JVM.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import Program
from tests.benchmarks.machine import BUILD, remove_store
from tests.benchmarks.messages import BODY_BYTES
from tests.benchmarks.scale import QUEUES
from tests.interop.processes import BUILD as LAB
from tests.interop.processes import FLAGS, JAVA, write_logback

VERSION = "5.4.0"
WARM = f"Java {VERSION}, warm"
WARM_SHOWN = "the store library of the broker in a warm JVM: its work alone"
PROCESS = f"Java {VERSION}, process"
_PROCESS_SHOWN = "the same library as a program: its start, its work, closing the store"
_HEAP = "1g"
_OPENS = [flag for flag in FLAGS if flag.startswith("--add")]


def is_ready() -> bool:
    """Whether the programs and the library are there: `make bench` makes them."""
    return (BUILD / "classes").is_dir() and (LAB / VERSION / "lib").is_dir()


def java_line(main: str, *arguments: object, touched: bool = True) -> list[str]:
    """The command line of one of the programs; `touched`: its heap is in memory from the start."""
    home = BUILD / "java-home"
    return [
        JAVA, *_OPENS, f"-Xms{_HEAP}", f"-Xmx{_HEAP}", *(["-XX:+AlwaysPreTouch"] if touched else []),
        f"-Duser.home={home}", *write_logback(home),
        "-cp", f"{BUILD / 'classes'}:{LAB / VERSION / 'lib'}/*", main, *map(str, arguments),
    ]  # fmt: skip


def java(
    main: str,
    *arguments: object,
    inside: str,
    right: Callable[[dict[str, Any]], bool],
    warm: bool = False,
    **options: Any,
) -> Program:
    """A program that answers with a line of JSON.

    Args:
        main: the class.
        arguments: its arguments.
        inside: the key of its own seconds; of a list, those of the last half count, for it warms before.
        right: whether what it says is right.
        warm: it repeats the work, and only its own seconds count.
        options: those of `Program`.
    """

    def told(text: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(next(each for each in text.splitlines() if each.startswith("{")))
        assert right(result), text
        return result

    def seconds(text: str) -> float:
        value = told(text)[inside]
        return statistics.median(value[len(value) // 2 :]) if isinstance(value, list) else float(value)

    return Program(
        name=WARM if warm else PROCESS, kind="java", line=java_line(main, *arguments, touched=False),
        inside=seconds, only_inside=warm, shown=WARM_SHOWN if warm else _PROCESS_SHOWN, **options,
    )  # fmt: skip


class JavaStore:
    """A JVM that writes one store after the other, and stays warm."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._numbers = count()

    def run(
        self, topics: int, messages: int, *, threads: int = 1, flush: str = "ASYNC_FLUSH"
    ) -> dict[str, float]:
        """Write a new store of default sizes; its space is free afterwards.

        Returns:
            put_seconds: in puts, by each thread; complete_seconds: from the first put until queues and index
            were level with the log.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        root = self._folder / f"java-{next(self._numbers)}"
        self._process.stdin.write(store_line(root, topics, messages, threads=threads, flush=flush))
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"StoreBench ended, see {BUILD / 'java-home'}"
        result: dict[str, float] = json.loads(answer)
        assert (result["dispatched"], result["refused"]) == (messages, 0)
        remove_written(root)
        return result


def store_line(
    root: Path, topics: int, messages: int, *, threads: int = 1, flush: str = "ASYNC_FLUSH"
) -> str:
    """What StoreBench reads to write one store."""
    return f"{root} {flush} {threads} {topics} {QUEUES} {messages} {BODY_BYTES}\n"


def remove_written(root: Path) -> None:
    """Free the space of a store that StoreBench has written."""
    remove_store(root.with_suffix(".written"))
    shutil.rmtree(root, ignore_errors=True)  # what closing the store has made again


@contextmanager
def java_store(folder: Path, *, warm_messages: int) -> Iterator[JavaStore]:
    """A JVM that has written until the JIT has compiled what matters. It ends when this process does."""
    line = java_line("StoreBench")
    with (BUILD / "java-home" / "stderr.log").open("wb") as log:
        process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        store = JavaStore(process, folder)
        store.run(1, warm_messages)
        store.run(1, max(warm_messages // 16, 16), threads=16, flush="SYNC_FLUSH")
        yield store
    finally:
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            process.communicate(timeout=120)
        process.kill()
        process.wait()


def only(contenders: Sequence[Any]) -> list[Any]:
    """The contenders without those of Java, where its library is not there."""
    return [each for each in contenders if each.kind != "java" or is_ready()]
