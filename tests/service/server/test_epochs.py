"""Epochs: one per history of the store, the same at every server process, begun by a restore or by who proves one."""

import hmac
import shutil
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from nacl.signing import SigningKey

from fedcascade.service.agent import client
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.wire import Receipt
from fedcascade.service.server.operations import set_operator
from fedcascade.service.store.contract import Identity
from fedcascade.service.store.epoch import Epoch, begin_epoch, load_epoch
from fedcascade.service.store.open import open_store

from ..helpers import TOKEN, RunningService, build_unit_upload, serve_in_process


def read_epoch(running: RunningService) -> str:
    return client.fetch_terms(running.transport).epoch


def speak_from(agent: client.AgentClient, running: RunningService) -> client.AgentClient:
    """The same agent, speaking to another server."""
    return client.AgentClient(running.transport, agent.key, agent.agent)


def test_a_store_keeps_its_epoch_until_a_new_one_begins(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    for _ in range(2):
        with closing(open_store(url)) as store, store.transaction():
            first = load_epoch(store)
            assert load_epoch(store) == first
            assert first.name.startswith("1-")
    with closing(open_store(url)) as store, store.transaction():
        second = begin_epoch(store)
        assert load_epoch(store) == second
    assert second.name.startswith("2-")
    assert second.secret == first.secret  # so that words of before are recognised
    assert second.name[2:] != first.name[2:]


def test_only_the_stores_own_words_are_genuine(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path / 'store.db'}")) as store, store.transaction():
        epoch = load_epoch(store)
        later = begin_epoch(store)
    receipt = epoch.give_receipt(7)
    assert epoch.is_genuine(receipt)
    assert not later.is_genuine(receipt)
    for forged in (Receipt(epoch=epoch.name, position=8, proof=receipt.proof),
                   Receipt(epoch=epoch.name, position=7, proof=bytes(16)),
                   Receipt(epoch=later.name, position=7, proof=receipt.proof)):  # fmt: skip
        assert not epoch.is_genuine(forged)
        assert not later.is_genuine(forged)
    credential = epoch.give_credential(Identity(5, b"k" * 32, 1.5, revoked=False))
    assert later.is_credential(credential, b"k" * 32)  # of any epoch
    assert not later.is_credential(credential, b"x" * 32)


@pytest.mark.parametrize("size", [0, 32, 64, 65, 200])
def test_a_proof_is_an_hmac(size: int) -> None:
    secret = bytes(range(size))
    assert Epoch("1-a", secret).compute_proof("a text") == hmac.digest(secret, b"a text", "sha256")[:16]


def test_all_processes_on_a_store_are_in_one_epoch(tmp_path: Path) -> None:
    with serve_in_process(tmp_path / "store.db") as one, serve_in_process(tmp_path / "store.db") as other:
        agent = one.enrol()
        assert read_epoch(one) == read_epoch(other)
        assert one.writer is not None
        name = one.writer.submit(lambda store, _: begin_epoch(store)).result().name
        answer = speak_from(agent, other).exchange(build_unit_upload(1, 0, 3))
        assert answer.receipt.epoch == name
        assert agent.exchange(build_unit_upload(2, 0, 3)).receipt.epoch == name


def test_a_restore_is_noticed_once_however_many_agents_prove_it(tmp_path: Path) -> None:
    with serve_in_process(tmp_path / "store.db") as running:
        agents = [running.enrol() for _ in range(4)]
    shutil.copy(tmp_path / "store.db", tmp_path / "backup.db")
    with serve_in_process(tmp_path / "store.db") as running:
        agents = [speak_from(agent, running) for agent in agents]
        receipts = [agent.exchange(build_unit_upload(1, 0, 3)).receipt for agent in agents]
    with serve_in_process(tmp_path / "backup.db") as restored:
        epochs = []
        for agent, receipt in zip(agents, receipts, strict=True):
            upload = msgspec.structs.replace(build_unit_upload(2, 0, 3), receipt=receipt)
            epochs.append(speak_from(agent, restored).exchange(upload).receipt.epoch)
        assert [epoch[:2] for epoch in epochs] == ["2-"] * 4
        assert len(set(epochs)) == 1


def test_a_new_operators_token_renews_the_secret(tmp_path: Path) -> None:
    """A thief of the database could make credentials; after this it cannot, and agents get new ones by asking."""
    with serve_in_process(tmp_path / "store.db") as running:
        agent = running.enrol()
        assert running.writer is not None
        stolen = running.writer.submit(lambda store, _: load_epoch(store)).result()
        thief = SigningKey.generate()
        made_up = Identity(77, bytes(thief.verify_key), 0.0, revoked=False)
        running.writer.submit(set_operator(TOKEN)).result()  # the same token: as at every start
        assert read_epoch(running) == stolen.name
        running.writer.submit(set_operator("another-token")).result()
        assert read_epoch(running)[:2] == "2-"
        with pytest.raises(Refused, match="token"):
            client.enrol_agent(running.transport, None, thief, credential=stolen.give_credential(made_up))
        fresh = agent.fetch_standing().credential
        assert client.enrol_agent(running.transport, None, agent.key, credential=fresh).agent == agent.agent
