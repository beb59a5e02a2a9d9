from __future__ import annotations

import json

from rich.console import Console

from ajet.record.console import counted
from ajet_proof.recorded import report as proof_report
from ajet_proof.recorded.store import OUTSIDE_A_STORE, StoreReport


def encode_store_report(found: StoreReport) -> str:
    """Return the store report as one JSON object."""
    own = {"run": found.run, "store": found.store, "positions": dict(found.positions), "gone": found.gone}
    return json.dumps(
        {**json.loads(proof_report.encode_report(found.report)), **own, "not_in_a_store": OUTSIDE_A_STORE}, indent=1
    )


def print_store_report(found: StoreReport, console: Console) -> None:
    """Print the store report."""
    states = ", ".join(f"{count:,} {state}" for state, count in sorted(found.positions.items()))
    summary = f"{found.store}, run {found.run}: {counted(found.positions.total(), 'position')} with episodes ({states})"
    gone = f"; {found.gone:,} more were begun, of which nothing is here" if found.gone else ""
    console.print(f"{summary}{gone}.", markup=False, soft_wrap=True)
    console.print(f"Not to be proven from a store: {OUTSIDE_A_STORE}.", markup=False, soft_wrap=True)
    proof_report.print_report(found.report, console)
