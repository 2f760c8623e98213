"""Run the attacks and print a table: attack, before, now. ``--record`` writes the column 'before' instead."""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from attack import (
    accidents,
    connections,
    details,
    disclosure,
    files,
    freezes,
    hostile_files,
    identities,
    poisoning,
    privacy,
)
from attack.arena import open_arena
from attack.registry import ATTACKS, Attack, Finding, NotPossible

MODULES = (
    connections,
    poisoning,
    files,
    accidents,
    freezes,
    identities,
    disclosure,
    hostile_files,
    details,
    privacy,
)  # imports register their attacks
BEFORE = Path(__file__).parent / "before.json"


def run_attack(attack: Attack, folder: Path) -> Finding | str:
    """Run an attack in a folder of its own; return its finding, or why it could not run."""
    try:
        with open_arena(folder) as arena:
            return attack.run(arena)
    except NotPossible as reason:
        return f"skipped: {reason}"
    except Exception as error:
        return Finding(f"the attack broke off: {type(error).__name__}: {str(error)[:120]}", False)


def main() -> int:
    """Run the chosen attacks, print one line for each, and return 1 if one of them did not hold."""
    parser = argparse.ArgumentParser(prog="attack", description=__doc__)
    parser.add_argument("names", nargs="*", help="words in the names of attacks; all if none")
    parser.add_argument("--record", metavar="COMMIT", help="write the findings as the column 'before' of this commit")
    parser.add_argument("--list", action="store_true", help="list attacks, what they send and when they fail")
    options = parser.parse_args()
    chosen = [each for each in ATTACKS.values() if not options.names or any(n in each.name for n in options.names)]
    if options.list:
        for each in chosen:
            print(f"{each.item:3}  {each.name}: {each.sends}; holds: {each.holds}")
        return 0
    recorded = json.loads(BEFORE.read_text(encoding="utf-8"))
    before: dict[str, str] = recorded["found"]
    failed = 0
    print(f"{'item':>4}  {'attack':34}  {'held':7}  now  <- before, at {recorded['commit']} or [commit]", flush=True)
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        for number, each in enumerate(chosen):
            began = time.monotonic()
            found = run_attack(each, Path(folder) / str(number))
            text, held = (
                (found, "skipped") if isinstance(found, str) else (found.measured, "yes" if found.held else "NO")
            )
            failed += held == "NO"
            print(f"{each.item:4}  {each.name:34}  {held:7}  {text}  <- {before.get(each.name, '-')}", flush=True)
            print(f"      ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
            if options.record:
                before[each.name] = f"{text} [{options.record}]"
    if options.record:
        text = json.dumps({"commit": recorded["commit"], "found": before}, indent=1, ensure_ascii=False)
        BEFORE.write_text(text + "\n", encoding="utf-8")
    return int(failed > 0 and not options.record)


if __name__ == "__main__":
    assert MODULES
    sys.exit(main())
