"""Data sets: folders of Parquet parts (``store``), how they are made (``pipeline``, ``readers``, ``importing``), and
checked (``validation``)."""
