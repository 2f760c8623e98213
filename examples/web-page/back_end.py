"""The back end of a shop: it serves the page, and gives each user at most one enrolment token in ten minutes."""

import json
import os
import secrets
import time
import urllib.request
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SERVER = os.environ["FEDCASCADE_URL"]
OPERATOR = Path(os.environ["FEDCASCADE_TOKEN_FILE"]).read_text(encoding="utf-8").strip()
served: dict[str, float] = {}  # when each user last got a token


class BackEnd(SimpleHTTPRequestHandler):
    """A server of the files in this folder, and of tokens for any POST."""

    def end_headers(self) -> None:
        policy = f"default-src 'self'; script-src 'self' {SERVER}; connect-src 'self' {SERVER}"
        self.send_header("content-security-policy", policy)
        if "session=" not in self.headers.get("cookie", ""):  # use your own login instead
            self.send_header("set-cookie", f"session={secrets.token_hex(16)}; HttpOnly; SameSite=Strict")
        super().end_headers()

    def do_POST(self) -> None:
        user, now = self.headers.get("cookie", ""), time.monotonic()
        if not user or now - served.get(user, -600.0) < 600.0:
            self.send_error(429)
            return
        served[user] = now
        body = json.dumps({"protocol": 2, "count": 1, "valid_seconds": 600}).encode()
        headers = {"content-type": "application/json", "authorization": f"Bearer {OPERATOR}"}
        with urllib.request.urlopen(urllib.request.Request(f"{SERVER}/v1/enrolment-tokens", body, headers)) as reply:
            token = json.load(reply)["tokens"][0]
        self.send_response(201)
        self.end_headers()
        self.wfile.write(token.encode())


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8000"))), BackEnd)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
