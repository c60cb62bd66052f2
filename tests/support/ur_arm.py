"""A six-joint arm with the lengths and masses of a UR5e and a rod as its tool, a cube and a target on a table."""

from pathlib import Path

HOME = "0 0.3 1.866 -0.595 -1.5708 0"
MODEL = f"""
<mujoco model="ur_arm">
  <compiler angle="radian"/>
  <default>
    <joint damping="10" armature="0.5" range="-6.28 6.28"/>
    <geom type="capsule" contype="0" conaffinity="0"/>
    <position kp="4000" kv="400" ctrlrange="-6.28 6.28" forcerange="-150 150"/>
  </default>
  <worldbody>
    <geom name="table" type="plane" size="2 2 0.1" contype="1" conaffinity="1"/>
    <body name="target" mocap="true" pos="0.5 0.1 0"/>
    <body name="cube" pos="0.45 -0.1 0.03">
      <freejoint/>
      <geom name="cube" type="box" size="0.03 0.03 0.03" mass="0.2" contype="1" conaffinity="1" friction="0.6"/>
    </body>
    <body name="shoulder" pos="0 0 0.163">
      <joint name="pan" axis="0 0 1"/><geom size="0.05" fromto="0 0 -0.05 0 0.1 0" mass="3.7"/>
      <body name="upper_arm" pos="0 0.138 0">
        <joint name="lift" axis="0 1 0"/><geom size="0.05" fromto="0 0 0 0 0 0.425" mass="8.4"/>
        <body name="forearm" pos="0 -0.131 0.425">
          <joint name="elbow" axis="0 1 0"/><geom size="0.04" fromto="0 0 0 0 0 0.392" mass="2.3"/>
          <body name="wrist_1" pos="0 0 0.392">
            <joint name="wrist_1" axis="0 1 0"/><geom size="0.035" fromto="0 0 0 0 0.127 0" mass="1.2"/>
            <body name="wrist_2" pos="0 0.127 0">
              <joint name="wrist_2" axis="0 0 1"/><geom size="0.035" fromto="0 0 0 0 0 0.1" mass="1.2"/>
              <body name="wrist_3" pos="0 0 0.1">
                <joint name="wrist_3" axis="0 1 0"/><geom size="0.03" fromto="0 0 0 0 0.1 0" mass="0.2"/>
                <geom name="rod" size="0.012" fromto="0 0.1 0 0 0.24 0" mass="0.1" contype="1" conaffinity="1"/>
                <site name="tool" pos="0 0.25 0"/>
              </body>
            </body>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="pan" joint="pan"/><position name="lift" joint="lift"/><position name="elbow" joint="elbow"/>
    <position name="wrist_1" joint="wrist_1"/><position name="wrist_2" joint="wrist_2"/>
    <position name="wrist_3" joint="wrist_3"/>
  </actuator>
  <keyframe>
    <key name="home" qpos="0.45 -0.1 0.03 1 0 0 0 {HOME}" ctrl="{HOME}"/>
  </keyframe>
</mujoco>
"""

TWIN = """
schema: 1
name: ur_arm
model: ur_arm.xml
control_hz: 50
substeps: 10
robot:
  type: ur_arm
  joints: [pan, lift, elbow, wrist_1, wrist_2, wrist_3]
  units: [rad, rad, rad, rad, rad, rad]
  tcp: tool
objects: [cube]
params:
  - {name: "object/cube/position/x", range: [0.35, 0.6], op: absolute, source: reachable}
  - {name: "object/cube/position/y", range: [-0.25, 0.25], op: absolute, source: reachable}
  - {name: "object/cube/yaw", range: [-0.785, 0.785], source: a cube repeats}
  - {name: "object/target/position/x", range: [0.35, 0.6], op: absolute, source: reachable}
  - {name: "object/target/position/y", range: [-0.25, 0.25], op: absolute, source: reachable}
  - {name: "object/cube/mass", range: [0.1, 0.4], source: tests}
  - {name: "object/cube/friction/slide", range: [0.4, 1.0], source: tests}
  - {name: "joint/*/damping", range: [0.7, 1.5], op: scale, source: tests}
  - {name: "actuator/*/kp", range: [0.8, 1.25], op: scale, source: tests}
  - {name: "actuator/*/delay", range: [0.0, 0.02], op: absolute, source: tests}
  - {name: "sensor/*/offset", range: [-0.003, 0.003], op: absolute, source: tests}
"""


def write_ur_arm(folder: Path) -> Path:
    """Write the arm into a folder; return the twin's file."""
    for name, text in (("ur_arm.xml", MODEL), ("ur_arm.yaml", TWIN)):
        (folder / name).write_text(text.lstrip())
    return folder / "ur_arm.yaml"
