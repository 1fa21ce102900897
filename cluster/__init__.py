"""The Ray adapters: with ``serve/app.py`` and ``serve/deployment/`` the only modules that import Ray."""
