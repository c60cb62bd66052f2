"""Read and write LeRobot v3.0: layout, metadata, tables, statistics, whole datasets."""
