"""`rmqtool receive`: the log of a running master into a store, as a slave without a broker."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqtool.commands import options
from rmqtool.commands.finding_report import times_text
from rmqtool.commands.groups import Group, Only, with_groups
from rmqtool.commands.interrupts import interrupts_held
from rmqtool.errors import EXIT_OK, UsageError
from rmqtool.output import Output
from rmqtool.sizes import short
from rmqtool.terminal import format_size
from rmqtool.times import parse_duration, parse_time

if TYPE_CHECKING:
    from datetime import tzinfo
    from pathlib import Path

    from rmqtool.net.receive import From, Progress, ReceiveRequest
    from rmqtool.terminal import ProgressBar

_NEVER = "never"
_PORT_MAX = 65_535


class ReceiveOptions(Group):
    """What is received, from where on, and until when."""

    ack: Annotated[
        Literal["flushed", "written", "none"],
        typer.Option(
            "--ack",
            metavar="flushed|written|none",
            help="Acknowledge messages once they are on the device, once they are written, or never.",
        ),
    ] = "flushed"
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="oldest|last|OFFSET",
            help="Begin a new store with the master's oldest log file, its last one, or the one that holds"
            " this physical offset.",
        ),
    ] = "oldest"
    once: Annotated[
        bool, typer.Option("--once", help="Stop once everything that the master has now has been received.")
    ] = False
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", help="Stop before the first message stored at this time or later."
        ),
    ] = None
    config_every: Annotated[
        str,
        typer.Option(
            "--config-every",
            metavar="DURATION|never",
            help="Fetch topics, groups and offsets this often.",
        ),
    ] = "60s"
    ha_only: Annotated[
        bool,
        typer.Option(
            "--ha-only",
            help="HOST:PORT is the HA port: receive only the log, without the configuration.",
        ),
    ] = False
    controller: Annotated[
        bool, typer.Option("--controller", help="With --ha-only: the master is in controller mode (5.x).")
    ] = False
    commitlog_file_size: Annotated[
        int | None,
        typer.Option(
            "--commitlog-file-size",
            metavar="SIZE",
            parser=options.parse_size,
            help="With --ha-only: size of the master's commit log files; needed for a new store.",
        ),
    ] = None
    dispatch: Annotated[
        bool, typer.Option("--dispatch", help="Keep consume queues and index too, level with the log.")
    ] = False
    reconnect: Annotated[
        bool,
        typer.Option(
            "--reconnect/--no-reconnect",
            help="Connect again when the connection is lost. Default: --reconnect.",
        ),
    ] = True
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age",
            metavar="DURATION",
            help="Delete log files that were last written this long ago, the oldest first.",
        ),
    ] = None
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-bytes",
            metavar="SIZE",
            parser=options.parse_size,
            help="Delete the oldest log files once the files after them hold this much.",
        ),
    ] = None
    archive: Annotated[
        str | None,
        typer.Option(
            "--archive",
            metavar="DIR|URL",
            help="Copy each full log file, compressed, to this place. Log files are then deleted only if a"
            " copy is there.",
        ),
    ] = None
    metrics: Annotated[
        int | None,
        typer.Option(
            "--metrics",
            metavar="PORT",
            min=0,
            max=65_535,
            help="Serve metrics for Prometheus on this port, at the path /metrics.",
        ),
    ] = None
    truncate: Annotated[
        bool,
        typer.Option(
            "--truncate",
            help="After a failover in controller mode (5.x), cut the end of the log that the new master"
            " lacks.",
        ),
    ] = False
    reserve: Annotated[bool, options.RESERVE] = True

    def request(self, master: str, zone: tzinfo | None) -> ReceiveRequest:
        """Return what is to be received. Raises UsageError."""
        from rmqtool.net.ha_connection import Address
        from rmqtool.net.receive import ReceiveRequest

        for name, given in (
            ("--commitlog-file-size", self.commitlog_file_size is not None),
            ("--controller", self.controller),
        ):
            if given and not self.ha_only:
                raise UsageError(f"{name} needs --ha-only: otherwise the broker says it")
        now_ms = time.time_ns() // 1_000_000
        return ReceiveRequest(
            address=Address(*parse_address(master)),
            ha_only=self.ha_only,
            controller=self.controller,
            ack=self.ack,
            begin=_begin(self.from_),
            once=self.once,
            until_ms=None if self.until is None else parse_time(self.until, zone, now_ms),
            file_size=self.commitlog_file_size,
            reserve=self.reserve,
            retries=self.reconnect,
            truncate=self.truncate,
            max_age_seconds=None if self.max_age is None else parse_duration(self.max_age) / 1000,
            max_bytes=self.max_bytes,
            dispatch=self.dispatch,
            archive=self.archive,
            config_seconds=0 if self.config_every == _NEVER else parse_duration(self.config_every) / 1000,
        )


Master = Annotated[
    str,
    typer.Argument(metavar="HOST:PORT", help="The broker, with the port that clients and mqadmin use."),
]


@with_groups
def receive(
    *,
    master: Master,
    store: Annotated[options.StoreRootOptions, Only("store")],
    own: ReceiveOptions,
    shown: Annotated[options.ObjectOutput, Only("tz format json quiet progress")],
) -> int:
    r"""Receive the log of a running master into a store: a live backup.

    Connects to the master as a slave does, and writes a log that is equal byte for byte. Each record is
    checked before it is written, and is on the device before it is acknowledged. With brokerRole SYNC_MASTER
    (5.x also needs inSyncReplicas=2) producers get their answer once a message is in both places.

    STORE is a new or empty folder, or a store that an earlier run received: the new run continues where
    the earlier one ended, even if that was killed. It first compares the newest part of the log with the
    master's. The command is refused, and nothing changed, if the logs differ, if the master has lost
    messages that STORE has, or if it has already deleted the messages that come next. If the connection
    is lost, the command connects again. Stop the command with SIGINT or SIGTERM.

    Topics, subscription groups, consumer offsets and delay offsets are fetched too. rmqtool writes them once
    the received log reaches the end that the master's log had when they were fetched, so that no consumer
    offset in STORE is beyond its log; with --until in the past they are not written.

    Queues and index are not received. With --dispatch the command builds them from the log as it comes, with
    the sizes and settings of the master: a broker then starts on STORE at once, and `rmqtool serve STORE
    --live` serves messages as they arrive. They are built from bytes that are on the device. After a
    kill the next run continues from where queues and index were complete. Without --dispatch build them with
    `rmqtool rebuild STORE --apply` before a broker starts on STORE, because 5.4 would build them for the last
    ten log files only.

    From a master in controller mode (5.x) the command receives as a learner, which producers never wait for.
    It keeps the epochs. If they show that a new master lacks the end of this log, the command ends with an
    error; with --truncate it cuts that end, as a broker's slave does, and continues.

    --max-age and --max-bytes delete old log files while the command runs, as a broker does: every ten
    seconds, the oldest first, never the last one. A file is deleted if at least one of the two options
    selects it. With --dispatch only log files that are in queues and index are deleted. Then the files of
    queues and index that refer only to deleted log files are deleted too, except the last file of each
    queue and of the index. Without --dispatch they stay; a broker, or `rmqtool expire`, deletes them.

    --archive copies each log file that is full to DIR|URL/commitlog, compressed with zstd: a folder, or
    S3 and other places that the extra `remote` reaches. A copy counts only once it has been read
    back and compared. With --archive, the options above delete a log file only if its copy is in the archive;
    a copy that is missing is made again first. A failure to copy is reported and tried again,
    and deletes nothing. The next run goes on with the next file; it is an error if the folder of the archive
    is gone. Commands that read a store also read the archive, for example `rmqtool dump URL`. Use
    another archive for each log.

    --metrics listens on 127.0.0.1 only.

    With --ack flushed, what is acknowledged survives a loss of power here; with --ack written, as with a
    broker's slave, only a crash of the process. With --ack none the master does not count this copy as a
    replica: a 4.9 SYNC_MASTER without another slave waits 3 s for each message.

    Exits with 0 when it was stopped, or reached the end that was requested; 2 for a usage error; 3 when the
    broker cannot be reached at the start or sends a damaged record, or a file cannot be read or written; 4
    when refused; 5 when STORE is in use.
    """
    request = own.request(master, shown.zone)
    writer = shown.writer(changes=True)
    if request.until_ms is not None:
        until = times_text({"--until": request.until_ms}, shown.zone, only_future=False)
        writer.note(f"rmqtool: {until}")
    progress = _receive(request, store.store, writer, own.metrics)
    writer.write_object(_row(str(store.store), request, progress))
    return EXIT_OK


def _receive(request: ReceiveRequest, store: Path, writer: Output, metrics: int | None) -> Progress:
    """Receive until the end that was requested, or until interrupted if there is none."""
    from rmqtool.net.metrics import metrics_in_thread, receive_text
    from rmqtool.net.receive import Receiver

    with ExitStack() as stack:
        bar = stack.enter_context(writer.progress("receiving", None))
        receiver = Receiver(
            request, store, note=lambda text: writer.note(f"rmqtool: {text}"), tick=_Shown(bar).tick,
            hold=interrupts_held,
        )  # fmt: skip
        if metrics is not None:
            text = partial(receive_text, receiver.progress)
            port = stack.enter_context(metrics_in_thread("127.0.0.1", metrics, text))
            writer.note(f"rmqtool: metrics: http://127.0.0.1:{port}/metrics")
        try:
            receiver.run()
        except KeyboardInterrupt:
            if request.once or request.until_ms is not None:
                raise
    return receiver.progress


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
        "dispatched_offset": progress.dispatched,
        "archived_offset": progress.archived,
        "confirmed_offset": progress.confirmed,
        "epoch": progress.epoch,
        "truncated_bytes": progress.truncated,
        "expired_bytes": progress.expired,
        "connections": progress.connections,
        "configurations": progress.configs,
    }
