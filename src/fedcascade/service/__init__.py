"""The same protocol over a network: a server that loses nothing, agents that work offline."""

from fedcascade.checks import require_extra

require_extra("agent", "an agent")
