"""The application on Ray Serve. With ``serve/app.py`` the only modules of ``serve`` that import Ray."""
