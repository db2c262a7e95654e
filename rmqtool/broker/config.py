"""The configuration at a start: which parts of it a broker cannot read, and whether it ends because of that.

A broker reads its configuration before load(). It ends if neither a file nor its .bak can be parsed, or if
RocksDB cannot open a database of it, or cannot read its version. 5.4 also ends at a damaged block of the form
v1. 5.3, and both with the form v2, do not ask why the reading has ended: they start without what follows.

Source: ConfigManager#load, BrokerController#initializeMetadata, RocksDBConfigManager#init, #loadDataVersion,
#loadData, ConfigRocksDBStorage#iterate of 5.4.0; seen with its broker (interop_rocksdb.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from rmqtool.broker.rules import TIMER_METRICS
from rmqtool.formats import config_json
from rmqtool.formats.fastjson import READ_LIMIT
from rmqtool.storage.config_files import FOLDER
from rmqtool.storage.open_files import head_of
from rmqtool.storage.out_of_reach import side_databases

if TYPE_CHECKING:
    from rmqtool.broker.rules import StartRules
    from rmqtool.storage.layout import StoreLayout


class UnreadConfig(NamedTuple):
    """A part of the configuration that a broker cannot read, or of another database without queues.

    Attributes:
        path: of the file, or of the folder of the database, relative to the store root.
        reason: why, with the path, for a person.
        problem: the code of verify.
        ends: whether the broker ends; otherwise it starts without what it cannot read.
    """

    path: str
    reason: str
    problem: str
    ends: bool

    def row(self) -> dict[str, object]:
        """As JSON."""
        return self._asdict()


def unread_config(layout: StoreLayout, rules: StartRules) -> tuple[UnreadConfig, ...]:
    """The parts of the configuration that a broker cannot read; those on which it ends first.

    Args:
        layout: of a store root.
        rules: the broker's.
    """
    found = [*_files(layout, rules), *(_databases(layout, rules) if rules.reads_rocksdb else ())]
    return tuple(sorted(found, key=lambda each: not each.ends))


def _files(layout: StoreLayout, rules: StartRules) -> Iterator[UnreadConfig]:
    conf = layout.broker_conf
    has_timer = conf is None or conf.flag("timerWheelEnable", default=True)
    for name in rules.config_files:
        if (has_timer or name != TIMER_METRICS) and loaded_config(layout, name).source == "failed":
            path = f"{FOLDER}/{name}"
            yield UnreadConfig(path, f"neither {path} nor its .bak can be parsed", "CF02", True)


def _databases(layout: StoreLayout, rules: StartRules) -> Iterator[UnreadConfig]:
    for database in side_databases(layout):
        if database.lost_edits(is_clean=layout.abort is None):
            path = layout.relative(database.folder)
            yield UnreadConfig(path, f"a part of {path} is no longer in its MANIFEST", "RD15", False)
    for part in layout.unsupported:
        if part.what != "config" or not part.reason:
            continue
        from rmqtool.storage.rocksdb.config import ending_error

        path = layout.relative(part.path)
        error = ending_error(part.path, checks_blocks=rules.checks_config_blocks)
        if error is None:
            yield UnreadConfig(path, f"a part of {path} cannot be read ({part.reason})", "RD10", False)
        else:
            reason = error.message.removeprefix("cannot read: ")
            yield UnreadConfig(path, f"RocksDB cannot read {path} ({reason})", "RD10", True)


def loaded_config(layout: StoreLayout, name: str) -> config_json.Loaded:
    """The content that a broker reads from a config file and its .bak."""
    names = (name, f"{name}.bak")
    file, bak = (head_of(layout.config[n], READ_LIMIT) if n in layout.config else None for n in names)
    return config_json.load_with_bak(name, file, bak)
