"""Commands of the service: serve, enroll, revoke, forget, swarm."""

import sys
from pathlib import Path
from typing import Annotated

from fedcascade.cli.options import Constants, Whole, chosen_policies, option

Url = Annotated[str, option("Address of the server.")]
OperatorToken = Annotated[Path, option("File that holds the operator's token.")]


def say(line: str) -> None:
    """Tell the operator something, on stderr."""
    print(f"fedcascade: {line}", file=sys.stderr, flush=True)


def serve(
    *,
    store: Annotated[
        str, option("Where everything is kept: sqlite:///file.db or postgresql://user@host/database.")
    ] = "sqlite:///fedcascade.db",
    policy: Annotated[str, option("System to run (see 'fedcascade policies').")] = "fedc3ucb-h",
    dimension: Annotated[Whole, option("d, how many features an item has.")] = 20,
    host: Annotated[str, option("Address to listen on.")] = "127.0.0.1",
    port: Annotated[Whole, option("Port to listen on; 0 takes any that is free.")] = 8777,
    tls_cert: Annotated[Path | None, option("Certificate chain (PEM), to serve https.", show_default=False)] = None,
    tls_key: Annotated[Path | None, option("Private key (PEM) of the certificate.", show_default=False)] = None,
    operator_token: Annotated[
        Path, option("File with the operator's token; made at the first start if missing.")
    ] = Path("operator.token"),
    rate: Annotated[float, option("Requests per second that one agent may make in the long run.")] = 50.0,
    burst: Annotated[float, option("Requests that one agent may make at once.")] = 100.0,
    batch: Annotated[Whole, option("Most uploads that share one commit.")] = 256,
    snapshot_every: Annotated[Whole, option("Uploads between two snapshots of the state.")] = 10_000,
    constants: Constants = Constants(),  # noqa: B008 (frozen)
) -> None:
    """Run a server for agents.

    Example: fedcascade serve --store sqlite:///fedcascade.db --policy fedc3ucb-h --dimension 20
    """
    from fedcascade.service.app import Limits
    from fedcascade.service.serve import Setup
    from fedcascade.service.serve import serve as run

    [system] = chosen_policies([policy], constants)
    setup = Setup(
        store=store,
        policy=system,
        dimension=dimension,
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        operator_token=operator_token,
        batch=batch,
        snapshot_every=snapshot_every,
        limits=Limits(rate=rate, burst=burst),
    )
    run(setup, say)
