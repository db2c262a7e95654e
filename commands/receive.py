"""`rmqtool receive`: the log of a running master into a store, as a slave without a broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqtool.commands import options
from rmqtool.commands.groups import Before, Only, with_groups
from rmqtool.commands.interrupts import interrupts_held
from rmqtool.errors import EXIT_OK, UsageError
from rmqtool.sizes import short
from rmqtool.terminal import format_size
from rmqtool.times import parse_duration, parse_time

if TYPE_CHECKING:
    from rmqtool.net.receive import From, Progress, ReceiveRequest
    from rmqtool.terminal import ProgressBar

_NEVER = "never"
_PORT_MAX = 65_535

Ack = Annotated[
    Literal["flushed", "written", "none"],
    typer.Option(
        "--ack",
        metavar="flushed|written|none",
        help="Acknowledge messages once they are on the device, once they are written, or never.",
    ),
]
FromOffset = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="oldest|last|OFFSET",
        help="Begin a new store with the master's oldest log file, its last one, or the one that holds this"
        " physical offset.",
    ),
]
Once = Annotated[
    bool, typer.Option("--once", help="Stop when all that the master has now has been received.")
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="TIME", help="Stop before the first message stored at this time or later."
    ),
]
ConfigEvery = Annotated[
    str,
    typer.Option(
        "--config-every",
        metavar="DURATION|never",
        help="Fetch topics, groups and offsets this often.",
    ),
]
HaOnly = Annotated[
    bool,
    typer.Option(
        "--ha-only",
        help="HOST:PORT is the HA port; ask the broker for nothing else. No configuration is fetched.",
    ),
]
FileSize = Annotated[
    int | None,
    typer.Option(
        "--commitlog-file-size", metavar="SIZE", parser=options.parse_size,
        help="With --ha-only: size of the master's commit log files; needed for a new store.",
    ),
]  # fmt: skip
Retry = Annotated[bool, typer.Option("--retry/--no-retry", help="Connect again when the connection is lost.")]
Reserve = Annotated[
    bool,
    typer.Option(
        "--reserve/--no-reserve", help="Allocate the whole space of a commit log file when it is created."
    ),
]
Master = Annotated[
    str,
    typer.Argument(metavar="HOST:PORT", help="The broker, with the port that clients and mqadmin use."),
]


@with_groups
def receive(
    *,
    master: Master,
    store: Annotated[options.StoreRootOptions, Only("store")],
    ack: Ack = "flushed",
    from_: FromOffset = "oldest",
    once: Once = False,
    until: Until = None,
    config_every: ConfigEvery = "60s",
    ha_only: HaOnly = False,
    commitlog_file_size: FileSize = None,
    retry: Retry = True,
    reserve: Reserve = True,
    shown: Annotated[options.ObjectOutput, Only("tz format json quiet progress"), Before("reserve")],
) -> int:
    r"""Receive the log of a running master into a store: a live backup.

    Connects to the master as a slave does, and writes a log that is equal byte for byte. Each record is
    checked before it is written, and is on the device before it is acknowledged. With brokerRole SYNC_MASTER
    (5.x also needs inSyncReplicas=2) a message is therefore acknowledged to its producer once it is in both
    places.

    STORE is a new or empty folder, or one that was received before: the run continues where the last one
    ended, however it ended. The newest part of the log is compared with the master's first. Nothing is
    changed and the command is refused if the logs differ, if the master has lost messages, has deleted what
    follows, or is in controller mode. A lost connection is made again, and so is one to a master that was
    restarted. Stop the command with SIGINT or SIGTERM.

    Topics, subscription groups, consumer offsets and delay offsets are fetched too, and written once the log
    has reached the offset that the master had after they were fetched. Consumer offsets in STORE are
    therefore never beyond its log. The queues and the index are not received: a broker builds them when it
    starts on STORE, and `rmqtool rebuild STORE --apply` does the same.

    \b
      --ack flushed   a replica: what is acknowledged survives a loss of power here
      --ack written   as a broker's slave: survives a crash of the process
      --ack none      does not count as a replica. A 4.9 SYNC_MASTER whose only slave this is still
                      waits for it, 3 s for each message

    With --until in the past the configuration is not written, because its offsets belong to a longer log.

    Exits with 0 when it was stopped, or reached the end that was requested; 2 for a usage error; 3 when the
    broker cannot be reached at the start, sends a damaged record, or a file cannot be read or written; 4 when
    refused; 5 when STORE is in use.
    """
    from rmqtool.net.ha_connection import Address
    from rmqtool.net.receive import Receiver, ReceiveRequest

    if commitlog_file_size is not None and not ha_only:
        raise UsageError("--commitlog-file-size needs --ha-only: otherwise the broker says it")
    zone, now_ms = shown.zone, time.time_ns() // 1_000_000
    request = ReceiveRequest(
        address=Address(*parse_address(master)),
        ha_only=ha_only,
        ack=ack,
        begin=_begin(from_),
        once=once,
        until_ms=None if until is None else parse_time(until, zone, now_ms),
        file_size=commitlog_file_size,
        reserve=reserve,
        retries=retry,
        config_seconds=0 if config_every == _NEVER else parse_duration(config_every) / 1000,
    )
    writer = shown.writer(changes=True)
    with writer.progress("receiving", None) as bar:
        state = _Shown(bar)
        receiver = Receiver(
            request, store.store, note=lambda text: writer.note(f"rmqtool: {text}"), tick=state.tick,
            hold=interrupts_held,
        )  # fmt: skip
        try:
            receiver.run()
        except KeyboardInterrupt:
            if once or until is not None:
                raise
    writer.write_object(_row(str(store.store), request, receiver.progress))
    return EXIT_OK


class _Shown:
    """The progress bar: rate, and how far the master is ahead."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._bytes = 0

    def tick(self, progress: Progress) -> None:
        lag = progress.lag_bytes
        state = "receiving" if progress.is_connected else "waiting for the master"
        self._bar.describe(state if lag is None else f"{state}, {format_size(lag)} behind")
        self._bar.advance(progress.bytes - self._bytes)
        self._bytes = progress.bytes


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT; an IPv6 address is in brackets. Raises UsageError."""
    host, found, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        found = ""
    if not (found and host and port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise UsageError(f"{short(text)} is not HOST:PORT", hint="for example 10.0.0.1:10911 or [::1]:10911")
    return host, int(port)


def _begin(text: str) -> From:
    if text == "oldest":
        return "oldest"
    if text == "last":
        return "last"
    if text.isascii() and text.isdigit() and int(text) < 1 << 63:
        return int(text)
    raise UsageError(f"--from {short(text)}: it must be oldest, last or a physical offset")


def _row(store: str, request: ReceiveRequest, progress: Progress) -> dict[str, Any]:
    return {
        "store": store,
        "master": str(request.address),
        "records": progress.records,
        "bytes": progress.bytes,
        "end_offset": progress.end,
        "flushed_offset": progress.flushed,
        "acknowledged_offset": progress.acknowledged,
        "master_end_offset": progress.master_end,
        "lag_bytes": progress.lag_bytes,
        "connections": progress.connections,
        "configurations": progress.configs,
    }
