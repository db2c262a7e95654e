"""What the benchmarks have measured: for a terminal, as Markdown, as a page of the manual, as a chart.

    python -m tests.benchmarks.report [FILE]    puts the table of build/bench/table.json, or FILE, into the
                                                documents; then run `make man`

The tables stand between two markers in the source of rmqtool-concepts(7), and some rows in README.md. A
document without markers is an error; with nothing between them it has no section. Only a full run gets there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from tests import ROOT
from tests.benchmarks.harness import WORK_ALONE
from tests.benchmarks.machine import BUILD, LIBRARIES

TABLE_JSON, TABLE_MD, CHART = BUILD / "table.json", BUILD / "table.md", BUILD / "chart.svg"
README = ROOT / "README.md"
CONCEPTS = ROOT / "commands" / "concepts_page.py"
README_MARKERS = ("<!-- speed: begin -->\n", "<!-- speed: end -->\n")
PAGE_MARKERS = ("# speed: begin\n", "# speed: end\n")
TITLE = "Speed"

AREAS = {
    "read": "Reading", "recover": "Recovery", "append": "Writing", "lookup": "Look-ups", "spark": "Spark",
    "net": "Replication and serving",
}  # fmt: skip
GROWTH_TEXT = (
    "The time of a command at several sizes; memory and open files at the first and the last one. The slope"
    " is the exponent of the time: 1 grows as the size, 0 not at all."
)
README_ROWS = (
    "one message by its key", "walk and CRC, from files", "verify, log pass", "verify, log pass, cold cache",
    "recover, the plan", "export to Parquet", "lookup of 20,000 keys", "append from Parquet, 1 topic",
)  # fmt: skip
Result = dict[str, Any]
_COLOURS = {"rmqtool": "#7f7f7f", "java": "#d62728", "limit": "#1f77b4", "other": "#2ca02c"}
_KINDS = {
    "rmqtool": "another way of rmqtool", "java": "RocketMQ's own library or tool",
    "limit": "a bare limit of the machine", "other": "another tool",
}  # fmt: skip


# figures


def seconds_text(seconds: float) -> str:
    """`4.2 us`, `83 ms`, `1.72 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def rate_text(unit: str, rate: float) -> str:
    """`1.91 GB/s`, `1.2 million messages/s`; empty where only the time counts."""
    if not unit:
        return ""
    if unit == "bytes":
        return f"{rate / 1e9:.2f} GB/s" if rate >= 1e8 else f"{rate / 1e6:.3g} MB/s"
    return f"{rate / 1e6:.3g} million {unit}/s" if rate >= 1e6 else f"{rate:,.0f} {unit}/s"


def figure(row: Result, each: Result) -> str:
    """The time of a contender with its spread, and its rate; of one that does a part only the rate."""
    rate = rate_text(row["unit"], row["amount"] / each["seconds"])
    if each["part"]:
        return f"{rate}, of a part"
    spread = (each["high"] - each["low"]) / 2 / each["seconds"]
    text = seconds_text(each["seconds"]) + (f" +-{spread:.0%}" if row["rounds"] > 1 else "")
    return ", ".join(filter(None, (text, rate, cpu_text(row, each))))


def cpu_text(row: Result, each: Result) -> str:
    """`CPU 1.2 s`, in a row that shows processor time."""
    used = each.get("cpu_seconds") if row.get("cpu_goals") else None
    return "" if used is None else f"CPU {seconds_text(used)}"


def ratio_text(ratio: float | None) -> str:
    """How many times as fast rmqtool is."""
    return "" if ratio is None else f"{ratio:.3g} x" if ratio < 100 else f"{ratio:,.0f} x"


def ratios_text(row: Result, each: Result) -> str:
    """The same, and in a row that shows processor time how many times as much of it the peer took."""
    used = each.get("cpu_ratio") if row.get("cpu_goals") else None
    return ratio_text(each["ratio"]) + ("" if used is None else f", CPU {ratio_text(used)}")


def memory_text(row: Result, each: Result) -> str:
    """The peak memory of a process of its own."""
    peak = each.get("peak_bytes", 0)
    return f"{peak / (1 << 20):.0f} MiB" if peak >= 1 << 20 and not row["in_process"] else ""


def machine_text(machine: Mapping[str, str]) -> str:
    """One sentence about where and when."""
    names = ("python", *LIBRARIES, "java")
    versions = ", ".join(f"{name} {machine[name]}" for name in names if name in machine)
    commit = f" ({machine['commit']})" if machine.get("commit") else ""
    stores = f", stores on {machine['file_system']}" if machine.get("file_system") else ""
    return (
        f"{machine['date']}, rmqtool {machine['rmqtool']}{commit}, {machine['processor']},"
        f" {machine['cores']} cores, {machine['memory']}, {machine['system']}{stores}, {versions}"
    )


def point_line(point: Result) -> str:
    """A point of a curve, as it is measured."""
    return (
        f"{point['command']:24} {point['axis']:12} {size_text(point['axis'], point['size']):>9}:"
        f" {seconds_text(point['seconds'])}, {point['peak_bytes'] >> 20} MiB,"
        f" {point['open_files']} open files"
    )


def size_text(axis: str, size: float) -> str:
    """A place on an axis."""
    return f"{size / (1 << 30):.3g} GiB" if axis.startswith("bytes") else f"{size:,.0f}"


def row_lines(row: Result) -> Iterator[str]:
    """A row for a terminal, with what is to be reached."""
    yield f"\n{row['name']}{' (in process)' if row['in_process'] else ''}, load {row['load']:.1f}"
    for each in row["contenders"]:
        aims = "".join(f"  ({aim})" for aim in _aims(row, each))
        text = f"  {each['name']:34} {figure(row, each):46} {memory_text(row, each):>9}"
        yield f"{text} {ratios_text(row, each):>8}{aims}".rstrip()


def _aims(row: Result, peer: Result) -> Iterator[str]:
    """What the ratio to a peer has to reach, and whether it does.

    No program can where a limit of the row is itself below it: that says so.
    """
    for goals, key, took, what in (
        ("goals", "ratio", "seconds", ""),
        ("cpu_goals", "cpu_ratio", "cpu_seconds", "CPU "),
    ):
        goal, ratio = row[goals].get(peer["name"]), peer.get(key)
        if goal is None or ratio is None:
            continue
        text = f"to reach {what}{goal:.3g} x"
        if ratio >= goal:
            yield f"{text}: reached"
            continue
        bare = {
            each["name"]: peer[took] / each[took]
            for each in row["contenders"][1:]
            if each["kind"] == "limit" and each is not peer and each.get(took)
        }
        name = min(bare, key=bare.__getitem__, default="")
        is_limited = name and bare[name] < goal
        yield f"{text}: {f'out of reach, {name} has {bare[name]:.3g} x' if is_limited else 'missed'}"


# documents


def introduction(results: Result) -> list[str]:
    """What the figures are, in sentences."""
    return [
        f"`make bench` measured this on one machine: {machine_text(results['machine'])}.",
        "Each figure of rmqtool is the median time of the whole command, from the start of the process to its"
        " end, with the files in the page cache, and the peak of its memory. A row marked (in process) is a"
        " call without the start. The contenders of a row took turns; +- is half the range of their rounds."
        " The ratio is the speed of rmqtool divided by that of the peer: above 1 rmqtool is faster. Some"
        " peers do only a part of the work and show a limit of the machine: they read or write the same bytes"
        ", or start and do nothing. Unless a row says otherwise, the log has"
        f" {results['log_messages']:,} messages of 1 KiB.",
    ]


def markdown(results: Result, heading: str = "###") -> str:
    """The tables, one for each area."""
    parts = [*introduction(results), "\n".join(_peer_lines(results["rows"]))]
    parts += [f"{heading} Goals", "\n".join(_goal_lines(results["rows"]))]
    for area in dict.fromkeys(row["area"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["area"] == area]
        parts += [f"{heading} {AREAS[area]}", "\n".join(_table_lines(rows))]
        parts += ["\n".join(f"- {row['name']}: {row['note']}." for row in rows if row["note"])]
    if results["growth"]:
        parts += [f"{heading} Growth", GROWTH_TEXT, "\n".join(_growth_lines(results["growth"]))]
    return "\n\n".join(filter(None, parts)) + "\n"


def selection(results: Result) -> str:
    """The table of README.md: one line a row, for who decides in a minute."""
    rows = {row["name"]: row for row in results["rows"]}
    lines = ["| work | rmqtool | its speed divided by that of |", "|---|---|---|"]
    for row in (rows[name] for name in README_ROWS if name in rows):
        ours, *peers = row["contenders"]
        shown = [each for each in peers if each["ratio"] is not None and _is_shown(each)]
        ratios = [f"{each['name']}: {ratio_text(each['ratio'])}" for each in shown]
        place = " (in process)" if row["in_process"] else ""
        lines.append(f"| {row['name']}{place} | {_figure_and_memory(row, ours)} | {'; '.join(ratios)} |")
    loads = [row["load"] for row in results["rows"]]
    text = (
        f"Median times of whole commands over a log of {results['log_messages']:,} messages of 1 KiB in the"
        f" page cache, on one machine with a load of {min(loads):.1f} to {max(loads):.1f}:"
        f" {machine_text(results['machine'])}. Some peers do only a part: cat reads the bytes, the bare"
        " writer writes them. `make bench` measures; rmqtool-concepts(7) has all rows."
    )
    return f"{fill(text, 120, break_on_hyphens=False)}\n\n" + "\n".join(lines) + "\n"


def _is_shown(peer: Result) -> bool:
    """Whether a reader of README.md knows what the peer is."""
    is_start = peer["name"].startswith("an empty")
    return not is_start and peer["kind"] != "rmqtool" and not peer["name"].endswith(WORK_ALONE)


def _peer_lines(rows: Sequence[Result]) -> Iterator[str]:
    """What each peer does, once."""
    peers = [each for row in rows for each in row["contenders"][1:] if each["kind"] != "rmqtool"]
    for name, shown in {each["name"]: each["shown"] for each in peers}.items():
        if shown and not name.endswith(WORK_ALONE):
            yield f"- {name}: {shown}."


def _goal_lines(rows: Sequence[Result]) -> Iterator[str]:
    for row in rows:
        for peer in row["contenders"][1:]:
            yield from (
                f"- {row['name']}, {peer['name']}, {ratios_text(row, peer)}: {aim}"
                for aim in _aims(row, peer)
            )


def _table_lines(rows: Sequence[Result]) -> Iterator[str]:
    """One line for each peer; the first of a row has rmqtool's figure too."""
    yield "| work | rmqtool | beside it | its time | ratio |"
    yield "|---|---|---|---|---|"
    for row in rows:
        ours, *peers = row["contenders"]
        work = f"{row['name']}: `{ours['shown']}`" if ours["shown"] else row["name"]
        first = [f"{work} (in process)" if row["in_process"] else work, _figure_and_memory(row, ours)]
        for each in peers or [None]:
            last = ["", "", ""] if each is None else [
                each["name"], _figure_and_memory(row, each), ratios_text(row, each)
            ]  # fmt: skip
            yield f"| {' | '.join(first + last)} |"
            first = ["", ""]


def _figure_and_memory(row: Result, each: Result) -> str:
    return ", ".join(filter(None, (figure(row, each), memory_text(row, each))))


def _growth_lines(curves: Sequence[Result]) -> Iterator[str]:
    yield "| command | grows with | time | memory | open files | slope |"
    yield "|---|---|---|---|---|---|"
    for curve in curves:
        points = curve["points"]
        times = "; ".join(
            f"{size_text(curve['axis'], each['size'])}: {seconds_text(each['seconds'])}" for each in points
        )
        peaks = " to ".join(f"{each['peak_bytes'] >> 20}" for each in _ends(points))
        files = " to ".join(str(each["open_files"]) for each in _ends(points))
        slope = "" if curve["slope"] is None else f"{curve['slope']:.2f}"
        yield f"| {curve['command']} | {curve['axis']} | {times} | {peaks} MiB | {files} | {slope} |"


def _ends(points: Sequence[Result]) -> list[Result]:
    return [points[0], points[-1]] if len(points) > 1 else [points[0]]


def page(results: Result) -> str:
    """A section of a page of the manual: paragraphs and blocks, narrow enough for a terminal."""
    sentences = (fill(text, 100, break_on_hyphens=False) for text in introduction(results))
    parts = [f"## {TITLE}", *sentences]
    for area in dict.fromkeys(row["area"] for row in results["rows"]):
        lines = [line for row in results["rows"] if row["area"] == area for line in _page_lines(row)]
        parts += [f"{AREAS[area]}:", _block(lines)]
    if results["growth"]:
        lines = []
        for curve in results["growth"]:
            slope = "" if curve["slope"] is None else f", slope {curve['slope']:.2f}"
            lines.append(f"{curve['command']}, {curve['axis']}{slope}")
            lines += [_page_point(curve["axis"], point) for point in curve["points"]]
        parts += [fill(GROWTH_TEXT, 100, break_on_hyphens=False), _block(lines)]
    return "\n" + "\n\n".join(parts) + "\n"


def _block(lines: Sequence[str]) -> str:
    return "\n".join(("```text", *lines, "```"))


_PAGE_WIDTH = 77


def _page_lines(row: Result) -> Iterator[str]:
    yield f"{row['name']}{' (in process)' if row['in_process'] else ''}"
    for each in row["contenders"]:
        left, right = f"  {each['name'][:29]:29} {figure(row, each)}", ratios_text(row, each)
        if len(left) + 1 + len(right) > _PAGE_WIDTH:
            yield left
            left = ""
        yield f"{left} {right:>{_PAGE_WIDTH - len(left) - 1}}".rstrip()


def _page_point(axis: str, point: Result) -> str:
    memory, files = f"{point['peak_bytes'] >> 20} MiB", f"{point['open_files']} open files"
    return (
        f"  {size_text(axis, point['size']):>10} {seconds_text(point['seconds']):>9} {memory:>9} {files:>17}"
    )


def page_source(results: Result | None) -> str:
    """The assignment in the source of the page."""
    if results is None:
        return 'SPEED = ""\n'
    return f'SPEED = r"""{page(results)}"""\n'


def between(text: str, markers: tuple[str, str], content: str) -> str:
    """The text with `content` between the markers. Raises ValueError if they are not there once each."""
    begin, end = markers
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"not one {begin.strip()} with one {end.strip()} after it")
    return text[: text.index(begin) + len(begin)] + content + text[text.index(end) :]


def put(results: Result, readme: Path = README, concepts: Path = CONCEPTS) -> None:
    """Write the tables into both documents."""
    section = f"\n## {TITLE}\n\n{selection(results)}\n"
    for path, markers, content in (
        (readme, README_MARKERS, section), (concepts, PAGE_MARKERS, page_source(results))
    ):  # fmt: skip
        path.write_text(between(path.read_text("utf-8"), markers, content), "utf-8")


# files


def write_json(results: Result, path: Path = TABLE_JSON) -> None:
    """The results as they are."""
    path.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def keep_other_areas(results: Result, areas: Sequence[str], path: Path = TABLE_JSON) -> None:
    """Add what the file has of other areas, if it is of the same scale, commit and machine."""
    if not path.exists():
        return
    before = json.loads(path.read_text("utf-8"))
    surroundings = [
        (each["scale"], each["java"], {**each["machine"], "date": ""}) for each in (before, results)
    ]
    if surroundings[0] == surroundings[1]:
        results["rows"] += [row for row in before["rows"] if row["area"] not in areas]
        results["growth"] += before["growth"] if "growth" not in areas else []


def write_all(results: Result, folder: Path = BUILD) -> None:
    """table.json, table.md and chart.svg."""
    write_json(results, folder / TABLE_JSON.name)
    (folder / TABLE_MD.name).write_text(f"# {TITLE}\n\n{markdown(results, '##')}", "utf-8")
    draw(results, folder / CHART.name)


def draw(results: Result, path: Path) -> None:
    """One chart: of every row the ratios on a logarithmic axis; beside it how commands grow with the log."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    rows = [row for row in results["rows"] if len(row["contenders"]) > 1]
    curves = [curve for curve in results["growth"] if curve["axis"] == "bytes of log"]
    height = max(4, 0.3 * len(rows) + 1.5)
    chart, (left, right) = plt.subplots(1, 2, figsize=(15, height), width_ratios=(3, 2), layout="constrained")
    _draw_ratios(left, rows)
    _draw_growth(right, curves)
    chart.suptitle(f"rmqtool {results['machine']['rmqtool']}, {results['machine']['date']}")
    chart.savefig(path, format="svg")
    plt.close(chart)


def _draw_ratios(axes: Any, rows: Sequence[Result]) -> None:
    for number, row in enumerate(rows):
        for each in row["contenders"][1:]:
            axes.plot(each["ratio"], number, "o", color=_COLOURS[each["kind"]])
    for kind, label in _KINDS.items():
        axes.plot([], [], "o", color=_COLOURS[kind], label=label)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="both", alpha=0.3)
    axes.set_xlabel("speed of rmqtool / speed of the peer")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, fontsize="small")


def _draw_growth(axes: Any, curves: Sequence[Result]) -> None:
    for curve in curves:
        sizes = [each["size"] / (1 << 30) for each in curve["points"]]
        axes.plot(sizes, [each["seconds"] for each in curve["points"]], "o-", label=curve["command"])
    if curves:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, fontsize="small")
    axes.grid(alpha=0.3)
    axes.set_xlabel("log, GiB")
    axes.set_ylabel("seconds")


def main(arguments: list[str]) -> int:
    """Put the table of a full run into the documents; 1 if there is none."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.report", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=TABLE_JSON)
    path: Path = parser.parse_args(arguments).file
    if not path.exists():
        sys.stderr.write(f"{path} does not exist: run `make bench` first\n")
        return 1
    results = json.loads(path.read_text("utf-8"))
    if results["scale"] != "full":
        sys.stderr.write(f"{path} is of a {results['scale']} run: only figures of a full one are published\n")
        return 1
    put(results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
