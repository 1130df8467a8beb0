"""The plan: how every budget is spread over the rounds, before anything is spent."""
