"""The wire between brokers, clients and slaves.

receive.py          a slave: the log of a master, into a store (ha_connection.py, replica.py, log_end.py)
config_sync.py      the configuration of the master, in the order that loses nothing (broker_client.py)
send_log.py         a master: the log of a store, to slaves
"""

__all__ = ["broker_client", "ha_connection", "receive", "send_log"]
