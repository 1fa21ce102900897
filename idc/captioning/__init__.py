"""What one does with any captioner: one pair, a split, a table, calibration."""
