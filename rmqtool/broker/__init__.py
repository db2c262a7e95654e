"""What a broker does: how its start changes a store, and which files it lets expire. Nothing here writes."""

__all__ = ["expiry_rules", "expiry_settings", "predict", "prediction", "rules"]
