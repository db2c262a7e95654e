"""Which topics a copy takes along, and what they are called in it.

Topics that a broker makes by itself stay behind unless they are named: what lies there belongs to a
state (which delayed messages were delivered, which transactions are open) that a copy has not. Half
messages and ops are never copied: an op names its half message by queue offset, and those are new.
`%RETRY%` and `%DLQ%` topics hold messages of users and go along.
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
"""Properties whose value is a topic: they are renamed with it."""


@dataclass(frozen=True)
class TopicChoice:
    """The topics of a copy.

    Attributes:
        selection: which messages, topics that stay behind excluded.
        named: system topics that were asked for by name.
        renames: new names by old ones.
    """

    selection: Selection
    named: frozenset[str]
    renames: Mapping[str, str]

    @classmethod
    def of(cls, selection: Selection, renames: Mapping[str, str], profile: Profile) -> TopicChoice:
        """The choice that a selection and renames mean.

        Raises:
            RefusedError: half messages or ops were asked for.
            UsageError: a new name that no topic can have, or that is a system topic's.
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
        """Whether messages of a topic go along."""
        return not is_system_topic(topic) or topic in self.named

    def name_of(self, topic: str) -> str:
        """What a topic is called in the copy."""
        return self.renames.get(topic, topic)

    def configs(self, store: Store, report: Report) -> dict[str, TopicConfig]:
        """How the copy's topics are set up, by their new names; of two that become one the larger.

        Topics without a message are among them, where no message decides (by key, tag, queue or time).
        `report` is told where topics.json cannot be read.
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
        """A property string whose properties that name a topic say its new name."""
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
        """Bytes of which a property string that `renamed_properties` changes has one."""
        end = properties.NAME_END
        return [f"{name}{end}{old}".encode() for name in _NAMING for old in self.renames]


def topics_of(store: Store, report: Report) -> dict[str, TopicConfig]:
    """The topics of a store's topics.json; none where it cannot be read, of which `report` is told."""
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
