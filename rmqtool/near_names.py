"""Names to give instead of one that is not there, as texts for hints."""

from __future__ import annotations

from collections.abc import Collection, Sequence

NAMED = 8
"""So many names a hint lists at most."""


def listed(names: Sequence[str]) -> str:
    """The names, or the first of them and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def near_or_listed(name: str, known: Collection[str], what: str, first: Sequence[str] | None = None) -> str:
    """`nearest:` and the names that resemble `name`; if none does, `what` and the names.

    The two are told apart, because a reader takes what is listed without `nearest` for all there are.

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
