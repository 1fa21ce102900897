"""Rewards of captions, and the loss of a group of captions: shared by all captioners that are tuned by rewards."""
