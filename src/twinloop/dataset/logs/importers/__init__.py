"""Import robot logs of many formats as `RawEpisode`.

`twinloop.dataset.logs.formats` selects the importer.
"""
