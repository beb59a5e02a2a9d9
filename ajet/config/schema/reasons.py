"""Why a key has no effect, where several keys have the same reason; those of one backbone are its descriptor's.

Invariant: each is the end of a line that begins with the key's name and ends without a full stop.
"""

from __future__ import annotations

NO_VALIDATION = "no held-out tasks are played"
OWN_AGENTS = "clients bring their own agents"
CLIENTS_BEGIN = "clients begin episodes when they like"
ONLY_SERVED = "only `ajet serve` reads it"
WHOLE_STEPS = "a step trains on all timelines of its episodes, however many they are"
