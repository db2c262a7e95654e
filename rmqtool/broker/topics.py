"""The numbers of topics, one table for the starts of all brokers."""

from __future__ import annotations

from rmqtool.formats.java import java_utf8_decode


class Topics:
    """Numbers topics in the order in which they are first seen; shared by all starts."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, name: bytes) -> int:
        """The number of a topic, by its bytes."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(java_utf8_decode(name))
        return number
