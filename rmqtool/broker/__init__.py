"""Models of a broker: how its start changes a store, and which files it deletes. Nothing here writes."""

__all__ = ["config", "expiry_rules", "expiry_settings", "predict", "prediction", "rules"]
