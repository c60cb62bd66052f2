"""Export datasets to LeRobot versions, GR00T, robomimic, MCAP and Rerun; one module per format."""
