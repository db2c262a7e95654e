"""The broker's filter language: answers of its own classes, refusals with their place, hostile texts."""

from __future__ import annotations

import gzip
import json
import pickle
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.cli import main
from rmqtool.errors import EXIT_USAGE, UsageError
from rmqtool.formats import properties
from rmqtool.read.filter import DEPTH_LIMIT, EvaluationError, FilterError, parse
from rmqtool.read.messages import message_batches
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from tests.interop.filter_cases import ours
from tests.support.stores import FIXTURES, Library

pytestmark = pytest.mark.usefixtures("json_lines")


@pytest.mark.parametrize("version", ["5.4.0", "4.9.7"])
def test_the_answers_are_those_of_the_brokers_classes(version: str) -> None:
    """Random filters over random properties; 5.3.3 gave the answers of 5.4.0."""
    rows: list[dict[str, Any]] = json.loads(
        gzip.decompress((FIXTURES / "filters" / f"{version}.json.gz").read_bytes())
    )
    seen = {str(answer) for row in rows for answer in row["answers"] if isinstance(row["answers"], list)}
    assert len(rows) >= 250 and seen == {"True", "False", "None", "thrown"}
    wrong = [
        (row["text"], ours(row, version[:3])) for row in rows if ours(row, version[:3]) != row["answers"]
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "properties", "answer"),
    [
        ("color = 'red' AND size > 10", {"color": "red", "size": "12"}, True),
        ("color = 'red' AND size > 10", {"color": "red", "size": "big"}, None),
        ("size > 10 OR color = 'red'", {"color": "red", "size": "big"}, None),  # the broker throws
        ("color = 'red' OR size > 10", {"color": "red", "size": "big"}, True),
        ("a = b", {}, True),
        ("a = b", {"b": "1"}, None),
        ("a = b", {"a": "1"}, False),
        ("a IS NULL", {}, True),
        ("NOT a", {"a": "x"}, True),
        ("TAGS CONTAINS 'ag'", {"TAGS": "TagA"}, True),
        ("TAGS NOT CONTAINS 'ag'", {}, False),
        ("a -- to the end\n = 'it''s' /* and */", {"a": "it's"}, True),
        ("a BETWEEN 1 AND 5", {"a": "5"}, True),
        ("a IN ('x', 'y')", {"a": "y"}, True),
        ("a NOT IN ('x')", {}, None),
        ("a = -2147483648", {"a": "-2147483648"}, True),
    ],
)
def test_what_is_told_of_the_language(text: str, properties: dict[str, str], answer: bool | None) -> None:
    """The rules of the module's text."""
    assert parse(text).matches(properties) is answer


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("", 0, "the text ends"),
        ("a = ", 4, "the text ends"),
        ("a = 'x", 4, "the string does not end"),
        ("a != 1", 2, "'!' has no meaning"),
        ("a = 1 b = 2", 6, "found b"),
        ("a in (1)", 6, "a string in single quotes"),
        ("a > 'x'", 0, "only properties and numbers"),
        ("a between 5 and 3", 0, "above the second"),
        ("a = 9223372036854775808", 4, "is more than"),
        ("a > 0.0", 4, "not above 0"),
        ("1", 0, "no truth value"),
        ("a LIKE 'x%'", 2, "found LIKE"),
        ("(a = 1", 6, ") is expected"),
    ],
)
def test_errors_name_their_place(text: str, position: int, says: str) -> None:
    """One clear error, at a character."""
    with pytest.raises(FilterError, match=f"character {position + 1}") as caught:
        parse(text)
    assert caught.value.position == position and says in caught.value.message
    assert caught.value.exit_code == EXIT_USAGE


def test_what_stands_behind_is_ignored_on_request() -> None:
    """As a broker does, which would take half of a filter for the whole."""
    assert parse("a = 1 b = 2", ignore_rest=True).names == {"a"}


def test_names_and_words_of_versions() -> None:
    """Names are told; 4.9 has no CONTAINS, there it is a name like others."""
    assert parse("a = 1 and (b is null or TAGS in ('x'))").names == {"a", "b", "TAGS"}
    assert parse("contains = '1'", broker="4.9").matches({"contains": "1"}) is True
    with pytest.raises(FilterError):
        parse("contains = '1'", broker="5.4")
    with pytest.raises(UsageError, match="is not supported"):
        parse("a", broker="3.2")


def test_an_expression_travels() -> None:
    """Pickled, equal, and with its text."""
    found = parse("size >= 5 and color = 'red'")
    again = pickle.loads(pickle.dumps(found))
    assert again == found and hash(again) == hash(found) and "size >= 5" in repr(again)
    assert again.matches({"size": "5", "color": "red"}) is True
    with pytest.raises(EvaluationError, match="not an integer"):
        again.evaluate({"size": "5.5", "color": "red"})


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000, "NOT " * 100_000 + "a", "-" * 100_001 + "1 > 2", "a" + " = b" * 100_000,
        "a" + " is null" * 10_000, "a = '" + "'" * 900_000, "/*" + "*" * 900_000,
        "a = " + "9" * 900_000, "+" * 1000 + "a", "a = 1 AND (" * 500,
    ],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_hostile_texts_are_refused_at_once(text: str) -> None:
    """No traceback, no hang."""
    start = time.thread_time()
    with pytest.raises(UsageError):
        parse(text)
    assert time.thread_time() - start < 20


def test_long_chains_are_no_depth() -> None:
    """A thousand alternatives, and as deep as is allowed."""
    many = " OR ".join(f"a = 'v{number}'" for number in range(5_000))
    assert parse(many).matches({"a": "v4999"}) is True and parse(many).matches({"a": "x"}) is False
    deep = "(" * (DEPTH_LIMIT - 1) + "a = 'b'" + ")" * (DEPTH_LIMIT - 1)
    assert parse(deep).matches({"a": "b"}) is True


@given(st.text("ab=<>'()+-.0159eEl \n/*,$_NOTINULSandrbetw#é", max_size=40), st.dictionaries(
    st.sampled_from(["a", "b", "TAGS"]), st.text(max_size=8)))  # fmt: skip
def test_any_text_ends_in_an_answer_or_an_error(text: str, properties: dict[str, str]) -> None:
    """And in nothing else."""
    try:
        found = parse(text)
    except FilterError as error:
        assert 0 <= error.position <= len(text)
    else:
        assert found.matches(properties) in (True, False, None)


def test_dump_filters_records(cases: Library, capfd: pytest.CaptureFixture[str]) -> None:
    """`dump --filter`, rows and counts, and columns in bulk: those that `matches` selects one by one."""
    path = cases.path("ok_540_expired")
    text = "TAGS IN ('AaAa', 'TagA') AND UNIQ_KEY IS NOT NULL"
    selection = Selection(filter=parse(text))
    with Store.open(path) as store:
        everything = list(store.messages())
        expected = [each.physical_offset for each in everything
                    if parse(text).matches(properties.decode(each.message.properties_bytes))]  # fmt: skip
        batches = list(message_batches(store, selection, columns=("physical_offset",)))
    assert 0 < len(expected) < len(everything)
    assert [place for batch in batches for place in batch.column(0).to_pylist()] == expected
    assert main(["dump", str(path), "--filter", text, "--fields", "physical_offset"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [row["physical_offset"] for row in rows] == expected
    assert main(["dump", str(path), "--filter", text, "--stats-only"]) == 0
    assert sum(json.loads(line)["count"] for line in capfd.readouterr().out.splitlines()) == len(expected)
    assert main(["dump", str(path), "--filter", "a !"]) == EXIT_USAGE
    assert main(["dump", str(path), "--what", "index", "--filter", "a = 1"]) == EXIT_USAGE


FILTERS = (
    ("color IS NOT NULL AND BUYER_ID <> 'buyer8'", ("--topic", "pub*")),
    ("DELAY >= 2 OR TAGS IN ('TagA', '标签甲')", ("--topic", "pub*", "--queue", "0-2", "--limit", "30")),
    ("NOT (TAGS = 'TagB') AND KEYS IS NULL", ("--topic", "pub*", "--tag", "TagA", "--tag", "AaAa")),
    ("TAGS > 5", ("--topic", "pub*")),
)


@pytest.mark.parametrize(("text", "more"), FILTERS)
def test_other_commands_filter_as_dump_does(
    cases: Library, tmp_path: Path, text: str, more: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """`export`, `stats` and `copy` take the messages that `dump` shows with the same options."""
    path = cases.path("ok_540_clean")
    given = ("--filter", text, *more)

    def out(command: str, *arguments: object) -> str:
        assert main([command, *map(str, arguments)]) in (0, 1)  # 1: of copy, where nothing matches
        return capfd.readouterr().out

    rows = [json.loads(line) for line in out("dump", path, *given, "--tz", "UTC").splitlines()]
    assert bool(rows) == (text != "TAGS > 5")  # no tag spells a number: the evaluation fails
    for jobs in (1, 3):
        file = tmp_path / f"{jobs}.jsonl"
        out("export", path, "--output", file, *given, "--tz", "UTC", "--jobs", jobs)
        assert [json.loads(line) for line in file.read_text().splitlines()] == rows
    out("export", path, "--output", tmp_path / "raw", "--raw", *given)
    main(["dump", str(path), "--raw", "--output", str(tmp_path / "dumped"), *given])
    assert (tmp_path / "raw").read_bytes() == (tmp_path / "dumped").read_bytes()
    copied = out("copy", path, "--output", tmp_path / "new", "--format", "json", *given)
    counts = Counter(row["topic"] for row in rows)
    assert bool(copied) == bool(rows)  # without a message there is no store
    topics = json.loads(copied)["topics"] if copied else []
    assert {each["topic"]: each["messages"] for each in topics if each["messages"]} == counts
    if "--limit" not in more:  # of stats it counts rows
        found = [json.loads(line) for line in out("stats", path, *given).splitlines()]
        assert {row["topic"]: row["count"] for row in found} == counts


@pytest.mark.parametrize("command", ["export", "stats", "copy"])
def test_a_wrong_filter_writes_nothing(
    cases: Library, tmp_path: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The error of `dump --filter`, before anything is written."""
    path = str(cases.path("ok_540_expired"))
    files = {"export": ["--output", "a.jsonl", "--cursor-file", "cursor"], "copy": ["--output", "new"],
             "stats": ["--plot", "a.svg"]}[command]  # fmt: skip
    files = [name if name.startswith("--") else str(tmp_path / name) for name in files]
    assert main(["dump", path, "--filter", "a !"]) == EXIT_USAGE
    expected = capfd.readouterr().err
    assert main([command, path, *files, "--filter", "a !"]) == EXIT_USAGE
    assert capfd.readouterr() == ("", expected)
    assert not list(tmp_path.iterdir())
