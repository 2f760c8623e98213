"""Cases of whole agents: lists, feedback, uploads, answers, losses and refusals in order, with restarts between."""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np

from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import DEFAULT_POLICY, PRIVATE_POPULATION, get_policy
from fedcascade.federation.privacy import SystemNoise
from fedcascade.learning.confidence import Oful, Theory
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.database import AgentFile
from fedcascade.service.agent.entries import ENROLMENT, NEW_LEDGER
from fedcascade.service.agent.ledger import SavedState, confirm, renumber, settle, withdraw
from fedcascade.service.agent.memory import LocalMemory
from fedcascade.service.agent.options import AgentOptions, PolicyCache
from fedcascade.service.agent.saved_agent import SavedAgent
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import Clock
from vectors.arithmetic import SERVED, KeptNoise
from vectors.draws import (
    Case,
    Draws,
    describe_statistics,
    draw_click,
    draw_items,
    draw_statistics,
    draw_words,
)
from vectors.messages import pack_download

STEPS = 24
MakeTerms = Callable[[Draws, int, int], wire.Terms]


class Session:
    """A saved agent without a network; every step is recorded with its result."""

    def __init__(
        self, draws: Draws, path: Path, terms: wire.Terms, options: Mapping[str, Any], *, has_rewards: bool = False
    ) -> None:
        self.has_rewards, self.late = has_rewards, dict[int, int]()  # lists whose reward comes later, by number
        self.draws, self.path, self.steps, self.now = draws, path, list[Case](), 1e9
        self._options = AgentOptions(**options, clock=Clock(now=lambda: self.now))
        credential = wire.Credential(agent=7, enrolled=1.5, epoch="first", proof=bytes(16))
        self._enrolment = wire.EnrolmentAnswer(protocol=wire.PROTOCOLS[-1], agent=7, terms=terms, credential=credential)
        self.agent, self.numbers = self._open(), dict[int, int]()  # lists are counted: their impressions are random
        self.held = Statistics.zero(terms.dimension)  # what the server holds of this agent
        self.sequence = self.last_change = 0

    def _open(self) -> SavedAgent:
        memory = LocalMemory(AgentFile(str(self.path)), "", PolicyCache(self._options), lambda: self._enrolment)
        return SavedAgent(memory, self._options, lambda: None)

    @property
    def state(self) -> SavedState:
        return self.agent.memory.state

    @property
    def dimension(self) -> int:
        return self.state.local.dimension

    def record(self, kind: str, **what: Any) -> None:
        """Record a step and the agent's state after it."""
        agent = self.agent
        after: Case = {"buffered": agent.buffered, "unsent": agent.unsent, "lost": agent.lost}
        after |= {"estimate": agent.estimate.tolist(), "arrivals": self.state.local.arrivals}
        after["uploads"] = self.state.local.uploads
        after["privacy"] = None if agent.privacy is None else [agent.privacy.spent, agent.privacy.is_spent]
        lists = agent.open_lists()
        after["open_lists"] = [asdict(each) | {"impression": self.numbers[each.impression]} for each in lists]
        self.steps.append({"step": kind, "now": self.now, **what, "after": after})

    def recommend(self) -> None:
        items = draw_items(self.draws, int(self.draws.integers(1, 12)), self.dimension)
        k, ties = int(self.draws.integers(1, 6)), draw_words(self.draws, len(items))
        shown = self.agent.recommend(items, k, ties=ties)
        what = {"items": items.tolist(), "k": k, "ties": ties.tolist(), "impression": self.state.local.arrivals}
        self.numbers[shown.impression] = self.state.local.arrivals
        self.record("recommend", **what, list=shown.items.tolist())

    def feed_back(self) -> None:
        waiting = self.agent.open_lists()
        chosen = waiting[int(self.draws.integers(len(waiting)))]
        number, what = self.numbers[chosen.impression], self._draw_feedback(list(chosen.items))
        if self.has_rewards:
            what |= self._draw_reward(number, chosen.impression, what)
        draw = float(self.draws.random() ** 3)
        round_ = None if self.draws.random() < 0.5 else int(self.draws.integers(1, 10**6))
        noise = KeptNoise(self.draws)
        with patch.object(SystemNoise, "draw", noise.draw):
            upload = self.agent.feedback(chosen.impression, round_=round_, draw=draw, **what)
        sent = None if upload is None else describe_upload(upload)
        what |= {"noise": noise.noise} if noise.noise else {}
        self.record("feedback", impression=number, **what, round=round_, draw=draw, upload=sent)

    def _draw_reward(self, number: int, impression: int, what: Case) -> Case:
        """Draw a reward, one for each click, or one that comes later."""
        clicked, luck = what.get("clicked", what.get("clicked_item")), self.draws.random()
        if luck < 0.5:
            self.late |= {} if clicked is None else {number: impression}
            return {"reward": "later"}
        if clicked is None or luck < 0.6:
            return {}
        several = isinstance(clicked, list) and luck < 0.8
        return {"reward": self.draws.random(len(clicked)).tolist() if several else float(self.draws.random())}

    def reward(self) -> None:
        """Reward a list; it may have expired, or the user may have changed."""
        number = int(self.draws.choice(sorted(self.late)))
        value, is_taken = float(self.draws.random()), True
        try:
            self.agent.reward(self.late.pop(number), value)
        except ValueError:
            is_taken = False
        self.record("reward", impression=number, value=value, is_taken=is_taken)

    def _draw_feedback(self, items: list[int]) -> Case:
        """Draw one click or none; without drift detection also several, by item, or with the last examined position."""
        luck, length = self.draws.random(), len(items)
        if luck < 0.6 or self.agent.memory.policy.changes is not None:
            return {"clicked": draw_click(self.draws, length)}
        several = sorted(
            int(place) for place in self.draws.choice(length, int(self.draws.integers(1, length + 1)), False)
        )
        if luck < 0.7:
            return {"clicked_item": [items[place] for place in several]}
        until = int(self.draws.integers(several[-1], length)) if luck < 0.85 else None
        return {"clicked": several, "looked_until": until}

    def answer(self) -> None:
        """Answer the oldest upload, at times as a restored server, which holds less than it has confirmed."""
        upload = self.state.outbox[0]
        if self.draws.random() < 0.15:
            self.held, self.last_change = Statistics.zero(self.dimension), 0
        self._count(upload)
        pooled = draw_statistics(self.draws, self.dimension, int(self.draws.integers(0, 6)))
        if self.agent.privacy is None:  # else an answer holds others' data only
            pooled = self.held + pooled
        message = wire.AnswerMessage(
            **pack_download(pooled, rounds=int(self.draws.integers(1, 10**6)), agents=9),
            protocol=wire.PROTOCOLS[-1],
            sequence=upload.sequence,
            group_agents=3,
            held_count=self.held.count,
            held_rounds=self.held.rounds,
            terms_id=self.state.enrolment.terms.terms_id,
            receipt=wire.Receipt(epoch="first", position=upload.sequence, proof=bytes(16)),
        )
        self._confirm(upload, message)
        is_settled = self.state.is_settled
        self.record("answer", body=msgspec.msgpack.encode(message).hex(), is_settled=is_settled)

    def _confirm(self, upload: Upload, answer: wire.AnswerMessage | None) -> None:
        policy = self.agent.memory.policy
        trouble = self.agent.memory.update(lambda state: confirm(policy, state, upload, answer))
        assert trouble is None, trouble

    def _count(self, upload: Upload) -> None:
        """Count an upload at the server; at times it loses a change at once."""
        if upload.cause is Cause.CHANGE and self.draws.random() < 0.9:
            self.held, self.last_change = upload.statistics, upload.sequence
        else:
            self.held += upload.statistics
        self.sequence = upload.sequence

    def skip(self) -> None:
        """Count the oldest upload without a valid answer."""
        upload = self.state.outbox[0]
        self._count(upload)
        self._confirm(upload, None)
        self.record("skip", is_settled=self.state.is_settled)

    def take_prior(self) -> None:
        """Send the agent a prior, as at its enrolment; some are invalid."""
        agent, d = self.agent, self.dimension
        told, luck = draw_statistics(self.draws, d + (self.draws.random() < 0.1), 9), self.draws.random()
        shift = agent.memory.policy.lambda_ * (0.5 if luck < 0.8 else 1.5 if luck < 0.9 else np.nan)
        size = told.dimension
        gram = told.gram * float(self.draws.random()) - shift * np.eye(size)
        known = Statistics(gram, told.moment * float(self.draws.random()), 0, 0, 0)
        message = wire.PriorMessage(**pack_download(known, rounds=int(self.draws.integers(1, 10**6)), agents=9))
        enrolment = msgspec.structs.replace(self.state.enrolment, prior=message)
        self._enrol(enrolment)
        self.record("prior", body=msgspec.msgpack.encode(enrolment).hex(), has_prior=agent.memory.has_prior)

    def _enrol(self, enrolment: wire.EnrolmentAnswer, *, new_key: bool = False) -> None:
        entries: dict[str, bytes | None] = {ENROLMENT: msgspec.json.encode(enrolment)}
        self.agent.memory.put(entries | NEW_LEDGER if new_key else entries)
        self.agent.memory.load()

    def _describe_standing(self) -> wire.Standing:
        credential, held = self.state.enrolment.credential, self.held
        assert credential is not None
        return wire.Standing(
            protocol=wire.PROTOCOLS[-1], agent=self.agent.id, uploads=self.sequence, last_sequence=self.sequence,
            last_change=self.last_change, epoch="first", revoked=False, credential=credential, count=held.count,
            clicks=held.clicks, rounds=held.rounds, numbers=wire.pack_numbers(held),
        )  # fmt: skip

    def settle(self) -> None:
        standing = self._describe_standing()
        policy = self.agent.memory.policy
        note = self.agent.memory.update(lambda state: settle(policy, state, standing))
        self.record("settle", body=msgspec.msgpack.encode(standing).hex(), is_lost=note is not None)

    def withdraw(self) -> None:
        is_lost = bool(self.draws.random() < 0.5)
        memory, upload = self.agent.memory, self.state.outbox[0]
        memory.update(lambda state: (withdraw(memory.policy, state, upload, is_lost=is_lost), None))
        self.record("withdraw", is_lost=is_lost)

    def renumber(self) -> None:
        """Renumber the oldest upload: a copy of the agent's file has used its number."""
        upload = self.state.outbox[0]
        self.agent.memory.update(lambda state: (renumber(state, upload, self.sequence), None))
        self.record("renumber", last_sequence=self.sequence)

    def start_over(self) -> None:
        self.agent.restart()
        self.record("start_over")

    def refuse(self) -> None:
        """Make a call that must be rejected; nothing changes."""
        d, number, waiting = self.dimension, int(self.draws.integers(6)), self.agent.open_lists()
        call: Callable[[], object]
        what: Case
        known, arrivals = {self.numbers[each.impression] for each in waiting}, self.state.local.arrivals
        if number == 0 or number == 5:  # a list that no agent has seen, and one that has expired or had its feedback
            gone = 10**6 if number == 0 else min(set(range(1, arrivals + 2)) - known)
            call, what = partial(self.agent.feedback, gone, 0), {"impression": gone, "clicked": 0}
        elif number == 1 and waiting:
            impression, length = waiting[0].impression, len(waiting[0].items)
            call, what = (
                partial(self.agent.feedback, impression, length),
                {"impression": self.numbers[impression], "clicked": length},
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
        """Enrol as another agent after a revocation: the server holds nothing of it, and its uploads are sent."""
        enrolment = self.state.enrolment
        self._enrol(msgspec.structs.replace(enrolment, agent=enrolment.agent + 1), new_key=True)
        self.held, self.last_change = Statistics.zero(self.dimension), 0
        self.record("renew", agent=self.agent.id)

    def change_terms(self) -> None:
        """Follow a server that has changed its policy twice, at times as another agent."""
        if self.draws.random() < 0.5:
            self.renew()
        for _ in range(2):
            terms = build_terms(self.draws, int(self.draws.integers(60)), self.dimension)
            self.agent.memory.follow(terms)
            self.record("terms", terms=msgspec.to_builtins(terms))

    def restart(self) -> None:
        self.agent.memory.database.close()
        self.agent = self._open()
        self.record("restart")

    def play_step(self) -> None:
        """Take one possible step."""
        luck = self.draws.random()
        self.now += float(self.draws.integers(0, 40))
        change = self.restart if self.has_rewards else self.change_terms
        rare = (0.98, self.renew), (0.95, self.restart), (0.94, change), (0.93, self.start_over)
        steps = (*rare, (0.87, self.refuse), (0.82 if self.steps else 0.0, self.take_prior))
        if self.state.outbox and luck < 0.5:
            answers = (0.13, self.answer), (0.09, self.skip), (0.06, self.renumber), (0.0, self.withdraw)
            next(step for least, step in answers if luck >= least)()
        elif not self.state.is_settled:
            self.settle()
        elif self.late and luck < 0.2:
            self.reward()
        elif self.agent.open_lists() and luck < 0.55:
            self.feed_back()
        else:
            next((step for least, step in steps if luck > least), self.recommend)()


def describe_upload(upload: Upload) -> Case:
    """Return an upload for JSON."""
    return {
        "sequence": upload.sequence,
        "cause": str(upload.cause),
        "statistics": describe_statistics(upload.statistics),
    }


def build_terms(draws: Draws, number: int, dimension: int) -> wire.Terms:
    """Build terms of a policy with drawn constants; some have a beta by formula, some drift detection."""
    policy = get_policy(DEFAULT_POLICY if number % 2 else SERVED[number // 2 % len(SERVED)])
    if number % 3 == 0:
        policy = policy.with_constants(drift="restart", threshold=0.3, limit=0.2, block=int(draws.integers(1, 4)))
    constants = policy.constants() | {"alpha_c": float(np.round(draws.uniform(0.05, 1.0), 2)), "confidence": "constant"}
    if number % 9 == 7:
        constants |= {"confidence": "oful", "noise": Oful().noise, "delta": Oful().delta}
    if number % 9 == 8:
        constants |= {"confidence": "theory", "noise": Theory().noise, "delta": Theory().delta}
    plain = {name: value for name, value in constants.items() if isinstance(value, float | int | str)}
    return wire.Terms(protocol=wire.PROTOCOLS[-1], policy=policy.name, constants=plain, dimension=dimension,
                      protocols=list(wire.PROTOCOLS), min_observations=int(draws.integers(0, 6))).with_id()  # fmt: skip


def build_private_terms(draws: Draws, number: int, dimension: int) -> wire.Terms:
    """Build terms of private uploads; in a third of them the unit is the user, with few uploads."""
    unit = {"unit": "user", "uploads": int(draws.integers(1, 5))} if number % 3 == 2 else {}
    epsilon, delta = float(np.round(draws.uniform(0.2, 40.0), 2)), float(draws.choice([1e-9, 1e-6, 1e-3]))
    policy = PRIVATE_POPULATION.with_constants(epsilon=epsilon, delta=delta, **unit)
    constants = {name: value for name, value in policy.constants().items() if isinstance(value, float | int | str)}
    return wire.Terms(protocol=wire.PROTOCOLS[-1], policy=policy.name, constants=constants, dimension=dimension,
                      protocols=list(wire.PROTOCOLS), min_observations=int(draws.integers(0, 6))).with_id()  # fmt: skip


def build_valued_sessions(draws: Draws) -> list[Case]:
    """Build sessions with rewards, some of which come later."""
    return build_sessions(draws, has_rewards=True)


def build_private_sessions(draws: Draws) -> list[Case]:
    """Build sessions of private uploads with rewards; each upload has its noise."""
    return build_sessions(draws, has_rewards=True, make_terms=build_private_terms)


def build_sessions(draws: Draws, *, has_rewards: bool = False, make_terms: MakeTerms = build_terms) -> list[Case]:
    """Build sessions of every policy, half of them of the default one."""
    cases: list[Case] = []
    for number in range(60):
        terms = make_terms(draws, number, int(draws.integers(1, 8)))
        options = {"min_observations": int(draws.integers(0, 6))}
        options |= {"keep_lists": int(draws.integers(1, 9)), "keep_seconds": int(draws.integers(20, 400))}
        with tempfile.TemporaryDirectory() as folder:
            session = Session(draws, Path(folder) / "agent.db", terms, options, has_rewards=has_rewards)
            with closing(session.agent.memory.database):
                while len(session.steps) < STEPS * (1 + has_rewards):
                    session.play_step()
            session.agent.memory.database.close()
        cases.append({"terms": msgspec.to_builtins(terms), **options, "steps": session.steps})
    return cases
