"""The settings of a broker's expiry from broker.conf, with the defaults of MessageStoreConfig.

Source: MessageStoreConfig, DefaultMessageStore.CleanCommitLogService (#getDiskSpaceWarningLevelRatio,
#getDiskSpaceCleanForciblyRatio), read in the classes of 4.9.7, 5.3.3 and 5.4.0; spec 02 section 7.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any, Literal

from rmqtool.errors import FormatError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern
from rmqtool.storage.broker_conf import BrokerConf
from rmqtool.storage.profile import Profile
from rmqtool.times import HOUR_MS

INTERVALS: tuple[tuple[str, str, int], ...] = (
    ("clean_interval_ms", "cleanResourceInterval", 10_000),
    ("delete_log_interval_ms", "deleteCommitLogFilesInterval", 100),
    ("delete_queue_interval_ms", "deleteConsumeQueueFilesInterval", 100),
    ("destroy_interval_ms", "destroyMapedFileIntervalForcibly", 120_000),
    ("redelete_interval_ms", "redeleteHangedFileInterval", 120_000),
)
_HOUR = pattern(r"[+-]?[0-9]{1,9}", re.ASCII)
_DOUBLE = pattern(r"[ \t]*(?:[0-9]{1,9}(?:\.[0-9]{0,17})?|\.[0-9]{1,17})[ \t]*", re.ASCII)

Origin = Literal["file", "default"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The numbers that decide which files are deleted.

    Ratios are parts of 1, after the limits that the broker applies. `origins` maps each name to `file`
    (broker.conf) or `default`; `configured` holds values of broker.conf that the broker limits or ignores.

    Attributes:
        reserved_hours: fileReservedTime; a file is deleted if its mtime is at least so long ago.
        delete_hours: deleteWhen; local hours, 0 to 23 (others never come).
        max_used_ratio: diskMaxUsedSpaceRatio, limited to 10..95 %: above it, files that are old enough are
            deleted at any hour.
        forcible_ratio: above it files are deleted whatever their age.
        warning_ratio: above it the broker also refuses messages.
        forcible: cleanFileForciblyEnable.
        batch_files: most log files per pass; always 10 in 4.x.
        replicas_per_disk: replicasPerDiskPartition (5.x): number of brokers that share the disk.
        shared_forcible_ratio: logicalDiskSpaceCleanForciblyThreshold: the forcible ratio if they share it.
        clean_interval_ms: from pass to pass.
        delete_log_interval_ms, delete_queue_interval_ms: from file to file.
        destroy_interval_ms: how long the broker waits for readers of a file.
        redelete_interval_ms: how often it tries again to delete a first file.
    """

    reserved_hours: int = 72
    delete_hours: tuple[int, ...] = (4,)
    max_used_ratio: float = 0.75
    forcible_ratio: float = 0.85
    warning_ratio: float = 0.90
    forcible: bool = True
    batch_files: int = 10
    replicas_per_disk: int = 1
    shared_forcible_ratio: float = 0.8
    clean_interval_ms: int = 10_000
    delete_log_interval_ms: int = 100
    delete_queue_interval_ms: int = 100
    destroy_interval_ms: int = 120_000
    redelete_interval_ms: int = 120_000
    origins: dict[str, Origin] = field(default_factory=dict)
    configured: dict[str, Any] = field(default_factory=dict)

    @property
    def reserved_ms(self) -> int:
        """The time for which a file is kept after its last change, ms."""
        return self.reserved_hours * HOUR_MS


def settings_of(conf: BrokerConf | None, profile: Profile) -> Settings:
    """The settings of a broker of `profile` that was started with `conf`; None: the defaults.

    4.x does not read its two upper ratios and the batch from the file. Ratios from system properties of the
    Java process are unknown here.

    Raises:
        FormatError: the broker cannot parse deleteWhen; it would never delete anything.
    """
    reader = _Reader(conf)
    is_5 = profile.has_timer
    values: dict[str, Any] = {
        "reserved_hours": reader.integer("reserved_hours", "fileReservedTime", 72),
        "delete_hours": reader.hours("delete_hours", "deleteWhen", (4,)),
        "max_used_ratio": reader.percent("max_used_ratio", "diskMaxUsedSpaceRatio", 75, (10, 95)),
        "forcible": reader.flag("forcible", "cleanFileForciblyEnable", True),
    }
    for name, setting, default in INTERVALS:
        values[name] = reader.integer(name, setting, default)
    if is_5:
        values |= {
            "forcible_ratio": reader.percent("forcible_ratio", "diskSpaceCleanForciblyRatio", 85, (30, 85)),
            "warning_ratio": reader.percent("warning_ratio", "diskSpaceWarningLevelRatio", 90, (35, 90)),
            "batch_files": max(reader.integer("batch_files", "deleteFileBatchMax", 10), 1),
            "replicas_per_disk": reader.integer("replicas_per_disk", "replicasPerDiskPartition", 1),
            "shared_forcible_ratio": reader.double(
                "shared_forcible_ratio", "logicalDiskSpaceCleanForciblyThreshold", 0.8
            ),
        }
    return Settings(**values, origins=reader.origins, configured=reader.configured)


class _Reader:
    """Reads values of a broker.conf and notes their origins."""

    def __init__(self, conf: BrokerConf | None) -> None:
        self._conf = conf
        self.origins: dict[str, Origin] = {}
        self.configured: dict[str, Any] = {}

    def _text(self, name: str, setting: str) -> str | None:
        text = self._conf.values.get(setting) if self._conf is not None else None
        self.origins[name] = "default" if text is None else "file"
        return text

    def _ignored(self, name: str, text: str) -> None:
        """Note a value that a broker silently ignores; it keeps its default."""
        self.origins[name] = "default"
        self.configured[name] = text[:40]

    def integer(self, name: str, setting: str, default: int) -> int:
        text = self._text(name, setting)
        if self._conf is None or text is None:
            return default
        value = self._conf.integer(setting)
        if value is None:
            self._ignored(name, text)
        return default if value is None else value

    def double(self, name: str, setting: str, default: float) -> float:
        text = self._text(name, setting)
        if text is None:
            return default
        if _DOUBLE.fullmatch(text):
            return float(text)
        self._ignored(name, text)
        return default

    def flag(self, name: str, setting: str, default: bool) -> bool:
        text = self._text(name, setting)
        return default if self._conf is None or text is None else self._conf.flag(setting)

    def percent(self, name: str, setting: str, default: int, limits: tuple[int, int]) -> float:
        """A percentage within `limits`, as a part of 1."""
        given = self.integer(name, setting, default)
        low, high = limits
        if not low <= given <= high:
            self.configured[name] = given
        return min(max(given, low), high) / 100

    def hours(self, name: str, setting: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Hours separated by `;`; trailing empty pieces are dropped. Source: UtilAll#isItTimeToDo.

        An empty text gives no hours.
        """
        text = self._text(name, setting)
        if text is None:
            return default
        kept = text.rstrip(";")
        pieces = kept.split(";") if kept else []
        wrong = [piece for piece in pieces if not _HOUR.fullmatch(piece)]
        if wrong:
            assert self._conf is not None, "there is a text"
            raise FormatError(f"{setting}={wrong[0][:40]!r} cannot be read by a broker", path=self._conf.path)
        return tuple(dict.fromkeys(map(int, pieces)))
