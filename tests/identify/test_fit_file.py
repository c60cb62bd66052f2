"""Settings of a fit, from a file or flags; a misspelt setting is named."""

import pytest

from twinloop.cli.main import main
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.identify import FitConfig
from twinloop.twin.quantities import Prior
from twinloop.workflows.identify.identify import build_fit_config, read_fit_config
from twinloop.workflows.identify.requests import FitOptions

FILE = """
replay: {window: 0.5, start: measured, local: {position: 0.002}}
free: ["joint/*/damping", "joint/*/frictionloss"]
priors: {"joint/*/damping": {spread: 0.01}}
fixed: {joint/elbow/armature: 0.002}
walk: 40
"""


def write(tmp_path, text):
    path = tmp_path / "fit.yaml"
    path.write_text(text)
    return path


def test_a_file_says_what_it_says_and_the_rest_keeps_its_default(tmp_path):
    config = read_fit_config(write(tmp_path, FILE))
    assert config.replay.window == 0.5
    assert config.replay.local == {"position": 0.002}
    assert config.free == ("joint/*/damping", "joint/*/frictionloss")
    assert config.priors == {"joint/*/damping": Prior(spread=0.01)}
    assert config.fixed == {"joint/elbow/armature": 0.002}
    assert (config.walk, config.iterations) == (40, FitConfig().iterations)


def test_flags_replace_what_the_file_says(tmp_path):
    config = build_fit_config(
        FitOptions(fit=write(tmp_path, FILE), window=0.25, free=("link/*/mass",), measured_torque=True)
    )
    assert (config.replay.window, config.replay.start, config.replay.torque) == (0.25, "measured", "measured")
    assert config.free == ("link/*/mass",)
    assert config.replay.local == {"position": 0.002}
    assert build_fit_config(FitOptions()) == FitConfig()


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("repaly: {}", UnknownNameError, "Unknown key 'repaly'.*Nearest existing: replay"),
        ("replay: {windw: 1}", UnknownNameError, "'replay.windw'.*Nearest existing: replay.window"),
        (
            "priors: {'a/*': {spraed: 1}}",
            UnknownNameError,
            r"'priors.a/\*.spraed'.*existing: priors.a/\*.spread",
        ),
        ("walk: many", InputError, "walk: Input should be a valid integer"),
        ("accuracy: {joint/scale: 0}", InputError, "accuracy.joint/scale: Input should be greater than 0"),
        ("- 3", InputError, "is not a mapping of options"),
    ],
)
def test_what_a_file_gets_wrong_is_named(tmp_path, text, error, message):
    with pytest.raises(error, match=message):
        read_fit_config(write(tmp_path, text))


def test_a_window_of_no_length_is_refused(tmp_path, capsys):
    words = ["identify", "--twin", "so101_tabletop", "--data", "nothing", "--output", str(tmp_path / "run")]
    assert main([*words, "--window", "0"]) == 2
    assert "--window 0: give seconds, such as 0.5." in capsys.readouterr().err.replace("\n", " ")
