"""The command that lets a policy drive a robot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class Run:
    """Let a policy drive a robot through the safety envelope, and record everything as a LeRobot v3.0 dataset."""

    robot: str
    """virtual:TWIN?seed=N&task=TASK, lerobot:so101?port=PORT, or your own path/to/file.py:Class?option=value."""
    policy: str
    """champion or another alias, NAME@VERSION, a policy's folder, or a server: http://HOST:PORT, ws://HOST:PORT."""
    output: Path
    """Folder of the dataset."""
    episodes: int = 1
    """How many."""
    first: int = 0
    """Number of the first; what a policy does by chance, and who acts in a canary, depends on the number."""
    seconds: float | None = None
    """Length of an episode; by default the task's, or 20."""
    hz: float | None = None
    """Commands per second; by default the twin's."""
    twin: str | None = None
    """The twin that the envelope asks; by default the virtual robot's, or the workspace's."""
    envelope: Path | None = None
    """A YAML file of the envelope's settings; see docs/deployment.md."""
    instruction: str = ""
    """What the robot is to do, in words, for the dataset; by default the task's sentence."""
    outcome: Path | None = None
    """A CSV file with the columns episode and success, read after each episode."""
    ask: bool = False
    """Ask after each episode whether it succeeded, where nobody else can tell."""
    no_home: bool = False
    """Do not bring a real robot slowly to its twin's home before each episode."""
    realtime: bool = False
    """A virtual robot lives on while the policy thinks, as a real one does; else its time stands still."""
    stop_on_success: bool = False
    """End an episode as soon as the judge calls it a success."""
    on_trip: Literal["stop", "go-on", "rollback"] = "stop"
    """When an episode was cut short: end the run, go on with the next unless the robot failed, or roll back and end."""
    monitor: Path | None = None
    """Folder of a monitor that was calibrated for this policy: twinloop monitor calibrate."""
    on_alarm: Literal["stop", "log"] = "stop"
    """An alarm of the monitor ends the episode, or is written down only."""
    run_seed: int = 0
    """Of what a policy does by chance."""
    token_file: Path | None = None
    """A file with the token of the policy server; else the variable TWINLOOP_TOKEN is asked."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Run."""
        from twinloop.release.serve import read_token
        from twinloop.workflows.deploy.run import RunRequest, run_policy

        request = RunRequest(
            robot=self.robot,
            policy=self.policy,
            output=self.output,
            episodes=self.episodes,
            first=self.first,
            seconds=self.seconds,
            hz=self.hz,
            twin=self.twin,
            envelope=self.envelope,
            instruction=self.instruction,
            outcome=self.outcome,
            ask=self.ask,
            home=not self.no_home,
            realtime=self.realtime,
            stop_on_success=self.stop_on_success,
            on_trip=self.on_trip,
            monitor=self.monitor,
            on_alarm=self.on_alarm,
            run_seed=self.run_seed,
            token=read_token(self.token_file),
        )
        return run_policy(request, console=console(json=self.json))
