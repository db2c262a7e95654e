"""The first look at a store: what is wrong, how sure that is, what it costs and what to run next.

diagnosis.py   the values: a diagnosis, what was omitted, a start, the whole examination
examine.py     what is read, as far as a limit permits
findings.py    what the findings of `verify` mean, and which repair fits this store
starts.py      what the start of each broker would do
disk.py        how full the disk is, and when it will be full
host.py        what the broker's host says about the store
names.py       what the names of results mean that are not codes of findings
"""

__all__ = ["diagnosis", "examine", "host", "names"]
