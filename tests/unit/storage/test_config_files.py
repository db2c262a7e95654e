"""Config files changed as brokers change them: the same bytes, the .bak, and no moment without either."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import FormatError, UnreadableError, UnwritableError
from rmqtool.formats import config_change, config_json
from rmqtool.formats.concurrent_map import put_all
from rmqtool.formats.config_json import TopicConfig, load_with_bak
from rmqtool.formats.fastjson import Dialect, dump, parse
from rmqtool.storage import config_files
from rmqtool.storage.config_files import create_config, read_config, write_config
from rmqtool.storage.profile import PROFILES, Profile
from tests.support.disk_calls import watched
from tests.support.stores import Library, case, real_cases

NEWEST = PROFILES["5.4"]


def dialect_of(name: str) -> Dialect:
    """The form of the JSON of a case."""
    dialects: dict[str, Dialect] = {"4.9.7": "4.9", "5.3.3": "5.3", "5.4.0": "5.4"}
    return dialects[str(case(name).version)]


# -- the order of Java's map -----------------------------------------------------------------------

# SHA-256 of the names of `new ConcurrentHashMap<>(capacity)`, each with a line feed behind it, as Java
# 17 gives them back after `put("topic-" + i * 7919 % n + "_" + i % 13)` for i from 0 to n - 1.
JAVA_ORDERS = {
    (2048, 30): "02b4e8df23746a11fbc259914c815a2481cff8753bb9c7a8f2f302d632faa37b",
    (2048, 1535): "4c50e60b57cd1f646f154c798ed9e90dbb9b99f9a63f57705ac95d234c8d8b13",
    (2048, 1536): "deafceb533154a0edc4e015eb2c3bbf0c62019f98d745c84c78f68398b29c6ba",
    (2048, 5000): "a0101752c89aec97666ac65ab340ca804838e5da57e38dd14bd93891f5d9be34",
    (32, 5000): "6846f01791c5eaa155642104c57aa763d81346b31ec90ddde77ad0286dc058e6",
    (64, 40): "4d9142dc80e672709f86c97a768258c8efe701ae1decd1b1aacb1144e501122f",
}


@pytest.mark.parametrize(("buckets", "count"), JAVA_ORDERS)
def test_order_of_java(buckets: int, count: int) -> None:
    """New keys stand where Java puts them, also over several doublings of the table."""
    names: dict[str | int, int] = {f"topic-{i * 7919 % count}_{i % 13}": i for i in range(count)}
    text = "".join(f"{name}\n" for name in put_all({}, names, buckets))
    assert hashlib.sha256(text.encode()).hexdigest() == JAVA_ORDERS[buckets, count]


keys = st.text(max_size=6) | st.integers(-(2**40), 2**40)


@given(st.lists(keys, unique=True), st.lists(keys, unique=True), st.sampled_from((1, 4, 16, 2048)))
def test_put_in_two_steps(first: list[str | int], second: list[str | int], buckets: int) -> None:
    """What was put is there with its value, and one call puts what two do."""
    one = {key: "one" for key in first}
    two = {key: "two" for key in second}
    both = put_all(put_all({}, one, buckets), two, buckets)
    assert both == {**one, **two}
    together = put_all({}, dict.fromkeys([*first, *second]), buckets)
    if len(first) + len(second) < buckets * 3 // 4:  # no doubling: the order does not depend on when
        assert list(both) == list(together)


@pytest.mark.parametrize("found", [[3, 2, 1], ["b", "a"], [2, "z", 1]])
def test_order_that_no_table_gives(found: list[str | int]) -> None:
    """A table in an order that Java cannot give keeps it, and takes new keys at its end."""
    assert list(put_all(dict.fromkeys(found), {0: None, found[0]: None}, 2048)) == [*found, 0]


# -- documents, against those of real brokers --------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in real_cases() if name.startswith("ok_")])
def test_topics_of_a_broker(name: str, cases: Library) -> None:
    """The broker's topics, put into an empty table in any order, give its topics.json byte for byte."""
    dialect, data = dialect_of(name), (cases.path(name) / "config/topics.json").read_bytes()
    document = parse(data)
    version, topics = config_json.data_version(document), config_json.topics(document)
    assert version is not None
    for names in (list(topics), sorted(topics)):
        empty = config_change.new_topics(dialect, 0)
        made = config_change.with_topics(
            empty, {name: topics[name] for name in names}, dialect, version.timestamp
        )
        made = config_change.with_next_version(
            made, dialect, version.timestamp, changes=version.counter - len(topics)
        )
        assert dump(made, dialect) == data


def changes() -> list[tuple[str, str]]:
    """(case, file) of every file that is not the same as its .bak in some real store."""
    found = []
    for name in real_cases():
        if case(name).version == "4.9.7" or "killed" in name:
            found.append((name, "topics.json"))
    return [*found, ("ok_497_small_ipv6", "delayOffset.json")]


@pytest.mark.parametrize(("name", "file"), changes())
def test_change_of_a_broker(name: str, file: str, cases: Library) -> None:
    """From the .bak to the file: the change that the broker has made gives the broker's bytes."""
    dialect, folder = dialect_of(name), cases.path(name) / "config"
    before, data = parse((folder / f"{file}.bak").read_bytes()), (folder / file).read_bytes()
    after = parse(data)
    version = config_json.data_version(after)
    time_ms = version.timestamp if version is not None else 0
    if file == "topics.json":
        known = config_json.topics(before)
        new = {topic: each for topic, each in config_json.topics(after).items() if topic not in known}
        made = config_change.with_topics(before, new, dialect, time_ms) if new else before
    else:
        offsets = config_json.delay_offsets(after)
        assert offsets != config_json.delay_offsets(before)
        made = config_change.with_delay_offsets(before, offsets, dialect, time_ms)
    assert dump(made, dialect) == data


@pytest.mark.parametrize("version", ["533", "540"])
def test_delay_offsets_of_a_broker(version: str, cases: Library) -> None:
    """Two stops of one 5.x broker: its offsets and version go from those of the first to the second."""
    first, second = (
        (cases.path(f"ok_{version}_{state}") / "config/delayOffset.json").read_bytes()
        for state in ("clean", "expired")
    )
    dialect, after = dialect_of(f"ok_{version}_clean"), parse(second)
    counted, found = (config_json.data_version(document) for document in (parse(first), after))
    assert counted is not None and found is not None
    made = config_change.with_delay_offsets(
        parse(first), config_json.delay_offsets(after), dialect, found.timestamp
    )
    more = found.counter - counted.counter - 1
    made = config_change.with_next_version(made, dialect, found.timestamp, changes=more)
    assert dump(made, dialect) == second


def test_new_documents() -> None:
    """What a new store gets, in the three forms."""
    texts = {
        dialect: (
            dump(config_change.new_topics(dialect, 7), dialect).decode(),
            dump(config_change.new_delay_offsets(dialect, 7), dialect).decode(),
        )
        for dialect in ("4.9", "5.3", "5.4")
    }
    version_4 = '\t"dataVersion":{\n\t\t"counter":0,\n\t\t"timestamp":7\n\t},\n'
    version_5 = '\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":7\n\t},\n'
    assert texts == {
        "4.9": (f'{{\n{version_4}\t"topicConfigTable":{{}}\n}}', '{\n\t"offsetTable":{}\n}'),
        "5.3": (
            f'{{\n{version_5}\t"topicConfigTable":{{}}\n}}',
            f'{{\n{version_5}\t"offsetTable":{{}}\n}}',
        ),
        "5.4": (
            f'{{\n{version_5}\t"topicConfigTable":{{\n\t\t\n\t}}\n}}',
            f'{{\n{version_5}\t"offsetTable":{{\n\t\t\n\t}}\n}}',
        ),
    }


def test_what_is_not_understood_stays() -> None:
    """Fields of another version, and entries that are not touched, stand as they were read."""
    before: dict[str | int, Any] = {
        "aNewField": [1, {"x": None}],
        "dataVersion": {"counter": "3", "extra": 1, "stateVersion": 5, "timestatmp": 4},
        "topicConfigTable": {"T": {"perm": 6, "zone": "a"}},
        "zz": "end",
    }
    after = config_change.with_topics(before, {"U": TopicConfig("U", 2, 2)}, "4.9", 99)
    assert list(after) == list(before)
    assert after["aNewField"] == before["aNewField"] and after["zz"] == "end"
    assert after["dataVersion"] == {"counter": 4, "extra": 1, "stateVersion": 5, "timestatmp": 99}
    assert after["topicConfigTable"]["T"] == {"perm": 6, "zone": "a"}
    assert before["dataVersion"]["counter"] == "3", "the document that was read has changed"

    offsets: dict[str | int, Any] = {"offsetTable": {"1": 5, 3: 7}, "x": 1}
    changed = config_change.with_delay_offsets(offsets, {1: 6, 2: 1}, "4.9", 99)
    assert changed == {"offsetTable": {1: 6, 2: 1, 3: 7}, "x": 1}


def test_missing_version_and_references() -> None:
    """A version that is missing is made, before what follows it by name; shared tables are parted."""
    made = config_change.with_topics({"topicConfigTable": {}}, {"U": TopicConfig("U")}, "5.3", 9)
    assert list(made) == ["dataVersion", "topicConfigTable"]
    assert made["dataVersion"] == {"counter": 1, "stateVersion": 0, "timestamp": 9}
    shared: dict[str | int, Any] = {"a": {1: 2}, "offsetTable": {"$ref": "$.a"}}
    changed = config_change.with_delay_offsets(shared, {1: 3}, "4.9", 9)
    assert changed == {"a": {1: 2}, "offsetTable": {1: 3}}


def test_attributes_are_in_java_order() -> None:
    """Attributes stand in the order of a HashMap; 4.9 has none."""
    attributes = {"queue.type": "BatchCQ", "cleanup.policy": "DELETE", "message.type": "NORMAL"}
    topic = {"U": TopicConfig("U", attributes=attributes)}
    empty: dict[str | int, Any] = {}
    made = config_change.with_topics(empty, topic, "5.4", 9)["topicConfigTable"]["U"]
    assert list(made)[0] == "attributes"
    assert list(made["attributes"]) == ["cleanup.policy", "message.type", "queue.type"]  # by Java 17
    assert "attributes" not in config_change.with_topics(empty, topic, "4.9", 9)["topicConfigTable"]["U"]


@pytest.mark.parametrize(
    "document",
    [{"topicConfigTable": 3}, {"dataVersion": 3}, {"dataVersion": {"counter": "x", "timestamp": 1}}],
)
def test_documents_that_are_none(document: dict[str | int, Any]) -> None:
    """A table or version of another type is told, not replaced."""
    with pytest.raises(FormatError):
        config_change.with_topics(document, {"U": TopicConfig("U")}, "5.4", 9)


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda each: each.name)
def test_file_and_bak(profile: Profile, tmp_path: Path) -> None:
    """The new text in the file, the one before in the .bak, nothing else."""
    folder = tmp_path / "config"
    for number in range(3):
        write_config(folder, "topics.json", {"n": number}, profile)
        assert (folder / "topics.json").read_bytes() == dump({"n": number}, profile.name)
    assert parse((folder / "topics.json.bak").read_bytes()) == {"n": 1}
    assert sorted(path.name for path in folder.iterdir()) == ["topics.json", "topics.json.bak"]
    assert read_config(folder, "topics.json").document == {"n": 2}


def test_same_text_is_not_written(tmp_path: Path) -> None:
    """Without a change file and .bak stay, for the .bak would say the same."""
    write_config(tmp_path, "a.json", {"n": 1}, NEWEST)
    write_config(tmp_path, "a.json", {"n": 2}, NEWEST)
    before = (tmp_path / "a.json").stat()
    write_config(tmp_path, "a.json", {"n": 2}, NEWEST)
    assert (tmp_path / "a.json").stat().st_ino == before.st_ino
    assert parse((tmp_path / "a.json.bak").read_bytes()) == {"n": 1}


@pytest.mark.parametrize("rest", [b"", b"{", b"[]", b"\0" * 20])
def test_good_bak_outlives_a_bad_file(rest: bytes, tmp_path: Path) -> None:
    """What no broker can read does not take the place of the .bak that it reads."""
    write_config(tmp_path, "a.json", {"n": 1}, NEWEST)
    write_config(tmp_path, "a.json", {"n": 2}, NEWEST)
    (tmp_path / "a.json").write_bytes(rest)
    assert read_config(tmp_path, "a.json").document == {"n": 1}
    write_config(tmp_path, "a.json", {"n": 3}, NEWEST)
    assert parse((tmp_path / "a.json").read_bytes()) == {"n": 3}
    assert parse((tmp_path / "a.json.bak").read_bytes()) == {"n": 1}


def test_rest_of_a_killed_run_and_modes(tmp_path: Path) -> None:
    """A .tmp that is there is replaced; file and .bak keep their modes."""
    write_config(tmp_path, "a.json", {"n": 1}, NEWEST)
    (tmp_path / "a.json.tmp").write_bytes(b"cut")
    (tmp_path / "a.json").chmod(0o640)
    write_config(tmp_path, "a.json", {"n": 2}, NEWEST)
    (tmp_path / "a.json.bak").chmod(0o600)
    write_config(tmp_path, "a.json", {"n": 3}, NEWEST)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"a.json": 0o640, "a.json.bak": 0o600}


def test_no_moment_without_a_whole_file(tmp_path: Path) -> None:
    """When the disk fills up at any call, a broker reads the old document or the new one."""
    for number in range(1, 30):
        folder = tmp_path / str(number)
        write_config(folder, "a.json", {"n": 1}, NEWEST)
        write_config(folder, "a.json", {"n": 2}, NEWEST)
        with watched(folder, full=number) as calls:
            try:
                write_config(folder, "a.json", {"n": 3}, NEWEST)
            except UnwritableError:
                refused = True
            else:
                refused = False
        texts = [folder / name for name in ("a.json", "a.json.bak")]
        loaded = load_with_bak("a.json", *(path.read_bytes() if path.exists() else None for path in texts))
        assert loaded.source == "file", f"call {number}"
        assert loaded.document == ({"n": 2} if refused else {"n": 3})
        if not refused:
            assert number > 1 and {call.name for call in calls.done} >= {"rename", "sync", "sync_folder"}
            return
    pytest.fail("the disk was full each time")


def test_flushed_before_it_gets_its_name(tmp_path: Path) -> None:
    """A file is on the device before it is renamed, the folder after: a power loss leaves no cut file."""
    write_config(tmp_path, "a.json", {"n": 1}, NEWEST)
    with watched(tmp_path) as calls:
        write_config(tmp_path, "a.json", {"n": 2}, NEWEST)
    names = [call.name for call in calls.done if call.name != "make_folder"]
    assert names == ["remove", "create_file", "write", "sync", "rename", "sync_folder"] * 2


def test_neither_can_be_read(tmp_path: Path) -> None:
    """Where a broker would not start, nothing is written over what is left."""
    (tmp_path / "a.json").write_bytes(b"{")
    (tmp_path / "a.json.bak").write_bytes(b"{,")
    with pytest.raises(FormatError) as told:
        read_config(tmp_path, "a.json")
    assert told.value.path == tmp_path / "a.json"
    assert read_config(tmp_path, "other.json").source == "none"


def test_folder_in_place_of_a_file(tmp_path: Path) -> None:
    """What is no plain file is told as unreadable."""
    (tmp_path / "a.json").mkdir()
    with pytest.raises(UnreadableError):
        read_config(tmp_path, "a.json")


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda each: each.name)
def test_create_config(profile: Profile, tmp_path: Path) -> None:
    """A new store's files are read by the engine's readers; files that are there stay."""
    create_config(tmp_path, profile)
    folder = tmp_path / "config"
    assert sorted(path.name for path in folder.iterdir()) == ["delayOffset.json", "topics.json"]
    topics = read_config(folder, "topics.json").document
    version = config_json.data_version(topics)
    assert version is not None and version.counter == 0 and config_json.topics(topics) == {}
    assert config_json.delay_offsets(read_config(folder, "delayOffset.json").document) == {}
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    os.utime(folder / "topics.json", (1, 1))
    create_config(tmp_path, profile)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_time_is_now() -> None:
    """`now_ms` counts ms since 1970."""
    first, second = config_files.now_ms(), config_files.now_ms()
    assert 1_700_000_000_000 < first <= second < 10_000_000_000_000
