"""Reads an exchange that came in one piece and in the plainest form, which nearly all do, without HTTP's parser.

The parser calls Python for every header. Everything that this reads the parser would read the same; whatever can be
written in several ways, or changes how a request ends, is left to it.
"""

import re

from fedcascade.service.protocol import wire
from fedcascade.service.server.connections import MOST_HEAD_BYTES, MOST_HEADERS

_LINE = r"[A-Za-z0-9-]+: [!-~][ -~]*\r\n"
_HEAD = re.compile(rf"POST {wire.EXCHANGES} HTTP/1\.1\r\n((?:{_LINE}){{1,{MOST_HEADERS}}})\r\n".encode())
_UNUSUAL = frozenset({"transfer-encoding", "upgrade", "expect", "origin"})


def read_plain_exchange(data: bytes) -> tuple[dict[str, str], bytes] | None:
    r"""Headers and body if these bytes are one whole exchange in the plainest form, else None.

    >>> read_plain_exchange(b"POST /v1/exchanges HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi")
    ({'host': 'a', 'content-length': '2'}, b'hi')
    """
    match = _HEAD.match(data, 0, MOST_HEAD_BYTES)
    if match is None or b" \r\n" in match[1]:
        return None
    lines = match[1][:-2].decode("ascii").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(": ")
        headers[name.lower()] = value
    is_plain = (
        len(headers) == len(lines)
        and _UNUSUAL.isdisjoint(headers)
        and headers.get("connection", "keep-alive").lower() == "keep-alive"
        and headers.get("content-length") == str(len(data) - match.end())
    )
    return (headers, data[match.end() :]) if is_plain else None
