"""Which topics a copy includes, and their names in it.

Topics that a broker creates itself are left out unless they are named: their messages belong to a state
(which delayed messages were delivered, which transactions are open) that a copy lacks. Half messages and
ops are never copied: an op names its half message by queue offset, and the copy has new queue offsets.
`%RETRY%` and `%DLQ%` topics hold messages of users and are copied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from rmqtool.errors import FormatError, IllegalMessageError, RefusedError, UnreadableError, UsageError
from rmqtool.findings import Report
from rmqtool.formats import config_json, properties
from rmqtool.formats.config_json import TopicConfig
from rmqtool.message.system_topics import (
    BUILT_IN_PREFIX,
    BUILT_IN_TOPICS,
    DISCARDED_TOPIC,
    HALF_TOPICS,
    OP_TOPICS,
    is_system_topic,
)
from rmqtool.problems import finding
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.config_files import FOLDER, TOPICS, read_config
from rmqtool.storage.profile import Profile
from rmqtool.write.records.record_parts import topic_parts

NEVER = frozenset({*HALF_TOPICS, *OP_TOPICS, DISCARDED_TOPIC})
_NAMING = ("RETRY_TOPIC", properties.REAL_TOPIC, "DLQ_ORIGIN_TOPIC")
"""Properties whose value is a topic: their value is renamed too."""


@dataclass(frozen=True)
class TopicChoice:
    """The topics of a copy.

    Attributes:
        selection: which messages; topics that are not copied are excluded.
        named: system topics that the selection names.
        renames: new names by old ones.
    """

    selection: Selection
    named: frozenset[str]
    renames: Mapping[str, str]

    @classmethod
    def of(cls, selection: Selection, renames: Mapping[str, str], profile: Profile) -> TopicChoice:
        """The choice for a selection and renames.

        Raises:
            RefusedError: the selection names half messages or ops.
            UsageError: an invalid new name, or a system topic as old or new name.
        """
        named = frozenset(topic for topic in selection.topics if is_system_topic(topic))
        if named & NEVER:
            raise RefusedError(
                f"{min(named & NEVER)} is not copied: its records name others by offset",
                hint="export keeps them as they are; recover, rebuild and append work on the store itself",
            )
        for old, new in renames.items():
            try:
                topic_parts(new, profile)
            except IllegalMessageError as error:
                raise UsageError(f"{old}={new}: {error.message}") from error
            if is_system_topic(new) or is_system_topic(old):
                raise UsageError(f"{old}={new}: a topic of the broker's own keeps its name")
        excluded = {*selection.exclude_topics, *(BUILT_IN_TOPICS - named)}
        if not any(topic.startswith(BUILT_IN_PREFIX) for topic in named):
            excluded.add(f"{BUILT_IN_PREFIX}*")
        return cls(replace(selection, exclude_topics=excluded), named, dict(renames))

    def takes(self, topic: str) -> bool:
        """Whether messages of a topic are copied."""
        return not is_system_topic(topic) or topic in self.named

    def name_of(self, topic: str) -> str:
        """The name of a topic in the copy."""
        return self.renames.get(topic, topic)

    def configs(self, store: Store, report: Report) -> dict[str, TopicConfig]:
        """The configuration of the copy's topics, by their new names.

        If two topics become one, the configuration with more write queues is used. Topics without messages
        are included: only topic names of the selection count. Reports a topics.json that cannot be read.
        """
        found: dict[str, TopicConfig] = {}
        for topic, config in topics_of(store, report).items():
            if not self.takes(topic) or not self.selection.matches_topic(topic):
                continue
            name = self.name_of(topic)
            other = found.get(name)
            if other is None or other.write_queue_nums < config.write_queue_nums:
                found[name] = replace(config, name=name)
        return {name: config for name, config in found.items() if not is_system_topic(name)}

    def renamed_properties(self, data: bytes) -> bytes:
        """A property string with the topics in its properties renamed."""
        pairs = data.split(properties.VALUE_END.encode())
        for place, pair in enumerate(pairs):
            name, found, value = pair.partition(properties.NAME_END.encode())
            if found and name.decode("latin-1") in _NAMING:
                new = self.renames.get(value.decode("utf-8", "replace"))
                if new is not None:
                    pairs[place] = name + found + new.encode()
        return properties.VALUE_END.encode().join(pairs)

    @property
    def patterns(self) -> Collection[bytes]:
        """Every property string that `renamed_properties` changes contains one of these."""
        end = properties.NAME_END
        return [f"{name}{end}{old}".encode() for name in _NAMING for old in self.renames]


def topics_of(store: Store, report: Report) -> dict[str, TopicConfig]:
    """The topics of a store's topics.json; none if it cannot be read, which is reported."""
    root, reason = store.layout.root, None
    if root is not None:
        try:
            loaded = read_config(root / FOLDER, TOPICS)
            if loaded.source != "none":
                return config_json.topics(loaded.document)
            reason = loaded.file_error
        except (FormatError, UnreadableError) as error:
            reason = error.message
    if reason is not None:
        report(finding("CF02", f"{FOLDER}/{TOPICS}", reason=reason))
    return {}
