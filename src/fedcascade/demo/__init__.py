"""A live demo on top of the service: simulated users and a shop window."""
