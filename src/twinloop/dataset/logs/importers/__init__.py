"""Import robot logs of many formats as raw episodes (`RawEpisode`).

`twinloop.dataset.logs.formats` selects the importer for a path.
"""
