"""Recordings written for tests, by the writing side of the libraries that read them."""

from __future__ import annotations

import numpy as np

NS = 1_000_000_000
CONTROLLER_STATE = """\
std_msgs/Header header
string[] joint_names
trajectory_msgs/JointTrajectoryPoint reference
trajectory_msgs/JointTrajectoryPoint feedback
trajectory_msgs/JointTrajectoryPoint error
trajectory_msgs/JointTrajectoryPoint output
"""


def typestore():
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    store.register(get_types_from_msg(CONTROLLER_STATE, "control_msgs/msg/JointTrajectoryControllerState"))
    return store


class Messages:
    """Messages by the names of their types, with as few arguments as a test needs."""

    def __init__(self) -> None:
        self.store = typestore()

    def make(self, kind, *args):
        return self.store.types[kind](*args)

    def header(self, t, frame=""):
        stamp = self.make("builtin_interfaces/msg/Time", int(t * NS) // NS, int(t * NS) % NS)
        return self.make("std_msgs/msg/Header", stamp, frame)

    def joints(self, t, names, position=(), velocity=(), effort=()):
        rows = [np.asarray(row, dtype=np.float64) for row in (position, velocity, effort)]
        return self.make("sensor_msgs/msg/JointState", self.header(t), list(names), *rows)

    def array(self, values):
        layout = self.make("std_msgs/msg/MultiArrayLayout", [], 0)
        return self.make("std_msgs/msg/Float64MultiArray", layout, np.asarray(values, dtype=np.float64))

    def point(self, position, velocity=(), effort=(), after=0.0):
        duration = self.make("builtin_interfaces/msg/Duration", int(after), round(after % 1 * NS))
        rows = [np.asarray(row, dtype=np.float64) for row in (position, velocity, (), effort)]
        return self.make("trajectory_msgs/msg/JointTrajectoryPoint", *rows, duration)

    def trajectory(self, names, points, t=0.0):
        return self.make("trajectory_msgs/msg/JointTrajectory", self.header(t), list(names), points)

    def controller(self, t, names, wanted, found):
        empty = self.point(())
        kind = "control_msgs/msg/JointTrajectoryControllerState"
        return self.make(kind, self.header(t), list(names), wanted, found, empty, empty)

    def vector(self, values):
        return self.make("geometry_msgs/msg/Vector3", *map(float, values))

    def imu(self, t, rate, acceleration, frame="imu_link", *, rate_known=True):
        known, unknown = np.zeros(9), np.array([-1.0, *np.zeros(8)])
        turn = self.make("geometry_msgs/msg/Quaternion", 0.0, 0.0, 0.0, 1.0)
        rates = self.vector(rate), known if rate_known else unknown
        felt = self.vector(acceleration), known
        return self.make("sensor_msgs/msg/Imu", self.header(t, frame), turn, unknown, *rates, *felt)

    def wrench(self, t, force, torque, frame="ft_frame"):
        both = self.make("geometry_msgs/msg/Wrench", self.vector(force), self.vector(torque))
        return self.make("geometry_msgs/msg/WrenchStamped", self.header(t, frame), both)

    def text(self, words):
        return self.make("std_msgs/msg/String", words)


def write_bag(path, store, rows, *, storage="sqlite3", compress=None):
    """``rows``: (topic, time of recording in s, message). Returns the folder."""
    from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer

    writer = Writer(path, version=9, storage_plugin=StoragePlugin[storage.upper()])
    if compress:
        writer.set_compression(CompressionMode[compress], CompressionFormat.ZSTD)
    with writer:
        connections = {}
        for topic, t, message in rows:
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=store)
            writer.write(connections[topic], round(t * NS), store.serialize_cdr(message, kind))
    return path
