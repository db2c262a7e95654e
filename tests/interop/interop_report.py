"""The page of `report` in a real browser: on a desk and on a phone, light and dark, by keyboard."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqtool.cli import main
from tests import ROOT
from tests.support.browser import CHROMIUM, Browser, browser
from tests.support.stores import Library
from tests.unit.report.test_report import hostile_store

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="chromium is not installed"
)

WIDTHS = (1280, 1200, 760, 400, 320)
PICTURES = ROOT / "build" / "report"
NAMES = ("ok_540_clean", "gap_cl02_zero_hole", "kind_rocksdb_540", "hostile")
WIDE = """
[...document.querySelectorAll('main *')]
    .filter(e => !e.closest('svg, .hidden, thead, details:not([open])'))
    .filter(e => e.getBoundingClientRect().right > window.most)
    .map(e => e.outerHTML.slice(0, 120))
"""
CUT = """
[...document.querySelectorAll('main svg text')].filter(e => e.getClientRects().length).filter(e => {
    const text = e.getBoundingClientRect(), chart = e.ownerSVGElement.getBoundingClientRect();
    return text.width && (text.left < chart.left - 2 || text.right > chart.right + 2);
}).map(e => e.textContent)
"""
"""Labels that stand out of their chart."""
MEETING = """
[...document.querySelectorAll('main figure svg')].flatMap(svg => {
    const texts = [...svg.querySelectorAll('text')].filter(e => e.getClientRects().length)
        .map(e => [e.textContent, e.getBoundingClientRect()]);
    return texts.flatMap(([text, a], n) => texts.slice(n + 1).filter(([_, b]) =>
        a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom
    ).map(([other]) => text + ' meets ' + other));
})
"""
"""Labels that overprint each other; the boxes of two lines may touch by the space above letters."""
BROKEN = """
[...document.querySelectorAll('.named td, .named th')].filter(e => e.getClientRects().length)
    .filter(e => e.innerText.trim() && !e.closest('.hidden') && e.getBoundingClientRect().width < 24)
    .filter(e => !e.matches('thead th:first-child')).map(e => e.outerHTML.slice(0, 120))
"""
"""Cells so narrow that a number is broken between its digits."""
MESSAGES = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
TAB, ENTER = ("Tab", 9), ("Enter", 13)


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("home")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(cases: Library, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name in NAMES:
        store = hostile_store(folder / "store") if name == "hostile" else cases.path(name)
        found[name] = folder / f"{name}.html"
        assert main(["report", str(store), "-o", str(found[name]), "-q"]) in (0, 1, 3)
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_and_loads_nothing(
    chrome: Browser, pages: dict[str, Path], name: str, dark: bool, width: int
) -> None:
    """No horizontal scroll, nothing wider than the screen, no request, no message on the console."""
    chrome.open(pages[name], width=width, dark=dark)
    chrome.value("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert chrome.value("document.documentElement.scrollWidth") <= width
    chrome.value("document.querySelectorAll('details').forEach(e => e.open = false)")
    chrome.value(f"window.most = {width + 1}")
    wide = chrome.value(WIDE)
    assert [wide, *map(chrome.value, (CUT, MEETING, BROKEN))] == [[], [], [], []]
    requests = [event["params"]["request"]["url"] for event in chrome.events
                if event.get("method") == "Network.requestWillBeSent"]  # fmt: skip
    assert requests == [pages[name].absolute().as_uri()]
    assert [event for event in chrome.events if event.get("method") in MESSAGES] == []
    ground = re.findall(r"\d+", chrome.value("getComputedStyle(document.body).backgroundColor"))
    assert (sum(map(int, ground[:3])) < 200) == dark
    PICTURES.mkdir(parents=True, exist_ok=True)
    chrome.screenshot(PICTURES / f"{name}-{width}-{'dark' if dark else 'light'}.png")


def test_what_a_screen_reader_gets(chrome: Browser, pages: dict[str, Path]) -> None:
    """Landmarks, one heading of level 1, named pictures, tables with headers, on a phone too."""
    for width in WIDTHS:
        chrome.open(pages["ok_540_clean"], width=width, dark=False)
        nodes = [
            node for node in chrome.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")
        ]
        roles = [node["role"]["value"] for node in nodes]
        for role in ("banner", "navigation", "main", "contentinfo"):
            assert roles.count(role) == 1, role
        levels = [
            value["value"]["value"] for node in nodes if node["role"]["value"] == "heading"
            for value in node["properties"] if value["name"] == "level"
        ]  # fmt: skip
        assert levels.count(1) == 1 and levels.count(2) >= 10
        pictures = [node for node in nodes if node["role"]["value"] in ("image", "img")]
        assert len(pictures) == 7 and all(len(node["name"]["value"]) > 10 for node in pictures)
        assert (
            roles.count("table") == 5 and roles.count("columnheader") >= 15 and roles.count("rowheader") >= 50
        )


def test_the_keyboard_reaches_everything(chrome: Browser, pages: dict[str, Path]) -> None:
    """Tab goes through all links and tables, the one that has the focus shows it, Enter opens a table."""
    chrome.open(pages["ok_540_clean"], width=1280, dark=False)
    wanted = chrome.value("document.querySelectorAll('a, summary').length")
    seen = []
    for _ in range(wanted):
        chrome.press(*TAB)
        seen.append(chrome.value("document.activeElement.tagName + document.activeElement.textContent"))
        assert chrome.value("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert (
        len(seen) == wanted and seen[0] == "ASkip to the content" and not any("BODY" in each for each in seen)
    )
    last = chrome.value("document.activeElement.tagName")
    assert last == "SUMMARY"
    chrome.press(*ENTER)
    assert chrome.value("document.activeElement.parentElement.open") is True


def test_hostile_names_run_nothing(chrome: Browser, pages: dict[str, Path]) -> None:
    chrome.open(pages["hostile"], width=1280, dark=False)
    assert chrome.value("document.scripts.length + document.images.length") == 0
    assert "<script>alert(1)</script>" in chrome.value("document.body.innerText")
