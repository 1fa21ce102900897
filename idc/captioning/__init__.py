"""Uses of any captioner: one pair, a split, a table, calibration."""
