"""Products on codes give what the simulation gives: every shape, mode, layout, set and thread."""

import multiprocessing
import os
import threading
import weakref

import pytest
import torch
from engine_cases import (
    SETS,
    check,
    distance,
    instruction_set,
    native_only,
    needs_engine,
    quantized,
    reference,
    same_form,
    torch_threads,
)
from torch import nn

from codtdq.engine import cpu as native
from codtdq.engine import use_backend
from codtdq.errors import UnsupportedError
from codtdq.native import OTHER_FILE, path

pytestmark = needs_engine
CHANNELS = (1, 3, 4, 31, 32, 33, 40, 64, 100)
OUTPUTS = (1, 7, 15, 16, 17, 31, 33, 65)  # around the tiles of every instruction set


def rows(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=g) * torch.rand(*shape[:-1], 1, generator=g) * 3
    return x + 0.2


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("channels", CHANNELS)
def test_linear_shapes(channels):
    for outputs in OUTPUTS:
        layer = quantized(nn.Linear(channels, outputs))
        for count in (1, 5, 98):
            check(layer, rows(count, channels), label=(channels, outputs, count))


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("mode", ["per_tensor", "per_token_group"])
def test_conv_channels(channels, mode):
    for outputs in (1, 9, 33):
        layer = quantized(nn.Conv2d(channels, outputs, 3, padding=1), mode)
        check(layer, torch.randn(2, channels, 5, 6), label=(channels, outputs))


@pytest.mark.parametrize("kernel", range(1, 8))
@pytest.mark.parametrize("mode", ["per_tensor", "per_token_group"])
def test_conv_geometry(kernel, mode):
    for stride, padding, dilation in [
        (1, 0, 1),
        (2, kernel // 2, 1),
        (3, 1, 1),
        (kernel, 0, 1),
        (1, kernel, 1),
        (2, 2, 2),
        ((1, 2), (2, 0), (1, 2)),
    ]:
        conv = nn.Conv2d(37, 18, kernel, stride, padding, dilation)
        check(quantized(conv, mode), torch.randn(2, 37, 14, 15), label=(stride, padding, dilation))
    conv = nn.Conv2d(6, 5, (kernel, 2), padding=(0, 1))
    check(quantized(conv, mode), torch.randn(1, 6, 9, 8))


@pytest.mark.parametrize("kernel", range(1, 6))
@pytest.mark.parametrize("mode", ["per_tensor", "per_token_group"])
def test_conv1d(kernel, mode):
    for stride, padding, dilation in [(1, 0, 1), (2, kernel // 2, 1), (1, 3, 2)]:
        conv = nn.Conv1d(33, 10, kernel, stride, padding, dilation)
        check(quantized(conv, mode), torch.randn(2, 33, 12), label=(stride, padding, dilation))


@pytest.mark.parametrize("mode", ["per_tensor", "per_channel", "per_token_group"])
def test_depthwise(mode):
    for kernel, stride, padding, dilation, channels in [
        (3, 1, 1, 1, 40),
        (7, 1, 3, 1, 33),
        (5, 2, 2, 1, 3),
        (3, 1, 2, 2, 64),
        (1, 1, 0, 1, 2),
        ((1, 5), 1, (0, 2), 1, 100),
    ]:
        conv = nn.Conv2d(channels, channels, kernel, stride, padding, dilation, groups=channels)
        check(quantized(conv, mode), torch.randn(2, channels, 9, 7), label=(kernel, channels))
        check(quantized(conv, mode, weight_group_size=4), torch.randn(1, channels, 9, 7))
    conv = nn.Conv1d(34, 34, 3, 2, 1, groups=34, bias=False)
    check(quantized(conv, mode), torch.randn(2, 34, 11))


@pytest.mark.parametrize("group", [4, 12, 16, 20, 32, 64, 128])
@pytest.mark.parametrize("act_bits", [2, 4, 5, 6, 8])
def test_activation_groups(group, act_bits):
    for channels in (group - 3, group, 2 * group + 5, 130):
        if channels < 1:
            continue
        for literal in (False, True):
            layer = nn.Linear(channels, 20)
            check(
                quantized(layer, act_group_size=group, act_bits=act_bits, literal=literal),
                rows(7, channels),
                label=(group, act_bits, channels, literal),
            )


@pytest.mark.parametrize("weight_bits", [2, 3, 4])
@pytest.mark.parametrize("weight_group", [None, 32, 64, 128])
@pytest.mark.parametrize("mode", ["per_tensor", "per_token_group"])
def test_weights(weight_bits, weight_group, mode):
    changes = {"weight_bits": weight_bits, "weight_group_size": weight_group}
    for channels in (20, 32, 70, 100, 192):
        for bits in (4, 8):
            linear = quantized(nn.Linear(channels, 35), mode, act_bits=bits, **changes)
            check(linear, rows(4, channels), label=(channels, bits))
        conv = nn.Conv2d(channels, 9, 3, padding=1, bias=False)
        check(quantized(conv, mode, **changes), torch.randn(1, channels, 4, 5), label=channels)


def test_weight_groups_wider_than_any_activation_group():
    for mode in ("per_tensor", "per_token_group"):
        for bits in (4, 8):
            layer = quantized(nn.Linear(600, 9), mode, weight_group_size=256, act_bits=bits)
            check(layer, rows(5, 600), label=(mode, bits))


@pytest.mark.parametrize("act_bits", [4, 8])
def test_extreme_codes_do_not_overflow(act_bits):
    """Every code at an end of its grid: the largest integer sums that can occur."""
    for sign_x in (1.0, -1.0):
        for sign_w in (1.0, -1.0):
            layer = nn.Linear(256, 20)
            nn.init.constant_(layer.weight, sign_w)
            for mode, group in [("per_tensor", 32), ("per_token_group", 128)]:
                model = quantized(
                    layer, mode, preset="w4a4", act_bits=act_bits, act_group_size=group
                )
                check(model, torch.full((3, 256), sign_x), label=(sign_x, sign_w, mode))


@pytest.mark.parametrize("projection", ["min", "guarded"])
@pytest.mark.parametrize("mode", ["per_tensor", "per_token_group"])
def test_ranges(projection, mode):
    for tau, zero_ratio, percentile in [
        (None, None, None),
        (1.0, None, None),
        (None, 0.3, None),
        (1.0, 0.2, 0.97),
        (None, None, 0.9),
    ]:
        changes = {"tau": tau, "zero_ratio": zero_ratio, "act_percentile": percentile}
        layer = quantized(nn.Linear(72, 17), mode, projection=projection, **changes)
        check(layer, rows(9, 72), label=changes)


@pytest.mark.parametrize("mode", ["per_tensor", "per_channel"])
def test_static_ranges(mode):
    def static(layer, x):
        batches = [x * 0.7, x[:1]]
        return quantized(
            layer, mode, calibration=batches, act_range="static", tau=None, zero_ratio=None
        )

    if mode == "per_tensor":
        x = rows(6, 45)
        check(static(nn.Linear(45, 20), x), x)
        x = torch.randn(2, 33, 6, 5)
        check(static(nn.Conv2d(33, 20, 3, padding=1), x), x)
    x = torch.randn(2, 33, 6, 5)
    check(static(nn.Conv2d(33, 33, 3, padding=1, groups=33), x), x)
    x[1, 4, 2, 2] = float("nan")  # shows in the simulation, whatever was calibrated
    layer = static(nn.Conv2d(33, 33, 3, padding=1, groups=33), torch.randn(2, 33, 6, 5))
    with torch.no_grad(), native.disabled():
        expected = layer(x).isnan()
    with torch.no_grad():
        found = native_only(layer)(x).isnan()
    assert not expected[0].any()  # another image
    assert expected[1].all() if mode == "per_tensor" else expected[1, 4].all()
    assert mode == "per_tensor" or not expected[1, 5].any()
    assert torch.equal(found, expected)


LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "sliced": lambda x: x.repeat(1, 2, 1, 2)[:, ::2, :, 1:-2:2],
    "channels sliced": lambda x: torch.cat([x, x], 1)[:, 3 : 3 + x.shape[1]],
    "expanded": lambda x: x[:1].expand(x.shape),
    "permuted batch": lambda x: x.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["per_tensor", "per_token_group"])
def test_memory_layouts(layout, mode):
    """Values, and the strides that a caller may rely on."""
    for shape in [(3, 40, 6, 5), (1, 40, 6, 5), (2, 1, 4, 4), (2, 34, 1, 1), (1, 1, 1, 1)]:
        x = LAYOUTS[layout](torch.randn(shape))
        if not x.numel():
            continue
        channels = x.shape[1]
        conv = nn.Conv2d(channels, 18, 3, padding=1)
        check(quantized(conv, mode), x, label=(layout, shape))
        if channels > 1:
            deep = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
            check(quantized(deep, mode), x, label=(layout, shape))


@pytest.mark.parametrize("mode", ["per_tensor", "per_token_group"])
def test_linear_layouts(mode):
    layer = quantized(nn.Linear(40, 19), mode)
    for x in (
        torch.randn(40),
        torch.randn(2, 3, 40),
        torch.randn(2, 40, 3).transpose(1, 2),
        torch.randn(40, 6).t(),
        torch.randn(8, 80)[::2, ::2],
        torch.randn(5, 1, 40).expand(5, 4, 40),
        torch.randn(2, 40, 3, 4).permute(0, 2, 3, 1),
        torch.randn(1, 1, 1, 1, 40),
    ):
        check(layer, x, label=tuple(x.shape))


def test_unbatched_inputs():
    check_unbatched(nn.Conv2d(12, 9, 3, padding=1), torch.randn(12, 5, 6))
    check_unbatched(nn.Conv1d(12, 9, 3, padding=1), torch.randn(12, 7))


def check_unbatched(conv, x):
    model = quantized(conv)
    with torch.no_grad(), native.disabled():
        expected = model(x)
    for name in SETS:
        with instruction_set(name), torch.no_grad():
            found = native_only(model)(x)
        assert same_form(found, expected, x)
        assert distance(found, expected) <= 2e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_cast_and_given_back(dtype):
    for layer, shape in [(nn.Linear(33, 9), (4, 33)), (nn.Conv2d(9, 5, 3), (2, 9, 6, 6))]:
        model, x = quantized(layer), torch.randn(shape).to(dtype)
        with torch.no_grad():
            found = native_only(model)(x)
            with native.disabled():
                expected = model(x)
        assert found.dtype == dtype
        assert distance(found, expected) <= (2e-6 if dtype == torch.float64 else 1e-2)


def test_no_elements():
    layer, conv = (
        native_only(quantized(nn.Linear(8, 4))),
        native_only(quantized(nn.Conv2d(8, 4, 1))),
    )
    assert layer(torch.randn(0, 8)).shape == (0, 4)
    assert conv(torch.randn(0, 8, 3, 3)).shape == (0, 4, 3, 3)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(40, 4), (2, 38)),  # as many groups, fewer channels
        (nn.Linear(40, 4), (2, 72)),
        (nn.Conv2d(40, 4, 3), (1, 39, 5, 5)),
        (nn.Conv2d(4, 4, 3), (1, 4, 2, 2)),  # smaller than the kernel
        (nn.Conv2d(4, 4, 3), (1, 1, 4, 5, 5)),
        (nn.Conv2d(6, 6, 3, groups=6), (1, 7, 5, 5)),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_torch(layer, shape):
    with pytest.raises(RuntimeError):
        native_only(quantized(layer))(torch.randn(shape))


def test_a_bias_that_is_a_view():
    layer = nn.Linear(16, 6)
    layer.bias = nn.Parameter(torch.randn(12)[::2])
    model = quantized(layer)
    model.bias = nn.Parameter(torch.randn(12)[::2], requires_grad=False)
    assert not model.bias.is_contiguous()
    check(model, torch.randn(3, 16))


def test_weights_packed_for_another_set_are_refused():
    if len(SETS) < 2:
        pytest.skip("one instruction set only")
    model = native_only(quantized(nn.Linear(40, 20)))
    with instruction_set(SETS[-1]), pytest.raises(UnsupportedError, match="use_backend again"):
        model(torch.randn(2, 40))


def models():
    yield quantized(nn.Linear(100, 70)), torch.randn(300, 100)
    yield quantized(nn.Conv2d(33, 40, 3, padding=1), "per_tensor"), torch.randn(3, 33, 15, 14)
    yield quantized(nn.Conv2d(33, 40, 3, 2, 1)), torch.randn(2, 33, 15, 14)
    deep = nn.Conv2d(40, 40, 7, padding=3, groups=40)
    yield quantized(deep, "per_channel"), torch.randn(2, 40, 13, 14)


def test_threads_do_not_show():
    for model, x in models():
        for name in SETS:
            with instruction_set(name), torch.no_grad():
                native_only(model)
                found = []
                for count in (1, 2, 4):
                    with torch_threads(count):
                        found.append(model(x))
            assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_several_python_threads_at_once():
    with torch_threads(2), torch.no_grad():
        pairs = [(native_only(model), x) for model, x in models()]
        expected = [model(x) for model, x in pairs]
        for model, _ in pairs:
            model.executor = None  # all threads find it missing and make it at the same time
        wrong = []

        def work(number):
            torch.set_num_threads(2)
            with torch.no_grad():
                for turn in range(8):
                    at = (number + turn) % len(pairs)
                    model, x = pairs[at]
                    if not torch.equal(model(x), expected[at]):
                        wrong.append(at)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong and not any(thread.is_alive() for thread in threads)


def in_child(model, x, expected):
    with torch.no_grad():
        os._exit(0 if torch.equal(model(x), expected) else 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork in a process with threads
def test_after_fork():
    """A child process gets workers of its own: those of the parent do not exist in it."""
    model = native_only(quantized(nn.Linear(100, 70)))
    x = torch.randn(300, 100)
    with torch_threads(2), torch.no_grad():
        expected = model(x)  # the pool of the parent runs
        fork = multiprocessing.get_context("fork")
        child = fork.Process(target=in_child, args=(model, x, expected))
        child.start()
        child.join(120)
        hangs = child.is_alive()
        child.kill()
        child.join()
    assert not hangs and child.exitcode == 0


def test_many_groups_keep_the_precision():
    """7 x 7 taps of 16 groups each: 784 float additions per output."""
    layer = quantized(nn.Conv2d(512, 8, 7, padding=3))
    check(layer, torch.randn(1, 512, 7, 7))


def test_the_reference_of_these_tests_is_the_simulation():
    layer = quantized(nn.Conv2d(40, 9, 3, padding=1))
    x = torch.randn(2, 40, 5, 5)
    use_backend(layer, "reference")
    with torch.no_grad(), native.disabled():
        assert distance(layer(x), reference(layer, x)) < 1e-6
        assert distance(layer(x), layer(x * 1.5)) > 1e-3


@pytest.mark.parametrize("weight_group", [None, 32])
def test_taps_that_see_only_padding(weight_group):
    """Dilations wider than the map: some rows use a tap, others none, at last only the middle."""
    for side, dilation in ((12, 5), (12, 11), (7, 18), ((30, 3), (20, 2))):
        height, width = (side, side) if isinstance(side, int) else side
        conv = nn.Conv2d(40, 33, 3, padding=dilation, dilation=dilation)
        layer = quantized(conv, weight_group_size=weight_group)
        check(layer, torch.randn(1, 40, height, width), label=(side, dilation))


@pytest.mark.parametrize("mode", ["per_tensor", "per_token_group"])
def test_convolutions_in_groups(mode):
    for channels, outputs, groups in ((8, 4, 2), (64, 6, 2), (96, 96, 24), (36, 9, 3), (72, 16, 2)):
        layer = quantized(nn.Conv2d(channels, outputs, 3, padding=1, groups=groups), mode)
        check(layer, torch.randn(2, channels, 5, 6), label=(channels, outputs, groups))
    layer = quantized(nn.Conv1d(16, 8, 3, stride=2, groups=4), mode)
    check(layer, torch.randn(2, 16, 9))


@pytest.mark.parametrize("mode", ["per_tensor", "per_channel", "per_token_group"])
def test_depthwise_with_a_multiplier(mode):
    for channels, times in ((8, 2), (40, 3)):
        layer = nn.Conv2d(channels, channels * times, 3, padding=1, stride=2, groups=channels)
        check(quantized(layer, mode), torch.randn(2, channels, 7, 6), label=(channels, times))


@pytest.mark.parametrize("padding_mode", ["reflect", "replicate", "circular"])
def test_padding_that_repeats_the_map(padding_mode):
    for groups in (1, 8):
        layer = nn.Conv2d(8, 8, 3, padding=(2, 1), padding_mode=padding_mode, groups=groups)
        check(quantized(layer), torch.randn(2, 8, 6, 5), label=groups)
        check(quantized(layer, "per_tensor", preset="w4a4"), torch.randn(2, 8, 6, 5), label=groups)
    layer = nn.Conv1d(8, 4, 3, padding=2, padding_mode=padding_mode)
    check(quantized(layer), torch.randn(2, 8, 9))


def test_padding_in_words():
    for padding in ("same", "valid"):
        layer = nn.Conv2d(8, 4, (3, 5), padding=padding, dilation=2)
        check(quantized(layer), torch.randn(1, 8, 11, 12), label=padding)


def test_packed_weights_are_small_and_freed_with_the_model():
    layer = native_only(quantized(nn.Linear(512, 512)))
    assert layer.executor._weights.bytes <= 512 * 512 // 2 + 4 * 512 + 4096
    memory = weakref.ref(layer.executor._weights.packed)
    del layer
    assert memory() is None  # at once, without a collection


def test_the_library_can_be_another_file(monkeypatch, tmp_path):
    monkeypatch.setenv(OTHER_FILE, str(tmp_path / "other.so"))
    assert path() == tmp_path / "other.so"
