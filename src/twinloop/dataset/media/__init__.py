"""Encode, decode and copy the videos and images of datasets."""
