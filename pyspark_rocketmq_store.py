"""Spark registers the `DefaultSource` of every module named `pyspark_*` that it finds: nothing loads here."""


def __getattr__(name: str) -> object:
    """`DefaultSource`, when it is asked for."""
    if name != "DefaultSource":
        raise AttributeError(name)
    from rmqtool.spark.source import RocketMQStoreSource

    return RocketMQStoreSource
