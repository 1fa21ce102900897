"""The page of a checked data set."""
