"""Changes of a store that are planned first: salvage, rebuild, recover, expire, offsets of groups.

`plan` applies and undoes them.
"""

__all__ = ["expire", "plan", "rebuild", "recover", "reset_offset"]
