"""Runs the fuzzer; see the package."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from rmqtool.cli import build_app
from tests.fuzz import decoders
from tests.fuzz.case import CORPUS, PARTS, Case, Failure, Part
from tests.fuzz.mutate import mutate
from tests.fuzz.outside import Outside
from tests.fuzz.stores import Stores
from tests.support.confined import confined, load_everything

FAILED = Path("build/fuzz")
PER_STORE = {"decoders": 64, "files": 4, "stores": 1, "databases": 1}
_TOGETHER = 500  # inputs of decoders that one child takes
_DECODER_SECONDS = 300


class Fuzzer:
    """Draws cases, runs them and keeps what fails."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.seed = seed
        self.stores = Stores(folder / "stores")
        self.outside = Outside(folder / "files", self.stores)
        self.counts = dict.fromkeys(PARTS, 0)
        self.failed = 0
        self._memory = decoders.GuardedMemory()
        self._progress = os.memfd_create("progress")

    def run(self, part: Part, numbers: range) -> None:
        """The cases of a part with these numbers: the same for the same seed."""
        if part == "decoders":
            for first in range(0, len(numbers), _TOGETHER):
                self.run_decoders([self.draw(part, number) for number in numbers[first : first + _TOGETHER]])
            return
        for number in numbers:
            self.run_case(self.draw(part, number))

    def draw(self, part: Part, number: int) -> Case:
        """The case of a number."""
        random = Random(f"{self.seed} {part} {number}")
        if part == "stores":
            return self.stores.draw(random)
        if part == "databases":
            return self.stores.draw_databases(random)
        if part == "files":
            return self.outside.draw(random)
        name = random.choice(list(decoders.DECODERS))
        samples = decoders.DECODERS[name].samples()
        return Case("decoders", name, mutate(random.choice(samples), random, samples))

    def run_case(self, case: Case) -> None:
        """One case of any part."""
        if case.part == "decoders":
            self.run_decoders([case])
            return
        self.counts[case.part] += 1
        try:
            (self.outside if case.part == "files" else self.stores).run(case)
        except Failure as failure:
            self.keep(case, str(failure))

    def run_decoders(self, cases: list[Case]) -> None:
        """Inputs of decoders: a child takes one after the other, the next one goes on behind what failed."""
        place = 0
        while place < len(cases):

            def action(first: int = place) -> int:
                for number in range(first, len(cases)):
                    os.pwrite(self._progress, number.to_bytes(8), 0)
                    decoders.check(cases[number].name, cases[number].data, self._memory)
                os.pwrite(self._progress, len(cases).to_bytes(8), 0)
                return 0

            ended = confined(action, cpu_seconds=_DECODER_SECONDS)
            reached = int.from_bytes(os.pread(self._progress, 8, 0))
            if ended.code:
                self.keep(cases[reached], ended.told)
                reached += 1
            self.counts["decoders"] += reached - place
            place = reached

    def keep(self, case: Case, what: str) -> None:
        """Write a case that failed, and say so."""
        self.failed += 1
        path = FAILED / f"{case.part}-{case.name.replace(' ', '-')}-{os.getpid()}-{self.failed}.json"
        case.save(path)
        print(f"{path}\n{what.strip()}\n", flush=True)  # noqa: T201


def corpus() -> Iterator[Path]:
    """What was found once."""
    yield from sorted(CORPUS.glob("*.json"))


def main() -> int:
    """Run what the arguments say; 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("stores", type=int, nargs="?", default=0, help="how many stores, and so on")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part (repeatable)")
    parser.add_argument("--case", type=Path, action="append", default=[], help="only this file (repeatable)")
    chosen = parser.parse_args()
    load_everything()  # here once: a child that imports what its command needs takes four times as long
    build_app()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rmqtool-fuzz-") as folder:
        fuzzer = Fuzzer(Path(folder), chosen.seed)
        for path in chosen.case or corpus():
            fuzzer.run_case(Case.load(path))
        for part in [] if chosen.case else chosen.part or PARTS:
            count = chosen.stores * PER_STORE[part]
            fuzzer.run(part, range(chosen.first * PER_STORE[part], chosen.first * PER_STORE[part] + count))
    counts = ", ".join(f"{count} of {part}" for part, count in fuzzer.counts.items())
    print(f"seed {chosen.seed}: {counts} in {time.monotonic() - began:.0f} s, {fuzzer.failed} failed")  # noqa: T201
    return int(fuzzer.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
