"""Plant known defects into good episodes, for the study of the checks and for tests."""
