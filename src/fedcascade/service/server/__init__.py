"""The server: state, writer, operations, verifier process, HTTP application."""

from fedcascade.checks import require_extra

require_extra("server", "a server")
