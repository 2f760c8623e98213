"""A live demo on top of the service: simulated users, a shop, yardsticks. Nothing in ``service`` imports it."""
