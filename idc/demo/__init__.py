"""The demo: its steps and its summary."""
