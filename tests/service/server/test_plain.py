"""What is read without HTTP's parser, the parser reads the same."""

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedcascade.service.protocol import wire
from fedcascade.service.server.http import END, MOST_HEAD_BYTES, MOST_HEADERS, read_plain_head

START = f"POST {wire.EXCHANGES} HTTP/1.1\r\n".encode()
STARTS = st.sampled_from([START, START.replace(b"/v1", b"/t/home/v1")])
BODIES = st.sampled_from([b"hi", b"", b"hi!", b"hiPOST / HTTP/1.1\r\n\r\n"])
LINES = st.sampled_from(
    [b"Host: a", b"host: b", b"content-type: application/msgpack", b"Content-Length: 2", b"content-length: 3",
     b"content-length: 02", b"content-length:2", b"Content-Length : 2", b"content-length: 2 ", b"content-length: +2",
     b"transfer-encoding: chunked", b"connection: close", b"connection: keep-alive", b"Connection: Keep-Alive, upgrade",
     b"expect: 100-continue", b"upgrade: websocket", b"origin: https://a", b"x: ", b"x:", b": y", b"x: \x00",
     b"x: \xff", b" folded: 1", b"x: a\rb", b"x: a\nb", b"x y: z", b"signature: agent=:a: b:", b"x: \t",
     b"te: trailers", b"x: a:b"]
)  # fmt: skip


class Reader:
    """Collects what HTTP's parser finds."""

    def __init__(self) -> None:
        self.url, self.body, self.headers = b"", b"", list[tuple[bytes, bytes]]()
        self.ended = 0

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended += 1


@settings(deadline=None, max_examples=400)
@given(
    STARTS,
    st.lists(LINES, max_size=5),
    st.sampled_from([b"hi", b"", b"hi!", b"hiPOST / HTTP/1.1\r\n\r\n"]),
    st.binary(),
)
@example(START, [b"host: a", b"content-length: 2"], b"hi", b"")
def test_what_is_read_here_the_parser_reads_the_same(
    start: bytes, lines: list[bytes], body: bytes, noise: bytes
) -> None:
    data = start + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body
    place = len(noise) * 7 % len(data)
    for request in (data, data[:place] + noise + data[place:]):
        head, _, rest = request.partition(END)
        plain = read_plain_head(head)
        if plain is not None and plain[2] == len(rest) and head != request:
            reader = Reader()
            parser = httptools.HttpRequestParser(reader)
            parser.feed_data(request)
            assert (reader.ended, parser.get_method()) == (1, b"POST")
            assert reader.url.decode() == plain[0] + wire.EXCHANGES
            assert parser.get_http_version() == "1.1"
            assert parser.should_keep_alive()
            assert not parser.should_upgrade()
            headers = {name.lower().decode(): value.decode() for name, value in reader.headers}
            assert (headers, reader.body, len(headers)) == (plain[1], rest, len(reader.headers))


def test_the_plainest_exchange_is_read() -> None:
    request = START + b"Host: a\r\nConnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi"
    headers = {"host": "a", "connection": "keep-alive", "content-length": "2"}
    assert read_plain_head(request.partition(END)[0]) == ("", headers, 2)


@pytest.mark.parametrize(
    "request_",
    [
        START + b"content-length: 2 \r\n\r\nhi",
        START + b"content-length: 02\r\n\r\nhi",
        START + b"content-length: 2\r\ncontent-length: 2\r\n\r\nhi",
        START + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\nhi",
        START + b"content-length: 2\r\nconnection: close\r\n\r\nhi",
        START + b"host: a\r\n\r\n",
        START.replace(b"1.1", b"1.0") + b"content-length: 2\r\n\r\nhi",
        START.replace(b"exchanges", b"exchanges?") + b"content-length: 2\r\n\r\nhi",
        START + b"content-length: 2\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(MOST_HEADERS)) + b"\r\nhi",
        START + b"content-length: 2\r\nx: " + b"y" * MOST_HEAD_BYTES + b"\r\n\r\nhi",
    ],
)
def test_everything_else_is_left_to_the_parser(request_: bytes) -> None:
    assert read_plain_head(request_.partition(END)[0]) is None
