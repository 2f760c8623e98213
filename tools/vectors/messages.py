"""Cases of messages: uploads, enrolments, answers, signatures."""

from typing import Any

import msgspec
from nacl.signing import SigningKey

from fedcascade.federation.messages import Cause, Upload
from fedcascade.learning.statistics import Statistics
from fedcascade.service.protocol import auth, wire
from vectors.draws import Case, Draws, describe_statistics, draw_statistics

REQUESTS = (("POST", wire.EXCHANGES), ("GET", "/v1/agents/7"), ("DELETE", "/v1/agents/123456789012"))


def draw_receipt(draws: Draws) -> wire.Receipt | None:
    """Draw a receipt of any position, or none."""
    if draws.random() < 0.3:
        return None
    return wire.Receipt(epoch=draws.bytes(8).hex(), position=int(2 ** draws.uniform(0, 52)), proof=draws.bytes(16))


def draw_credential(draws: Draws) -> wire.Credential:
    """Draw a credential; some have an integer time."""
    enrolled = float(draws.integers(10**9, 2 * 10**9)) if draws.random() < 0.5 else 1.7e9 + float(draws.random())
    agent = int(draws.integers(10**11, 10**12))
    return wire.Credential(agent=agent, enrolled=enrolled, epoch=draws.bytes(8).hex(), proof=draws.bytes(16))


def describe(message: msgspec.Struct | None) -> Case | None:
    """Return a message for JSON, with bytes in hexadecimal digits."""
    if message is None:
        return None
    plain = {name: getattr(message, name) for name in message.__struct_fields__}
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in plain.items()}


def build_uploads(draws: Draws) -> list[Case]:
    """Build uploads in MessagePack."""
    cases: list[Case] = []
    for number in range(40):
        statistics = draw_statistics(
            draws, int(draws.integers(1, 13)), int(draws.integers(1, 300 if number < 4 else 8))
        )
        sequence, cause = int(2 ** draws.uniform(0.0, 52.0)), list(Cause)[number % 3]
        upload, receipt = Upload(agent=7, sequence=sequence, cause=cause, statistics=statistics), draw_receipt(draws)
        body = msgspec.msgpack.encode(wire.UploadMessage.from_upload(upload, receipt=receipt))
        case = {"sequence": sequence, "cause": str(cause), "statistics": describe_statistics(statistics)}
        cases.append(case | {"receipt": describe(receipt), "body": body.hex()})
    return cases


def pack_download(pooled: Statistics, rounds: int, agents: int) -> dict[str, Any]:
    """Pack statistics and the server's counts as fields of an answer or a prior."""
    counts = {"count": pooled.count, "clicks": pooled.clicks, "rounds": pooled.rounds}
    return counts | {"system_rounds": rounds, "agents": agents, "numbers": wire.pack_numbers(pooled)}


def build_answers(draws: Draws) -> list[Case]:
    """Build answers in MessagePack, and their downloads; null if they are invalid."""
    cases: list[Case] = []
    for number in range(30):
        pooled = draw_statistics(draws, int(draws.integers(1, 9)), int(draws.integers(1, 20)))
        rounds, agents = int(2 ** draws.uniform(0.0, 50.0)), int(draws.integers(1, 10**6))
        receipt = wire.Receipt(epoch="e", position=number, proof=draws.bytes(16))
        answer = wire.AnswerMessage(
            **pack_download(pooled, rounds, agents),
            protocol=wire.PROTOCOLS[-1],
            sequence=number + 1,
            group_agents=agents,
            held_count=pooled.count,
            held_rounds=pooled.rounds,
            terms_id="t",
            receipt=receipt,
        )
        body = msgspec.msgpack.encode(answer)
        body = {0: body[:-3], 1: body + b"\x00", 2: b"\xc1", 3: b"", 4: body[:40] + b"\xff" + body[41:]}.get(
            number, body
        )
        is_good = number > 4
        case = {"dimension": pooled.dimension, "body": body.hex(), "sequence": number + 1 if is_good else None}
        case |= {"system_rounds": rounds, "agents": agents, "receipt": describe(receipt)}
        cases.append(case | {"pooled": describe_statistics(pooled) if is_good else None})
    return cases


def build_signatures(draws: Draws) -> list[Case]:
    """Build the headers of signed requests."""
    cases: list[Case] = []
    for number in range(40):
        seed, body = draws.bytes(32), draws.bytes(int(draws.integers(0, 400)))
        key = SigningKey(seed)
        method, path = REQUESTS[number % 3]
        request = {"agent": int(draws.integers(1, 10**12)), "method": method, "path": path}
        request |= {"sequence": int(2 ** draws.uniform(0.0, 52.0)), "created": int(draws.integers(0, 10**10))}
        request["nonce"] = int(draws.integers(0, 2**53))
        headers = auth.sign(key, digest=auth.compute_digest(body), **request)  # type: ignore[arg-type]
        public_key = bytes(key.verify_key).hex()
        cases.append({"seed": seed.hex(), "public_key": public_key, "body": body.hex(), **request, "headers": headers})
    return cases


def build_enrolments(draws: Draws) -> list[Case]:
    """Build signed enrolments: the signed bytes, the signature and the message."""
    cases: list[Case] = []
    for number in range(30):
        seed, created = draws.bytes(32), int(draws.integers(0, 10**10))
        token = None if number % 3 == 0 else "".join(draws.choice(list("abcXYZ-_019"), int(draws.integers(16, 60))))
        credential = draw_credential(draws) if number % 3 == 0 or draws.random() < 0.3 else None
        key, claim = SigningKey(seed), wire.encode_enrolment_claim(token, credential)
        proof, public_key = auth.sign_enrolment(key, created, claim), bytes(key.verify_key)
        message = wire.Enrolment(protocol=wire.PROTOCOLS[-1], public_key=public_key, created=created, proof=proof,
                                 token=token, credential=credential)  # fmt: skip
        case = {"seed": seed.hex(), "public_key": public_key.hex(), "created": created, "token": token}
        case |= {"credential": describe(credential), "claim": claim.hex(), "proof": proof.hex()}
        cases.append(case | {"body": msgspec.msgpack.encode(message).hex()})
    return cases
