"""Store datasets in folders, snapshots, object stores and on the Hub."""
