"""Off-policy evaluation: estimates of a policy's reward from a log, with intervals."""
