"""Values that the messages of one store share, looked up by a key instead of computed each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple, TypeVar

from rmqtool.formats import properties
from rmqtool.formats.message import BLANK_SIZE, PROPERTY_CRC_NAME, PROPERTY_CRC_SIZE
from rmqtool.formats.properties import KEYS, MAX_SIZE, TAGS, UNIQ_KEY, WAIT
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.prepared import check_room
from rmqtool.write.records.property_map import (
    FALSE,
    TRUE,
    broker_map,
    check_pairs,
    illegal,
    joined,
    stored_order,
)
from rmqtool.write.records.record_parts import HostParts, TopicParts, host_parts, topic_parts
from rmqtool.write.records.stored_properties import REWRITING_NAMES

EXTRA_SIZE = 64 << 10
"""Bytes that a record may have beyond the largest body. Source: MessageExtEncoder#<init>."""

_MAX_CACHED = 4096
_RECORD_MAX = (1 << 31) - 1

SPECIAL_NAMES = REWRITING_NAMES | {
    TAGS, KEYS, WAIT, UNIQ_KEY, properties.CLUSTER, properties.MSG_REGION, properties.TRACE_ON,
    properties.INNER_NUM, properties.INNER_MULTI_DISPATCH, PROPERTY_CRC_NAME,
}  # fmt: skip
"""Names that a rule looks at; other names of `properties` are stored without a look."""

PlanKey = tuple[bool, bool, bool, tuple[str, ...]]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Plan(NamedTuple):
    """The string of a message whose properties no rule looks at.

    Attributes:
        template: the string with `%s` for each value that the message gives; empty: there is none,
            as a rule looks at one of the names.
        pick: puts those values, given as its own ones, TAGS, KEYS, UNIQ_KEY, into stored order.
    """

    template: str
    pick: Callable[[Sequence[str]], str | tuple[str, ...]]


NO_PLAN = Plan("", itemgetter(0))


class Tables:
    """The tables for one store, filled as messages come."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.plans: dict[PlanKey, Plan] = {}
        self.topics: dict[str, TopicParts] = {}
        self.hosts: dict[tuple[bytes | None, bytes | None], HostParts] = {}
        self.own_hosts = host_parts(options.store_host, options.store_host)
        self.body_limit = options.body_limit
        self.size_limit = min(self.body_limit + EXTRA_SIZE, _RECORD_MAX)
        self.room = options.commit_log_file_size - BLANK_SIZE  # of a record in a file
        self.record_limit = min(self.size_limit, self.room)
        self.crc_size = PROPERTY_CRC_SIZE if options.property_crc else 0
        self.properties_limit = MAX_SIZE - self.crc_size

    def topic_of(self, name: str) -> TopicParts:
        """The parts of a topic. Raises IllegalMessageError for a name that cannot be."""
        return self.topics.get(name) or _remember(self.topics, name, topic_parts(name, self.options.profile))

    def host_of(self, born: bytes | None, store: bytes | None) -> HostParts:
        """The parts of a pair of hosts; None is the store's own. Raises IllegalMessageError."""
        known = self.hosts.get((born, store))
        if known is not None:
            return known
        own = self.options.store_host
        parts = host_parts(own if born is None else born, own if store is None else store)
        return _remember(self.hosts, (born, store), parts)

    def plan_of(self, key: PlanKey) -> Plan:
        """The plan for (no tags, no keys, no wait, names). Raises IllegalMessageError."""
        return self.plans.get(key) or _remember(self.plans, key, _plan(self.options, *key))

    def check_record(self, size: int) -> None:
        """Check the size of a record. Raises IllegalMessageError."""
        if size > self.size_limit:
            raise illegal(f"record of {size} bytes: at most {self.size_limit} can be stored", column="body")
        check_room(size, self.room)


@lru_cache(maxsize=16)
def tables_for(options: WriteOptions) -> Tables:
    """The tables of a store with these options."""
    return Tables(options)


def _remember(table: dict[_Key, _Value], key: _Key, value: _Value) -> _Value:
    if len(table) >= _MAX_CACHED:
        table.clear()
    table[key] = value
    return value


def _plan(options: WriteOptions, no_tags: bool, no_keys: bool, no_wait: bool, names: tuple[str, ...]) -> Plan:
    if not SPECIAL_NAMES.isdisjoint(names):
        return NO_PLAN
    check_pairs((name, name) for name in names)
    fields = ([] if no_tags else [TAGS]) + ([] if no_keys else [KEYS])
    slots = [*names, *fields, UNIQ_KEY]
    given = broker_map({WAIT: FALSE if no_wait else TRUE}, options)
    order = stored_order([*fields, WAIT, *names, UNIQ_KEY], options)
    text = joined([(_literal(name), _literal(given[name]) if name in given else "%s") for name in order],
                  options.profile)  # fmt: skip
    pick: Callable[[Sequence[str]], str | tuple[str, ...]] = itemgetter(
        *(slots.index(name) for name in order if name not in given)
    )
    return Plan(text, pick)


def _literal(text: str) -> str:
    return text.replace("%", "%%")
