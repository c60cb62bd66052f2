"""robomimic's HDF5 export and import: bit-equal states, models that step again, and untrusted files."""

from __future__ import annotations

import builtins
import copy
import json
import shutil
from pathlib import Path

import mujoco
import numpy as np
import pytest

from support.exports import (
    JOINTS,
    LENGTHS,
    UNITS,
    generated_dataset,
    image_dataset,
    planted,
    recorded_dataset,
    recorded_log,
    times,
)
from twinloop.core.errors import InputError, LogError, MissingDependencyError, UnitsError, UnknownNameError
from twinloop.core.files import sha256_file
from twinloop.dataset.export.protocol import ExportOptions
from twinloop.dataset.export.robomimic import EXPORTER, export_robomimic
from twinloop.dataset.export.verification import FolderReader, verify_export
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.dataset.logs.formats import load_log
from twinloop.twin import load_twin
from twinloop.twin.model_text import model_text
from twinloop.workflows.data.export import load_ground_truth

h5py = pytest.importorskip("h5py")


@pytest.fixture(scope="module")
def has_images(tmp_path_factory):
    return image_dataset(tmp_path_factory.mktemp("pictured") / "set")


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    return generated_dataset(tmp_path_factory.mktemp("generated"))


@pytest.fixture(scope="module")
def demos(generated, tmp_path_factory):
    path = tmp_path_factory.mktemp("demos") / "demos.hdf5"
    export_robomimic(generated, path, ExportOptions(), truth=load_ground_truth(DatasetReader(generated)))
    return path


def step_again(simulation, frames):
    """What plain MuJoCo makes of a stored simulation."""
    model = mujoco.MjModel.from_xml_string(simulation.model, dict(simulation.assets))
    data, made = mujoco.MjData(model), np.empty((frames, simulation.states.shape[1]))
    mujoco.mj_setState(model, data, simulation.states[0], simulation.spec)
    for frame in range(frames):
        for control in simulation.controls[frame]:
            data.ctrl[:] = control
            mujoco.mj_step(model, data)
        mujoco.mj_getState(model, data, made[frame], simulation.spec)
    return made


def test_a_file_is_laid_out_as_robomimic_documents_it(has_images, tmp_path):
    done = EXPORTER.export(has_images, tmp_path / "demos.hdf5", ExportOptions(settings={"valid": "0.34"}))
    assert (done.frames, done.episodes) == (sum(LENGTHS), (0, 1, 2))
    with h5py.File(done.output) as file:
        data = file["data"]
        assert list(data) == ["demo_0", "demo_1", "demo_2"]
        assert data.attrs["total"] == sum(LENGTHS)
        env = json.loads(data.attrs["env_args"])
        assert (env["env_name"], env["type"], env["env_kwargs"]["control_freq"]) == ("planted_twin", 2, 20)
        scale = json.loads(data.attrs["twinloop"])["action_scale"]
        for number, length in enumerate(LENGTHS):
            demo, episode = data[f"demo_{number}"], planted(number)
            assert demo.attrs["num_samples"] == length
            keys = ("actions", "states", "rewards", "dones")
            assert {key: len(demo[key]) for key in keys} == dict.fromkeys(keys, length)
            assert demo["states"][()].tobytes() == episode.states[:-1].tobytes()
            low, high = (np.array(scale[end]) for end in ("low", "high"))
            action = low + (demo["actions"][()] + 1) / 2 * (high - low)
            np.testing.assert_allclose(action, episode.action.astype(np.float32), atol=1e-12)
            assert demo["dones"][()].tolist() == [0] * (length - 1) + [1]
            assert demo["rewards"][()].tolist() == episode.next_success.astype(float).tolist()
            assert demo["obs/front_image"].dtype == np.uint8
            assert demo["obs/front_image"].shape == (length, 48, 64, 3)
            for key in demo["obs"]:
                now, after = demo[f"obs/{key}"][()], demo[f"next_obs/{key}"][()]
                np.testing.assert_array_equal(after[:-1], now[1:], err_msg=key)
                np.testing.assert_array_equal(after[-1], now[-1])
            radians = demo["obs/robot0_joint_pos"]
            np.testing.assert_allclose(radians[()], UNITS.to_si(episode.observation.astype(np.float32)), atol=1e-12)
            assert json.loads(radians.attrs["units"]) == ["rad", "rad", "rad"]
            assert json.loads(demo["obs/imu.tool"].attrs["columns"]) == ["gyro.x", "accel.z"]
        every = np.concatenate([data[f"demo_{i}/actions"][()] for i in range(3)])
        np.testing.assert_allclose([every.min(axis=0), every.max(axis=0)], [[-1] * 3, [1] * 3], atol=1e-12)
        sides = {name: [row.decode() for row in file["mask"][name]] for name in ("train", "valid")}
        assert (len(sides["train"]), len(sides["valid"])) == (2, 1)
        assert sorted(sides["train"] + sides["valid"]) == list(data)


def test_what_is_written_is_what_the_source_shows_and_its_bytes_are_the_same_again(has_images, tmp_path):
    options = ExportOptions(episodes=(2, 0))
    first, again = (EXPORTER.export(has_images, tmp_path / name, options) for name in ("a.hdf5", "b.hdf5"))
    found = verify_export(FolderReader(has_images), EXPORTER.open_reader(first.output), [2, 0])
    assert found.accepted, found
    assert found.images_equal
    assert {"action", "observation.state", "observation.imu.tool"} <= set(found.numbers)
    assert set(found.cameras) == {"observation.images.front", "observation.images.wrist"}
    assert sha256_file(first.output) == sha256_file(again.output)
    fewer = EXPORTER.export(has_images, tmp_path / "c.hdf5", ExportOptions(settings={"cameras": "wrist"}))
    assert EXPORTER.open_reader(fewer.output).cameras == ["observation.images.wrist"]


def test_states_and_models_come_back_to_the_bit_and_step_again(generated, demos, tmp_path):
    reader, episodes = DatasetReader(generated), load_log(demos)
    assert [episode.source for episode in episodes] == ["sim"] * 3
    for index, episode in enumerate(episodes):
        simulation = episode.simulation
        assert simulation.states.tobytes() == reader.states(index).tobytes()
        np.testing.assert_array_equal(episode.action, reader.array(index, "action"))
        np.testing.assert_array_equal(episode.state, reader.array(index, "observation.state"))
        np.testing.assert_array_equal(episode.time, reader.states(index)[:-1, 0])
        assert episode.units == reader.units
        # Seventeen digits restore the model to the bit if MuJoCo stores its input exactly.
        made = step_again(simulation, 10)
        np.testing.assert_allclose(made, simulation.states[1:11], atol=1e-12)
        damping = reader.provenance(index).params["joint/nod/damping"]
        model = mujoco.MjModel.from_xml_string(simulation.model, dict(simulation.assets))
        assert model.joint("nod").damping[0] == pytest.approx(damping, rel=1e-15)
    dampings = {episode.simulation.model.count("damping") for episode in episodes}
    assert dampings == {2}
    assert list(episodes[0].simulation.assets) == ["000_wedge.stl"]
    # and through a LeRobot folder, as separate files
    folder = write_log_dataset(episodes, tmp_path / "imported")
    for index, episode in enumerate(load_log(folder)):
        assert episode.simulation.states.tobytes() == reader.states(index).tobytes()
        assert episode.simulation.model == episodes[index].simulation.model
        np.testing.assert_array_equal(episode.simulation.controls, episodes[index].simulation.controls)
        assert episode.simulation.assets == episodes[index].simulation.assets
    # and out again
    again = export_robomimic(
        folder, tmp_path / "again.hdf5", ExportOptions(), truth=load_ground_truth(DatasetReader(folder))
    )
    for index, episode in enumerate(load_log(again.output)):
        assert episode.simulation.states.tobytes() == reader.states(index).tobytes()
        assert episode.simulation.model == episodes[index].simulation.model
    here, there = (load_ground_truth(DatasetReader(path)).bodies(1) for path in (generated, folder))
    assert here.names == there.names
    np.testing.assert_allclose(here.position, there.position, atol=1e-15)


def test_the_page_steps_an_episode_again(demos, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "guides" / "datasets.md").read_text()
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    (code,) = [block for block in blocks if "from_xml_string" in block]
    (tmp_path / "demos.hdf5").write_bytes(demos.read_bytes())
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/guides/datasets.md", "exec"), {})
    differences = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(differences) == 20
    assert max(differences) < 1e-12


def test_a_worlds_model_as_text_is_the_model_that_was_simulated(generated):
    twin = load_twin(generated.parent / "mast.yaml")
    table = twin.table(1, {"joint/turn/damping": 0.31, "joint/nod/damping": 0.017})
    text = model_text(twin, table)
    made = mujoco.MjModel.from_xml_string(text.xml, dict(text.assets))
    wanted = copy.copy(twin.model)
    twin.fields(table).write_inplace(wanted, 0)
    assert made.joint("turn").damping[0] == 0.31
    for name in ("body_mass", "body_inertia", "dof_damping", "jnt_range", "geom_friction", "mesh_vert"):
        np.testing.assert_allclose(getattr(made, name), getattr(wanted, name), rtol=1e-14, err_msg=name)
    assert (made.opt.timestep, made.opt.disableflags) == (wanted.opt.timestep, wanted.opt.disableflags)
    before = mujoco.MjSpec.from_string("<mujoco><option timestep='0.123456789'/></mujoco>").to_xml()
    assert "0.123457" in before, "the number of digits is set back"
    with pytest.raises(InputError, match="The parameter table has 2 rows"):
        model_text(twin, twin.table(2))


def test_a_recorded_log_has_no_states_and_says_so(tmp_path):
    done = EXPORTER.export(recorded_dataset(tmp_path / "set"), tmp_path / "demos.hdf5")
    assert done.notes == (
        "the dataset has no outcomes: rewards are 0",
        "no simulator's states: states is empty, and there is no model_file",
    )
    (episode,), log = load_log(done.output), recorded_log()
    for name in ("time", "action", "state"):
        assert getattr(episode, name).tobytes() == getattr(log, name).tobytes()
    assert (episode.units, episode.task, episode.simulation, episode.source) == (UNITS, "wave", None, "real")


def test_a_foreign_folder_is_exported_in_its_own_numbers(has_images, tmp_path):
    folder = shutil.copytree(has_images, tmp_path / "foreign")
    shutil.rmtree(folder / "twinloop")
    done = EXPORTER.export(folder, tmp_path / "demos.hdf5")
    assert done.notes == (
        "joint units unknown: obs/state holds the dataset's numbers, and there is no robot0_joint_pos",
        "no simulator's states: states is empty, and there is no model_file",
    )
    with pytest.raises(UnitsError, match="in .*demos.hdf5 are not known"):
        load_log(done.output)
    episode = load_log(done.output, units="deg")[2]
    np.testing.assert_array_equal(episode.state, planted(2).observation.astype(np.float32))
    assert (episode.joints, episode.units.joints[0].unit) == (JOINTS, "deg")


def test_a_planted_dataset_has_states_and_no_model(has_images, tmp_path):
    done = EXPORTER.export(has_images, tmp_path / "demos.hdf5", ExportOptions(settings={"cameras": "none"}))
    assert done.notes == ("states without a model: model_file is left out",)
    episode = load_log(done.output)[1]
    np.testing.assert_array_equal(episode.time, times(1)[:-1])


def test_files_of_robosuite_bring_their_states_and_model(tmp_path):
    path = tmp_path / "low_dim.hdf5"
    states = np.random.default_rng(0).normal(size=(4, 9))
    with h5py.File(path, "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"], demo["states"] = np.zeros((4, 3)), states
        demo["obs/robot0_joint_pos"] = np.zeros((4, 2))
        demo.attrs["model_file"] = "<mujoco/>"
    (episode,) = load_log(path)
    assert episode.simulation.states.tobytes() == states.tobytes()
    assert (episode.simulation.model, episode.simulation.spec, episode.simulation.controls) == ("<mujoco/>", 0, None)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("pickle", r"demo_0/twinloop/action holds object values where numbers should be"),
        ("outside", r"demo_0/twinloop/action is a link to another file, and links are not followed"),
        ("outside states", r"demo_0/states is a link to another file, and links are not followed"),
        ("vast", r"action has 1,099,511,627,776 numbers, more than the 268,435,456 that are read"),
        ("raw outside", r"action is a link to another file, and links are not followed"),
        ("newer", r"was written by a newer version \(schema 99\). Upgrade twinloop"),
        ("env", r"the attribute env_args is not a JSON object"),
        ("asset", r"assets/000_wedge.stl is float64 of shape \(2,\); a model's file is bytes"),
    ],
)
def test_hostile_files_are_refused(demos, tmp_path, spoil, message):
    path = tmp_path / "hostile.hdf5"
    path.write_bytes(demos.read_bytes())
    (tmp_path / "secret.bin").write_bytes(bytes(800))
    with h5py.File(path, "a") as file:
        ours = file["data/demo_0/twinloop"]
        if spoil in ("pickle", "outside", "vast", "raw outside"):
            del ours["action"]
        if spoil == "pickle":
            ours.create_dataset("action", (3,), dtype=h5py.vlen_dtype(np.uint8))
        if spoil == "outside":
            ours["action"] = h5py.ExternalLink(str(demos), "/data/demo_0/actions")
        if spoil == "outside states":
            del file["data/demo_0/states"]
            file["data/demo_0/states"] = h5py.ExternalLink(str(demos), "/data/demo_0/states")
        if spoil == "vast":
            ours.create_dataset("action", (1 << 30, 1 << 10), dtype="f8", chunks=(1024, 1024), compression="gzip")
        if spoil == "raw outside":
            ours.create_dataset("action", (50, 2), dtype="f8", external=[(str(tmp_path / "secret.bin"), 0, 800)])
        if spoil == "newer":
            file["data"].attrs["twinloop"] = json.dumps({"schema": 99})
        if spoil == "env":
            file["data"].attrs["env_args"] = "[1]"
        if spoil == "asset":
            del ours["assets/000_wedge.stl"]
            ours["assets/000_wedge.stl"] = np.zeros(2)
    with pytest.raises(LogError, match=message):
        load_log(path)


def test_a_path_in_env_args_is_text(demos, tmp_path):
    path = tmp_path / "demos.hdf5"
    path.write_bytes(demos.read_bytes())
    with h5py.File(path, "a") as file:
        file["data"].attrs["env_args"] = json.dumps({"env_name": "../../etc/passwd", "env_kwargs": {"robots": "/x"}})
    assert load_log(path)[0].task == "swing for a moment"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (ExportOptions(episodes=(0, 7)), InputError, r"has no episode 7; it has 0 to 2"),
        (ExportOptions(settings={"cameras": "top"}), UnknownNameError, r"Unknown camera 'top'.*front"),
        (ExportOptions(settings={"valid": "2"}), InputError, r"valid is 2\. Give a share of the episodes"),
        (ExportOptions(settings={"compression": "zip"}), UnknownNameError, r"Unknown compression 'zip'"),
        (ExportOptions(settings={"actions": "raw"}), UnknownNameError, r"Unknown kind of actions 'raw'"),
        (ExportOptions(settings={"colour": "grey"}), UnknownNameError, r"Unknown setting 'colour'"),
    ],
)
def test_what_cannot_be_exported_says_why_and_leaves_nothing(has_images, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        EXPORTER.export(has_images, tmp_path / "demos.hdf5", options)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over_or_into_a_dataset(has_images, generated, tmp_path):
    (tmp_path / "demos.hdf5").write_text("mine")
    with pytest.raises(InputError, match=r"demos.hdf5 exists. Nothing is written over"):
        EXPORTER.export(has_images, tmp_path / "demos.hdf5")
    assert (tmp_path / "demos.hdf5").read_text() == "mine"
    with pytest.raises(InputError, match=r"is inside the dataset"):
        EXPORTER.export(has_images, has_images / "demos.hdf5")
    with pytest.raises(InputError, match=r"has no cameras, so front cannot be exported. Omit the setting cameras"):
        EXPORTER.export(generated, tmp_path / "b.hdf5", ExportOptions(settings={"cameras": "front"}))


def test_without_h5py_the_command_is_named(has_images, tmp_path, monkeypatch):
    real_import = builtins.__import__

    def no_h5py(name, *args, **kwargs):
        if name == "h5py":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_h5py)
    with pytest.raises(
        MissingDependencyError, match=r"which writes them, is not installed.*pip install 'twinloop\[hdf5\]'"
    ):
        EXPORTER.export(has_images, tmp_path / "demos.hdf5")


@pytest.mark.slow
def test_robomimic_itself_reads_it(has_images, tmp_path):
    pytest.importorskip("robomimic.utils.dataset")
    import robomimic.utils.obs_utils as obs_utils
    from robomimic.utils.dataset import SequenceDataset

    done = EXPORTER.export(has_images, tmp_path / "demos.hdf5", ExportOptions(settings={"valid": "0.34"}))
    obs_utils.initialize_obs_modality_mapping_from_dict({"low_dim": ["robot0_joint_pos"], "rgb": ["front_image"]})
    dataset = SequenceDataset(
        hdf5_path=str(done.output),
        obs_keys=("robot0_joint_pos", "front_image"),
        dataset_keys=("actions", "rewards", "dones"),
        seq_length=4,
        frame_stack=1,
        pad_seq_length=True,
        pad_frame_stack=True,
        get_pad_mask=False,
        goal_mode="last",
        hdf5_cache_mode="low_dim",
        hdf5_use_swmr=True,
        hdf5_normalize_obs=False,
        filter_by_attribute="train",
        load_next_obs=True,
    )
    with h5py.File(done.output, swmr=True) as file:  # as robomimic has it open
        names = [name.decode() for name in file["mask/train"]]
        assert len(dataset) == sum(file[f"data/{name}"].attrs["num_samples"] for name in names)
        first, demo = dataset[2], file[f"data/{names[0]}"]
        np.testing.assert_array_equal(first["actions"], demo["actions"][2:6].astype(np.float32))
        np.testing.assert_array_equal(first["obs"]["front_image"], demo["obs/front_image"][2:6])
        np.testing.assert_array_equal(first["next_obs"]["front_image"], demo["obs/front_image"][3:7])
