"""Figures show the numbers that they are given, and come out the same every time."""

import io
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from codtdq.errors import ConfigError, DataError
from codtdq.lab.diagnosis.record import GroupSample, Histogram
from codtdq.lab.figures import (
    before_and_after,
    draw_figures,
    failure_mechanism,
    figure_bytes,
    hyperparameter_sensitivity,
    layer_profile,
    mask_figure,
    projection,
    save_figure,
    token_ranges,
    weight_histograms,
)
from codtdq.lab.figures.before_after import Bounded, falls
from codtdq.lab.figures.compared import naive_and_better, sampled_layers
from codtdq.lab.figures.layer_profile import SQNR_TOP, running_median
from codtdq.lab.figures.projection import share_beyond
from codtdq.lab.figures.token_ranges import token_maxima
from codtdq.lab.figures.weight_histograms import banded_counts
from codtdq.lab.mask_grid import MaskRow, mask_grid
from handmade_diagnosis import LAYERS, METHODS, handmade

GRID = [(8, 1.0, 0.2, 0.6), (32, 1.0, 0.2, 0.7), (64, 1.0, 0.2, 0.65), (32, 0.5, 0.2, 0.5)]


@pytest.fixture(scope="module")
def diagnosis():
    return handmade()


def lines(axes):
    return [line for line in axes.get_lines() if len(line.get_xdata()) > 1]


def texts(figure):
    import matplotlib.text

    return [item.get_text() for item in figure.findobj(matplotlib.text.Text)]


def test_the_same_figure_is_the_same_bytes():
    for form, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        first, second = (figure_bytes(hyperparameter_sensitivity(GRID), form) for _ in range(2))
        assert first == second and first.startswith(start)


def test_files_are_whole_and_their_format_is_checked(tmp_path):
    figure = hyperparameter_sensitivity(GRID)
    file = save_figure(figure, tmp_path / "deep" / "a.svg")
    assert file.read_bytes() == figure_bytes(figure, "svg")
    with pytest.raises(ConfigError, match=r"figure format 'gif'; accepted: png, svg"):
        save_figure(figure, tmp_path / "a.gif")
    assert [p.name for p in tmp_path.rglob("*.*")] == ["a.svg"]


def test_drawing_leaves_no_trace():
    """No pyplot, no changed settings: a caller's own figures are safe."""
    code = (
        "import matplotlib, sys\n"
        "rc = matplotlib.rcParams\n"
        "def now(): return {k: rc[k] for k in rc if k != 'backend'}\n"
        "rc['font.size'] = 33; before = now()\n"
        "from codtdq.lab.figures import hyperparameter_sensitivity\n"
        f"hyperparameter_sensitivity({GRID!r})\n"
        "assert now() == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_matplotlib_the_extra_is_named():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from codtdq.errors import UnsupportedError\n"
        "from codtdq.lab.figures import hyperparameter_sensitivity\n"
        "try: hyperparameter_sensitivity([(8, 1, 0.2, 0.5)])\n"
        "except UnsupportedError as error: print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install 'matplotlib" in out.stdout and out.stdout.count("\n") == 1


def test_hyperparameter_lines_hold_the_others_at_the_default():
    figure = hyperparameter_sensitivity(GRID, reference=0.8)
    by_g, by_tau, by_zr = figure.axes
    assert [list(line.get_ydata()) for line in lines(by_g)][1] == [0.6, 0.7, 0.65]
    assert [t.get_text() for t in by_g.get_xticklabels()] == ["8", "32", "64"]
    assert [list(line.get_ydata()) for line in lines(by_tau)][1] == [0.5, 0.7]
    assert any(list(line.get_ydata()) == [0.8, 0.8] for line in by_zr.get_lines())


def test_hyperparameter_lines_go_through_the_best_row_without_the_default():
    figure = hyperparameter_sensitivity([(8, 2.0, 0.3, 0.4), (16, 2.0, 0.3, 0.6)])
    assert any("g = 16" in text for text in texts(figure))
    with pytest.raises(DataError, match="no settings"):
        hyperparameter_sensitivity([])


def test_a_bound_that_is_off_stands_last():
    figure = hyperparameter_sensitivity([(32, None, 0.2, 0.4), (32, 1.0, 0.2, 0.6)])
    by_tau = figure.axes[1]
    assert [t.get_text() for t in by_tau.get_xticklabels()] == ["1", "off"]
    assert list(lines(by_tau)[1].get_ydata()) == [0.6, 0.4]


def test_weights_are_counted_by_band_of_channels():
    weight = np.zeros((24, 4))
    weight[0] = 0.9  # all of the first band's first channel at the top
    starts, counts = banded_counts(weight, np.linspace(-1, 1, 5))
    assert starts == list(range(0, 24, 2)) and counts.sum() == weight.size
    assert counts[0].tolist() == [0, 0, 4, 4] and counts[1].tolist() == [0, 0, 8, 0]


def test_weight_histogram_has_a_panel_per_method():
    rng = np.random.default_rng(0)
    weights = {title: rng.normal(0, s, (16, 8)) for title, s in (("A", 1), ("B", 2), ("C", 3))}
    figure = weight_histograms("layer.x", weights)
    assert len(figure.axes) == 3 and {"A", "B", "C", "Weights of layer.x"} <= set(texts(figure))
    assert len({axes.get_xlim() for axes in figure.axes}) == 1  # values can be compared


def test_masks_fill_a_figure_pixel_by_pixel():
    grey = np.full((6, 8), 40, np.uint8)
    rows = [MaskRow("i", np.zeros((6, 8, 3), np.uint8), grey, {"FP32": grey}, {"FP32": 0.5})]
    picture = mask_grid(rows)
    figure = mask_figure(rows)
    shown = Image.open(io.BytesIO(figure_bytes(figure, "png"))).convert("RGB")
    assert shown.size == picture.size
    assert np.array_equal(np.asarray(shown), np.asarray(picture))


def test_share_beyond_leaves_the_bound_itself_out():
    edges, counts = np.array([0.0, 0.2, 0.4, 1.0]), np.array([5, 3, 2])
    assert share_beyond(edges, counts, 0.2) == 0.2  # groups on the bound are in [0.2, 0.4)
    assert share_beyond(edges, counts, 0.1) == 0.5


def test_projection_reports_shares_of_pooled_groups(diagnosis):
    naive = diagnosis.method("w4a4")
    layer = replace(
        naive.layers[0],
        group_eta=Histogram([0.5, 1.0, 2.0, 4.0], [1, 1, 2]),
        group_rho0=Histogram([0.0, 0.2, 0.4, 1.0], [6, 0, 2]),
    )
    none = replace(layer, group_eta=Histogram([0.5, 1.0, 2.0, 4.0], [0, 0, 0]))
    figure = projection(
        [replace(naive, layers=[layer, layer]), replace(naive, method="b", layers=[none])]
    )
    assert {"50.0 %", "25.0 %", "not defined"} <= set(texts(figure))


def test_profile_draws_each_method_and_leaves_gaps(diagnosis):
    figure = layer_profile(diagnosis.methods)
    titles = {title for title, _, _ in METHODS.values()} - {"FP32"}
    assert titles <= set(texts(figure))
    boundary = figure.axes[4]
    drawn = [line.get_ydata() for line in boundary.get_lines() if line.get_linestyle() != "None"]
    assert len(drawn) == 3 and all(np.isnan(values[-1]) for values in drawn)  # no token places
    with pytest.raises(DataError, match="nothing to draw"):
        layer_profile([diagnosis.method("fp32")])


def test_profile_leaves_constant_inputs_out_and_cuts_sqnr(diagnosis):
    naive = diagnosis.method("w4a4")
    first, second, *_ = naive.layers
    odd = [replace(first, c_g=1e11, sqnr_db=150.0), replace(second, c_g=3.0, sqnr_db=21.0)]
    figure = layer_profile([replace(naive, layers=odd)])
    c_g, sqnr = (list(figure.axes[index].get_lines()[0].get_ydata()) for index in (0, 7))
    assert np.isnan(c_g[0]) and c_g[1] == 3.0
    assert sqnr == [SQNR_TOP, 21.0]


def test_before_and_after_prints_the_shares_beyond_the_bounds():
    labels = np.array([0, 0, 0, 0, 1, 1, -1], np.int8)
    groups = GroupSample(
        tau=1.0,
        zr=0.2,
        boundary=labels,
        eta_before=np.array([0.5, 2, 2, 2, 0.5, 2, 9], np.float32),
        eta_after=np.array([0.5, 1, 1, 1, 0.5, 1, 1], np.float32),
        rho0_before=np.array([0.3, 0.3, 0.3, 0.1, 0.5, 0.5, 1], np.float32),
        rho0_after=np.array([0.3, 0.2, 0.2, 0.1, 0.2, 0.5, 1], np.float32),
    )
    one = Bounded("ours", "some.layer", groups)
    left, right = (axes.get_xlabel() for axes in before_and_after([one]).axes)
    assert "non-boundary 75.0 → 0.0 %" in left and " boundary 50.0 → 0.0 %" in left
    assert "non-boundary 75.0 → 25.0 %" in right and " boundary 100.0 → 50.0 %" in right
    assert falls(one).endswith(
        "η > τ from 75.00 % to 0.00 %, with ρ₀ > zr from 75.00 % to 25.00 %."
    )
    with pytest.raises(DataError, match="nothing to draw"):
        before_and_after([])


def test_running_median_ignores_spikes_and_gaps():
    values = [1.0] * 30
    values[10], values[20] = 100.0, np.nan
    assert running_median(values).tolist() == [1.0] * 30
    assert running_median([3.0, np.nan, 5.0]).tolist()[::2] == [3.0, 5.0]  # short: as it is


def test_naive_is_compared_with_the_best_other_method(diagnosis):
    (layer,) = sampled_layers(diagnosis)
    naive, better = naive_and_better(diagnosis, layer)
    assert (naive.method.method, better.method.method) == ("w4a4", "cod-tdq-guarded")
    x, kept = naive.sample.x, naive.sample.x_hat
    chosen = (naive.sample.boundary == 1) & (x != 0)
    assert naive.zeroed_share() == pytest.approx((kept[chosen] == 0).mean())
    assert naive.zeroed_share() > better.zeroed_share()
    figure = failure_mechanism(diagnosis)
    assert any(f"{100 * naive.zeroed_share():.1f} %" in text for text in texts(figure))


def test_token_maxima_and_erased_tokens(diagnosis):
    values = np.array([1, -3, 2, 0.5, 0], np.float32)
    names, largest = token_maxima(values, np.array([7, 7, 2, 2, 9]))
    assert names.tolist() == [2, 7, 9] and largest.tolist() == [2, 3, 0]
    naive, _ = naive_and_better(diagnosis, LAYERS[2][0])
    tokens, after = token_maxima(naive.sample.x_hat, naive.sample.token)
    erased = 100 * np.mean(after[tokens % 4 == 0] == 0)
    figure = token_ranges(diagnosis)
    low = min(np.min(line.get_ydata()) for line in lines(figure.axes[1]))
    assert figure.axes[1].get_ylim()[0] < low  # erased tokens stand inside the panel
    assert any(f"boundary erased: {erased:.0f} %" in t for t in texts(figure))


def test_a_diagnosis_fills_every_figure_and_nothing_overlaps_its_name(diagnosis):
    names = [drawn.name for drawn in draw_figures(diagnosis)]
    assert names == [
        "failure-mechanism",
        "token-ranges",
        "before-after",
        "projection",
        "layer-profile",
        "masks",
        "weights-backbone.stages.0.attn.qkv",
    ]


def test_figures_without_their_data_are_left_out(diagnosis):
    bare = handmade()
    bare.gallery, bare.samples, bare.weight_samples = [], [], []
    assert [drawn.name for drawn in draw_figures(bare)] == ["projection", "layer-profile"]


def test_a_method_has_one_colour_and_style_in_all_figures(diagnosis):
    def looks(figure):
        handles = figure.legends[0].legend_handles
        names = [item.get_text() for item in figure.legends[0].get_texts()]
        return {n: (h.get_color(), h.get_linestyle()) for n, h in zip(names, handles)}

    first = diagnosis.methods[1]
    fewer = [replace(m, layers=type(m.layers)()) if m is first else m for m in diagnosis.methods]
    whole = looks(layer_profile(diagnosis.methods))
    assert len({colour for colour, _ in whole.values()}) == len(whole) >= 3
    for figure in (projection(diagnosis.methods), projection(fewer), layer_profile(fewer)):
        for name, look in looks(figure).items():
            assert look == whole[name], name


def test_the_legend_of_the_profile_shows_lines_with_their_markers(diagnosis):
    figure = layer_profile(diagnosis.methods)
    axes = figure.axes[0]
    dots = [line.get_marker() for line in lines(axes) if line.get_linestyle() == "None"]
    assert [handle.get_marker() for handle in figure.legends[0].legend_handles] == dots
