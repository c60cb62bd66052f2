"""Robot logs of many formats, read into the one `Episode` record.

`twinloop.dataset.logs.formats` chooses among them.
"""
