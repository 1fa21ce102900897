"""The page of described pairs."""
