"""What would another system have earned? Estimates from a log, with intervals."""
