"""`rmqtool send-log`: the log of a store, to brokers that are slaves, as a master without a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqtool.commands import options
from rmqtool.commands.groups import Only, with_groups
from rmqtool.commands.receive import parse_address
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK, RefusedError, UsageError

if TYPE_CHECKING:
    from rmqtool.net.send_log import LogSender, Slave

Listen = Annotated[
    str,
    typer.Option(
        "--listen", metavar="HOST:PORT", help="Wait for slaves at this address; port 0 chooses a free port."
    ),
]
SlaveAddress = Annotated[
    list[str] | None,
    typer.Option(
        "--slave", metavar="HOST:PORT",
        help="Make this running 5.x slave connect here; PORT is the one that clients use (repeatable).",
    ),
]  # fmt: skip
Controller = Annotated[bool, typer.Option("--controller", help="The slaves are in controller mode (5.x).")]
Once = Annotated[
    bool, typer.Option("--once", help="Stop when the first slave has acknowledged the whole log.")
]


@with_groups
def send_log(
    *,
    store: Annotated[options.StoreOptions, Only("store commitlog read_only_commitlog broker_conf")],
    listen: Listen = "127.0.0.1:10912",
    slave: SlaveAddress = None,
    controller: Controller = False,
    once: Once = False,
    shown: Annotated[options.ObjectOutput, Only("format json quiet")],
) -> int:
    r"""Send the log of a store to slaves: seed a new slave, or rescue one.

    Works without a broker. Listens for brokers of role SLAVE, and for `rmqtool receive --ha-only`, and
    sends them the commit log as a master in classic mode does. The store is only read. Another process may
    be writing it: what it appends is sent too. Each file is checked before it is sent, and sending stops
    before the first damaged record.

    A 4.x slave connects if its configuration has haMasterAddress=HOST:PORT with the address of --listen; no
    name server is needed. A 5.x slave ignores this setting: --slave makes it connect here while it runs,
    until a name server names another master.

    With --controller the slaves are brokers in controller mode. They receive the epochs of the store's
    epoch file, and truncate their log after the last epoch that both have.

    A slave without a log gets the whole log, from the first file on. A slave with a log gets what follows
    its end; the protocol does not compare what it has. Stop every other master of a slave first. Listen on
    an address that only slaves can reach: as with a broker, anyone who connects can read the log.

    Exits with 0 when it was stopped, or with --once when a slave has the whole log; 1 when no slave
    connected; 2 for a usage error; 3 when the address cannot be used, or the log cannot be read; 4 when the
    log is damaged: at its end, or where a slave needed it. With --once such a failure ends the command.
    """
    from rmqtool.net.ha_connection import Address
    from rmqtool.net.send_log import LogSender, SentLog, lead

    address = Address(*parse_address(listen))
    if slave and address.host in ("0.0.0.0", "::"):  # noqa: S104
        raise UsageError(f"--slave: a slave cannot connect to {address}",
                         hint="give --listen an address of this host")  # fmt: skip
    writer = shown.writer()
    with store.open(quiet=shown.quiet) as opened:
        if not opened.is_local or opened.layout.kind != "store":
            raise UsageError(f"{store.store} is not a store in a folder of this machine")
        log = SentLog(opened.layout)
        with LogSender(
            log, address, note=lambda text: writer.note(f"rmqtool: {text}"), controller=controller
        ) as sender:
            try:
                writer.note(f"rmqtool: sending {log.start} to {log.end}; slaves connect to {sender.address}")
                for each in slave or ():
                    lead(Address(*parse_address(each)), sender)
                sender.run(lambda: once and (_is_done(sender) or sender.failure is not None))
            except KeyboardInterrupt:
                if once:
                    raise
    writer.write_object({
        "store": str(store.store), "start_offset": log.start, "end_offset": log.end,
        "slaves": [_row(each) for each in sender.slaves],
    })  # fmt: skip
    failure, is_done = sender.failure, once and _is_done(sender)
    if failure is not None and not is_done and (once or isinstance(failure, RefusedError)):
        raise failure
    return EXIT_OK if sender.slaves else EXIT_FINDINGS


def _is_done(sender: LogSender) -> bool:
    return any(slave.acknowledged >= sender.log.end for slave in sender.slaves)


def _row(slave: Slave) -> dict[str, Any]:
    return {
        "address": str(slave.address), "asked_offset": slave.asked, "sent_offset": slave.sent,
        "acknowledged_offset": slave.acknowledged, "bytes": slave.bytes, "reason": slave.reason or None,
    }  # fmt: skip
