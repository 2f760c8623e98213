"""The agent next to a user: remote agent, local store, client, transports."""
