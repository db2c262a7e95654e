"""The options of `rmqtool lookup` that no other command has."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rmqtool.commands.options import COUNT_MAX, parse_broker

Key = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="KEY", help="Messages with this key or unique key (repeatable)."),
]
KeysFrom = Annotated[
    str | None,
    typer.Option("--keys-from", metavar="FILE|-", help="Keys from a file, or standard input: one a line."),
]
UniqKey = Annotated[
    list[str] | None,
    typer.Option("--uniq-key", metavar="KEY", help="Messages with this unique key (repeatable)."),
]
Tag = Annotated[
    list[str] | None,
    typer.Option(
        "--tag", metavar="TAG", help="Messages with these tags; beside a key, of these only (repeatable)."
    ),
]
MsgId = Annotated[
    list[str] | None,
    typer.Option(
        "--msg-id",
        metavar="ID",
        help="The message with this id: an offset message id of whatever host, or a unique key (repeatable).",
    ),
]
Offset = Annotated[
    list[int] | None,
    typer.Option("--offset", metavar="N", min=0, help="The message at this physical offset (repeatable)."),
]
QueueOffset = Annotated[
    list[int] | None,
    typer.Option(
        "--queue-offset",
        metavar="N",
        min=0,
        help="The message at this offset of the one queue of --topic and --queue (repeatable).",
    ),
]
Time = Annotated[
    str | None,
    typer.Option(
        "--time",
        metavar="TIME",
        help="Which queue offset belongs to this time, in each queue of --topic: as the broker answers it,"
        " and exactly.",
    ),
]
BoundOption = Annotated[
    Literal["lower", "upper"],
    typer.Option(
        "--bound",
        metavar="lower|upper",
        help="With --time: the first message at or behind it, or the last at or before it. Where there is"
        " none exact_offset is the end of the queue, or null.",
    ),
]
Broker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="4.9|5.3|5.4",
        parser=parse_broker,
        help="With --time: whose answer; default: of the broker that used the store last.",
    ),
]
Max = Annotated[
    int | None,
    typer.Option(
        "--max",
        metavar="N",
        min=0,
        max=COUNT_MAX,
        help="At most this many messages, the first ones in the log.",
    ),
]
Scan = Annotated[
    Literal["auto", "always", "never"],
    typer.Option(
        "--scan",
        metavar="auto|always|never",
        help="When to read the log itself: auto where the index does not cover it, or a queue"
        " lacks the unit.",
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Show the way in place of the messages: index files, slots, chains, gaps."
    ),
]
Trace = Annotated[
    bool,
    typer.Option(
        "--trace",
        help="Show what became of each message in place of it: delay, retry, DLQ, transaction, consumer"
        " groups, trace records.",
    ),
]
