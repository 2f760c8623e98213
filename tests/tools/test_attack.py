"""The attack program: what it was measured against is recorded for each attack. The attacks themselves: make attack."""

import json
from pathlib import Path

import attack.__main__ as program
from attack.registry import ATTACKS, Finding, NotPossible, attack


def test_every_attack_was_measured_before() -> None:
    recorded = json.loads(program.BEFORE.read_text(encoding="utf-8"))
    assert set(recorded["found"]) == set(ATTACKS)
    assert len(recorded["commit"]) >= 7


def test_an_attack_that_breaks_off_or_cannot_run_says_so(tmp_path: Path) -> None:
    def break_off(_: object) -> Finding:
        raise OSError("nobody there")

    def skip(_: object) -> Finding:
        raise NotPossible("no PostgreSQL")

    try:
        for name, run in (("broken", break_off), ("impossible", skip)):
            attack(0, name, sends="", holds="")(run)
        broken = program.run_attack(ATTACKS["broken"], tmp_path / "a")
        assert isinstance(broken, Finding)
        assert not broken.held
        assert "nobody there" in broken.measured
        assert program.run_attack(ATTACKS["impossible"], tmp_path / "b") == "skipped: no PostgreSQL"
    finally:
        for name in ("broken", "impossible"):
            ATTACKS.pop(name, None)
