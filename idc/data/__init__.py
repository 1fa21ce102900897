"""Data sets: what a pair looks like at rest, how it gets there, and how it is read back.

``store`` folders of Parquet parts · ``pipeline`` chunks of work through stages · ``images``, ``text`` the two
kinds of content · ``clevr_change``, ``own`` readers · ``validate`` the checks of a data set · ``rendered`` our scenes.
"""
