"""The view of the datasets that were simulated with an engine version that has a known fault."""

from __future__ import annotations

from twinloop.core.engine_faults import ENGINE_FAULTS, ENGINES, JACOBIANS, SOLVERS

_KNOWN = ", ".join(
    f"('{fault.name}', '{fault.engine}', '{version}', '{fault.solver}', '{fault.jacobian}', '{fault.fixed_in}')"
    for fault in ENGINE_FAULTS
    for version in fault.versions
)

# Settings of the solver as an episode's provenance records them, see `core.engine_faults.SolverSettings`. Other values
# are `unknown`, and so are episodes without a record, which are older than it.
FAULT_VIEWS = {
    "engine_faults": f"""
        WITH known (fault, engine, version, solver, jacobian, fixed_in) AS (VALUES {_KNOWN}),
        made AS (
            SELECT batch, twin, twin_hash, sim_version,
                json_extract_string(extra, '$.solver.engine') AS engine,
                json_extract_string(extra, '$.solver.solver') AS solver,
                json_extract_string(extra, '$.solver.jacobian') AS jacobian,
                TRY_CAST(json_extract_string(extra, '$.solver.dof') AS BIGINT) AS dof
            FROM places
        )
        SELECT m.batch, m.twin, m.twin_hash, m.sim_version, k.fault, k.fixed_in,
            CASE WHEN m.engine = k.engine AND m.solver = k.solver AND m.jacobian = k.jacobian THEN 'yes'
                WHEN m.engine IN {ENGINES} AND m.solver IN {SOLVERS} AND m.jacobian IN {JACOBIANS} THEN 'no'
                ELSE 'unknown' END AS affected,
            m.dof, m.solver, m.jacobian, count(*) AS episodes
        FROM made m JOIN known k ON m.sim_version = k.version OR (m.sim_version IS NULL AND m.twin IS NOT NULL)
        GROUP BY ALL ORDER BY m.batch, k.fault, affected""",  # noqa: S608 - our own
}
