"""Where datasets lie: folders, snapshots, object stores, the Hub."""
