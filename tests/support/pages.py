"""An HTML page, read strictly: every element is closed, and nothing comes from elsewhere."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "link", "img", "input", "hr"}
ELEMENTS = set(
    "html head meta title style body a header nav main section footer div p h1 h2 h3 ul ol li dl dt dd"
    " article span strong bdi pre code figure figcaption details summary table caption thead tbody tr th td"
    " br svg desc rect line text".split()
)
"""All that a report uses: none of them loads or runs anything."""


class Page(HTMLParser):
    """A page: raises AssertionError where it is not well-formed or not self-contained.

    `elements` counts the elements, `ids` and `links` are those of the page, `headings` their levels in order,
    `text` is what it shows.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[int] = []
        self.named: list[str] = []
        self.style = ""
        self._texts: list[str] = []
        self._open: list[str] = []
        text = data.decode("utf-8")
        assert text.lstrip().startswith("<!DOCTYPE html>")
        self.feed(text)
        self.close()
        assert not self._open, self._open
        assert len(set(self.ids)) == len(self.ids)
        assert {link.removeprefix("#") for link in self.links} <= set(self.ids)
        assert set(self.named) <= set(self.ids)
        assert self.headings[0] == 1 and self.headings.count(1) == 1
        assert all(
            after - before <= 1 for before, after in zip(self.headings, self.headings[1:], strict=False)
        )
        assert "url(" not in self.style and "@import" not in self.style

    @property
    def text(self) -> str:
        """What the page shows, with single spaces."""
        return " ".join(" ".join(self._texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert tag in ELEMENTS, tag
        assert len(values) == len(attrs), attrs
        self.elements[tag] += 1
        for name, value in values.items():
            assert not name.startswith("on") and name not in ("src", "srcdoc", "srcset", "action"), name
            assert value is not None, name
            if name == "href":
                assert value.startswith("#"), value
                self.links.append(value)
            elif name == "id":
                self.ids.append(value)
            elif name == "aria-labelledby":
                self.named += value.split()
        if tag in ("h1", "h2", "h3"):
            self.headings.append(int(tag[1]))
        if tag == "th":
            assert values.get("scope") in ("col", "row"), attrs
        if tag == "svg":
            assert values.get("role") == "img" or values.get("aria-hidden") == "true", attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, (tag, self._open[-5:])
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.style += data
        else:
            self._texts.append(data)


def page_of(path: Path) -> Page:
    """The page in a file."""
    return Page(path.read_bytes())
