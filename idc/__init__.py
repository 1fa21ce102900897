"""Image difference captioning: the pure library (no Ray, no MLflow)."""

__version__ = "0.1.0"
