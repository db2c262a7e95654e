"""How full the disk is, by the broker's limits, when it will be full, and what its next deletion costs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from rmqtool.broker.expiry_rules import next_delete_time
from rmqtool.broker.expiry_settings import Settings, settings_of
from rmqtool.errors import FormatError, RmqtoolError
from rmqtool.read.store import Store
from rmqtool.repair.expire.expiry import Forecast, Request, forecast_now, plan_expiry
from rmqtool.report.doctor.diagnosis import Certainty, Diagnosis, Examination, Omission
from rmqtool.report.doctor.names import result
from rmqtool.sizes import format_size
from rmqtool.storage.listing import Listing
from rmqtool.times import DAY_MS, HOUR_MS, format_duration, format_time

_MEASURED_MIN_MS = 600_000  # a rate of less time says nothing about tomorrow
_SOON_MS = DAY_MS
_STALE_MS = HOUR_MS  # after so long without a message, the rate may not be that of today


def add_disk(store: Store, found: Examination, now_ms: int, *, is_live: bool) -> None:
    """Add how full the disk is, by the broker's limits, and when it will be full."""
    if not store.is_local or found.info["disk"] is None:
        found.omissions.append(Omission("how full the disk is", "the store is not on this machine"))
        return
    profile, conf = store.profile, store.layout.broker_conf
    try:
        settings = settings_of(conf, profile)
    except FormatError as error:
        found.diagnoses.append(result("delete_when", "certain", str(error.path), error.message))
        settings = Settings()
    log = found.info["commit_log"]
    if log is None:
        return
    forecast, disks = forecast_now(store, settings, (log["end_offset"], log["last_store_timestamp"]))
    fullest = max((disks.by_id[disk] for disk in disks.log if disk in disks.by_id),
                  key=lambda disk: disk.ratio, default=None)  # fmt: skip
    if fullest is None:
        if store.is_local and (folder := store.layout.commit_log_folders[0]).is_dir():
            store.note_unread(folder, "its disk cannot be examined")
        return
    refused = next(each.after_ms for each in forecast.reached if each.name == "warning_ratio")
    measured = (forecast.measured_to_ms or 0) - (forecast.measured_from_ms or 0)
    is_measured = measured >= _MEASURED_MIN_MS
    found.disk = {
        "used_ratio": fullest.ratio,
        "free_bytes": fullest.usable,
        "total_bytes": fullest.total + fullest.reserved,
        "reserved_bytes": fullest.reserved,
        "usage": found.info["disk"]["usage"],
        "max_used_ratio": settings.max_used_ratio,
        "forcible_ratio": settings.forcible_ratio,
        "refused_ratio": settings.warning_ratio,
        "store_bytes_per_second": forecast.store_bytes_per_s if is_measured else None,
        "refused_after_seconds": refused / 1000 if is_measured and refused is not None else None,
    }
    full = _full(str(store.layout.commit_log_folders[0]), fullest.ratio, settings)
    if full is not None:
        found.diagnoses.append(full)
    elif not is_measured:
        span = format_duration(measured)
        reason = f"the log covers only {span}" if measured else "the log has too few records"
        found.omissions.append(Omission("when the disk will be full", reason))
    elif refused is not None:
        last = forecast.measured_to_ms or 0
        certainty: Certainty = "likely" if is_live and now_ms - last < _STALE_MS else "possible"
        found.diagnoses += _fills(str(store.layout.commit_log_folders[0]), forecast, settings, certainty)
    if conf is not None:  # else fileReservedTime is not known
        with suppress(RmqtoolError):  # what keeps expire from planning is a result of its own
            found.diagnoses += _deletes_unread(store, settings, now_ms)


def _deletes_unread(store: Store, settings: Settings, now_ms: int) -> Iterator[Diagnosis]:
    """The next deletion takes messages that are still needed; not looked at while the first file is young."""
    at_ms, log = next_delete_time(settings, now_ms, None), store.layout.commit_log
    status = Listing().status(log[0].path) if len(log) > 1 else None
    if at_ms is None or status is None or at_ms < status.st_mtime * 1000 + settings.reserved_ms:
        return
    found = plan_expiry(store, Request(now_ms))
    files = sum(each.kind == "commitlog" for each in found.expired)
    messages, lost = sum(each.messages_going for each in found.effects.queues), found.losses
    for later in found.what_if if not files else ():
        if later.limit is None:
            files, messages, lost = later.log_files, later.messages, later.lost
    unread, pending = (sum(each.messages for each in rows) for rows in (lost.unconsumed, lost.pending))
    if unread or pending:
        when = "at once" if found.expired else f"at {format_time(at_ms, None)}"
        yield result(
            "deletes_unread", "likely", str(store.layout.commit_log_folders[0]),
            f"a broker with this broker.conf (fileReservedTime {settings.reserved_hours} h) deletes {files}"
            f" of {len(log)} log files {when}, with {messages} messages: groups have not read {unread} of"
            f" them, and {pending} wait inside the broker",
            detail={"log_files": files, "messages": messages, "unread": unread, "pending": pending},
        )  # fmt: skip


def _full(path: str, ratio: float, settings: Settings) -> Diagnosis | None:
    """The disk is above one of the broker's limits."""
    used = f"the disk of the commit log is {ratio:.0%} full"
    detail = {"used_ratio": ratio}
    if ratio > settings.warning_ratio:
        message = f"{used}; above {settings.warning_ratio:.0%} a broker refuses messages"
        return result("disk_full", "certain", path, message, detail=detail)
    if ratio > settings.forcible_ratio and settings.forcible:
        above = f"above {settings.forcible_ratio:.0%} a broker deletes the oldest files, however new"
        return result("disk_forces_deletion", "certain", path, f"{used}; {above}", detail=detail)
    if ratio > settings.max_used_ratio:
        message = f"{used}; above {settings.max_used_ratio:.0%} a broker deletes expired files at any hour"
        return result("disk_deletes_early", "certain", path, message, detail=detail)
    return None


def _fills(path: str, forecast: Forecast, settings: Settings, certainty: Certainty) -> Iterator[Diagnosis]:
    """The disk will be full before the files that are on it expire."""
    refused = next(each.after_ms for each in forecast.reached if each.name == "warning_ratio")
    fit, rate = forecast.hours_that_fit, forecast.store_bytes_per_s
    if refused is None or fit is None or rate is None or fit >= settings.reserved_hours:
        return
    yield result(
        "disk_fills", certainty, path,
        f"at {format_size(round(rate * 3600))} an hour the disk is {settings.warning_ratio:.0%} full in"
        f" {format_duration(refused)}; it has room for {fit:.0f} h of messages, and the broker wants to keep"
        f" {settings.reserved_hours} h (fileReservedTime)",
        severity="warning" if refused < _SOON_MS else "note",
        detail={"refused_after_ms": refused, "hours_that_fit": fit},
    )  # fmt: skip
