"""The parameters of `recover`; a plan file contains them, so that the plan can be made again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal, cast, get_args

from rmqtool.broker.rules import DEFAULT_HEAP_BYTES
from rmqtool.errors import FormatError, UsageError
from rmqtool.formats.versions import BROKERS, Broker
from rmqtool.lazy_dataclass import dataclass

Mode = Literal["best", "broker"]
Fill = Literal["records", "none"]


@dataclass(frozen=True, slots=True)
class Request:
    """How to recover.

    Attributes:
        mode: `best` keeps every valid record, `broker` cuts the log where a broker's start would.
        broker: whose start; only for mode `broker`.
        fill: `records` puts fillers into holes, `none` cuts the log at the first hole; only for mode `best`.
        broker_heap_bytes: the heap (-Xmx) of a broker whose start is predicted; a plan of mode `best` does
            not depend on it.

    Raises:
        UsageError: values that cannot be combined.
    """

    mode: Mode = "best"
    broker: Broker | None = None
    fill: Fill = "records"
    broker_heap_bytes: int = DEFAULT_HEAP_BYTES

    def __post_init__(self) -> None:
        """Check the combination of values. Raises UsageError."""
        if self.mode == "broker" and self.broker is None:
            raise UsageError("--mode broker needs one version", hint="--broker 4.9, 5.3 or 5.4")
        if self.mode == "best" and self.broker is not None:
            raise UsageError("mode best is the same for every broker")
        if self.mode == "broker" and self.fill != "records":
            raise UsageError("--fill is for --mode best: a broker fills nothing")

    def options(self) -> dict[str, Any]:
        """As JSON, for `Plan.options`."""
        return asdict(self)

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> Request:
        """The inverse of `options`, for untrusted input.

        Raises:
            FormatError: these are not the options of a recover plan.
        """
        allowed = {"mode": get_args(Mode), "broker": (None, *BROKERS), "fill": get_args(Fill)}
        for name, values in allowed.items():
            if name not in options or options[name] not in values:
                raise FormatError(f"the plan's {name} is not an option of recover")
        heap = options.get("broker_heap_bytes", DEFAULT_HEAP_BYTES)  # older plans do not name it
        if not isinstance(heap, int) or isinstance(heap, bool) or heap <= 0:
            raise FormatError("the plan's broker_heap_bytes is not a number of bytes")
        try:
            return cls(
                cast(Mode, options["mode"]),
                cast(Broker | None, options["broker"]),
                cast(Fill, options["fill"]),
                heap,
            )
        except UsageError as error:
            raise FormatError(f"the plan's options do not go together: {error.message}") from error
