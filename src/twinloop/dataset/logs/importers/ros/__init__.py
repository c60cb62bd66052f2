"""ROS bags, read in pure Python: sqlite3 and MCAP recordings of ROS 2, and bags of ROS 1."""
