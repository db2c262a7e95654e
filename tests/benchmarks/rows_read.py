"""Starting, and reading a whole log: start-up, the walk, verify, stats, export, dump, the cold cache."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rmqtool.log.dispatch import dispatch_columns
from rmqtool.log.frames import Frames, walk
from rmqtool.read.kernels import load_kernels
from rmqtool.read.messages import message_batches
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.export.request import export_request
from rmqtool.storage.source import BytesSource, open_source
from tests.benchmarks import limits, messages
from tests.benchmarks.harness import Call, Contender, Program, Row, rmqtool
from tests.benchmarks.java import java, only
from tests.benchmarks.machine import drop_from_cache, has_page_cache, remove_store
from tests.benchmarks.mqadmin import mqadmin_rows
from tests.benchmarks.scale import Bench

LIMITS = [sys.executable, "-m", "tests.benchmarks.limits"]
TINY_BYTES = 4 << 20
JAVA_ROUNDS = 6
_SHOWN = 10
_IMPORTS = "import os; os.environ['OPENBLAS_NUM_THREADS'] = '1'; import typer, numpy, llvmlite.binding"
"""What every command with kernels loads; numpy starts no threads."""
_ABSENT, _PATTERN = "no such text", "no [0-9]{3} such.*(text|body)"
_COMPRESSED_PART = 4  # of the messages: to decompress them takes long
_COLUMNS = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "store_timestamp_ms")


def rows(bench: Bench) -> Iterator[Row]:
    """All of them, over one store of one topic, and a tiny one to start with."""
    load_kernels()  # no row shows that they are compiled
    tiny, store = bench.folder / "tiny", bench.folder / "log"
    messages.make_store(tiny, 3_400, log_file_bytes=TINY_BYTES)
    yield from _start(bench, tiny)
    remove_store(tiny)
    yield from mqadmin_rows(bench)
    messages.make_store(store, bench.scale.log_messages, log_file_bytes=bench.scale.log_file_bytes)
    yield from _small_reads(bench, store)
    yield from _walk(bench, store)
    yield from _whole_log(bench, store)
    yield from _searches(bench, store)
    yield from _exports(bench, store)
    if has_page_cache(bench.folder):
        yield from _cold(bench, store)
    remove_store(store)


def empty_command(store: Path) -> Program:
    """What any command takes to start."""
    script = Path(__file__).with_name("empty_command.py")
    line = [sys.executable, script, store]
    return Program(
        name="an empty Typer command",
        kind="limit",
        line=line,
        shown="a command line of the same library that does nothing",
    )


def _python(name: str, code: str) -> Program:
    return Program(name=name, kind="limit", line=[sys.executable, "-c", code], shown=f'`python -c "{code}"`')


def _start(bench: Bench, tiny: Path) -> Iterator[Row]:
    empty = empty_command(tiny)
    yield Row(
        name="start, version", goals={empty.name: 1 / 1.2},
        contenders=[rmqtool("--version", shown="rmqtool --version"), empty, _python("bare Python", "pass")],
    )  # fmt: skip
    yield Row(
        name="start, verify of 4 MiB",
        goals={empty.name: 1 / 2.5},
        contenders=[
            rmqtool("verify", tiny, shown="rmqtool verify STORE", answer=lambda text: "sound" in text),
            empty, _python("import of typer, numpy and LLVM", _IMPORTS),
            _python("import of numpy", "import numpy"),
        ],
    )  # fmt: skip


def _small_reads(bench: Bench, store: Path) -> Iterator[Row]:
    """What reads a few records of a large store."""
    (topic,) = messages.topic_names(1)
    key = messages.key(bench.scale.log_messages // 2)
    empty = empty_command(store)
    commands = {
        "info": rmqtool("info", store, shown="rmqtool info STORE", answer=lambda text: topic in text),
        "lookup of one key": rmqtool(
            "lookup", store, "--key", key, "--topic", topic, "--json",
            shown="rmqtool lookup STORE --key KEY --topic TOPIC --json", answer=lambda text: key in text,
        ),
        "dump of 10 messages": rmqtool(
            "dump", store, "--limit", _SHOWN, "--json", shown="rmqtool dump STORE --limit 10 --json",
            answer=lambda text: text.count("\n") == _SHOWN,
        ),
        "tail of 10 messages": rmqtool(
            "tail", store, "--topic", topic, "--last", _SHOWN, "--json",
            shown="rmqtool tail STORE --topic TOPIC --last 10 --json",
            answer=lambda text: text.count("\n") == _SHOWN,
        ),
        "verify of the checkpoint": rmqtool(
            "verify", store, "--pass", "checkpoint", shown="rmqtool verify STORE --pass checkpoint",
            answer=lambda text: "sound" in text,
        ),
    }  # fmt: skip
    for name, command in commands.items():
        yield Row(name=name, contenders=[command, empty], goals={empty.name: 1 / 1.5})


def _log_bytes(store: Path) -> int:
    """The size of the log files: all of them are read to the end."""
    return sum(path.stat().st_size for path in (store / "commitlog").iterdir())


# the walk, in process


def _walk_file(path: Path) -> int:
    """Walk one file with CRC and all columns; its records."""
    source, records = open_source(path), 0
    for event in walk(source, file_from_offset=int(path.name)):
        if isinstance(event, Frames):
            assert not event.rows["status"].any()
            records += len(event.rows)
    source.close()
    return records


def _dispatch_file(path: Path) -> int:
    """The same with tags codes and index keys; its records."""
    source, records = open_source(path), 0
    for event in walk(source, file_from_offset=int(path.name)):
        if isinstance(event, Frames):
            assert len(dispatch_columns(event).keys)
            records += len(event.rows)
    source.close()
    return records


def _walk(bench: Bench, store: Path) -> Iterator[Row]:
    """The walk over the files of a log against the least that reading them takes."""
    paths, size, count = sorted((store / "commitlog").iterdir()), _log_bytes(store), bench.scale.log_messages
    first = BytesSource(paths[0].read_bytes())
    data = first.window(0, first.size)
    sizes = np.concatenate([
        each.rows["size"] for each in walk(first, file_from_offset=0) if isinstance(each, Frames)
    ])[: bench.scale.part_records]  # fmt: skip
    part, part_bytes = len(sizes), int(sizes.sum())

    def walked(threads: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            assert sum(pool.map(_walk_file, paths)) == count

    def dispatched() -> None:
        assert sum(map(_dispatch_file, paths)) == count

    def in_memory() -> None:
        events = walk(first, file_from_offset=0)
        assert not any(each.rows["status"].any() for each in events if isinstance(each, Frames))

    def python(loop: str) -> None:
        assert getattr(limits, loop)(data.data[:part_bytes], part) == part

    one = Call(
        name="walk and CRC, one thread", kind="rmqtool", work=partial(walked, 1), shown="log.frames.walk"
    )
    reading = Call(
        name="reading the files",
        kind="limit",
        work=lambda: _ignore(limits.read(paths)),
        shown="into one buffer",
    )

    def summed(threads: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            assert all(pool.map(limits.read_and_sum, paths))

    summing, summing_in_two = (
        Call(
            name=f"reading and summing{name}",
            kind="limit",
            work=partial(summed, threads),
            shown="the sum of the 64-bit words, by numpy",
        )
        for name, threads in (("", 1), (", two threads", 2))
    )
    checking = Call(
        name="reading and CRC", kind="limit", work=lambda: _ignore([*map(limits.read_and_crc, paths)]),
        shown="the CRC-32 of each buffer, by isal",
    )  # fmt: skip
    loops = [
        Call(
            name=f"Python with {name}",
            work=partial(python, loop),
            amount=part_bytes,
            shown="a loop over the records",
        )
        for name, loop in (("struct and zlib", "zlib_walk"), ("construct", "construct_walk"))
    ]
    java_walk = java(
        "WalkBench", store / "commitlog", bench.folder / "java-walk", JAVA_ROUNDS, inside="seconds",
        right=lambda told: told["records"] == count, warm=True,
    )  # fmt: skip
    yield Row(
        name="walk and CRC, from files", unit="bytes", amount=size, in_process=True,
        goals={reading.name: 0.8}, contenders=only([one, reading, summing, checking, *loops, java_walk]),
    )  # fmt: skip
    yield Row(
        name="walk and CRC, two threads", unit="bytes", amount=size, in_process=True,
        goals={one.name: 1.6},
        contenders=[
            Call(name="walk and CRC, two threads", kind="rmqtool", work=partial(walked, 2)), one,
            summing_in_two, summing,
        ],
    )  # fmt: skip
    yield Row(
        name="walk with tags codes and keys", unit="bytes", amount=size, in_process=True,
        contenders=[Call(name="walk, tags codes and keys", kind="rmqtool", work=dispatched), one],
    )  # fmt: skip
    yield Row(
        name="walk and CRC, from memory", unit="bytes", amount=first.size, in_process=True,
        contenders=[
            Call(name="walk and CRC of one file", kind="rmqtool", work=in_memory),
            Call(name="sum of 64-bit words", kind="limit",
                 work=lambda: _ignore(data[: len(data) & -8].view(np.uint64).sum()), shown="by numpy"),
        ],
    )  # fmt: skip


def _ignore(_: object) -> None:
    return None


# whole commands


def _cat(store: Path, **options: object) -> Program:
    paths = sorted((store / "commitlog").iterdir())
    return Program(
        name="cat", kind="limit", line=["cat", *paths], shown="`cat commitlog/* > /dev/null`", **options
    )  # type: ignore[arg-type]


def _log_pass(store: Path) -> Program:
    return rmqtool(
        "verify", store, "--pass", "log", name="verify, log pass", shown="rmqtool verify STORE --pass log",
        answer=lambda text: "sound" in text,
    )  # fmt: skip


def _whole_log(bench: Bench, store: Path) -> Iterator[Row]:
    size = _log_bytes(store)
    log_pass, cat = _log_pass(store), _cat(store)
    yield Row(name="verify, log pass", unit="bytes", amount=size, contenders=[log_pass, cat])
    yield Row(
        name="verify, all passes", unit="bytes", amount=size, goals={log_pass.name: 1 / 1.7},
        contenders=[
            rmqtool("verify", store, shown="rmqtool verify STORE", answer=lambda text: "sound" in text),
            log_pass, cat,
        ],
    )  # fmt: skip
    yield Row(
        name="stats", unit="bytes", amount=size,
        contenders=[
            rmqtool("stats", store, shown="rmqtool stats STORE",
                    answer=lambda text: str(bench.scale.log_messages) in text),
            log_pass, cat,
        ],
    )  # fmt: skip
    yield Row(
        name="stats by topic, queue and hour", unit="bytes", amount=size,
        contenders=[
            rmqtool("stats", store, "--by", "topic,queue,hour", name="rmqtool stats --by",
                    shown="rmqtool stats STORE --by topic,queue,hour"),
            log_pass, cat,
        ],
    )  # fmt: skip


def _searches(bench: Bench, store: Path) -> Iterator[Row]:
    """`--grep` for what no body has: every body is searched."""
    log_pass, count = _log_pass(store), bench.scale.log_messages // _COMPRESSED_PART

    def grep(searched: Path, pattern: str) -> Program:
        return rmqtool("dump", searched, "--grep", pattern, shown=f"rmqtool dump STORE --grep '{pattern}'")

    for name, pattern in (("grep of a text", _ABSENT), ("grep of a regular expression", _PATTERN)):
        yield Row(
            name=name, unit="bytes", amount=_log_bytes(store), goals={log_pass.name: 0.5},
            contenders=[grep(store, pattern), log_pass, _cat(store)],
        )  # fmt: skip
    packed, table = bench.folder / "packed", bench.folder / "packed.arrow"
    messages.make_store(packed, count, log_file_bytes=bench.scale.log_file_bytes, compression="zlib",
                        compress_over=0)  # fmt: skip
    _columns(packed, table, ("body",), body="stored")
    inflate = Program(
        name="Python, zlib.decompress", kind="limit", line=[*LIMITS, "inflate", table, _ABSENT],
        shown="decompresses every body, and looks for the text in each",
    )  # fmt: skip
    yield Row(
        name="grep in compressed bodies", unit="messages", amount=count,
        contenders=[grep(packed, _ABSENT), inflate, _log_pass(packed)],
    )  # fmt: skip
    table.unlink()
    remove_store(packed)


def _columns(store: Path, target: Path, columns: tuple[str, ...], **options: Any) -> None:
    """These columns of all messages as an Arrow file: what a bare writer gets."""
    with Store.open(store) as opened:
        tables = message_batches(opened, Selection(), columns=columns, **options)
        messages.write_arrow(target, tables)


def _pyarrow(table: Path, target: Path) -> Program:
    return Program(
        name="pyarrow alone", kind="limit", line=[*LIMITS, "parquet", table, target.with_suffix(".bare")],
        shown="compresses and writes the same columns from memory",
    )  # fmt: skip


def _exports(bench: Bench, store: Path) -> Iterator[Row]:
    """Messages as files. The bare writer has the columns in memory already."""
    target, table = bench.folder / "export", bench.folder / "table.arrow"
    count = bench.scale.log_messages

    def exported(suffix: str, *options: object, name: str = "") -> Contender:
        path = target.with_suffix(f".{suffix}")
        return rmqtool(
            "export", store, "--output", path, "--jobs", 0, *options, name=name or "rmqtool export",
            before=partial(path.unlink, missing_ok=True), answer=lambda text: str(count) in text,
            shown=" ".join([f"rmqtool export STORE --output FILE.{suffix} --jobs 0", *map(str, options)]),
        )  # fmt: skip

    for name, options, columns, goals in (
        ("export to Parquet", (), tuple(export_request("a.parquet").columns.names), {}),
        (
            "export to Parquet, without bodies", ("--columns", ",".join(_COLUMNS)), _COLUMNS,
            {_log_pass(store).name: 0.5},
        ),
    ):  # fmt: skip
        _columns(store, table, columns)
        yield Row(
            name=name, unit="messages", amount=count, goals=goals,
            contenders=[
                exported("parquet", *options), _pyarrow(table, target), _log_pass(store), _cat(store)
            ],
        )  # fmt: skip
    table.unlink()
    yield Row(
        name="export to Arrow", unit="messages", amount=count, contenders=[exported("arrow"), _cat(store)]
    )
    lines = bench.folder / "dump.jsonl"
    json_lines = Program(
        name="Python, json.loads",
        line=[*LIMITS, "json", lines],
        shown="decodes every line, and writes nothing",
    )
    dump = rmqtool(
        "dump", store, "--format", "jsonl", output=lines, shown="rmqtool dump STORE --format jsonl"
    )
    export = exported("jsonl")
    yield Row(
        name="dump to JSON lines", unit="messages", amount=count, goals={export.name: 0.95},
        contenders=[dump, export, json_lines, _cat(store)],
    )  # fmt: skip
    assert lines.read_bytes() == target.with_suffix(".jsonl").read_bytes()
    for path in bench.folder.glob("export.*"):
        path.unlink()
    lines.unlink()


def _cold(bench: Bench, store: Path) -> Iterator[Row]:
    """The files are not in the page cache: the device is the limit."""
    size = _log_bytes(store)
    target, table = bench.folder / "cold.parquet", bench.folder / "cold.arrow"
    _columns(store, table, tuple(export_request("a.parquet").columns.names))
    for name, arguments in {
        "verify, log pass": ("verify", store, "--pass", "log"),
        "verify, all passes": ("verify", store),
        "stats": ("stats", store),
        "export to Parquet": ("export", store, "--output", target, "--force", "--jobs", 0),
        "recover, the plan": ("recover", store),
    }.items():
        cold = partial(drop_from_cache, store)
        yield Row(
            name=f"{name}, cold cache", unit="bytes", amount=size, goals={"cat": 0.9},
            contenders=[
                rmqtool(*arguments, before=cold, shown=f"rmqtool {arguments[0]} STORE"),
                _cat(store, before=cold),
                *([_pyarrow(table, target)] if arguments[0] == "export" else []),
            ],
        )  # fmt: skip
    for path in (target, table, target.with_suffix(".bare")):
        path.unlink()
