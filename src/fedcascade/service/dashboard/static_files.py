"""The files that a server sends to browsers: compressed once, with entity tags; the agent's modules as one bundle."""

import gzip
import re
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from importlib.resources import files

from litestar import Response

from fedcascade.service.dashboard.bundle import bundle
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.service import HttpRequest

try:
    import brotli  # type: ignore[import-untyped]
except ImportError:  # a server without it sends gzip
    brotli = None

MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
IMMUTABLE = "public, max-age=31536000, immutable"
AGENT = "fedcascade.service.agent"
AGENT_NAME = re.compile(r"index(-[0-9a-f]{16})?\.js")


@dataclass(frozen=True)
class StaticFile:
    """A file with its entity tag and those compressed forms that are smaller."""

    body: bytes
    media: str

    @cached_property
    def tag(self) -> str:
        """The start of the digest of the content."""
        return sha256(self.body).hexdigest()[:16]

    @cached_property
    def encodings(self) -> dict[str, bytes]:
        """The forms of the file by content coding, smallest first."""
        forms = {"gzip": gzip.compress(self.body, 9, mtime=0)}
        if brotli is not None:
            forms = {"br": brotli.compress(self.body), **forms}
        return {coding: form for coding, form in forms.items() if len(form) < len(self.body)}

    def send(self, request: HttpRequest, **headers: str) -> Response[bytes]:
        """Send the file in the best form that the caller accepts, or 304 if the caller has it."""
        accepted = {each.partition(";")[0].strip() for each in request.headers.get("accept-encoding", "").split(",")}
        coding = next((coding for coding in self.encodings if coding in accepted), None)
        tag = f'"{self.tag}{f"-{coding}" if coding else ""}"'
        sent = {**HEADERS, "etag": tag, "vary": "accept-encoding, origin"} | headers
        if tag in re.split(r", *(?:W/)?", request.headers.get("if-none-match", "").removeprefix("W/")):
            return Response(b"", status_code=304, media_type=self.media, headers=sent)
        if coding:
            sent["content-encoding"] = coding
        return Response(self.encodings[coding] if coding else self.body, media_type=self.media, headers=sent)


@cache
def read_asset(package: str, name: str) -> StaticFile:
    """Read a file of a package's ``assets`` folder."""
    media = MEDIA_TYPES.get(name.rpartition(".")[2])
    file = files(package) / "assets" / name
    if media is None or "/" in name or not file.is_file():
        raise Refused(404, "request", "there is no such file")
    return StaticFile(file.read_bytes(), media)


@cache
def build_script(entry: str, *packages: str) -> StaticFile:
    """Bundle a script with the modules that it imports from the packages' ``assets``."""

    def read(name: str) -> str:
        holder = next((each for each in packages if (files(each) / "assets" / name).is_file()), packages[0])
        return read_asset(holder, name).body.decode("utf-8")

    return StaticFile(bundle(entry, read).encode(), MEDIA_TYPES["js"])


def name_agent() -> str:
    """Return the name of the agent's bundle, which changes with its content."""
    return f"index-{build_script('index', AGENT).tag}.js"


def send_agent_file(request: HttpRequest, name: str) -> Response[bytes]:
    """Send the agent's bundle, or one of its modules.

    A name with the digest of this bundle is cached for good. Under another digest, that of a server of another version,
    callers get this bundle and ask again next time.
    """
    if AGENT_NAME.fullmatch(name) is None:
        return read_asset(AGENT, name).send(request)
    own = name_agent()
    kept = {"cache-control": IMMUTABLE} if name == own else {}
    return build_script("index", AGENT).send(request, **kept, **{"content-location": own})
