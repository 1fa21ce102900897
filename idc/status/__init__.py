"""The state of work: what runs, where, how far, until when and for how much; read from the folders of runs and data."""
