"""Cases of whole agents: what is shown, learned, sent, answered, lost and refused, in order, with restarts between."""

import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedcascade.federation.messages import Download, Upload
from fedcascade.federation.policies import DEFAULT_POLICY, get_policy
from fedcascade.learning.confidence import Oful, Theory
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.enrolment import keep_download
from fedcascade.service.agent.local_store import LocalStore
from fedcascade.service.agent.saved_agent import AgentOptions, SavedAgent
from fedcascade.service.agent.store_file import SINGLE, StoreFile
from fedcascade.service.agent.terms import follow_terms
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import Clock
from fedcascade.testing.vectors.arithmetic import SERVED
from fedcascade.testing.vectors.draws import (
    Case,
    Draws,
    describe_statistics,
    draw_click,
    draw_items,
    draw_statistics,
    draw_words,
)

STEPS = 24


class Session:
    """A saved agent that is driven without a network; every step is recorded with what came of it."""

    def __init__(
        self,
        draws: Draws,
        path: Path,
        terms: wire.Terms,
        *,
        min_observations: int,
        keep_lists: int,
        keep_seconds: float,
    ) -> None:
        self.draws, self.path, self.steps, self.now = draws, path, list[Case](), 1e9
        follow = partial(follow_terms, policy=None, min_observations=min_observations)
        self._options = AgentOptions(follow_terms=follow, keep_lists=keep_lists, keep_seconds=keep_seconds,
                                     clock=Clock(now=lambda: self.now))  # fmt: skip
        credential = wire.Credential(agent=7, enrolled=1.5, epoch="first", proof=bytes(16))
        self._welcome = wire.Welcome(protocol=wire.PROTOCOLS[-1], agent=7, terms=terms, credential=credential)
        self.agent = self._open()
        self.held = Statistics.zero(terms.dimension)  # what the server holds of this agent
        self.sequence = 0

    def _open(self) -> SavedAgent:
        store = LocalStore(StoreFile(str(self.path)), SINGLE)
        welcome = store.get_setting("welcome")
        known = self._welcome if welcome is None else msgspec.json.decode(welcome, type=wire.Welcome)
        return SavedAgent(store, known, options=self._options, announce=lambda: None)

    def record(self, kind: str, **what: Any) -> None:
        """Record a step and what the agent knows after it."""
        agent = self.agent
        after: Case = {"buffered": agent.buffered, "unsent": agent.unsent, "lost": agent.lost}
        after |= {"estimate": agent.estimate.tolist(), "arrivals": agent.agent.arrivals, "uploads": agent.agent.uploads}
        after["open_lists"] = [asdict(waiting) for waiting in agent.open_lists()]
        self.steps.append({"step": kind, "now": self.now, **what, "after": after})

    def recommend(self) -> None:
        items = draw_items(self.draws, int(self.draws.integers(1, 12)), self.agent.dimension)
        k, ties = int(self.draws.integers(1, 6)), draw_words(self.draws, len(items))
        shown = self.agent.recommend(items, k, ties=ties)
        what = {"items": items.tolist(), "k": k, "ties": ties.tolist(), "impression": shown.impression}
        self.record("recommend", **what, list=shown.items.tolist())

    def feed_back(self) -> None:
        waiting = self.agent.open_lists()
        chosen = waiting[int(self.draws.integers(len(waiting)))]
        number, what = chosen.impression, self._draw_feedback(list(chosen.items))
        draw = float(self.draws.random() ** 3)
        round_ = None if self.draws.random() < 0.5 else int(self.draws.integers(1, 10**6))
        upload = self.agent.feedback(number, round_=round_, draw=draw, **what)
        sent = None if upload is None else describe_upload(upload)
        self.record("feedback", impression=number, **what, round=round_, draw=draw, upload=sent)

    def _draw_feedback(self, items: list[int]) -> Case:
        """One click or none; now and then several, by item, or with the last position that was looked at."""
        luck, length = self.draws.random(), len(items)
        if luck < 0.6:
            return {"clicked": draw_click(self.draws, length)}
        several = sorted(
            int(place) for place in self.draws.choice(length, int(self.draws.integers(1, length + 1)), False)
        )
        if luck < 0.7:
            return {"clicked_item": [items[place] for place in several]}
        until = int(self.draws.integers(several[-1], length)) if luck < 0.85 else None
        return {"clicked": several, "looked_until": until}

    def answer(self) -> None:
        """Answer the oldest upload, now and then from a restored server, which holds less than it has confirmed."""
        upload = self.agent.ledger.outbox[0]
        is_restored = self.draws.random() < 0.15
        self.held = Statistics.zero(self.agent.dimension) if is_restored else self.held
        self.held, self.sequence = self.held + upload.statistics, upload.sequence
        pooled = self.held + draw_statistics(self.draws, self.agent.dimension, int(self.draws.integers(0, 6)))
        download = Download(agent=self.agent.id, statistics=pooled, rounds=int(self.draws.integers(1, 10**6)), agents=9)
        receipt = wire.Receipt(epoch="first", position=upload.sequence, proof=bytes(16))
        held, terms_id = (self.held.count, self.held.rounds), self.agent.welcome.terms.terms_id
        message = wire.AnswerMessage.from_download(
            download, upload.sequence, 3, held=held, terms_id=terms_id, receipt=receipt
        )
        self.agent.receive(upload, download, message)
        is_settled = self.agent.ledger.is_settled
        self.record("answer", body=msgspec.msgpack.encode(message).hex(), is_settled=is_settled)

    def skip(self) -> None:
        """Count the oldest upload without an answer that the agent can use."""
        upload = self.agent.ledger.outbox[0]
        self.held, self.sequence = self.held + upload.statistics, upload.sequence
        self.agent.skip_answer(upload, None)
        self.record("skip", is_settled=self.agent.ledger.is_settled)

    def welcome(self) -> None:
        """Tell the agent what is known of anybody, as at its enrolment; some of it is of no use."""
        agent, d = self.agent, self.agent.dimension
        told, luck = draw_statistics(self.draws, d + (self.draws.random() < 0.1), 9), self.draws.random()
        shift = agent.agent.policy.lambda_ * (0.5 if luck < 0.8 else 1.5 if luck < 0.9 else np.nan)
        size = told.dimension
        gram = told.gram * float(self.draws.random()) - shift * np.eye(size)
        known = Statistics(gram, told.moment * float(self.draws.random()), 0, 0, 0)
        download = Download(agent=agent.id, statistics=known, rounds=int(self.draws.integers(1, 10**6)), agents=9)
        message = wire.DownloadMessage.from_download(download)
        welcome = msgspec.structs.replace(agent.welcome, download=message)
        with agent.store.transaction():
            keep_download(agent.store, welcome)
        agent.follow(agent.welcome)
        self.record("welcome", body=msgspec.msgpack.encode(welcome).hex(), is_welcomed=agent.is_welcomed)

    def settle(self) -> None:
        credential, held = self.agent.welcome.credential, self.held
        assert credential is not None
        counts = {"count": held.count, "clicks": held.clicks, "rounds": held.rounds}
        standing = wire.Standing(
            protocol=wire.PROTOCOLS[-1], agent=self.agent.id, uploads=self.sequence, last_sequence=self.sequence,
            epoch="first", revoked=False, credential=credential, numbers=wire.pack_numbers(held), **counts,
        )  # fmt: skip
        note = self.agent.settle(standing)
        self.record("settle", body=msgspec.msgpack.encode(standing).hex(), is_lost=note is not None)

    def withdraw(self) -> None:
        is_lost = bool(self.draws.random() < 0.5)
        self.agent.withdraw(self.agent.ledger.outbox[0], is_lost=is_lost)
        self.record("withdraw", is_lost=is_lost)

    def refuse(self) -> None:
        """Ask for what must be refused; nothing changes."""
        d, number, waiting = self.agent.dimension, int(self.draws.integers(6)), self.agent.open_lists()
        call: Callable[[], object]
        what: Case
        known, arrivals = {each.impression for each in waiting}, self.agent.agent.arrivals
        if number == 0 or number == 5:  # a list that nobody has seen, and one that has expired or had its feedback
            gone = 10**6 if number == 0 else min(set(range(1, arrivals + 2)) - known)
            call, what = partial(self.agent.feedback, gone, 0), {"impression": gone, "clicked": 0}
        elif number == 1 and waiting:
            impression, length = waiting[0].impression, len(waiting[0].items)
            call, what = (
                partial(self.agent.feedback, impression, length),
                {"impression": impression, "clicked": length},
            )
        else:
            items, k = [([[2.0] * d], 1), ([[0.0] * (d + 1)], 1), ([[0.0] * d], 51), ([], 2), ([[0.0] * d], 0)][number]
            call, what = partial(self.agent.recommend, np.array(items), k), {"items": items, "k": k}
        try:
            call()
        except ValueError:
            self.record("refused", **what)
        else:
            raise AssertionError(f"not refused: {what}")

    def renew(self) -> None:
        """Go on as another agent after a revocation: the server holds nothing of this one, and what waits is sent."""
        store, welcome = self.agent.store, self.agent.welcome
        with store.transaction():
            store.begin_ledger()
        self.agent.load_ledger()
        self.agent.follow(msgspec.structs.replace(welcome, agent=welcome.agent + 1))
        self.held = Statistics.zero(self.agent.dimension)
        self.record("renew", agent=self.agent.id)

    def change_terms(self) -> None:
        """Follow a server that runs another policy from now on."""
        terms = build_terms(self.draws, int(self.draws.integers(60)), self.agent.dimension)
        self.agent.follow(msgspec.structs.replace(self.agent.welcome, terms=terms))
        self.record("terms", terms=msgspec.to_builtins(terms))

    def restart(self) -> None:
        self.agent.store.file.close()
        self.agent = self._open()
        self.record("restart")

    def play_step(self) -> None:
        """Take one step that is possible now."""
        luck = self.draws.random()
        self.now += float(self.draws.integers(0, 40))
        if self.agent.ledger.outbox and luck < 0.5:
            (self.withdraw if luck < 0.06 else self.skip if luck < 0.1 else self.answer)()
        elif not self.agent.ledger.is_settled:
            self.settle()
        elif luck > 0.98:
            self.renew()
        elif luck > 0.95:
            self.restart()
        elif luck > 0.94:
            self.change_terms()
        elif luck > 0.88:
            self.refuse()
        elif luck > 0.83 or not self.steps:
            self.welcome()
        elif self.agent.open_lists() and luck < 0.55:
            self.feed_back()
        else:
            self.recommend()


def describe_upload(upload: Upload) -> Case:
    """An upload as JSON has it."""
    return {
        "sequence": upload.sequence,
        "cause": str(upload.cause),
        "statistics": describe_statistics(upload.statistics),
    }


def build_terms(draws: Draws, number: int, dimension: int) -> wire.Terms:
    """Terms of a policy that can be served, with drawn constants; a few have a beta by formula."""
    policy = get_policy(DEFAULT_POLICY if number % 2 else SERVED[number // 2 % len(SERVED)])
    constants = policy.constants() | {"alpha_c": float(np.round(draws.uniform(0.05, 1.0), 2)), "confidence": "constant"}
    if number % 9 == 7:
        constants |= {"confidence": "oful", "noise": Oful().noise, "delta": Oful().delta}
    if number % 9 == 8:
        constants |= {"confidence": "theory", "noise": Theory().noise, "delta": Theory().delta}
    plain = {name: value for name, value in constants.items() if isinstance(value, float | int | str)}
    return wire.Terms(protocol=wire.PROTOCOLS[-1], policy=policy.name, constants=plain, dimension=dimension,
                      protocols=list(wire.PROTOCOLS), min_observations=int(draws.integers(0, 6))).with_id()  # fmt: skip


def build_sessions(draws: Draws) -> list[Case]:
    """Agents of every policy, half of them of the default one, from the first list on."""
    cases: list[Case] = []
    for number in range(60):
        terms = build_terms(draws, number, int(draws.integers(1, 8)))
        options = {"min_observations": int(draws.integers(0, 6))}
        options |= {"keep_lists": int(draws.integers(1, 9)), "keep_seconds": int(draws.integers(20, 400))}
        with tempfile.TemporaryDirectory() as folder:
            session = Session(draws, Path(folder) / "agent.db", terms, **options)
            with closing(session.agent.store.file):
                while len(session.steps) < STEPS:
                    session.play_step()
            session.agent.store.file.close()
        cases.append({"terms": msgspec.to_builtins(terms), **options, "steps": session.steps})
    return cases
