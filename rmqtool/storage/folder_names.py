"""Which topics can have a queue: the folder of a queue has the name of its topic.

A record may contain any topic. Queues of `..`, `.`, `a/b` or a name that is too long are never read or
written: their path would lead to another place, or be invalid.

Source: StorePathConfigHelper#getStorePathConsumeQueue, ConsumeQueue's constructor; spec 01 section 1.
"""

from __future__ import annotations

from rmqtool.formats.java import java_utf8_encode

NAME_BYTES_MAX = 255


def can_be_folder(name: str) -> bool:
    """Whether a folder can have this name and stays inside its parent folder."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    return len(java_utf8_encode(name)) <= NAME_BYTES_MAX
