"""CFRN in FP32: this package's graph against a straightforward eager one, same weights, one run.

    python benchmarks/cfrn_fp32.py [--threads 2] [--repeats 7]

The eager twin writes attention out (matmul, softmax, matmul), keeps maps contiguous, and samples
the implicit decoder with grid_sample, as a first implementation of the paper would.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import torch
import torch.nn.functional as F

from codtdq.environment import environment
from codtdq.models import build_model
from codtdq.models.cfrn import ImplicitDecoder, ImplicitFeatures
from codtdq.models.swin import WindowAttention


def eager_attention(self, x, mask=None):
    b, tokens, c = x.shape
    n = self.window * self.window
    qkv = self.qkv(x).reshape(b * tokens // n, n, 3, self.num_heads, c // self.num_heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    logits = (q * self.scale) @ k.transpose(-2, -1)
    table = self.relative_position_bias_table[self.relative_position_index.view(-1)]
    logits = logits + table.view(n, n, -1).permute(2, 0, 1).unsqueeze(0)
    if mask is not None:
        windows = mask.shape[0]
        logits = logits.view(-1, windows, self.num_heads, n, n) + mask[:, None]
        logits = logits.view(-1, self.num_heads, n, n)
    out = (logits.softmax(-1) @ v).transpose(1, 2).reshape(b, tokens, c)
    return self.proj(out)


def eager_level(self, feature, size):
    b, _, h, w = feature.shape
    ys, xs = ((torch.arange(s) * 2 + 1) / s - 1 for s in size)
    grid = torch.stack(torch.meshgrid(ys, xs, indexing="ij"), -1).flip(-1).expand(b, *size, 2)
    amplitude = F.grid_sample(self.fc(feature), grid, mode="nearest", align_corners=False)
    values = F.grid_sample(feature, grid, mode="nearest", align_corners=False)
    cy, cx = ((torch.arange(s) * 2 + 1) / s - 1 for s in (h, w))
    centres = torch.stack(torch.meshgrid(cy, cx, indexing="ij"), 0).expand(b, 2, h, w)
    nearest = F.grid_sample(centres.contiguous(), grid, mode="nearest", align_corners=False)
    rel = (grid.flip(-1).permute(0, 3, 1, 2) - nearest) * torch.tensor([h, w]).view(1, 2, 1, 1)
    phase = (values[:, 0::2] * rel[:, :1] + values[:, 1::2] * rel[:, 1:]) * math.pi
    return torch.cat((rel, amplitude * torch.cat((phase.cos(), phase.sin()), 1), values), 1)


def eager_decoder(self, levels):
    size = levels[-1].shape[-2:]
    return torch.cat([eager_level(self.ifa, level, size) for level in levels], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    ours = build_model("cfrn")
    eager = build_model("cfrn")
    eager.load_state_dict(ours.state_dict())
    for module in eager.modules():
        if isinstance(module, WindowAttention):
            module.forward = eager_attention.__get__(module)
        if isinstance(module, ImplicitDecoder):
            module.forward = eager_decoder.__get__(module)
        assert not isinstance(module, ImplicitFeatures) or module.fc is not None
    image = torch.randn(1, 3, 384, 384)
    times: dict[str, list[float]] = {"ours": [], "eager": []}
    with torch.inference_mode():
        difference = (ours(image)[0] - eager(image)[0]).abs().max().item()
        for _ in range(args.repeats):
            for name, model in (("ours", ours), ("eager", eager)):
                start = time.perf_counter()
                model(image)
                times[name].append(time.perf_counter() - start)
    env = environment()
    print(f"{env['cpu']}, {args.threads} threads, torch {env['torch']}, batch 1, 384 x 384")
    for name, values in times.items():
        spread = f"{min(values):.3f} .. {max(values):.3f}"
        print(f"{name:6s} median {statistics.median(values):.3f} s ({spread})")
    ratio = statistics.median(times["eager"]) / statistics.median(times["ours"])
    print(f"ours is {ratio:.2f}x as fast as eager; largest difference of logits {difference:.1e}")


if __name__ == "__main__":
    main()
