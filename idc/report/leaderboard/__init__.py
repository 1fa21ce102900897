"""The leaderboard: runs and published rows in one table per data set, split, subset and protocol."""
