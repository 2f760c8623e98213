"""The server: state, writer, operations, verifier process, HTTP application."""
