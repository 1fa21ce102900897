"""The page of a captioner on corrupted and swapped pairs."""
