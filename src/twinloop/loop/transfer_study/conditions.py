"""What each of the compared policies is trained on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One way to come to a policy.

    Attributes:
        number: as the tables count.
        name: a word for folders.
        words: what the tables call it.
        worlds: whose demonstrations it sees: ``nominal``, ``ranges``, ``point``, ``posterior``, or none.
        real: whether it sees demonstrations on the virtual robot.
    """

    number: int
    name: str
    words: str
    worlds: str
    real: bool = False

    @property
    def per_robot(self) -> bool:
        """Whether each robot needs policies of its own."""
        return self.real or self.worlds in ("point", "posterior")


CONDITIONS = (
    Condition(number=1, name="nominal", words="nominal twin", worlds="nominal"),
    Condition(number=2, name="ranges", words="hand-written randomization", worlds="ranges"),
    Condition(number=3, name="identified", words="identified twin, point estimate", worlds="point"),
    Condition(number=4, name="posterior", words="randomization from the identified distribution", worlds="posterior"),
    Condition(
        number=5, name="cotrained", words="that and the robot's own demonstrations", worlds="posterior", real=True
    ),
    Condition(number=6, name="real", words="the robot's own demonstrations alone", worlds="", real=True),
)
NUMBERS = {condition.number: condition for condition in CONDITIONS}
