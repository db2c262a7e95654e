"""Names to give instead of one that is not there, as texts for hints."""

from __future__ import annotations

from collections.abc import Collection, Sequence

NAMED = 8
"""So many names a hint lists at most."""


def listed(names: Sequence[str], most: int = NAMED) -> str:
    """The names, or the first `most` of them and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def near_or_listed(name: str, known: Collection[str], what: str, first: Sequence[str] | None = None) -> str:
    """`nearest:` and the names that resemble `name`; if none does, `what` and the names.

    The word `nearest` matters: without it, a reader takes the names for all that there are.

    Args:
        name: what was given.
        known: the names that there are.
        what: introduces the list, for instance `topics are`.
        first: the names in the order in which they are listed. Default: `known`, sorted.
    """
    from difflib import get_close_matches

    near = get_close_matches(name, known)
    if near:
        return f"nearest: {', '.join(near)}"
    return f"{what}: {listed(sorted(known) if first is None else first) or 'none'}"
