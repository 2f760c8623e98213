"""The protocol between agents and the server: uploads, groups, answers."""
