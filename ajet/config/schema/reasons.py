"""Why a key has no effect on a backbone, where several keys have the same reason.

Invariant: each is the end of a line that begins with the key's name and ends without a full stop.
"""

from __future__ import annotations

TRAINS_NOTHING = "debug trains nothing"
NO_VALIDATION = "no held-out tasks are played"
OWN_AGENTS = "clients bring their own agents"
CLIENTS_BEGIN = "clients begin episodes when they like"
DEBUGS_OWN = "it is the debug backbone's own"
ONE_DEVICE = "model and engine are on one device here"
NO_CLUSTER = "the local backbone is one process on one device"
VERLS_SERVERS = "verl's servers are configured under verl.actor_rollout_ref.rollout"
TEXT_ONLY = "an endpoint answers with text, on which nothing can be trained"
ONLY_SERVED = "only `ajet serve` reads it"
NO_TRINITY = "the trinity backbone, which would read it, is not part of this version"
