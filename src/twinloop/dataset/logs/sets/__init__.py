"""Read public sets of real data. Each reader accepts any folder with the layout of its set."""
