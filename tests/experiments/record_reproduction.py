"""The regrets of the paper's figures at full length, to the last digit: what no redesign may change.

``python tests/experiments/record_reproduction.py`` writes the asset that ``test_reproduction.py`` compares with; on an
idle core it takes about three minutes. Run it only when a change of the numbers is meant, and say so in the changelog.
"""

import json
from pathlib import Path

from msgspec.structs import replace

from fedcascade.experiments.jobs import list_planned_jobs, run_job
from fedcascade.experiments.plan_reader import load_builtin_plan

ASSET = Path(__file__).parent / "assets" / "reproduction.json"
PLANS = ("figure-1a", "figure-1bc", "figure-1d")
SEEDS = (0, 1, 2)
Totals = dict[str, float | int]


def reproduce(plan: str, seed: int) -> dict[str, Totals]:
    """Regret and exchanges of every policy of a plan."""
    jobs = list_planned_jobs([replace(load_builtin_plan(plan), seeds=(seed,))])
    records = [run_job(planned.job) for planned in jobs]
    return {
        planned.label: {"regret": record["regret"], "exchanges": record["communications"]["total"]}
        for planned, record in zip(jobs, records, strict=True)
    }


def main() -> None:
    recorded = {}
    for plan in PLANS:
        for seed in SEEDS:
            recorded[f"{plan} {seed}"] = reproduce(plan, seed)
            print(plan, seed, recorded[f"{plan} {seed}"], flush=True)
    ASSET.parent.mkdir(exist_ok=True)
    ASSET.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
