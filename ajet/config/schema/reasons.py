"""Why a key has no effect, where several keys have the same reason; those of one backbone are its descriptor's.

Invariant: each is the end of a line that begins with the key's name and ends without a full stop.
"""

from __future__ import annotations

NO_VALIDATION = "without `rollout.user_workflow` the server plays no held-out tasks"
OWN_AGENTS = "clients bring their own agents, and without `rollout.user_workflow` the server has none"
CLIENTS_BEGIN = "clients begin episodes when they like"
ONLY_SERVED = "only `ajet serve` reads it"
WHOLE_STEPS = "a step trains on all timelines of its episodes, however many they are"
OF_CLIENTS = (NO_VALIDATION, OWN_AGENTS)
"""They hold in `ajet serve` without `rollout.user_workflow`, by which the server plays held-out tasks itself."""
