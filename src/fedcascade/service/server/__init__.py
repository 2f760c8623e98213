"""The server process: state, writer, operations, verifier and HTTP application."""

from fedcascade.checks import require_extra

require_extra("server", "a server")
