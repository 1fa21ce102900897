"""Data sets: folders of Parquet parts, how they are made, checked and read.

``store`` folders of Parquet parts · ``pipeline`` chunks of work through stages · ``files`` paths and URIs · ``images``,
``text`` the two kinds of content · ``readers``, ``importing`` data sets of others · ``rows`` unchanged input rows ·
``validation`` checks · ``robustness`` perturbed sets · ``rendered`` our own scenes.
"""
