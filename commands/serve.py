"""`rmqtool serve`: a store as name server and broker, read-only, for stock clients."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmqtool.commands import options
from rmqtool.commands.groups import Only, with_groups
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, UsageError
from rmqtool.terminal import counted

if TYPE_CHECKING:
    from rmqtool.net.serve import Options, Served
    from rmqtool.terminal import ProgressBar

_RATE_SECONDS = 1.0  # over which a rate is measured

Port = Annotated[
    int,
    typer.Option(
        "--port", metavar="PORT", min=0, max=65_535,
        help="Listen on this port, as name server and broker; 0 chooses a free port.",
    ),
]  # fmt: skip
Bind = Annotated[
    str,
    typer.Option(
        "--bind", metavar="ADDRESS",
        help="Listen on this address; 0.0.0.0 means every address of this machine. Anyone who can"
            " reach the port can read all messages.",
    ),
]  # fmt: skip
Advertise = Annotated[
    str | None,
    typer.Option(
        "--advertise", metavar="HOST[:PORT]",
        help="Give clients this address in routes. Default: the address that the client connected to.",
    ),
]  # fmt: skip
BrokerName = Annotated[
    str | None,
    typer.Option(
        "--broker-name", metavar="NAME",
        help="Broker name that clients see. Default: that of broker.conf, or broker-a.",
    ),
]  # fmt: skip
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster-name", metavar="NAME",
        help="Cluster name that clients see. Default: that of broker.conf, or DefaultCluster.",
    ),
]  # fmt: skip
Offsets = Annotated[
    Path | None,
    typer.Option(
        "--offsets", metavar="FILE",
        help="Load committed offsets from FILE, which must be outside STORE, and save there what"
            " consumers commit. By default committed offsets are lost at exit.",
    ),
]  # fmt: skip
Start = Annotated[
    str,
    typer.Option(
        "--start", metavar="earliest|latest|broker",
        help="Where a group without a committed offset begins. earliest: at the oldest message."
            " latest: at the end, unless consumeFromWhere of its consumers says otherwise. broker: as a"
            " broker decides: earliest for a queue that begins at offset 0 and whose first message the broker"
            " would hold in memory, otherwise latest.",
    ),
]  # fmt: skip
Live = Annotated[
    bool,
    typer.Option("--live", help="Follow a store that another program writes, and serve its new messages."),
]
MaxMessages = Annotated[
    int,
    typer.Option(
        "--max-messages", metavar="N", min=1, max=1024,
        help="Send at most N messages in response to one pull.",
    ),
]  # fmt: skip
Metrics = Annotated[
    int | None,
    typer.Option(
        "--metrics", metavar="PORT", min=0, max=65_535,
        help="Serve metrics for Prometheus on this port, at the path /metrics.",
    ),
]  # fmt: skip
VipChannel = Annotated[
    bool,
    typer.Option(
        "--vip-channel/--no-vip-channel",
        help="Also listen two ports below --port, as a broker does: the dashboard, and clients"
            " with vipChannelEnabled, connect there. Default: --vip-channel, unless --port is 0 or that port"
            " is in use.",
    ),
]  # fmt: skip
TlsCert = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert", metavar="FILE", help="Accept only TLS connections, with this certificate (PEM)."
    ),
]
TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="Private key of --tls-cert (PEM).")
]


@with_groups
def serve(
    *,
    store: options.StoreOptions,
    port: Port = 10_911,
    bind: Bind = "127.0.0.1",
    advertise: Advertise = None,
    broker_name: BrokerName = None,
    cluster_name: ClusterName = None,
    offsets: Offsets = None,
    start: Start = "earliest",
    live: Live = False,
    max_messages: MaxMessages = 32,
    metrics: Metrics = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    vip_channel: VipChannel = True,
    shown: Annotated[options.OutputOptions, Only("quiet progress")],
) -> int:
    """Serve a store to RocketMQ clients, without a broker.

    Consumers, mqadmin and the dashboard connect to the port as to a name server, and get routes that name
    the same port as the only broker. The dashboard also connects two ports below it. Push, pull, lite and
    orderly consumers read any topic, with tags and SQL92 filters, from committed offsets, from a time, or
    from the start. With --live, pull requests wait for new messages; without it none arrive.

    STORE is never changed: sends and administration are refused with RocketMQ's codes. If a consumer
    returns RECONSUME_LATER, the client itself delivers the message again. What consumers commit is kept in
    memory, or in the file of --offsets. Groups begin with the offsets that the store has.

    Every record is checked before it is sent: size, place, topic, queue and CRC. Consumers do not do that.
    A damaged record is left out and reported.

    On a terminal a line shows connections, groups and rates.

    serve checks neither users nor permissions. POP consumers and the gRPC protocol are not served. An offset
    message id holds the address of the old broker: mqadmin can look it up only if serve has that address.

    Exits with 0 when stopped by SIGINT, SIGTERM or SIGHUP; 1 if records were left out; 2 for a usage error,
    such as a port that is taken; 3 if the store or a file cannot be read, or if committed offsets could
    not be written to the file of --offsets; 4 if --offsets names a file in the store, or
    something other than a plain file.
    """
    from rmqtool.net.serve import STARTS, Options

    begin = next((each for each in STARTS if each == start), None)
    if begin is None:
        raise UsageError(f"--start {start} is not one of {', '.join(STARTS)}")
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together")
    chosen = Options(
        bind, port, advertise, cluster_name, broker_name, offsets, begin, live, max_messages, metrics,
        None if tls_cert is None or tls_key is None else (tls_cert, tls_key), vip_channel,
    )  # fmt: skip

    with shown.writer().progress("serving", None) as bar:
        return _serve(store, chosen, bar, quiet=shown.quiet)


def _serve(store: options.StoreOptions, chosen: Options, bar: ProgressBar, *, quiet: bool) -> int:
    from rmqtool.net.ha_connection import Address
    from rmqtool.net.serve import run
    from rmqtool.terminal import print_error

    def note(text: str) -> None:
        bar.hide()
        print_error(f"rmqtool: {text}")

    def started(served: Served) -> None:
        if quiet:
            return
        where = Address(chosen.host, served.port)
        note(f"{store.store} is served on {where}, for name server and broker; Ctrl-C ends it")
        if served.metrics_port is not None:
            note(f"metrics: http://{Address(chosen.host, served.metrics_port)}/metrics")

    served = run(lambda: store.open(quiet=True), chosen, note=note, started=started, tick=_Status(bar).tick)
    bar.hide(for_good=True)
    context = served.server.context
    counters = context.counters
    if not quiet:
        note(f"sent {counters.messages.total()} messages; left out {counters.left_out_total}")
    if context.offsets.is_changed:
        return EXIT_INPUT
    return EXIT_FINDINGS if counters.left_out_total else EXIT_OK


class _Status:
    """The status line: who is connected, and the messages and bytes that are sent."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._bytes = self._messages = 0
        self._at = time.monotonic()
        self._rate = 0.0

    def tick(self, served: Served) -> None:
        context, now = served.server.context, time.monotonic()
        messages = context.counters.messages.total()
        if now - self._at >= _RATE_SECONDS:
            self._rate = (messages - self._messages) / (now - self._at)
            self._messages, self._at = messages, now
        connections = counted(len(served.server.connections), "connection")
        groups = counted(len(context.clients.groups), "group")
        self._bar.describe(f"{connections}, {groups}, {self._rate:,.0f} messages/s")
        self._bar.advance(context.counters.bytes_sent - self._bytes)
        self._bytes = context.counters.bytes_sent
