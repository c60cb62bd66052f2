"""Import ROS recordings in pure Python: sqlite3 and MCAP files of ROS 2, and bags of ROS 1."""
