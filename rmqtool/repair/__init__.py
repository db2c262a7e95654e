"""Changes of a store that are planned first: salvage, rebuild, recover, expire.

`plan` applies and undoes them.
"""

__all__ = ["expire", "plan", "rebuild", "recover"]
