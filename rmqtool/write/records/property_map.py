"""The properties of a message on their way: client, request, broker, record.

Each of them keeps a Java HashMap, so the order of a stored string follows from who put what when.
A map here is a dict in the order of Java's `put`; `java_order` says in which order Java reads it.

    client    TAGS, KEYS, WAIT, the application's, DELAY, UNIQ_KEY    16 buckets
    request   5.x: MSG_REGION and TRACE_ON after them                128 buckets
    broker    CLUSTER after them                                      16 or, on 5.x, 128 buckets

4.x takes WAIT out before it makes the string, and puts it back after all others: it is stored
only where the broker makes the string once more (delayed and half messages).

Source: Message#<init>, DefaultMQProducerImpl#sendKernelImpl, AbstractSendMessageProcessor#
buildMsgContext, SendMessageProcessor#sendMessage (5.x), #asyncSendMessage (4.9); spec 01 10.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rmqtool.errors import IllegalMessageError
from rmqtool.formats import properties
from rmqtool.formats.properties import (
    BUCKETS_4X,
    BUCKETS_5X,
    CLUSTER,
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    MAX_SIZE,
    MSG_REGION,
    NAME_END,
    TAGS,
    TRACE_ON,
    UNIQ_KEY,
    VALUE_END,
    WAIT,
    java_order,
)
from rmqtool.storage.profile import Profile
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.message import NewMessage

TRUE: Final = "true"
FALSE: Final = "false"


def is_true(text: str | None) -> bool:
    """Java's Boolean.parseBoolean."""
    return text is not None and text.lower() == TRUE


def keys_text(message: NewMessage) -> str:
    """The value of KEYS; a single string stands for one key (or the joined ones)."""
    return message.keys if isinstance(message.keys, str) else KEY_SEPARATOR.join(message.keys)


def client_map(message: NewMessage, uniq_key: str) -> dict[str, str]:
    """Return the property map that the client sends for `message`, whose `properties` are a mapping.

    Of a name that a field gives too, the one in `properties` counts.
    """
    found: dict[str, str] = {}
    if message.tags:
        found[TAGS] = message.tags
    if message.keys:
        found[KEYS] = keys_text(message)
    found[WAIT] = TRUE if message.wait else FALSE
    if not isinstance(message.properties, Mapping):
        raise TypeError("the properties are not a mapping")
    found.update(message.properties)
    if message.delay_level:
        found.setdefault(DELAY, str(message.delay_level))
    found.setdefault(UNIQ_KEY, uniq_key)
    return found


def waits(message: NewMessage) -> bool:
    """Whether a `sync` put of a message waits for the flush: WAIT of `client_map`, or `wait` of a stored one.

    A value that is not text is refused when the message is stored.
    """
    own = message.properties
    value = own.get(WAIT) if isinstance(own, Mapping) else None
    return is_true(value) if isinstance(value, str) else message.wait


def broker_map(client: Mapping[str, str], options: WriteOptions) -> dict[str, str]:
    """The broker's map for a request with the client's properties."""
    profile = options.profile
    found = java_order(client, BUCKETS_4X)
    if profile.adds_region and options.region is not None:
        found[MSG_REGION] = options.region
        found[TRACE_ON] = TRUE
        found = java_order(found, BUCKETS_5X)
    if options.cluster is not None:
        found[CLUSTER] = options.cluster
    return found


def first_string(found: Mapping[str, str], profile: Profile) -> str:
    """The string that the broker makes of its map when it takes a message in."""
    if not profile.stores_wait:
        found = {name: value for name, value in found.items() if name != WAIT}
    return map_string(found, profile)


def put_wait_last(found: dict[str, str]) -> None:
    """Move WAIT to the end of the map, as the broker's `remove` and `put` do."""
    wait = found.pop(WAIT, None)
    if wait is not None:
        found[WAIT] = wait


def map_string(found: Mapping[str, str], profile: Profile) -> str:
    """The string of a broker's map, in the order in which Java reads it."""
    return joined(java_order(found, profile.property_buckets).items(), profile)


def joined(pairs: Iterable[tuple[str, str]], profile: Profile) -> str:
    """The string of (name, value) in their own order, by the profile's dialect; as `properties.closed`."""
    text = "".join([f"{name}{NAME_END}{value}{VALUE_END}" for name, value in pairs])
    return text[:-1] if profile.dialect == "4.x" and not text.endswith(f"\0{VALUE_END}") else text


def check_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Refuse what a reader would drop or read otherwise.

    Raises:
        IllegalMessageError: an empty name or value, 0x01 in a name, 0x02 in either.
        TypeError: a name or a value is not text.

    Source: Message#putUserProperty, MessageDecoder#string2messageProperties.
    """
    for name, value in pairs:
        if not name:
            raise illegal("a property has an empty name", column="properties")
        if not value:
            raise illegal(
                f"property {name!r} has an empty value: readers would not see it", column=_column_of(name)
            )
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError("a property is not text")
        if NAME_END in name or VALUE_END in name or VALUE_END in value:
            raise illegal(
                f"property {name!r} holds byte 01 or 02, which end a name and a value",
                column=_column_of(name),
            )


def _column_of(name: str) -> str:
    return name.lower() if name in (TAGS, KEYS, UNIQ_KEY) else "properties"


def check_units(text: str) -> None:
    """Check the UTF-16 units of the string, which 4.x checks first. Raises IllegalMessageError.

    Source: DefaultMessageStore#checkMessage (4.9); spec 01 10.1.
    """
    units = len(text) + sum(unit > "\uffff" for unit in text)
    if units > MAX_SIZE:
        raise illegal(
            f"properties of {units} characters: at most {MAX_SIZE} can be stored", column="properties"
        )


def too_large(size: int) -> IllegalMessageError:
    """The error for properties of `size` bytes."""
    return IllegalMessageError(
        f"properties of {size} bytes: at most {MAX_SIZE} can be stored",
        status="PROPERTIES_SIZE_EXCEEDED", column="properties",
    )  # fmt: skip


def illegal(
    text: str, *, status: str = "MESSAGE_ILLEGAL", hint: str | None = None, column: str | None = None
) -> IllegalMessageError:
    """The error for a message that a broker would not take."""
    return IllegalMessageError(text, status=status, hint=hint, column=column)


def number_of(found: Mapping[str, str], name: str, bits: int = 64) -> int:
    """A whole number as Java's parseInt (32 bits) and parseLong read it; 0 where the name is missing.

    Raises:
        IllegalMessageError: not a number of that many bits.
    """
    text = found.get(name)
    if text is None:
        return 0
    digits = text[1:] if text[:1] in ("+", "-") else text
    limit = 1 << (bits - 1)
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and -limit <= int(text) < limit):
        raise illegal(f"property {name} is {text!r}, not an integer", column="properties")
    return int(text)


def stored_order(names: Iterable[str], options: WriteOptions) -> list[str]:
    """The names of a plain record's properties in stored order.

    Args:
        names: those that the client puts, in its order (`client_map`), WAIT and UNIQ_KEY included.
        options: of the store.
    """
    found = broker_map({name: name for name in names}, options)
    if not options.profile.stores_wait:
        found.pop(WAIT, None)
    return list(properties.java_order(found, options.profile.property_buckets))
