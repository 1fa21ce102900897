"""The page of a sweep, with the numbers of the paper's table."""
