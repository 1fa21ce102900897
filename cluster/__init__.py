"""The Ray adapters: with ``serve/app.py``, the only modules that import Ray."""
