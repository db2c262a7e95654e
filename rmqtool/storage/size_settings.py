"""The sizes of a store's files as JSON, and as the settings of broker.conf that give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqtool.storage.layout import SIZES, StoreLayout

Sizes = Mapping[str, Mapping[str, Any]]
"""By attribute of `SIZES`: its `value`, in bytes or as a number, and `from`; see `sizes_of`."""


def sizes_of(layout: StoreLayout) -> dict[str, dict[str, Any]]:
    """The sizes of a store, each with its source: flag, environment, file, detected or default.

    None as source: the layout is not that of a store.
    """
    return {name: {"value": getattr(layout, name), "from": layout.origins.get(name)} for name in SIZES}


def own_settings(sizes: Sizes) -> dict[str, str]:
    """The settings of the sizes that are not the defaults, as lines of broker.conf, by attribute."""
    return {
        name: f"{setting}={sizes[name]['value']}"
        for name, (setting, default) in SIZES.items()
        if sizes[name]["value"] not in (None, default)
    }


def settings_to_give(sizes: Sizes, other: Sizes) -> dict[str, str]:
    """The settings, as in `own_settings`, that another store shows and a store without files of a kind lacks.

    `recover` gives its new files the default size otherwise.
    """
    return {name: line for name, line in own_settings(other).items() if sizes[name]["from"] == "default"}
