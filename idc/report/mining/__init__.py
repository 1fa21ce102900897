"""The page of mined pairs."""
