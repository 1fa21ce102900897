"""The report of a run: one HTML page that holds everything it shows."""
