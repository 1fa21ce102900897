"""The captioner as a tool of agents, by the Model Context Protocol."""
