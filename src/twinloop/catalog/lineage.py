"""Which frozen datasets trained which policy, and through them which episodes a policy has seen.

A policy has seen an episode that was in a dataset it was trained on, one that such an episode was made from, and what
the policy that its training went on from had seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twinloop.catalog.frozen import frozen
from twinloop.catalog.state import now
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import dumps

if TYPE_CHECKING:
    from twinloop.catalog.state import Opened


def record_policy(
    ws: Opened,
    policy: str,
    name: str,
    dataset: str | Sequence[str],
    run_id: str | None = None,
    extra: Mapping[str, Any] | None = None,
    *,
    base: str | None = None,
) -> None:
    """Record that frozen datasets trained a policy; once recorded it stays as it is, and the same again does nothing.

    Args:
        ws: the workspace.
        policy: hash of its weights and settings.
        name: what people call it.
        dataset: name, ``NAME@VERSION`` or hash of a frozen dataset, or several.
        run_id: the run that trained it.
        extra: whatever else is known, as plain values.
        base: hash of the recorded policy that its training went on from.

    Raises:
        InputError: it is recorded already with something else, or nothing is named.
        UnknownNameError: no such dataset, or no such base.
    """
    if not policy or not name:
        raise InputError("A policy is recorded under the hash of its weights and a name. Give both.")
    given = [dataset] if isinstance(dataset, str) else list(dataset)
    if not given:
        raise InputError(
            f"Policy {name} names no dataset that trained it. Freeze one first: `twinloop datasets freeze`."
        )
    rows = sorted({(entry.hash, entry.reference) for entry in (frozen(ws, reference) for reference in given)})
    trained = dict(reversed(rows))
    try:
        text = None if not extra else json.dumps(json.loads(dumps(dict(extra))), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Policy {name}: extra holds a number that JSON cannot say ({error}). Leave it out."
        ) from error
    with ws.state.transaction() as connection:
        if base is not None:
            known = [row[0] for row in connection.execute("SELECT policy FROM policies").fetchall()]
            if base not in known:
                raise UnknownNameError("policy", base, known, where="the recorded policies, as the base of another")
        known = connection.execute("SELECT name, base, extra FROM policies WHERE policy = ?", (policy,)).fetchone()
        if known is None:
            connection.execute(
                "INSERT INTO policies VALUES (?, ?, ?, ?, ?, ?)", (policy, name, base, run_id, now(), text)
            )
            connection.executemany(
                "INSERT INTO policy_datasets VALUES (?, ?, ?)",
                [(policy, digest, said) for digest, said in sorted(trained.items())],
            )
            return
        cursor = connection.execute("SELECT dataset FROM policy_datasets WHERE policy = ?", (policy,))
        before = (*known, {row[0] for row in cursor.fetchall()})
        if before != (name, base, text, set(trained)):
            raise InputError(
                f"Policy {policy[:16]} is recorded already, as {known[0]} trained on {len(before[3])} dataset(s) with "
                "other facts than these. What trained a policy does not change; record the new one under its own hash."
            )
