"""The picture of the README: the parts of a store, and which command looks where.

    python -m tests.tools.picture     writes fixtures/store.svg

Names, sizes and counts are those of the store of the demo, as `info` and `verify` report them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rmqtool.check.verify import Report, verify
from rmqtool.read.store import Store
from rmqtool.report.info import store_info
from tests import ROOT
from tests.support import stores
from tests.tools.readme import CASE

PICTURE = ROOT / "fixtures" / "store.svg"
_WIDTH, _HEIGHT = 920, 430
_LINE = 19
_STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
.name { font-weight: 600 }
.file, .command { font-family: ui-monospace, SFMono-Regular, Menlo, monospace; font-size: 13px }
.command { fill: #0a5cc2 }
.small { font-size: 13px; fill: #57606a }
.part { fill: #f6f8fa; stroke: #8c959f }
.arrow { fill: none; stroke: #57606a; stroke-width: 1.5; marker-end: url(#head) }
#head path { fill: #57606a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .command { fill: #6cb6ff }
  .small { fill: #9198a1 }
  .part { fill: #161b22; stroke: #57606a }
  .arrow { stroke: #9198a1 }
  #head path { fill: #9198a1 }
}
"""
Line = tuple[str, str]  # class and text


def draw(root: Path) -> str:
    """The picture of the sound store at `root`, as SVG."""
    report = Report()
    with Store.open(root) as store:
        findings = list(verify(store, report=report))
        facts = store_info(store)
        files = [file.path.name for file in store.layout.commit_log]
        key = max(store.queues, key=lambda key: (store.queues[key].max_offset(), key))
        config = [name for name in ("topics.json", "consumerOffset.json", "delayOffset.json")
                  if name in store.layout.config]  # fmt: skip
        stamps = [file.name_time for file in store.layout.index_files]
    assert not findings
    topics = facts["topics"]
    parts = [
        _part(20, 70, 268, 190, "commit log", [
            *(("file", f"commitlog/{name}") for name in files),
            ("small", f"{report.records:,} messages of {len(topics)} topics,"),
            ("small", "one after the other"),
            ("command", "dump  export  stats  copy"),
            ("command", "append  spark-scan"),
        ]),
        _part(366, 70, 268, 116, "consume queues", [
            ("file", f"consumequeue/{key[0]}/{key[1]}/"),
            ("small", f"{report.units:,} units of 20 bytes:"),
            ("small", "offset, size and tag of a message"),
            ("command", "tail  deliver"),
        ]),
        _part(366, 204, 268, 116, "index", [
            ("file", f"index/{stamps[0]}"),
            ("small", f"{report.index_entries:,} entries of 20 bytes:"),
            ("small", "hash of a key, offset of a message"),
            ("command", "lookup"),
        ]),
        _part(652, 70, 248, 135, "config", [
            *(("file", f"config/{name}") for name in config),
            ("small", "topics, and what groups have read"),
            ("command", "stats --by group  rebuild"),
        ]),
        _part(652, 223, 248, 116, "state", [
            ("file", "checkpoint  abort  lock"),
            ("small", "how far it is on the device, how it"),
            ("small", "was stopped, who writes to it now"),
            ("command", "info"),
        ]),
    ]  # fmt: skip
    texts = [
        _text(20, 32, "name", "What lies in a store, and which command looks where"),
        _text(20, 52, "small", "a store that a 5.4 broker wrote; files of 1 MiB, where brokers use 1 GiB"),
        _text(300, 120, "small", "dispatch"),
        _text(20, 368, "command", "verify"), _text(120, 368, "", "compares all parts with each other"),
        _text(20, 391, "command", "recover"),
        _text(120, 391, "", "shows what a broker's start would delete, and keeps it"),
        _text(20, 414, "command", "expire"),
        _text(120, 414, "", "shows what the next expiry deletes"),
        _text(430, 414, "command", "diff"), _text(480, 414, "", "compares with a slave or a backup"),
    ]  # fmt: skip
    arrows = ['<path class="arrow" d="M288 130 H362"/>', '<path class="arrow" d="M324 130 V264 H362"/>']
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        "<title>What lies in a store, and which command looks where</title>",
        f"<style>{_STYLE}</style>",
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
        ' orient="auto"><path d="M0 0 L8 4 L0 8 Z"/></marker>',
        *parts, *arrows, *texts, "</svg>", "",
    ])  # fmt: skip


def _part(x: int, y: int, width: int, height: int, name: str, lines: Sequence[Line]) -> str:
    texts = [_text(x + 12, y + 24, "name", name)]
    texts += [_text(x + 12, y + 24 + _LINE * (number + 1), *line) for number, line in enumerate(lines)]
    frame = f'<rect class="part" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
    return "\n".join([frame, *texts])


def _text(x: int, y: int, style: str, text: str) -> str:
    return f'<text x="{x}" y="{y}" class="{style}" xml:space="preserve">{escape(text)}</text>'


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as name:
        PICTURE.write_text(draw(stores.Library(Path(name)).copy(CASE, Path(name) / "store")), "utf-8")


if __name__ == "__main__":
    main()
