"""Spark registers the `DefaultSource` of every module named `pyspark_*` that it finds: nothing loads here."""


def __getattr__(name: str) -> object:
    """`DefaultSource`, loaded on first use. Raises AttributeError for any other name."""
    if name != "DefaultSource":
        raise AttributeError(name)
    from rmqtool.spark.source import RocketMQStoreSource

    return RocketMQStoreSource
