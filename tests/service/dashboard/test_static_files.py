"""The files for browsers: bundled without a change of meaning, compressed, and cached while they stay the same."""

import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import httpx2
import pytest

from fedcascade.service.dashboard.bundle import bundle
from fedcascade.service.dashboard.static_files import AGENT, IMMUTABLE, build_script

from ..helpers import RunningService, serve_in_process

# What a simple bundler gets wrong: marks of comments in texts, templates in templates, and private names that collide.
TRICKY = {
    "main.js": """// A comment.
import { half, name as other } from "./parts.js";
export { twice } from "./parts.js";

const name = "a // text", quoted = 'it\\'s /* one */'; /** @type {any} */
const nested = `${half(4)} /* kept */  ${`in ${[1, 2].map((n) => ({ n })).length }  out`} // kept`;
const pattern = /[/"]\\/\\/x/g.test('"//x'), division = half(8) / 2 / half(4);
const sum = 1 + +"2" - -3;
export const all = [name, quoted, nested, pattern, division, sum, other];
""",
    "parts.js": "const name = \"of parts\"; // private\nexport { name };\nexport const half = (x) => x / 2;\n"
    "export function twice(x) {\n  return 2 * x;\n}\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with serve_in_process(tmp_path_factory.mktemp("server") / "store.db") as service:
        yield service


def fetch(running: RunningService, path: str, **headers: str) -> httpx2.Response:
    return running.transport.send("GET", path, b"", {name.replace("_", "-"): value for name, value in headers.items()})


def test_a_bundle_means_what_its_modules_mean(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    sources = {
        **TRICKY,
        "parts.js": TRICKY["parts.js"].replace("const name", "export const name").replace("export { name };\n", ""),
    }
    for name, text in sources.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (tmp_path / "bundled.js").write_text(bundle("main", sources.__getitem__), encoding="utf-8")
    show = 'import("./%s").then((m) => console.log(JSON.stringify([m.all, m.twice(4), Object.keys(m)])))'
    apart, together = (
        subprocess.run([node, "-e", show % name], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for name in ("main.js", "bundled.js")
    )
    assert json.loads(apart) == json.loads(together)
    assert "one" in apart


def test_comments_and_indentation_go_and_all_else_stays() -> None:
    source = (
        "/* two\n   lines */\na = 1; // one\n  /** @type {any} */ if (b) { c( d , 'e  f' ); }\n  // three\n/* 4 */\n"
    )
    source += "e = 'f // g'; // it's kept\n"
    assert (
        bundle("a", {"a.js": source}.__getitem__) == "a = 1;\nif (b) { c( d , 'e  f' ); }\ne = 'f // g'; // it's kept\n"
    )


@pytest.mark.parametrize(
    ("sources", "line"),
    [
        ({"a.js": 'import { b } from "./b.js";', "b.js": 'import { a } from "./a.js";'}, "in a cycle: a -> b -> a"),
        ({"a.js": 'import * as b from "./b.js";'}, "cannot bundle"),
        ({"a.js": 'import { b } from "./b.js";', "b.js": "export let b = 1;"}, "b.js: cannot bundle"),
        ({"a.js": "export const text = `two\n  lines`;"}, "a.js: cannot bundle a template of several lines"),
    ],
)
def test_a_bundler_refuses_what_it_does_not_know(sources: dict[str, str], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        bundle("a", sources.__getitem__)


def test_the_agent_is_one_compressed_file_that_is_cached(running: RunningService) -> None:
    pytest.importorskip("brotli")
    first = fetch(running, "/agent/index.js", accept_encoding="gzip")
    tag, path = first.headers["etag"], "/agent/" + first.headers["content-location"]
    text = first.content if first.content.startswith(b"const") else gzip.decompress(first.content)
    assert re.search(rb'^import|from"\./', text, re.MULTILINE) is None
    assert first.headers["cache-control"] == "no-cache"
    again = fetch(running, "/agent/index.js", accept_encoding="gzip", if_none_match=f'"other", {tag}')
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    hashed = fetch(running, path, accept_encoding="gzip, br;q=0.9")
    assert (hashed.headers["cache-control"], hashed.headers["content-encoding"]) == (IMMUTABLE, "br")
    assert hashed.headers["etag"] != tag
    plain = fetch(running, path, accept_encoding="identity")
    assert (plain.content, plain.headers.get("content-encoding")) == (build_script("index", AGENT).body, None)


def test_a_page_of_another_version_gets_the_agent_of_this_server_and_asks_again(running: RunningService) -> None:
    other = fetch(running, "/agent/index-0123456789abcdef.js", accept_encoding="identity")
    assert (other.status_code, other.headers["cache-control"]) == (200, "no-cache")
    assert other.content == build_script("index", AGENT).body
    assert fetch(running, "/agent/knapsack.js").status_code == 200
    assert fetch(running, "/agent/nothing.js").status_code == 404


def test_scripts_of_the_pages_are_bundled_too() -> None:
    for entry, *packages in (
        ("main", "fedcascade.service.dashboard"),
        ("shop", "fedcascade.demo", "fedcascade.service.dashboard"),
    ):
        text = build_script(entry, *packages).body.decode()
        assert 'from"./' not in text.replace("from ", "from")
        assert (files(packages[0]) / "assets" / f"{entry}.js").is_file()
