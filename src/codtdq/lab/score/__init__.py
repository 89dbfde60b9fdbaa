"""Scores of maps that any network wrote: methods times data sets, image by image."""
