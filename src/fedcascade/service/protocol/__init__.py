"""What agents and server agree on: wire types, signatures, validation, refusals, OpenAPI."""
