"""The same protocol over a network: a server that loses nothing, agents that work offline."""

from importlib.util import find_spec

_missing = [name for name in ("httpx2", "msgspec", "nacl") if find_spec(name) is None]
if _missing:
    raise ImportError(f"the service needs {', '.join(_missing)}: pip install 'fedcascade[service]'")
