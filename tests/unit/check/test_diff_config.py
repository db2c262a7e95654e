"""Config files compared by value, however a broker spells them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rmqtool.check.diff import config
from rmqtool.check.diff.config import ConfigDifference
from rmqtool.formats import config_change, config_json
from rmqtool.formats.fastjson import Dialect, dump, parse
from tests.support.diffs import Pair, diff_of, make_pair
from tests.support.stores import Library
from tests.support.whole_store import write_config

DIALECTS: tuple[Dialect, ...] = ("4.9", "5.3", "5.4")


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return make_pair(tmp_path, 10)


def config_of(a: Path, b: Path, **arguments: Any) -> ConfigDifference:
    found = diff_of(a, b, **arguments).config
    assert found is not None
    return found


def change(root: Path, name: str, document: Any) -> None:
    write_config(root, name, document)


def test_config_of_a_copy(pair: Pair) -> None:
    found = config_of(*pair)
    assert (found.compared, found.counts, found.unread) == (
        ["consumerOffset.json", "subscriptionGroup.json", "topics.json"],
        {},
        [],
    )


def test_spelling_of_brokers(pair: Pair) -> None:
    """The same topics, groups and offsets as 4.9, 5.3 and 5.4 write them are the same."""
    topics = {"T": config_json.TopicConfig("T", 4, 4), "U": config_json.TopicConfig("U", 1, 1, 2)}
    offsets = {f"{name}@g": {0: 5, 1: 7} for name in topics}
    groups = {"g": {"groupName": "g", "retryMaxTimes": 3}}
    plain = {"subscriptionGroupTable": groups, "dataVersion": {"counter": 5, "timestamp": 6}}
    extended = {
        "dataVersion": {"counter": 50, "stateVersion": 0, "timestamp": 60},
        "forbiddenTable": {},
        "subscriptionGroupTable": {
            "g": {"attributes": {}, "consumeEnable": True, "groupName": "g", "retryMaxTimes": 3,
                  "groupRetryPolicy": {"type": "CUSTOMIZED"}}},
    }  # fmt: skip
    written: dict[Dialect, dict[str, bytes]] = {}
    for number, dialect in enumerate(DIALECTS):
        names = list(topics) if number % 2 else list(reversed(topics))
        document = config_change.with_topics(
            config_change.new_topics(dialect, number), {name: topics[name] for name in names}, dialect, number
        )
        written[dialect] = {
            "topics.json": dump(document, dialect),
            "consumerOffset.json": dump({"offsetTable": offsets}, dialect),
            "subscriptionGroup.json": dump(plain if dialect == "4.9" else extended, dialect),
        }
    for one in DIALECTS:
        for other in DIALECTS:
            for root, dialect in zip(pair, (one, other), strict=True):
                for name, data in written[dialect].items():
                    (root / "config" / name).write_bytes(data)
            found = config_of(*pair)
            assert (found.counts, found.unread) == ({}, []), (one, other)
    assert written["4.9"] != written["5.4"]


@pytest.mark.parametrize(
    ("name", "a", "b", "entry", "values"),
    [
        ("topics.json", {"topicConfigTable": {"T": {"topicName": "T"}}}, {"topicConfigTable": {"T": {
            "topicName": "T", "perm": 4}}}, "T", ({"perm": 6}, {"perm": 4})),
        ("topics.json", {"topicConfigTable": {"T": {"topicName": "T"}}}, {"topicConfigTable": {}}, "T", None),
        ("subscriptionGroup.json", {"subscriptionGroupTable": {"g": {"retryMaxTimes": 1}}},
         {"subscriptionGroupTable": {"g": {"retryMaxTimes": 2}}}, "g",
         ({"retry_max_times": 1}, {"retry_max_times": 2})),
        ("subscriptionGroup.json", {"subscriptionGroupTable": {"g": {"groupRetryPolicy": {"type": "A"}}}},
         {"subscriptionGroupTable": {"g": {"groupRetryPolicy": {"type": "B"}}}}, "g", None),
        ("subscriptionGroup.json", {"forbiddenTable": {"g": {"T": 1}}}, {"forbiddenTable": {}},
         "forbiddenTable g", ({"T": 1}, None)),
        ("consumerOffset.json", {"offsetTable": {"T@g": {"0": 5}}}, {"offsetTable": {"T@g": {"0": 6}}},
         "T@g queue 0", (5, 6)),
        ("consumerOffset.json", {"offsetTable": {"T@g": {"0": 5}}},
         {"offsetTable": {"T@g": {"0": 5, "1": 0}}}, "T@g queue 1", (None, 0)),
        ("delayOffset.json", {"offsetTable": {"1": 5}}, {"offsetTable": {"1": 6}}, "level 1", (5, 6)),
        ("consumerFilter.json", {"filterDataByTopic": {"T": {"groupFilterData": {"g": {"expression": "a"}}}}},
         {"filterDataByTopic": {"T": {"groupFilterData": {"g": {"expression": "b"}}}}}, "T@g",
         ({"expression": "a"}, {"expression": "b"})),
        ("consumerOrderInfo.json", {"table": {"T@g": {"0": {"o": [1]}}}},
         {"table": {"T@g": {"0": {"o": [2]}}}}, "table T@g", None),
        ("messageRequestMode.json", {"x": 1}, {"x": 2}, "x", (1, 2)),
    ],
)  # fmt: skip
def test_values_that_differ(pair: Pair, name: str, a: Any, b: Any, entry: str, values: Any) -> None:
    """The entry, and what differs in it on both sides."""
    for root, document in zip(pair, (a, b), strict=True):
        change(root, name, document)
    found = config_of(*pair)
    assert found.counts == {name: 1} and found.differs()
    assert found.differs(progress=False) == (name not in (
        "consumerOffset.json", "delayOffset.json", "consumerOrderInfo.json"))  # fmt: skip
    (each,) = found.entries
    assert (each.file, each.entry) == (name, entry)
    if values is not None:
        assert (each.a, each.b) == values


def test_data_version_is_each_brokers_own(pair: Pair) -> None:
    for root, counter in zip(pair, (1, 900), strict=True):
        change(
            root,
            "other.json",
            {"dataVersion": {"counter": counter, "timestamp": counter}, "x": [1, {"2": 3}]},
        )
    assert config_of(*pair).counts == {}


def test_bare_and_quoted_keys(pair: Pair) -> None:
    """`{1:2}` and `{"1":2}` are one value."""
    for root, text in zip(pair, ('{"t":{1:{2:3}}}', '{"t":{"1":{"2":3}}}'), strict=True):
        (root / "config/any.json").write_text(text)
    found = config_of(*pair)
    assert "any.json" in found.compared and found.counts == {}


def test_a_file_that_is_missing(pair: Pair) -> None:
    """As an empty one; its .bak counts, as for a broker."""
    (pair[1] / "config/topics.json").unlink()
    assert config_of(*pair).counts == {}
    (pair[1] / "config/topics.json.bak").unlink()
    assert config_of(*pair).counts == {"topics.json": 1}


def test_entries_up_to_a_limit(pair: Pair) -> None:
    change(pair[0], "topics.json", {"topicConfigTable": {f"T{n}": {} for n in range(20)}})
    found = config_of(*pair, limit=3)
    assert found.counts == {"topics.json": 21} and len(found.entries) == 3


@pytest.mark.parametrize(
    "text", ["{", "[1]", "\xff", '{"topicConfigTable": 5}', '{"topicConfigTable":{"T":7}}']
)
def test_what_cannot_be_understood(pair: Pair, text: str) -> None:
    """Named with the reason; the other files are compared."""
    for name in ("topics.json", "topics.json.bak"):
        (pair[1] / "config" / name).write_text(text)
    found = config_of(*pair)
    assert found.compared == ["consumerOffset.json", "subscriptionGroup.json"]
    assert [path for _, path, _ in found.unread] == ["config/topics.json"]


def test_references_that_unfold_without_end(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member refers to the one before twice: told, not unfolded."""
    monkeypatch.setattr(config, "VALUE_LIMIT", 50_000)
    members: dict[str, Any] = {"m0": [1, 1]}
    for number in range(1, 60):
        members[f"m{number}"] = [{"$ref": f"$.m{number - 1}"}, {"$ref": f"$.m{number - 1}"}]
    for root in pair:
        (root / "config/other.json").write_text(json.dumps(members))
    found = config_of(*pair)
    assert [path for _, path, _ in found.unread] == ["config/other.json"]


def test_a_pipe_and_a_huge_file(pair: Pair) -> None:
    """Neither blocks nor fills the memory."""
    os.mkfifo(pair[0] / "config/pipe.json")
    with (pair[1] / "config/huge.json").open("wb") as file:
        file.truncate(1 << 40)
    found = config_of(*pair)
    assert [path for _, path, _ in found.unread] == ["config/huge.json"]


def test_real_config(cases: Library) -> None:
    """Three states of one broker: what changed from one to the next is what differs."""
    a, b = cases.path("ok_533_clean"), cases.path("ok_533_expired")
    found = config_of(a, b, limit=10_000)
    assert not found.unread and "topics.json" in found.compared
    documents = [parse((root / "config/topics.json").read_bytes()) for root in (a, b)]
    topics = [config_json.topics(document) for document in documents]
    wanted = {name for name in {*topics[0], *topics[1]} if topics[0].get(name) != topics[1].get(name)}
    assert {each.entry for each in found.entries if each.file == "topics.json"} == wanted
