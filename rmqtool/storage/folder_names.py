"""Which topics can have a queue: a queue's folder is called as its topic is.

A record may say any topic. No queue of `..`, `.`, `a/b` or a name that is too long is ever read or written:
its path would lead to another place, or to none.

Source: StorePathConfigHelper#getStorePathConsumeQueue, ConsumeQueue's constructor; spec 01 section 1.
"""

from __future__ import annotations

from rmqtool.formats.java import java_utf8_encode

NAME_BYTES_MAX = 255


def can_be_folder(name: str) -> bool:
    """Whether a folder can have this name, and lies in the folder that it is put into."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    return len(java_utf8_encode(name)) <= NAME_BYTES_MAX
