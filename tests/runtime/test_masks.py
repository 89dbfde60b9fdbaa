"""The runtime gives the masks of `codtdq.predict` on the engine."""

import copy

import numpy as np
import pytest
import torch
from engine_cases import SETS, instruction_set, needs_engine
from torch import nn

import codtdq
from codtdq.engine import use_backend
from codtdq.models.registry import ModelInfo
from codtdq.runtime import Runtime

pytestmark = needs_engine
CLOSE = 1e-5  # mean difference of masks from 0 to 1


def differ(found, wanted):
    """(mean, largest) difference of masks; the mean from 0 to 1, the largest in codes."""
    assert found.shape == wanted.shape and found.dtype == np.uint8
    gaps = np.abs(found.astype(int) - np.asarray(wanted).astype(int))
    return gaps.mean() / 255, gaps.max()


@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small", "vit-cod"])
def test_masks_are_those_of_predict(exported, image, name):
    model, path = exported(name)
    network = Runtime(path)
    mean, most = differ(network.predict(image), codtdq.predict(model, image))
    assert mean <= CLOSE and most <= 1  # a sigmoid may round the last bit otherwise
    assert network.predict(image).std() > 5  # it is a mask of something


def test_logits_are_those_of_the_program_bit_for_bit(exported):
    model, path = exported("cfrn-small")
    x = torch.randn(1, 3, 160, 160, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        wanted = model(x)[0]
    assert np.array_equal(Runtime(path).run(x.numpy()), wanted.numpy())


def test_a_network_with_hooks_gives_the_bits_of_its_program(exported):
    """transformers puts hooks into its modules, so that predict runs operators one by one."""
    pytest.importorskip("transformers")
    model, path = exported("segformer-small")
    x = torch.randn(1, 3, 128, 128, generator=torch.Generator().manual_seed(1))
    assert np.array_equal(Runtime(path).run(x.numpy()), codtdq.compile(model, x)(x).numpy())


class Passing(nn.Module):
    """A logit that is an image's brightness: what remains is resizing and the mask."""

    def __init__(self, postprocess):
        super().__init__()
        self.mix = nn.Conv2d(3, 1, 1)
        with torch.no_grad():
            self.mix.weight.copy_(torch.tensor([1.5, -0.5, 2.0]).view(1, 3, 1, 1))
            self.mix.bias.fill_(-0.25)
        self.info = ModelInfo(
            name="passing", description="", input_size=64, postprocess=postprocess
        )

    def forward(self, x):
        return self.mix(x)


@pytest.mark.parametrize("postprocess", ["sigmoid", "sigmoid-minmax", "binary"])
def test_images_of_any_size_are_resized_as_pillow_and_torch_do(tmp_path, postprocess):
    model = Passing(postprocess).eval()
    codtdq.export(model, tmp_path / "net.codtdq")
    network = Runtime(tmp_path / "net.codtdq", threads=1)
    draw = np.random.default_rng(0)
    sizes = [(1, 1), (64, 64), (1, 300), (64, 31), (63, 65), (128, 64), (500, 333), (7, 2000)]
    for size in sizes:
        image = draw.integers(0, 256, (*size, 3), dtype=np.uint8)
        mean, most = differ(network.predict(image), codtdq.predict(model, image))
        # one code at a tie; a pixel whose logit is zero may fall to the other side
        assert mean <= 2e-4 and (most <= 1 or postprocess == "binary"), size


def test_thresholds_and_kinds_of_images(exported, image):
    _, path = exported("cfrn-small")
    network = Runtime(path)
    plain = network.predict(image)
    assert np.array_equal(network.predict(image / 255.0), plain)
    cut = network.predict(image, threshold=0.5)
    assert set(np.unique(cut)) <= {0, 255} and np.array_equal(cut == 255, plain >= 127.5)
    from PIL import Image

    assert np.array_equal(network.predict(Image.fromarray(image)), plain)
    gray = network.predict(image[..., 0])
    assert np.array_equal(gray, network.predict(np.repeat(image[..., :1], 3, axis=2)))


def test_files_are_read_where_pillow_is(exported, image, tmp_path):
    from PIL import Image

    _, path = exported("cfrn-small")
    Image.fromarray(image).save(tmp_path / "photo.png")
    network = Runtime(path)
    assert np.array_equal(network.predict(tmp_path / "photo.png"), network.predict(image))


def test_several_sizes_and_batches_share_their_constants(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = codtdq.create_model("escnet-small")
    sizes = [(160, 160), (96, 128)]
    one = codtdq.export(model, tmp_path / "one.codtdq")
    done = codtdq.export(model, tmp_path / "net.codtdq", sizes=sizes, batch=3)
    assert done.bytes < 1.2 * one.bytes
    network = Runtime(done.path)
    shapes = [(1, 3, 160, 160), (3, 3, 160, 160), (1, 3, 96, 128), (3, 3, 96, 128)]
    assert [shape.input for shape in network.shapes] == shapes
    for height, width in sizes:
        x = np.random.default_rng(1).normal(size=(5, 3, height, width)).astype(np.float32)
        found = network.run(x)
        alone = np.concatenate([network.run(x[i : i + 1]) for i in range(5)])
        assert found.shape == (5, 1, *found.shape[2:]) and np.allclose(found, alone, atol=1e-5)
        with torch.inference_mode():
            wanted = model.info.mask_logits(model(torch.from_numpy(x)))
        gaps = np.abs(found - wanted.numpy())
        assert gaps.mean() < 1e-3 and gaps.max() < 0.05
    image = np.zeros((50, 40, 3), np.uint8)
    assert network.predict(image, size=(96, 128)).shape == (50, 40)
    with pytest.raises(codtdq.CodtdqError, match=r"no program .*\(64, 64\)"):
        network.predict(image, size=(64, 64))


@pytest.mark.parametrize("name", SETS)
def test_a_file_from_one_instruction_set_runs_on_the_others(exported, name):
    """Weights are packed where they are read: the bits of a program that was captured there."""
    model, path = exported("escnet-small")
    x = torch.randn(1, 3, 160, 160, generator=torch.Generator().manual_seed(1))
    copied = copy.deepcopy(model)
    with instruction_set(name):
        use_backend(copied, "cpu")
        wanted = model.info.mask_logits(codtdq.compile(copied, x)(x))
        assert np.array_equal(Runtime(path).run(x.numpy()), wanted.numpy())
