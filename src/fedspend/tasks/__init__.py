"""What a model is trained for: a loss, and metrics that say how good it is."""
