"""Edit LeRobot v3.0 datasets: write episodes of one or several folders to a new folder, never in place."""
