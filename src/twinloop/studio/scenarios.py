"""List the stored scenarios of a workspace, and describe one with its parameters, for counterfactuals."""

from __future__ import annotations

from typing import Any

from twinloop.core.errors import TwinloopError, UnknownNameError
from twinloop.rollout.scenario import Scenario
from twinloop.rollout.scenario_files import list_scenarios, read_scenario
from twinloop.studio.data import StudioData
from twinloop.twin import load_twin
from twinloop.workflows.scenario.references import scenario_to_json

FOLDER = "scenarios"


def describe_scenarios(data: StudioData) -> list[dict[str, Any]]:
    """Return all scenarios of the workspace; of a damaged one its name and the error."""
    found = list[dict[str, Any]]()
    for folder in list_scenarios(data.workspace.root / FOLDER):
        try:
            found.append(scenario_to_json(read_scenario(folder)))
        except TwinloopError as error:
            found.append({"scenario": folder.name, "error": str(error)})
    return found


def describe_scenario(data: StudioData, name: str) -> dict[str, Any]:
    """Return a scenario with all parameters of its world: nominal value, own value, and a range for a slider.

    The range is the default one of the twin, widened around an own value outside of it; without a default it reaches
    from half to twice the own value, within the bounds.

    Raises:
        UnknownNameError: If there is no such scenario.
    """
    folders = {folder.name: folder for folder in list_scenarios(data.workspace.root / FOLDER)}
    if name not in folders:
        raise UnknownNameError("scenario", name, folders, where=str(data.workspace.root / FOLDER))
    scenario = read_scenario(folders[name])
    return {**scenario_to_json(scenario), "world": _list_parameters(scenario)}


def _list_parameters(scenario: Scenario) -> list[dict[str, Any]]:
    twin = load_twin(scenario.twin_reference)
    values = dict(zip(scenario.params.names, scenario.params.values[0].tolist(), strict=True))
    rows = list[dict[str, Any]]()
    for param in twin.params.values():
        own = values.get(param.name, param.nominal)
        usual = (0.5 * own, 2 * own)
        ends = usual if param.default_range is None else param.absolute(param.default_range, param.op)
        beyond = 0.5 * abs(ends[1] - ends[0])  # an own value outside the range can be changed in both directions
        low = max(param.low, min(*ends) if own > min(ends) else own - beyond)
        high = min(param.high, max(*ends) if own < max(ends) else own + beyond)
        rows.append(
            {
                "name": param.name,
                "unit": param.unit,
                "nominal": param.nominal,
                "value": own,
                "low": low,
                "high": high,
                "own": param.name in scenario.non_nominal,
            }
        )
    return sorted(rows, key=lambda row: not row["own"])
