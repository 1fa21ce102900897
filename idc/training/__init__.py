"""The one training loop, for every system: it knows tasks, contexts and engines, and neither Ray nor a system."""
