"""Which units of light queues (`queue.light_queues`) a broker's start writes."""

from __future__ import annotations

from rmqtool.queue.light_entries import Named
from rmqtool.storage.profile import Profile
from rmqtool.write.options import WriteOptions


class LightRule:
    """Which light queues one broker dispatches: 5.x skips some topics, and queues with a `/`."""

    def __init__(self, profile: Profile, *, enabled: bool) -> None:
        self._options = WriteOptions(profile=profile, multi_dispatch=enabled)

    def of(self, named: tuple[Named, ...]) -> tuple[Named, ...]:
        """Those that the broker writes."""
        return tuple(filter(self._takes, named)) if named else ()

    def _takes(self, named: Named) -> bool:
        is_new = self._options.profile.writes_version_2
        return self._options.may_be_light(named.topic) and not (is_new and "/" in named.unit.topic)
