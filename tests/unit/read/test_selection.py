"""Selection: which messages match, and that a selection travels."""

from __future__ import annotations

import pickle

import pytest

from rmqtool.errors import UsageError
from rmqtool.read.selection import Selection
from tests.support.records import STORE_TIMESTAMP, record


def test_the_empty_selection_selects_everything() -> None:
    """No field set: no test is made."""
    selection = Selection()
    assert selection.selects_all
    assert not selection.looks_inside
    assert selection.matches(record())


def test_topics_are_globs_and_case_matters() -> None:
    """One glob must match the whole stored topic."""
    assert Selection(topics=["Topic*"]).matches(record())
    assert Selection(topics=("x", "Topic?est")).matches(record())
    assert not Selection(topics=["topic*"]).matches(record())
    assert not Selection(topics=["Topic"]).matches(record())
    assert Selection(topics=["%RETRY%*"]).matches(record("%RETRY%group"))


def test_an_excluded_topic_wins_over_a_selected_one() -> None:
    """exclude_topics takes away from what topics gives."""
    selection = Selection(topics=["*"], exclude_topics=["%*", "RMQ_SYS_*"])
    assert selection.matches(record())
    assert not selection.matches(record("%DLQ%group"))
    assert not selection.matches(record("RMQ_SYS_TRANS_HALF_TOPIC"))


def test_queues_are_alternatives() -> None:
    """Any of the queue ids."""
    selection = Selection(queues=[1, 3])
    assert selection.matches(record(queue_id=3))
    assert not selection.matches(record(queue_id=2))


def test_tags_match_whole_values() -> None:
    """The store hashes the whole value, so a part of it is another tag."""
    selection = Selection(tags=["TagA"])
    assert selection.matches(record(found={"TAGS": "TagA"}))
    assert not selection.matches(record(found={"TAGS": "TagAB"}))
    assert not selection.matches(record(found={"KEYS": "TagA"}))
    assert not selection.matches(record())


def test_a_key_is_one_of_keys_or_the_unique_key() -> None:
    """KEYS is split at spaces; UNIQ_KEY counts too."""
    selection = Selection(keys=["k2"])
    assert selection.matches(record(found={"KEYS": "k1 k2"}))
    assert selection.matches(record(found={"UNIQ_KEY": "k2"}))
    assert not selection.matches(record(found={"KEYS": "k1 k22"}))
    assert Selection(keys=["钥匙"]).matches(record(found={"KEYS": "钥匙 b"}))


def test_a_value_that_is_not_utf8_is_found_by_what_it_reads_as() -> None:
    """Damaged text reads with U+FFFD, and can be selected so."""
    assert Selection(tags=["a�"]).matches(record(found=b"TAGS\x01a\xff\x02"))


def test_the_last_of_doubled_properties_counts() -> None:
    """As in Java's map."""
    stored = b"TAGS\x01a\x02TAGS\x01b\x02"
    assert Selection(tags=["b"]).matches(record(found=stored))
    assert not Selection(tags=["a"]).matches(record(found=stored))


def test_times_are_half_open_over_the_chosen_timestamp() -> None:
    """From since on, below until: since <= time < until."""
    message = record(born_timestamp=1000)
    assert Selection(since=STORE_TIMESTAMP).matches(message)
    assert not Selection(until=STORE_TIMESTAMP).matches(message)
    assert Selection(since=STORE_TIMESTAMP, until=STORE_TIMESTAMP + 1).matches(message)
    assert not Selection(since=1001, time_field="born").matches(message)
    assert Selection(since=1000, until=1001, time_field="born").matches(message)


def test_offsets_are_half_open_over_the_place_of_the_record() -> None:
    """The place counts, not the stored field, where the caller knows it."""
    selection = Selection(from_offset=100, to_offset=200)
    assert not selection.matches(record(physical_offset=99))
    assert selection.matches(record(physical_offset=100))
    assert not selection.matches(record(physical_offset=200))
    assert selection.matches(record(physical_offset=5000), 150)
    assert not Selection(from_offset=1).selects_all
    assert not Selection(from_offset=1).looks_inside


def test_all_fields_must_hold() -> None:
    """Different fields narrow the selection."""
    selection = Selection(topics=["Topic*"], tags=["TagA"], queues=[0])
    assert selection.looks_inside
    assert selection.matches(record(found={"TAGS": "TagA"}))
    assert not selection.matches(record(found={"TAGS": "TagA"}, queue_id=1))


@pytest.mark.parametrize(
    "wrong",
    [{"since": 2, "until": 1}, {"from_offset": 2, "to_offset": 1}, {"limit": -1}, {"from_offset": -1},
     {"time_field": "stored"}],
)  # fmt: skip
def test_what_could_only_be_a_mistake_is_refused(wrong: dict[str, object]) -> None:
    """A usage error, not an empty answer."""
    with pytest.raises(UsageError):
        Selection(**wrong)  # type: ignore[arg-type]


def test_one_text_is_no_collection_of_texts() -> None:
    """`topics="Topic*"` would select by letters."""
    with pytest.raises(TypeError):
        Selection(topics="Topic*")


def test_a_selection_is_hashable_and_pickles() -> None:
    """It travels to Spark workers and serves as a cache key."""
    selection = Selection(topics=["a*"], tags=["b"], queues=[1], since=5, limit=7)
    copy = pickle.loads(pickle.dumps(selection))
    assert copy == selection
    assert hash(copy) == hash(selection)
    assert copy.matches(record("abc", found={"TAGS": "b"}, queue_id=1))
