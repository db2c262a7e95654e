"""rmqtool-spark(7) says what the data source takes: neither Spark nor Java is needed to know."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from rmqtool.errors import UsageError
from rmqtool.spark import option_texts, options_page
from rmqtool.spark.options import IGNORED, IGNORED_PREFIXES, OPTION_NAMES, TABLE, SourceOptions, parse_options
from rmqtool.spark.schema import COLUMN_SETS, CORRUPT, FIELDS, TABLE_FIELDS, columns_by_options
from rmqtool.spark.values import OneOf
from rmqtool.spark.write_options import DEFAULT_QUEUES, PARSERS, write_arguments
from rmqtool.write.options import WriteOptions
from tests import ROOT

TEXT = options_page.text()
COLUMN_TITLES = ("Column sets", "Columns")


def entries(*titles: str) -> Iterator[tuple[str, str]]:
    """(term, text) of the entries below some headings; of all but the columns' where none is named."""
    for section in TEXT.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        if title in titles or (not titles and title not in COLUMN_TITLES):
            for found in re.finditer(r"^- (\S+)\. (.*)$", body, re.MULTILINE):
                yield found[1], found[2]


OPTIONS = {term: text for term, text in entries() if text.startswith("Value: ")}


def test_every_option_is_in_the_page_and_no_other() -> None:
    """What the parsers know, by their own tables; and each name of the page is one that they take."""
    written = {f"write.{name}" for name in PARSERS}
    assert set(OPTIONS) == {*OPTION_NAMES, "paths", "storage.KEY", *written}
    terms = [term for term, text in entries() if text.startswith("Value: ")]
    assert len(terms) == len(set(terms))
    for name in OPTIONS:
        try:
            write_arguments(parse_options({name: "\0"}))
        except UsageError as error:
            assert "unknown" not in error.message, name
    said = TEXT.partition("\n## Options of other sources\n")[2].partition("\n## ")[0]
    for name in (*IGNORED, *(f"{prefix}any" for prefix in IGNORED_PREFIXES)):
        assert parse_options({name: "x"}) == SourceOptions()
        assert f"`{name.replace('.any', '.*')}`" in said


@pytest.mark.parametrize("name", [name for name, _, _ in TABLE])
def test_values_and_default_are_those_of_the_parser(name: str) -> None:
    """Words are named, and the default, given as the page has it, changes nothing."""
    attribute, parse = next((attribute, parse) for each, attribute, parse in TABLE if each == name)
    if isinstance(parse, OneOf):
        assert all(f"`{word}`" in OPTIONS[name].partition(". ")[0] for word in parse.words)
    default = getattr(SourceOptions(), attribute)
    shown = re.search(r" Default: `([^`]+)`\.$", OPTIONS[name])
    if shown is not None:
        assert parse(name, shown[1]) == default
    else:
        assert default is None or default == () or attribute == "broker_names"


@pytest.mark.parametrize("name", PARSERS)
def test_defaults_of_writing_are_those_of_the_writer(name: str) -> None:
    """As with the options of a read."""
    attribute, parse = PARSERS[name]
    defaults: dict[str, Any] = {each.name: each.default for each in fields(WriteOptions)}
    default = defaults.get(attribute, DEFAULT_QUEUES)
    shown = re.search(r" Default: `([^`]+)`\.$", OPTIONS[f"write.{name}"])
    assert default == 0 if shown is None else parse(name, shown[1]) == default


def test_every_column_and_set_is_in_the_page_and_no_other() -> None:
    """Names in their order, with the types that a read has."""
    assert [term for term, _ in entries("Columns")] == [each.name for each in (*FIELDS, CORRUPT)]
    own = [each.name for fields in TABLE_FIELDS.values() for each in fields if each not in FIELDS]
    assert [term for term, _ in entries("Tables")] == own
    sets = dict(entries("Column sets"))
    assert list(sets) == list(COLUMN_SETS)
    for name, text in sets.items():
        asked = columns_by_options(parse_options({"columnSet": name}))
        assert text == ", ".join(f"`{each.name}` {each.type}" for each in asked) + "."


def test_an_option_without_a_text_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a new one is not forgotten; and so is a text of an option that is gone."""
    with monkeypatch.context() as patch:
        fewer = {name: text for name, text in option_texts.WRITE_TEXTS.items() if name != "index"}
        patch.setattr(options_page, "WRITE_TEXTS", fewer)
        with pytest.raises(ValueError, match="index"):
            options_page.text()
    with monkeypatch.context() as patch:
        patch.setattr(options_page, "TABLE", TABLE[1:])
        with pytest.raises(ValueError, match="brokerName"):
            options_page.text()


def test_page_needs_no_pyspark() -> None:
    """`make man-check` runs where only the base dependencies are."""
    code = (
        "import sys; sys.modules.update(pyspark=None, py4j=None);"
        "from rmqtool import manpages; assert 'subscribe' in manpages.pages()['rmqtool-spark.7']"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
