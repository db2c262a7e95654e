"""All benchmarks: `python -m tests.benchmarks [--scale small|quick|full] [AREA...]`, or `make bench`.

Writes build/bench/table.json after every row, and table.md and chart.svg at the end. The results keep the
other areas of an earlier run, if it was of the same scale, commit and machine. `make bench` compiles the Java
programs first; without them the rows have no contender of Java.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tests.benchmarks import (
    growth,
    report,
    rows_append,
    rows_lookup,
    rows_net,
    rows_read,
    rows_recover,
    rows_spark,
)
from tests.benchmarks.harness import Row, measure
from tests.benchmarks.java import is_ready
from tests.benchmarks.machine import BUILD, describe, touch_memory
from tests.benchmarks.scale import SCALES, Bench

AREAS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "read": rows_read.rows,
    "recover": rows_recover.rows,
    "append": rows_append.rows,
    "lookup": rows_lookup.rows,
    "net": rows_net.rows,
    "spark": rows_spark.rows,
}
GROWTH = "growth"


def run(bench: Bench, areas: list[str]) -> tuple[dict[str, Any], list[str]]:
    """(the results, what failed). A row or an area that fails does not stop the others."""
    results: dict[str, Any] = {
        "scale": bench.scale.name, "log_messages": bench.scale.log_messages, "machine": describe(),
        "java": is_ready(), "rows": [], "growth": [],
    }  # fmt: skip
    report.keep_other_areas(results, areas)
    failed: list[str] = []
    for area in areas:
        shutil.rmtree(bench.folder, ignore_errors=True)
        bench.folder.mkdir(parents=True)
        with _noted(failed, area):
            if area == GROWTH:
                _grow(bench, results)
            else:
                _run_area(bench, area, results, failed)
    shutil.rmtree(bench.folder, ignore_errors=True)
    return results, failed


@contextmanager
def _noted(failed: list[str], name: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        traceback.print_exc()
        failed.append(name)


def _run_area(bench: Bench, area: str, results: dict[str, Any], failed: list[str]) -> None:
    for row in AREAS[area](bench):
        with _noted(failed, f"{area}: {row.name}"):
            result = {"area": area} | measure(row, rounds=bench.scale.rounds, budget_s=bench.scale.budget_s)
            results["rows"].append(result)
            results["rows"].sort(key=lambda row: list(AREAS).index(row["area"]))
            _say("\n".join(report.row_lines(result)))
            report.write_json(results)


def _grow(bench: Bench, results: dict[str, Any]) -> None:
    points = []
    for point in growth.measured(bench):
        points.append(point)
        results["growth"] = growth.curves(points)
        _say(report.point_line(point))
        report.write_json(results)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the areas; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=", ".join([*AREAS, GROWTH]))
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--budget", type=float, metavar="S", help="seconds of a row, instead of the scale's")
    given = parser.parse_args()
    unknown = set(given.areas) - {*AREAS, GROWTH}
    if unknown:
        parser.error(f"no such area: {', '.join(sorted(unknown))}")
    scale = SCALES[given.scale]
    bench = Bench(scale if given.budget is None else replace(scale, budget_s=given.budget))
    if bench.scale.touch_bytes:
        touch_memory(bench.scale.touch_bytes)
    BUILD.mkdir(parents=True, exist_ok=True)
    _say(f"scale {bench.scale.name}, load {os.getloadavg()[0]:.1f}; {report.machine_text(describe())}")
    results, failed = run(bench, given.areas or [*AREAS, GROWTH])
    report.write_all(results)
    _say(f"\nwritten: {report.TABLE_JSON}, {report.TABLE_MD}, {report.CHART}")
    if failed:
        _say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
