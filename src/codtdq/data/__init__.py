"""Data sets: synthetic camouflage scenes, public benchmarks and image folders."""

from codtdq.data.benchmarks import BENCHMARKS, find_dataset
from codtdq.data.camosynth import VERSION, CamoSynth, generate
from codtdq.data.dataset import Dataset, JoinedDataset
from codtdq.data.datasets import (
    DatasetInfo,
    expand_dataset,
    list_datasets,
    open_dataset,
    open_images,
)
from codtdq.data.export import export_synth
from codtdq.data.folder import ImageMaskFolder
from codtdq.data.images import ImageFolder, ImageList
from codtdq.data.pairs import PairList
from codtdq.data.sample import Sample
from codtdq.data.splits import SPLITS, TEST_SPLITS
from codtdq.pixels import ImageLike, to_pixels

__all__ = [
    "BENCHMARKS",
    "SPLITS",
    "TEST_SPLITS",
    "VERSION",
    "CamoSynth",
    "Dataset",
    "DatasetInfo",
    "ImageFolder",
    "ImageLike",
    "ImageList",
    "ImageMaskFolder",
    "JoinedDataset",
    "PairList",
    "Sample",
    "expand_dataset",
    "export_synth",
    "find_dataset",
    "generate",
    "list_datasets",
    "open_dataset",
    "open_images",
    "to_pixels",
]
