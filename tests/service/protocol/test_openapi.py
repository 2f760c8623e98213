"""The served describe_api is true: whatever schemathesis makes of it, the server answers and never fails."""

import warnings
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from hypothesis import HealthCheck, settings

import msgspec

from fedcascade.service.protocol.openapi import describe_api
from fedcascade.service.server.app import ENDPOINTS, ROUTES

from ..helpers import TOKEN, ServerProcess

schema = schemathesis.openapi.from_dict(describe_api(ROUTES))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = ServerProcess(tmp_path_factory.mktemp("schema"), "sqlite:///store.db").start()
    process.connect().transport.close()
    yield process.url
    process.stop()


@pytest.mark.filterwarnings("ignore")
@schema.parametrize()
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_makes_the_server_fail(case, url: str) -> None:  # type: ignore[no-untyped-def]
    case.headers = dict(case.headers or {}) | {"Authorization": f"Bearer {TOKEN}"}
    response = case.call(base_url=url)
    assert response.status_code < 500, response.text
    if case.method.lower() == case.operation.method.lower():  # it also tries methods that are not described
        assert str(response.status_code) in case.operation.definition.raw["responses"], response.text


def test_the_described_schema_is_the_served_one(url: str) -> None:
    with urlopen(f"{url}/schema", timeout=10) as served:
        assert msgspec.json.decode(served.read()) == msgspec.json.decode(msgspec.json.encode(describe_api(ROUTES)))


def test_every_endpoint_is_described_and_nothing_else() -> None:
    served = {
        (method.lower(), path.replace(":int}", "}"))
        for handler in ENDPOINTS
        for method in handler.http_methods
        if method != "HEAD"
        for path in handler.paths
    }
    assert served == {(method, path) for method, path, *_ in ROUTES}
