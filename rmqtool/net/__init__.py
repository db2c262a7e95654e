"""The protocols of RocketMQ over sockets; bytes <-> commands is in `formats/remoting`.

A store for stock clients. It is never written, and nothing in a request is used as a path:

    serve.py            `serve`: a store as name server and broker at once
    server.py           connections: frames in, answers out, limits
    requests.py         which function answers which request, and what is refused
    name_server.py      routes, clusters, lists of topics
    broker.py           offsets, times, single messages
    pulls.py            pulls, and those that wait for messages
    clients.py          consumers and their groups, subscriptions, locks
    offsets.py          committed offsets, and their file outside of the store
    administration.py   what mqadmin and the dashboard ask for
    view.py             the store as it is served: topics, and queues that grow
    records.py          what is sent of the log: every record is checked
    counters.py         what was done, as numbers and as Prometheus text

Replication:

    receive.py          a slave: the log of a master, into a store (ha_connection.py, replica.py, log_end.py)
    dispatching.py      queues and index of what was received
    log_archive.py      full files of the log, to an archive
    marks.py            up to where the log was dispatched and archived, in files of the store
    config_sync.py      the configuration of the master, in the order that loses nothing (broker_client.py)
    send_log.py         a master: the log of a store, to slaves
"""

__all__ = ["ha_connection", "metrics", "receive", "send_log", "serve"]
