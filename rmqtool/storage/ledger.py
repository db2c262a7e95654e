"""The folder of a DLedger log: its data, the index of its entries, and the files with its state.

    dledger-SELFID/data/ or storePathDLedgerCommitLog    entries with the records, files named by offset
    dledger-SELFID/index/                                index units, files named by byte offset
    dledger-SELFID/checkpoint, currterm                  text

A broker has one such folder, named by its dLegerSelfId. A store that was converted to DLedger also has
commit log files: the records before the first offset of the ledger.

Source: DLedgerConfig#getDefaultPath, DLedgerCommitLog's constructor; spec 06 6.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.broker_conf import BrokerConf
from rmqtool.storage.listing import Listing
from rmqtool.storage.storage import Place

PREFIX = "dledger-"
INDEX_FILE_SIZE = 5 * 1024 * 1024 * 32
"""Bytes of a file of the index of entries, which no setting changes."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """One DLedger log. `data` and `index` are (place, offset by its name, size), in the order of offsets.

    `data_strays` and `index_strays` are all other entries of the two folders. `checkpoint` and `term` are
    None if they do not exist.
    """

    folder: Path
    data_folder: Path
    data: tuple[tuple[Place, int, int], ...]
    data_strays: tuple[Path, ...]
    index: tuple[tuple[Place, int, int], ...]
    index_strays: tuple[Path, ...]
    checkpoint: Path | None
    term: Path | None


def ledger_folders(root: Path, listing: Listing) -> list[Path]:
    """The folders of DLedger logs in a store; not empty ones: a broker makes data/ and index/ at once."""
    folders = (root / name for name in sorted(listing.folders(root)) if name.startswith(PREFIX))
    return [folder for folder in folders if listing.names(folder) or listing.is_unreadable(folder)]


def is_ledger(folder: Path, listing: Listing) -> bool:
    """Whether a folder, outside of its store, is that of a DLedger log: its checkpoint is not a store's."""
    if "data" not in listing.folders(folder):
        return False
    return folder.name.startswith(PREFIX) or "currterm" in listing.names(folder)


def find_ledger(
    root: Path, listing: Listing, conf: BrokerConf | None, named: Sequence[Path]
) -> Ledger | None:
    """The DLedger log of the store at `root`; None without one, and if one of several is not named.

    Args:
        root: the store root.
        listing: lists its folders.
        conf: names the log if there are several.
        named: the folder of data, if broker.conf says where it is.
    """
    folders = ledger_folders(root, listing)
    own = conf.text("dLegerSelfId") if conf is not None else None
    if own is not None:
        folders = [folder for folder in folders if folder.name == PREFIX + own] or folders
    if len(folders) != 1:
        return None
    folder = folders[0]
    data_folder = named[0] if named else folder / "data"
    data, data_strays = listing.mapped_files(data_folder)
    index, index_strays = listing.mapped_files(folder / "index")
    names = listing.names(folder)
    return Ledger(
        folder, data_folder, tuple(data), tuple(data_strays), tuple(index), tuple(index_strays),
        folder / "checkpoint" if "checkpoint" in names else None,
        folder / "currterm" if "currterm" in names else None,
    )  # fmt: skip
