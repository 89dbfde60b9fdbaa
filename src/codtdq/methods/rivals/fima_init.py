"""The calibrated start of FIMA-Q: grids by a search over steps and zero-points, on float inputs.

Every operator is brought into one form: sampled input windows x [G, R, K] and its weight
w [G, O, K] (G groups, R positions, K values that one output reads), y = x w^T. A convolution pads
with zero or with copies of its input, and zero is a level of every grid here, so quantizing a
window is the same as quantizing the map and padding it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from codtdq.errors import CalibrationError
from codtdq.methods.collect import collect_inputs, observe
from codtdq.methods.folding import fold_into_norm, foldable, norm_groups
from codtdq.methods.ranges import quantile_rows
from codtdq.methods.rivals.receptive_fields import fields_at, sample_positions
from codtdq.methods.rivals.scale_search import CHUNK_VALUES, ColumnGroup, all_tie, column_groups
from codtdq.methods.workbench import Workbench, count_images
from codtdq.numerics.affine import EPS, code_limits, fake_shifted, nearest
from codtdq.planning.plan import Site
from codtdq.schemes.inputs import StaticUniform
from codtdq.schemes.weights import UniformWeight, from_group_rows, group_rows

SCALES, ZEROS = 8, 16  # candidates: 128 grids
INNER = (0.1, 0.9)  # quantiles whose distance is the narrowest candidate range
FIRST_PERCENTILES = (0.99, 0.999, 0.9999, 1.0)  # weights of the operator that reads the image
FOLD_ROWS = 512  # token rows for the channels of a norm
WINDOWS = 128  # sampled positions of an operator

Grid = tuple[Tensor, Tensor]  # step, zero


@dataclass
class Windows:
    """What is kept of an operator's inputs."""

    low: float = 0.0  # exact extremes, zero included
    high: float = 0.0
    parts: list[Tensor] = field(default_factory=list)  # each [G, n, K]

    def stacked(self, name: str) -> Tensor:
        """All windows, [G, R, K]."""
        if not self.parts:
            raise CalibrationError(f"no calibration batch reached {name}")
        x = torch.cat(self.parts, 1)
        if not bool(x.isfinite().all()):
            raise CalibrationError(f"{name} got NaN or infinite inputs during calibration")
        return x


def collect_windows(bench: Workbench, images: int) -> dict[str, Windows]:
    """One pass of the model as it is, with random windows of every image at every site."""
    found = min(images, count_images(bench.calibration) or images)
    kept = {site.name: Windows() for site in bench.sites}
    generators = {site.name: bench.generator("windows", site.name) for site in bench.sites}

    def see(site: Site, x: Tensor, y: Tensor) -> None:
        one = kept[site.name]
        one.low, one.high = min(one.low, float(x.amin())), max(one.high, float(x.amax()))
        at = sample_positions(site.module, x, y, -(-WINDOWS // found), found, generators[site.name])
        one.parts.append(fields_at(site.module, x, y, at).matrix())

    observe(bench, bench.sites, see, images=images)
    return kept


def fold_norms(bench: Workbench, images: int) -> dict[str, float]:
    """Give every norm that only operators read one grid: a grid (s_c, z_c) per channel by tensor
    error, then, with s~ = mean s and z~ = round(mean z), the norm gives x' = x / r + s~ (z - z~),
    r = s / s~, and its readers undo that. On the grid (s~, z~) x' has the codes of x on (s, z).

    Where zeros are padded behind the norm only the scale can move. Returns max r / min r by norm.
    """
    groups = {
        norm: sites
        for norm, sites in norm_groups(bench).items()
        if sites[0].act_bits is not None and foldable(bench, norm)
    }
    stats = collect_inputs(bench, [sites[0] for sites in groups.values()], images=images)
    spread = {}
    for norm, sites in groups.items():
        rows = stats[sites[0].name].rows
        assert sites[0].act_bits is not None
        rows = rows[:: max(1, -(-len(rows) // FOLD_ROWS))].T.contiguous()
        step, zero = (grid.squeeze(1) for grid in tensor_search(rows, sites[0].act_bits))
        ratio = step / step.mean()
        moved = -step * (zero - nearest(zero.mean()))  # = -r s~ (z - z~)
        shift = moved if foldable(bench, norm, with_shift=True) else None
        fold_into_norm(bench, norm, ratio, shift)
        spread[norm] = round(float(ratio.max() / ratio.min()), 2)
    return spread


def candidate_grids(
    rows: Tensor, bits: int, low: Tensor | None = None, high: Tensor | None = None
) -> Grid:
    """(step, zero), each [G, P], for the values [G, n]: 8 steps from the distance of the quantiles
    0.1 and 0.9 to the full range, each with 16 zero-points.

    With 16 levels or fewer every level is a zero-point. Finer grids get the 16 around the one that
    puts their lowest level on the low end of the range, as coarser ones would lose whole octaves.
    low, high: [G, 1] exact extremes where the rows are a sample.
    """
    low = rows.amin(1, keepdim=True) if low is None else low
    high = rows.amax(1, keepdim=True) if high is None else high
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)  # every grid has zero as a level
    inner_low, inner_high = (quantile_rows(rows, q) for q in INNER)
    share = torch.linspace(0.0, 1.0, SCALES)
    width = torch.lerp(inner_high - inner_low, high - low, share)  # [G, 8]
    step = (width / (2**bits - 1)).clamp(min=EPS)
    count = min(2**bits, ZEROS)
    zero = torch.arange(count, dtype=torch.float32).expand(*step.shape, count)
    if 2**bits > ZEROS:
        start = nearest(-torch.lerp(inner_low, low, share) / step)
        zero = (start.unsqueeze(-1) + zero - count // 2).clamp(0, 2**bits - 1)
    step = step.unsqueeze(-1).expand(*step.shape, count)
    return step.flatten(1), zero.flatten(1)


def percentile_candidates(rows: Tensor, bits: int) -> Grid:
    """(step, zero), each [G, 4]: ranges between the percentiles 1-p and p of each row."""
    low = torch.cat([quantile_rows(rows, 1 - p) for p in FIRST_PERCENTILES], 1).clamp(max=0.0)
    high = torch.cat([quantile_rows(rows, p) for p in FIRST_PERCENTILES], 1).clamp(min=0.0)
    step = ((high - low) / (2**bits - 1)).clamp(min=EPS)
    return step, nearest(-low / step).clamp(0, 2**bits - 1)


def best_candidate(grids: Grid, error: Callable[[Tensor, Tensor], Tensor]) -> Grid:
    """(step, zero), each [G, 1], with the least `error(step, zero)` -> [G], row by row."""
    step, zero = grids
    errors = torch.stack(
        [error(step[:, p : p + 1], zero[:, p : p + 1]) for p in range(step.shape[1])], 1
    )
    pick = errors.argmin(1, keepdim=True)
    return step.gather(1, pick), zero.gather(1, pick)


def best_or_present(grids: Grid, errors: Tensor, present: Grid) -> Grid:
    """(step, zero), each [G, 1], of the least of errors [G, P]; the present ones [G, 1] where all
    candidates are alike.
    """
    pick, tie = errors.argmin(1, keepdim=True), all_tie(errors, 1).unsqueeze(1)
    step, zero = (torch.where(tie, now, g.gather(1, pick)) for g, now in zip(grids, present))
    return step, zero


def group_errors(part: ColumnGroup, values: Tensor, grids: Grid, bits: int) -> Tensor:
    """[G O, P] output error of the candidates [G O, P] of a group's values [G, O, g], but for a
    constant: |x w - y|^2 = w (x^T x) w - 2 w (x^T y) + |y|^2, without products for every position.
    """
    gram = part.x_hat.transpose(1, 2) @ part.x_hat  # [G, g, g]
    cross = (part.target.transpose(1, 2) @ part.x_hat).unsqueeze(2)  # [G, O, 1, g]
    step, zero = (g.view(*values.shape[:2], -1, 1) for g in grids)
    outputs = max(1, CHUNK_VALUES // (step.shape[2] * values.shape[0] * values.shape[2]))
    errors = []
    for at in range(0, values.shape[1], outputs):
        now = slice(at, at + outputs)
        limits = code_limits(bits, False)
        w_hat = fake_shifted(values[:, now, None], step[:, now], zero[:, now], *limits)
        slope = (w_hat.flatten(1, 2) @ gram).view_as(w_hat).sub_(cross[:, now], alpha=2)
        errors.append(slope.mul_(w_hat).sum(-1))
    return torch.cat(errors, 1).flatten(0, 1)


def tensor_search(rows: Tensor, bits: int, grids: Grid | None = None) -> Grid:
    """The candidate nearest to the values [G, n] themselves, by mean squared error."""
    limits = code_limits(bits, False)
    grids = candidate_grids(rows, bits) if grids is None else grids
    return best_candidate(
        grids, lambda step, zero: (fake_shifted(rows, step, zero, *limits) - rows).square().mean(1)
    )


def search_site(
    site: Site, windows: Windows, rounds: int
) -> tuple[StaticUniform | None, UniformWeight | None]:
    """Grids of one operator: first by tensor error, then weights and activations in turn by the
    error of the output, each over all of its candidates. None where a side stays float.
    """
    x = windows.stacked(site.name)  # [G, R, K]
    float_weight = site.float_weight.float()
    w = float_weight.flatten(1).unflatten(0, (len(x), -1))  # [G, O, K]
    y = x @ w.transpose(1, 2)
    group = site.weight_group
    sides: list[_Side] = []
    if site.weight_bits is not None:
        sides.append(_WeightSide(w, site.weight_bits, site.role == "first", group))
    if site.act_bits is not None:
        sides.append(_InputSide(x, site.act_bits, windows.low, windows.high))
    x_hat, w_hat = x, w
    for side in reversed(sides):
        x_hat, w_hat = side.quantized(x_hat, w_hat)
    for _ in range(rounds):
        before = [(side.step, side.zero) for side in sides]
        for side in sides:
            side.search(x_hat, w_hat, y)
            x_hat, w_hat = side.quantized(x_hat, w_hat)
        if all(_same(old, side) for old, side in zip(before, sides)):
            break  # a fixed point: further rounds repeat it
    inputs: StaticUniform | None = None
    weight: UniformWeight | None = None
    for side in sides:
        if isinstance(side, _InputSide):
            inputs = StaticUniform(side.bits, step=side.step, zero=side.zero)
        else:
            weight = UniformWeight.quantize(
                float_weight, side.bits, step=side.step, zero=side.zero, group=group
            )
    return inputs, weight


class _Side:
    """One of the two things that are quantized: its values as rows, candidates, present grid."""

    def __init__(self, values: Tensor, bits: int, grids: Grid, rows: Tensor) -> None:
        self.values, self.bits, self.grids = values, bits, grids
        self.step, self.zero = tensor_search(rows, bits, grids)

    def on_grid(self, step: Tensor, zero: Tensor) -> Tensor:
        """The values on grids [rows, 1]."""
        raise NotImplementedError

    def quantized(self, x_hat: Tensor, w_hat: Tensor) -> tuple[Tensor, Tensor]:
        """The pair with this side on its present grid."""
        raise NotImplementedError

    def search(self, x_hat: Tensor, w_hat: Tensor, y: Tensor) -> None:
        """Take the candidate whose output is nearest to y, the other side as it is."""
        raise NotImplementedError


class _WeightSide(_Side):
    """w [G, O, K]: one grid per output channel, or per group of its values (`group_rows`)."""

    def __init__(self, w: Tensor, bits: int, first: bool, group: int | None) -> None:
        self.group = group
        rows = group_rows(w.flatten(0, 1), group)
        grids = percentile_candidates(rows, bits) if first else candidate_grids(rows, bits)
        super().__init__(w, bits, grids, rows)

    def on_grid(self, step: Tensor, zero: Tensor) -> Tensor:
        if self.group is None:
            return self._on_grid(slice(None), step, zero)
        rows = group_rows(self.values.flatten(0, 1), self.group)
        rows = fake_shifted(rows, step, zero, *code_limits(self.bits, False))
        return from_group_rows(rows, self.values.flatten(0, 1).shape).view_as(self.values)

    def quantized(self, x_hat: Tensor, w_hat: Tensor) -> tuple[Tensor, Tensor]:
        return x_hat, self.on_grid(self.step, self.zero)

    def search(self, x_hat: Tensor, w_hat: Tensor, y: Tensor) -> None:
        if self.group is not None:
            self._search_groups(x_hat, y)
            return

        def error(step: Tensor, zero: Tensor) -> Tensor:
            miss = x_hat @ self.on_grid(step, zero).transpose(1, 2) - y  # [G, R, O]
            return miss.square_().sum(1).flatten()

        self.step, self.zero = best_candidate(self.grids, error)

    def _search_groups(self, x_hat: Tensor, y: Tensor) -> None:
        """One group of every output after the other, the others as they are."""
        now = self.on_grid(self.step, self.zero).flatten(0, 1)  # [G O, K]
        steps, zeros = (grid.view(len(now), -1, grid.shape[1]) for grid in self.grids)
        step, zero = (grid.view(len(now), -1).clone() for grid in (self.step, self.zero))
        for part in column_groups(x_hat, now, y, self.group):
            at = slice(part.index, part.index + 1)
            grids = steps[:, part.index], zeros[:, part.index]
            errors = group_errors(part, self.values[..., part.columns], grids, self.bits)
            chosen = best_or_present(grids, errors, (step[:, at], zero[:, at]))
            step[:, at], zero[:, at] = chosen
            now[:, part.columns] = self._on_grid(part.columns, *chosen).flatten(0, 1)
        self.step, self.zero = step.view(-1, 1), zero.view(-1, 1)

    def _on_grid(self, columns: slice, step: Tensor, zero: Tensor) -> Tensor:
        """Some columns of all outputs on grids [G O, 1]."""
        shape = (*self.values.shape[:2], 1)
        limits = code_limits(self.bits, False)
        return fake_shifted(self.values[..., columns], step.view(shape), zero.view(shape), *limits)


class _InputSide(_Side):
    """x [G, R, K]: one grid."""

    def __init__(self, x: Tensor, bits: int, low: float, high: float) -> None:
        rows = x.reshape(1, -1)
        ends = torch.tensor([[low]]), torch.tensor([[high]])
        super().__init__(x, bits, candidate_grids(rows, bits, *ends), rows)

    def on_grid(self, step: Tensor, zero: Tensor) -> Tensor:
        return fake_shifted(self.values, step, zero, *code_limits(self.bits, False))

    def quantized(self, x_hat: Tensor, w_hat: Tensor) -> tuple[Tensor, Tensor]:
        return self.on_grid(self.step, self.zero), w_hat

    def search(self, x_hat: Tensor, w_hat: Tensor, y: Tensor) -> None:
        def error(step: Tensor, zero: Tensor) -> Tensor:
            miss = self.on_grid(step, zero) @ w_hat.transpose(1, 2) - y
            return miss.square_().sum().view(1)

        self.step, self.zero = best_candidate(self.grids, error)


def _same(old: Grid, side: _Side) -> bool:
    return torch.equal(old[0], side.step) and torch.equal(old[1], side.zero)
