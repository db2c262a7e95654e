"""The topics that a writer knows: topics.json, and those that a broker makes by itself.

    table = TopicTable.load(root, profile)
    table.add("orders", queues=8)
    queue_id = table.choose_queue("orders", "key-hash", key="k1")
    table.check("orders", queue_id)  # what a producer may do
    table.save()

Source: TopicConfigManager, TopicValidator, AbstractSendMessageProcessor#msgCheck,
SelectMessageQueueByHash; spec 01 section 9.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from rmqtool.errors import FormatError, IllegalMessageError, RefusedError, UsageError
from rmqtool.formats import config_change, config_json
from rmqtool.formats.config_json import TopicConfig
from rmqtool.formats.java import string_hash
from rmqtool.message.system_topics import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    is_system_topic,
    is_topic_name,
)
from rmqtool.storage import config_files
from rmqtool.storage.profile import Profile
from rmqtool.write.records.record_parts import CLOSED_TOPICS, topic_parts

QueueBy = Literal["round-robin", "key-hash"]

DEFAULT_QUEUES = 4
"""Queues of a topic that a producer makes: its defaultTopicQueueNums."""
QUEUES_MAX = 65_536

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1
DEFAULT_PERM = PERM_READ | PERM_WRITE

# Queues and perm where a broker's own topics differ from one queue, read and write.
_OWN_TOPICS = {
    SCHEDULE_TOPIC: (18, DEFAULT_PERM),
    "TBW102": (8, DEFAULT_PERM | PERM_INHERIT),
    "BenchmarkTest": (1024, DEFAULT_PERM),
}
_REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"  # 5.x, followed by the cluster's name
_REVIVE_QUEUES = 8


class TopicTable:
    """The topics of one store. Changes want one thread at a time; `config_of` and `is_batch` do not."""

    def __init__(self, folder: Path, profile: Profile, document: config_change.Document) -> None:
        """Take the document of the topics.json in `folder`. Raises FormatError for one that is none.

        A topic whose name no broker would have taken, a path for instance, counts as unknown.
        """
        self._folder = folder
        self._profile = profile
        self._document = document
        self._topics = {
            name: config for name, config in config_json.topics(document).items() if is_topic_name(name)
        }
        self._unsaved: dict[str, TopicConfig] = {}
        self._limits: dict[str, int] = {}  # queue ids of topics that producers may send to
        self._next: dict[str, int] = {}

    @classmethod
    def load(cls, root: Path, profile: Profile) -> TopicTable:
        """The topics of the store at `root`; without a topics.json those that every broker has.

        Raises:
            UnreadableError: topics.json or its .bak cannot be read.
            FormatError: neither can be parsed, or has the right types.
        """
        folder = root / config_files.FOLDER
        loaded = config_files.read_config(folder, config_files.TOPICS)
        if loaded.source == "none" and loaded.file_error is not None:
            raise FormatError(
                f"the topics cannot be parsed, and there is no .bak: {loaded.file_error}",
                path=folder / config_files.TOPICS, hint="rmqtool recover makes the file again",
            )  # fmt: skip
        document = loaded.document or config_change.new_topics(profile.name, config_files.now_ms())
        return cls(folder, profile, document)

    @property
    def topics(self) -> Mapping[str, TopicConfig]:
        """The content of topics.json and the topics added since, by name."""
        return self._topics

    @property
    def changed(self) -> bool:
        """Whether `save` has something to write."""
        return bool(self._unsaved)

    def config_of(self, topic: str) -> TopicConfig | None:
        """How a topic is set up; None for one that the broker would not know.

        System topics, `%RETRY%` and `%DLQ%` topics need not be in topics.json: a broker makes them
        when it starts, when a consumer comes or when a message is sent back.
        """
        found = self._topics.get(topic)
        return found if found is not None else _own_topic(topic)

    def is_known(self, topic: str) -> bool:
        """Whether a broker would know it."""
        return self.config_of(topic) is not None

    def is_batch(self, topic: str) -> bool:
        """Whether its queues are batch consume queues."""
        found = self._topics.get(topic)
        return found is not None and found.is_batch

    def add(
        self,
        topic: str,
        queues: int = DEFAULT_QUEUES,
        *,
        perm: int = DEFAULT_PERM,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicConfig:
        """Make a topic with as many read as write queues; `save` puts it into topics.json.

        Args:
            topic: a name that producers may use.
            queues: 1 to QUEUES_MAX.
            perm: bits: 4 read, 2 write, 1 inherit.
            order: whether its messages must keep their order.
            attributes: 5.x only, as `queue.type`.

        Raises:
            IllegalMessageError: no topic can be called so (MESSAGE_ILLEGAL).
            UsageError: a value that cannot be, or there is such a topic.
        """
        topic_parts(topic, self._profile)
        if topic in self._topics:
            raise UsageError(f"there is a topic {topic} already")
        if is_system_topic(topic):
            raise UsageError(f"topic {topic}: a broker creates this topic itself")
        if not 1 <= queues <= QUEUES_MAX:
            raise UsageError(f"topic {topic} with {queues} queues: it must be 1 to {QUEUES_MAX}")
        if not 0 <= perm <= PERM_READ | PERM_WRITE | PERM_INHERIT:
            raise UsageError(f"topic {topic} with perm {perm}: it is 4 (read) + 2 (write) + 1 (inherit)")
        if attributes and not self._profile.has_topic_attributes:
            raise UsageError(
                f"topic {topic}: a broker {self._profile.name} does not support topic attributes"
            )
        made = TopicConfig(topic, queues, queues, perm, order=order, attributes=dict(attributes or {}))
        self._put(made)
        return made

    def adopt(self, config: TopicConfig) -> None:
        """Take over a topic of another store as it is set up there, one of a broker's own included.

        Raises:
            IllegalMessageError: no topic can be called so (MESSAGE_ILLEGAL).
            UsageError: there is such a topic.
        """
        topic_parts(config.name, self._profile)
        if config.name in self._topics:
            raise UsageError(f"there is a topic {config.name} already")
        self._put(config if self._profile.has_topic_attributes else replace(config, attributes={}))

    def grow(self, topic: str, queues: int) -> None:
        """Give a topic of the table at least that many queues."""
        config = self._topics[topic]
        if queues > config.write_queue_nums:
            self._put(replace(config, read_queue_nums=queues, write_queue_nums=queues))

    def remember(self, topic: str) -> None:
        """A record goes to `topic`: one of `%RETRY%` or `%DLQ%` gets into topics.json, as in a broker."""
        if topic not in self._topics and topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            topic_parts(topic, self._profile)
            self._put(TopicConfig(topic, 1, 1))

    def save(self) -> None:
        """Write topics.json when a topic was added; on the device when it returns.

        Raises:
            UnwritableError: it cannot be written; the topics count as not saved.
            UnreadableError: the file that is there cannot be read.
        """
        if not self._unsaved:
            return
        saved = dict(self._unsaved)
        document = config_change.with_topics(self._document, saved, self._profile.name, config_files.now_ms())
        config_files.write_config(self._folder, config_files.TOPICS, document, self._profile)
        self._document = document
        for topic in saved:
            del self._unsaved[topic]

    # what a producer may do

    def check(self, topic: str, queue_id: int) -> None:
        """Check that a producer may send to this queue.

        Raises:
            IllegalMessageError: the topic's name cannot be (MESSAGE_ILLEGAL), it is unknown
                (TOPIC_NOT_EXIST), not for producers or not to be written to (NO_PERMISSION), or it
                has no such queue (INVALID_PARAMETER); `status` is what the broker calls it.
            RefusedError: the topic is compacted (CompactionStore#getMessage).
        """
        limit = self._limits.get(topic)
        if limit is None:
            limit = self._limits[topic] = self._queue_limit(topic)
        if not 0 <= queue_id < limit:
            raise IllegalMessageError(
                f"topic {topic} has no queue {queue_id}",
                status="INVALID_PARAMETER",
                hint=f"its queues are 0 to {limit - 1}",
                column="queue_id",
            )

    def choose_queue(self, topic: str, how: QueueBy = "round-robin", key: str | None = None) -> int:
        """The write queue that a producer takes for its next message.

        Args:
            topic: of the message.
            how: each queue in turn, from 0 on; or by `key`, as SelectMessageQueueByHash does.
            key: its Java hash decides.

        Raises:
            IllegalMessageError: see `check`; or a key is missing (MESSAGE_ILLEGAL).
            RefusedError: an order topic would be spread over its queues.
        """
        if how == "round-robin":
            return self.spread(topic)[0]
        queues = self._write_queues(topic)
        if key is None:
            raise IllegalMessageError(
                f"the message has no key to choose a queue of topic {topic} by",
                status="MESSAGE_ILLEGAL", column="keys",
            )  # fmt: skip
        return abs(string_hash(key)) % queues  # Java: % keeps the sign, then abs()

    def spread(self, topic: str, count: int = 1) -> tuple[int, int]:
        """Take `count` turns of the round robin: (first, queues), the i-th is `(first + i) % queues`.

        Raises:
            IllegalMessageError: see `check`.
            RefusedError: an order topic would be spread over its queues.
        """
        queues = self._write_queues(topic)
        config = self._topics.get(topic)
        if config is not None and config.order:
            raise RefusedError(
                f"topic {topic} is an order topic: round robin would break the order of its messages",
                hint="choose the queue by key (--queue-by key-hash) or name it",
                column="topic",
            )
        first = self._next.get(topic, 0)
        self._next[topic] = (first + count) % queues
        return first, queues

    def _write_queues(self, topic: str) -> int:
        self.check(topic, 0)
        config = self.config_of(topic)
        return config.write_queue_nums if config is not None else 0

    def _queue_limit(self, topic: str) -> int:
        """How many queues producers may name: as in the broker also those that are only read."""
        topic_parts(topic, self._profile)
        if topic in CLOSED_TOPICS:
            raise IllegalMessageError(
                f"topic {topic}: a broker accepts no messages from producers for it",
                status="NO_PERMISSION", column="topic",
            )  # fmt: skip
        config = self.config_of(topic)
        if config is None:
            near = get_close_matches(topic, self._topics, n=1)
            raise IllegalMessageError(
                f"the store has no topic {topic}",
                status="TOPIC_NOT_EXIST",
                hint=f"--create-topic creates it{f'; or did you mean {near[0]}?' if near else ''}",
                column="topic",
            )
        if not config.is_writable or config.write_queue_nums < 1:
            reason = f"perm {config.perm}, {config.write_queue_nums} write queues"
            raise IllegalMessageError(
                f"topic {topic} has no write permission ({reason})", status="NO_PERMISSION", column="topic"
            )
        if config.is_compacted:
            raise RefusedError(
                f"topic {topic} is compacted: its consumers get what the broker puts into its compaction log,"
                " which rmqtool does not write",
                hint="send the messages to the broker with a producer",
                column="topic",
            )
        return max(config.write_queue_nums, config.read_queue_nums)

    def _put(self, config: TopicConfig) -> None:
        self._topics[config.name] = self._unsaved[config.name] = config
        self._limits.pop(config.name, None)


def _own_topic(topic: str) -> TopicConfig | None:
    """A topic that a broker makes by itself, as it makes it."""
    if not is_topic_name(topic):
        return None
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return TopicConfig(topic, 1, 1)
    if not is_system_topic(topic):
        return None
    queues, perm = _OWN_TOPICS.get(topic, (1, DEFAULT_PERM))
    if topic.startswith(_REVIVE_PREFIX):
        queues = _REVIVE_QUEUES
    return TopicConfig(topic, queues, queues, perm)
