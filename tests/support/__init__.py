"""What tests share: planted data, small twins and datasets, servers and robots to be attacked."""
