"""Self-contained HTML pages: of a run, a sweep, a data set, robustness, and the leaderboard."""
