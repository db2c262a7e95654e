"""The fuzzer: what it once found stays fixed, a few new cases in each run, and it sees what it has to see."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from rmqtool.cli import build_app
from tests import ROOT
from tests.fuzz import __main__ as program
from tests.fuzz import case as bounds
from tests.fuzz import decoders, stores
from tests.fuzz.__main__ import PER_STORE, Fuzzer
from tests.fuzz.case import PARTS, Case
from tests.fuzz.outside import KINDS
from tests.support.confined import load_everything
from tests.support.sweep import IS_WHOLE
from tests.support.whole_store import codes_of

STORES = 200 if IS_WHOLE else 1

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(sys.platform != "linux", reason="guard pages, /proc and memfd are of Linux"),
]


@pytest.fixture
def fuzzer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fuzzer:
    """One whose cases that fail are kept below `tmp_path`."""
    load_everything()
    build_app()
    monkeypatch.setattr(program, "FAILED", tmp_path / "failed")
    return Fuzzer(tmp_path / "fuzz", "test")


def kept(tmp_path: Path) -> list[Case]:
    return [Case.load(path) for path in sorted((tmp_path / "failed").glob("*.json"))]


def test_the_corpus_and_a_sample() -> None:
    """In a process of its own, which forks for every case."""
    command = [sys.executable, "-m", "tests.fuzz", str(STORES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {part: int(count) for count, part in re.findall(r"(\d+) of (\w+)", done.stdout)}
    assert all(counts[part] >= STORES * PER_STORE[part] for part in PARTS), done.stdout


def test_the_store_that_is_mutated_most_is_sound(fuzzer: Fuzzer) -> None:
    """Otherwise mutations would only hit what is damaged already."""
    assert set(codes_of(fuzzer.stores.base("everything"))) <= {"CF03"}


def test_every_decoder_takes_its_samples() -> None:
    """One that refuses them would only be tried with what it refuses."""
    memory = decoders.GuardedMemory()
    for name, decoder in decoders.DECODERS.items():
        for sample in decoder.samples():
            found = decoder.run(memory.put(sample), Random(1))
            if isinstance(found, Iterator):
                assert list(found), name


def test_sound_files_are_taken(fuzzer: Fuzzer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind in its sound form passes, and is what its commands read; by default each of them once."""
    taken: set[str] = set()
    for name, kind in KINDS.items():
        new = tuple(command for command in kind.commands if IS_WHOLE or command not in taken)
        monkeypatch.setitem(KINDS, name, replace(kind, commands=new or kind.commands[:1]))
        taken.update(new)
        fuzzer.run_case(Case("files", name, fuzzer.outside.sound(name)))
    assert fuzzer.failed == 0


@pytest.mark.parametrize("part", PARTS)
def test_the_same_seed_gives_the_same_cases(fuzzer: Fuzzer, tmp_path: Path, part: str) -> None:
    other = Fuzzer(tmp_path / "other", "test")
    cases = [fuzzer.draw(part, number) for number in range(20)]  # type: ignore[arg-type]
    again = [other.draw(part, number) for number in range(20)]  # type: ignore[arg-type]
    if part == "files":  # some name the time when they were made
        assert [case.name for case in cases] == [case.name for case in again]
    else:
        assert cases == again
    assert len({repr(case) for case in cases}) > 10


def test_a_case_is_the_same_from_its_file(fuzzer: Fuzzer, tmp_path: Path) -> None:
    for part in PARTS:
        case = fuzzer.draw(part, 3)
        case.save(tmp_path / "case.json")
        assert Case.load(tmp_path / "case.json") == case


class TestWhatItSees:
    """Each kind of failure is kept, with the case that shows it; the cases after it are still run."""

    def test_a_byte_beyond_the_input(
        self, fuzzer: Fuzzer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def reads_on(data: decoders.Input, random: Random) -> None:
            if data.tobytes() == b"second":
                import ctypes

                ctypes.string_at(data.ctypes.data, len(data) + 1)

        decoder = decoders.Decoder(reads_on, lambda: (b"",))
        monkeypatch.setitem(decoders.DECODERS, "abort", decoder)
        fuzzer.run_decoders([Case("decoders", "abort", data) for data in (b"first", b"second", b"third")])
        assert [case.data for case in kept(tmp_path)] == [b"second"]
        assert fuzzer.counts["decoders"] == 3

    @pytest.mark.parametrize("wrong", ["exit 70", "signal", "busy", "memory", "text", "changes"])
    def test_a_command(
        self, fuzzer: Fuzzer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
    ) -> None:
        def main(line: list[str]) -> int:
            match wrong:
                case "exit 70":
                    return 70
                case "signal":
                    os.abort()
                case "busy":
                    while True:
                        pass
                case "memory":
                    taken = b"x" * (2 * bounds.MOST_BYTES)  # every page of it is used
                    return taken[0]
                case "text":
                    print("Exception ignored in: x", file=sys.stderr)  # noqa: T201
                case _:
                    (Path(line[1]) / "abort").write_bytes(b"1")
            return 0

        monkeypatch.setattr(stores, "main", main)
        monkeypatch.setattr(stores, "_CPU_SECONDS", 1)
        monkeypatch.setattr(bounds, "MOST_BYTES", 1 << 27)
        case = Case("stores", "everything", commands=(("info", "{store}"),))
        fuzzer.run_case(case)
        assert kept(tmp_path) == [case]

    def test_nothing_where_all_is_well(self, fuzzer: Fuzzer, tmp_path: Path) -> None:
        fuzzer.run_case(Case("stores", "everything", commands=(("info", "{store}"),)))
        assert kept(tmp_path) == [] and fuzzer.counts["stores"] == 1
