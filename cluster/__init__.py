"""The Ray adapters: the only Python beside ``serve/app.py`` that imports Ray."""
