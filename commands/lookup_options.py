"""The options of `rmqtool lookup` that no other command has."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rmqtool.commands.options import COUNT_MAX, parse_broker

Key = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="KEY", help="Find messages with this key or unique key (repeatable)."),
]
KeysFrom = Annotated[
    str | None,
    typer.Option(
        "--keys-from", metavar="FILE|-", help="Read keys from a file or standard input, one per line."
    ),
]
UniqKey = Annotated[
    list[str] | None,
    typer.Option("--uniq-key", metavar="KEY", help="Find messages with this unique key (repeatable)."),
]
Tag = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        metavar="TAG",
        help="Find messages with this tag; with a key, only messages that also have it (repeatable).",
    ),
]
MsgId = Annotated[
    list[str] | None,
    typer.Option(
        "--msg-id",
        metavar="ID",
        help="Find the message with this id: an offset message id of any host, or a unique key (repeatable).",
    ),
]
Offset = Annotated[
    list[int] | None,
    typer.Option(
        "--offset", metavar="N", min=0, help="Find the message at this physical offset (repeatable)."
    ),
]
QueueOffset = Annotated[
    list[int] | None,
    typer.Option(
        "--queue-offset",
        metavar="N",
        min=0,
        help="Find the message at this offset of one queue, named by --topic and --queue (repeatable).",
    ),
]
Time = Annotated[
    str | None,
    typer.Option(
        "--time",
        metavar="TIME",
        help="Find the queue offset for this time in each queue of --topic: the broker's answer and the exact"
        " one.",
    ),
]
BoundOption = Annotated[
    Literal["lower", "upper"],
    typer.Option(
        "--bound",
        metavar="lower|upper",
        help="With --time: find the first message at or after it (lower), or the last at or before it"
        " (upper). If there is none, exact_offset is the end of the queue (lower) or null (upper).",
    ),
]
Broker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="4.9|5.3|5.4",
        parser=parse_broker,
        help="With --time: answer as this broker version; default: the version that used the store last.",
    ),
]
Max = Annotated[
    int | None,
    typer.Option(
        "--max",
        metavar="N",
        min=0,
        max=COUNT_MAX,
        help="Find at most this many messages, the first ones in the log.",
    ),
]
Scan = Annotated[
    Literal["auto", "always", "never"],
    typer.Option(
        "--scan",
        metavar="auto|always|never",
        help="Scan the log. auto: only what the index does not cover, or if a queue lacks the unit.",
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Show the search path instead of messages: index files, slots, chains, gaps."
    ),
]
Trace = Annotated[
    bool,
    typer.Option(
        "--trace",
        help="Show what happened to each message instead of the message: delay, retry, DLQ, transaction,"
        " consumer groups, trace records.",
    ),
]
