"""Cost tables as files: where they lie, what is in them, whether they fit, how they differ."""
