"""Encode, decode, read and copy the videos and images of datasets."""
