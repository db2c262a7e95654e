"""Topics and queue ids that a store knows, from its folders and from topics.json."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import config_json
from rmqtool.message.system_topics import is_system_topic
from rmqtool.read.selection import Selection, is_glob
from rmqtool.storage.config_files import TOPICS, read_or_none
from rmqtool.storage.layout import StoreLayout

_QUEUES_MAX = 65_536  # queue ids have 16 bits on the command line


def topic_names(layout: StoreLayout) -> set[str]:
    """The topics that the store knows: those with a queue, or the log of one, and those of topics.json."""
    logs = () if layout.queue_logs is None else (queue.topic for queue in layout.queue_logs.found.queues)
    queues = (topic for topic, _ in (*layout.consume_queues, *layout.batch_queues))
    return {*queues, *logs, *_topics(layout)}


def all_topic_names(layouts: Iterable[StoreLayout]) -> set[str] | None:
    """The topics that the stores know; None if one of them knows none, or is only a part of a store."""
    known: set[str] = set()
    for layout in layouts:
        names = topic_names(layout)
        if not layout.is_whole or not names:
            return None
        known |= names
    return known


def unknown_topics(selection: Selection, known: Collection[str] | None) -> list[str]:
    """The topics and patterns of a selection that match none of `known`; see `all_topic_names`."""
    if known is None:
        return []
    return [name for name in sorted(selection.topics) if name not in known and not _matches_any(name, known)]


def _matches_any(name: str, known: Collection[str]) -> bool:
    return is_glob(name) and any(map(Selection(topics=[name]).matches_topic, known))


def names_only_unknown_topics(layout: StoreLayout, selection: Selection) -> bool:
    """Whether a selection names topics or patterns, and the store knows none of them: likely wrong names.

    Brokers' own topics count as known: topics.json does not list all of them.
    """
    unknown = unknown_topics(selection, all_topic_names([layout]))
    return 0 < len(selection.topics) == len(unknown) and not any(map(is_system_topic, unknown))


def queue_ids(layout: StoreLayout, matches: Callable[[str], bool]) -> set[int] | None:
    """The queue ids that the matching topics have, in files or by topics.json; None where neither has any."""
    ids = {each for topic, of_topic in queues_by_topic(layout).items() if matches(topic) for each in of_topic}
    return ids or None


def queues_by_topic(layout: StoreLayout) -> dict[str, set[int]]:
    """The queue ids that each topic has, in files or by topics.json."""
    found: dict[str, set[int]] = {}
    for topic, queue_id in (*layout.consume_queues, *layout.batch_queues):
        found.setdefault(topic, set()).add(queue_id)
    for topic, config in _topics(layout).items():
        if not is_system_topic(topic):  # some of these have 1024 queues on paper
            count = min(max(config.read_queue_nums, config.write_queue_nums), _QUEUES_MAX)
            found.setdefault(topic, set()).update(range(count))
    return found


def _topics(layout: StoreLayout) -> dict[str, config_json.TopicConfig]:
    main, bak = layout.config.get(TOPICS), layout.config.get(f"{TOPICS}.bak")
    try:
        loaded = config_json.load_with_bak(TOPICS, read_or_none(main), read_or_none(bak))
        return config_json.topics(loaded.document)
    except (FormatError, UnreadableError):
        return {}  # a file that cannot be read adds no topic; --what config and verify report it
