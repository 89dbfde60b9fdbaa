"""Files that somebody made: whatever they say is refused in one line before a kernel sees it."""

import json
import resource
import subprocess
import sys
import time

import pytest
import torch
from altering import change_meta, edit_meta, put, rewrite, weights_of
from safetensors.torch import save

import codtdq
from codtdq.errors import CheckpointError
from codtdq.models.registry import build_model
from codtdq.schemes.carried import TokenCarriers
from codtdq.schemes.multiplied import MultipliedWeight
from codtdq.schemes.stored import unfit
from codtdq.schemes.token_groups import TokenGroups
from codtdq.schemes.transforms import Transform, Transformed
from small_nets import images, simulate, small_net

DIM = 48  # channels of `attn.qkv`
MLP = "mlp.fc1"


@pytest.fixture(scope="module")
def plus_model():
    """A model of cod-tdq-plus, one input of which is shifted, scaled, ordered and rotated."""
    config = codtdq.config("cod-tdq-plus", float_storage="block8")
    model = simulate(small_net(), config, calibration=[images(2, seed=3)])
    order = torch.randperm(DIM, generator=torch.Generator().manual_seed(1))
    vectors = Transform(torch.zeros(DIM), torch.ones(DIM), order, hadamard=True)
    inputs = Transformed(TokenGroups(4, 16, 2, unit=0.01), transform=vectors)
    model.get_submodule(MLP).exchange(inputs=inputs)
    return model


@pytest.fixture
def plus(plus_model, tmp_path):
    return codtdq.save(plus_model, tmp_path / "plus")


@pytest.fixture
def paper(tmp_path):
    model = simulate(small_net(), codtdq.preset("cod-tdq", weight_group_size=16))
    return codtdq.save(model, tmp_path / "paper")


def refusal(path, net=small_net, **options):
    """The one line with which a checkpoint is refused, soon."""
    began = time.process_time()
    with pytest.raises(CheckpointError) as error:
        codtdq.load(path, model=net(), **options)
    assert time.process_time() - began < 5
    assert "\n" not in str(error.value) and len(str(error.value)) < 600
    return str(error.value)


def buffer(name, change):
    """A change of one stored tensor, found under its name or its narrow form."""

    def apply(entries):
        key = next(k for k in (name, f"{name}#narrow") if k in entries)
        entries[key] = change(entries[key]).contiguous()

    return apply


def order_with(place, value):
    def change(order):
        wider = order.to(torch.int16)
        wider[place] = value
        return wider

    def apply(entries):
        name = f"{MLP}.input_scheme.order"
        entries[name] = change(entries.pop(name, entries.pop(f"{name}#narrow", None)))

    return apply


BUFFERS = {
    "order-beyond": (order_with(3, DIM), "holds 0 to 48"),
    "order-far-beyond": (order_with(0, 32767), "32767"),
    "order-negative": (order_with(3, -1), "holds -1"),
    "order-twice": (order_with(3, 0), "accepted|permutation"),
    "order-short": (
        buffer(f"{MLP}.input_scheme.order", lambda t: t[:-1].to(torch.int16)),
        "order has shape",
    ),
    "shift-short": (buffer(f"{MLP}.input_scheme.shift", lambda t: t[:7]), "shift has shape"),
    "scale-short": (buffer(f"{MLP}.input_scheme.scale", lambda t: t[:1]), "scale has shape"),
    "scale-nan": (buffer(f"{MLP}.input_scheme.scale", lambda t: t * torch.nan), "NaN or infinity"),
    "weight-sizes-one-row": (
        buffer("mlp.fc2.weight_scheme.sizes", lambda t: t[:1]),
        r"sizes has shape \[1, 3\]; accepted: \[48, 3\]",
    ),
    "weight-sizes-float": (
        buffer("mlp.fc2.weight_scheme.sizes", lambda t: t.float()),
        "sizes is torch.float32; accepted: torch.uint8",
    ),
    "weight-signs-short": (
        buffer("mlp.fc2.weight_scheme.signs", lambda t: t[:, :0]),
        "signs is missing, or has shape",
    ),
    "weight-signs-wide": (
        buffer("mlp.fc2.weight_scheme.signs", lambda t: t.repeat(1, 2)),
        r"signs has shape \[48, 2\]; accepted: \[48, 1\]",
    ),
    "weight-factor-one": (
        buffer("mlp.fc2.weight_scheme.factor", lambda t: t[:1]),
        r"factor has shape \[1\]; accepted: \[48\]",
    ),
    "weight-factor-infinite": (
        buffer("mlp.fc2.weight_scheme.factor", lambda t: t * torch.inf),
        "factor holds NaN or infinity",
    ),
    "codes-short": (buffer("mlp.fc2.weight_scheme.packed", lambda t: t[:, 1:]), "packed has shape"),
    "depthwise-1x1": (
        buffer("depthwise.weight_scheme.packed", lambda t: t[:, :1]),
        "packed has shape",
    ),
}


@pytest.mark.parametrize(("change", "message"), BUFFERS.values(), ids=BUFFERS.keys())
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_buffers_that_do_not_fit_are_refused(plus, change, message, backend):
    rewrite(plus, change)
    with pytest.raises(CheckpointError, match=message):
        codtdq.load(plus, model=small_net(), backend=backend)
    refusal(plus, backend=backend)


def setting(operator, side, **changes):
    def apply(meta):
        record = meta["operators"][operator][side]
        record.update({k: v for k, v in changes.items() if v is not ...})
        for key in [k for k, v in changes.items() if v is ...]:
            del record[key]

    return apply


def inner(**changes):
    return lambda meta: meta["operators"][MLP]["input"]["inner"].update(changes)


def deeper(meta):
    record = meta["operators"][MLP]["input"]
    for _ in range(200):
        record = {"kind": "rescaled", "inner": record}
    meta["operators"][MLP]["input"] = record


def everywhere(meta, shape):
    meta["operators"]["mlp.fc2"]["weight"]["shape"] = shape
    next(s for s in meta["plan"]["sites"] if s["name"] == "mlp.fc2")["shape"] = shape


SETTINGS = {
    "trials": (inner(trials=2**31), "trials"),
    "trials-zero": (inner(trials=0), "trials"),
    "bits": (inner(bits=2**40), "bits"),
    "bits-text": (inner(bits="4"), "bits"),
    "bits-bool": (inner(bits=True), "bits"),
    "group-zero": (inner(group=0), "group"),
    "group-negative": (inner(group=-16), "group"),
    "unit-negative": (inner(unit=-1.0), "unit"),
    "unit-infinite": (inner(unit=1e308), "unit"),
    "zero-point": (inner(zero_point="outside"), "zero_point"),
    "positions": (inner(positions=10**30), "positions"),
    "unknown-setting": (inner(colour="red"), "no setting 'colour'"),
    "missing-setting": (setting("mlp.fc2", "weight", bits=...), "lacks bits"),
    "weight-group": (setting("mlp.fc2", "weight", group=-1), "group"),
    "weight-bits": (setting("mlp.fc2", "weight", bits=2**40), "bits"),
    "kind": (setting("mlp.fc2", "weight", kind=["x"]), "is not known"),
    "kind-of-the-other-side": (setting("mlp.fc2", "weight", kind="plus-token-groups"), "not known"),
    "shape-huge": (lambda m: everywhere(m, [48, 10**9]), "is not an operator of SmallNet"),
    "shape-elsewhere": (lambda m: everywhere(m, [48, 191]), "is not an operator of SmallNet"),
    "shape-text": (lambda m: everywhere(m, "48x192"), "shape"),
    "depth": (deeper, "levels of JSON|record of a scheme"),
    "float-shape": (
        lambda m: m["floats"].update({next(iter(m["floats"])): [3 * 10**9]}),
        "do not fit their shapes",
    ),
    "float-shape-swapped": (lambda m: m["floats"].update({"norm1.weight": [6, 8]}), "norm1.weight"),
    "bias-of-nothing": (lambda m: m["operators"]["head"].update(bias=1), "bias"),
    "alias-of-nothing": (lambda m: m["aliases"].update(a="b"), "an alias names 'b'"),
    "alias-over": (
        lambda m: m["aliases"].update({"norm1.weight": "norm2.weight"}),
        "stored in two forms",
    ),
    "plan-inputs": (lambda m: m["plan"]["sites"][3].update(inputs=10**6), "inputs"),
    "plan-twice": (lambda m: m["plan"]["sites"].append(m["plan"]["sites"][0]), "named twice"),
    "run-extra": (lambda m: m["run"].update(seeds=1), "run is not"),
    "architecture": (lambda m: m.update(architecture=["a"]), "architecture is not a text"),
}


@pytest.mark.parametrize(("change", "message"), SETTINGS.values(), ids=SETTINGS.keys())
def test_settings_that_do_not_fit_are_refused(plus, change, message):
    change_meta(plus, change)
    with pytest.raises(CheckpointError, match=message):
        codtdq.load(plus, model=small_net())
    refusal(plus)


def test_weight_groups_of_the_paper_are_refused_with_one_row(paper):
    rewrite(paper, buffer("mlp.fc1.weight_scheme.scale", lambda t: t[:1]))
    assert "scale has shape [1, 1]; accepted: [192, 1]" in refusal(paper)


def test_multipliers_of_the_paper_are_refused_with_one_row(paper):
    rewrite(paper, buffer("mlp.fc1.weight_scheme.multiplier", lambda t: t[:1]))
    assert "multiplier has shape [1, 2]; accepted: [192, 2]" in refusal(paper)


def test_float_scales_of_groups_are_refused_with_one_row(tmp_path):
    config = codtdq.preset("cod-tdq", weight_group_size=16, scales="float")
    path = codtdq.save(simulate(small_net(), config), tmp_path / "float")
    rewrite(path, buffer("mlp.fc1.weight_scheme.scale", lambda t: t[:1]))
    assert "scale has shape [1, 3]; accepted: [192, 3]" in refusal(path)


def test_codes_and_multipliers_beyond_their_bits_are_refused():
    """Their product would leave the signed byte that kernels hold it in."""
    for bits, buffers in ((3, {"packed": 7, "sizes": 15}), (5, {"packed": 31, "sizes": 7})):
        expected = MultipliedWeight((4, 32), bits, 16).expected_buffers(32)
        for name, most in buffers.items():
            halves = bits < 5 or name == "sizes"
            full = torch.full(expected[name].shapes[0], most * 17 if halves else most)
            assert unfit(full, expected[name]) is None
            if most < 15:
                assert f"holds {most + 1}" in str(unfit(full + 1, expected[name]))


def test_a_palette_beyond_its_values_is_refused(paper):
    rewrite(paper, buffer("mask#palette.codes", lambda t: t + 200))
    assert "beyond its palette" in refusal(paper)


def test_a_tensor_in_two_forms_is_refused(paper):
    rewrite(paper, lambda e: e.update(index=torch.zeros(100, dtype=torch.int64)))
    assert "index is stored in two forms" in refusal(paper)


def test_a_file_larger_than_its_network_is_not_read(paper):
    with weights_of(paper).open("r+b") as stream:
        stream.truncate(300 << 20)  # sparse: it takes no room on disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "accepted: at most" in refusal(paper)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_a_header_of_gigabytes_is_not_read(paper):
    with (paper / "codtdq.json").open("r+b") as stream:
        stream.truncate(3 << 30)
    assert "accepted: at most" in refusal(paper)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 10_000, "\ud800", "nan"])
def test_json_that_is_no_header_is_refused(paper, text):
    (paper / "codtdq.json").write_text(text, errors="surrogatepass")
    refusal(paper)


@pytest.mark.fault("a flipped bit of `codtdq.json`")
def test_a_single_changed_character_of_the_header_shows(paper, tally):
    """Whatever bit of the JSON flips, the content is refused, or it is the same content."""
    text = (paper / "codtdq.json").read_bytes()
    wanted = json.loads(text)
    generator = torch.Generator().manual_seed(0)
    refused = 0
    for _ in range(300):
        at, bit = (int(torch.randint(n, (1,), generator=generator)) for n in (len(text), 8))
        flipped = bytearray(text)
        flipped[at] ^= 1 << bit
        (paper / "codtdq.json").write_bytes(bytes(flipped))
        tally()
        try:
            assert codtdq.checkpoint.read_header(paper) == wanted
        except CheckpointError:
            refused += 1
    assert refused > 250


def test_a_scheme_changed_in_memory_is_refused_by_the_engine(plus_model):
    """What no file could bring: a scheme that was changed after it was loaded."""
    model = codtdq.quantize(small_net(), "cod-tdq-plus", calibration=[images(2, seed=3)])
    operator = model.get_submodule(MLP)
    if operator.backend is None:
        pytest.skip("no native engine")
    order = Transform(order=torch.full((DIM,), 32000, dtype=torch.long))
    operator.exchange(inputs=Transformed(TokenCarriers(4, 16, 2), transform=order))
    with pytest.raises(codtdq.CodtdqError, match="no permutation"), torch.no_grad():
        model(images(1))
    operator.exchange(inputs=Transformed(TokenGroups(4, 16, 2, unit=0.01)))
    with pytest.raises(codtdq.CodtdqError, match=f"^{MLP} .*no engine"), torch.no_grad():
        model(images(1))


def test_the_command_refuses_a_hostile_directory_in_one_line(tmp_path):
    """`codtdq predict` on a changed file of a registered model: exit code 2 and one line."""
    path = codtdq.save(simulate(build_model("cfrn-small"), "cod-tdq"), tmp_path / "m")
    first = next(k for k in load_names(path) if k.endswith("weight_scheme.scale"))
    rewrite(path, lambda e: e.update({first: e[first][:1].contiguous()}))
    from PIL import Image

    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "codtdq",
            "predict",
            str(tmp_path / "a.png"),
            "--model",
            str(path),
            "--out",
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert "has shape" in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def load_names(path):
    from safetensors.torch import load

    return list(load(weights_of(path).read_bytes()))


def test_bytes_that_are_no_safetensors_are_refused(paper):
    for data in (b"", b"\x00" * 7, b"\xff" * 64, (2**40).to_bytes(8, "little") + b"{}", save({})):
        put(paper, data)
        refusal(paper)


def test_a_file_of_another_hash_is_never_read_through_the_pointer(paper, tmp_path):
    (tmp_path / "secret").write_bytes(b"x")
    for name in ("/etc/passwd", "../secret", "codtdq.json", "model-0.safetensors", ""):
        edit_meta(paper, weights=name)
        assert "is not its sha256's file" in refusal(paper)
