"""The protocol of agents and server: wire types, signatures, validation, refusals, OpenAPI."""
