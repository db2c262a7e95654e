"""The first look at a store: what is wrong, how sure that is, what it costs and what to run next.

diagnosis.py   the values: a diagnosis, what was omitted, a start, the whole examination
examine.py     what is read, as far as a limit permits
findings.py    what the findings of `verify` mean, and which repair fits this store
starts.py      what the start of each broker would do
disk.py        how full the disk is, and when it will be full
host.py        what the broker's host says about the store
names.py       results that have a name instead of a finding's code: what each costs, and its cure
"""

__all__ = ["diagnosis", "examine", "host", "names"]
