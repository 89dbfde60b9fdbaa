"""The captured run: a model's forward pass as one call of the engine."""
