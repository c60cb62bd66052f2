"""Read, write and validate datasets in the format LeRobotDataset v3.0."""
