"""Readers: what brings data sets from outside into the one format, one module per layout."""
