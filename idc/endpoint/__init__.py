"""Chat endpoints that speak OpenAI's protocol: the client, its bounds, the log of answers."""
