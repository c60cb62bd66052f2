"""Read public sets of real data; each reader accepts any folder with the layout of its set."""
