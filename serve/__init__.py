"""Serving: a trained captioner as a web page and an HTTP interface, on Ray Serve."""
