import pytest
import torch
from torch import nn

import codtdq
from codtdq.declarations import Declaration
from codtdq.errors import ConfigError
from codtdq.planning.cod_tdq_config import KINDS
from small_nets import images, simulate, small_net


def test_plan_lists_every_operator_with_its_role():
    plan = codtdq.plan(small_net(), "cod-tdq")
    roles = {site.name: site.role for site in plan}
    assert roles == {
        "stem": "first",
        "depthwise": "depthwise",
        "attn.qkv": "attention",
        "attn.proj": "attention",
        "mlp.fc1": "mlp",
        "mlp.fc2": "mlp",
        "mix": "conv",
        "head": "conv",
    }
    text = str(plan)
    assert all(name in text for name in roles)
    assert "8 of 8 quantized" in text


def test_totals_count_every_parameter_and_byte():
    model = small_net()
    totals = codtdq.plan(model, "cod-tdq").totals()
    assert totals["parameters"] == sum(p.numel() for p in model.parameters())
    matrices = {"stem", "depthwise", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "mix", "head"}
    weights = {n: model.get_submodule(n).weight for n in matrices}
    assert totals["quantized_parameters"] == sum(w.numel() for w in weights.values())
    codes = sum(-(-w[0].numel() // 2) * w.shape[0] for w in weights.values())
    scales = 4 * sum(w.shape[0] for w in weights.values())
    others = [p.numel() for p in model.parameters() if id(p) not in map(id, weights.values())]
    assert sum(others) == totals["parameters"] - totals["quantized_parameters"]
    floats = sum(count + 8 * -(-count // 64) for count in others)  # blocks of 64, two floats each
    buffers = 100 + 20 * 20 + 2 * 4  # indices below 256, codes of two values, these
    assert totals["packed_bytes"] == codes + scales + floats + buffers


def test_effective_bits_include_scales():
    plan = codtdq.plan(small_net(), codtdq.preset("cod-tdq", weight_group_size=16))
    fc1 = plan.site("mlp.fc1")  # 48 inputs
    # a 4-bit multiplier per group, a float32 per token; 3 nibbles in 2 bytes and a float32 per row
    assert fc1.effective_act_bits == 4 + 4 * 2 / 48 + 32 / 48 and fc1.act_bits == 4
    assert fc1.effective_weight_bits == 4 + 16 / 48 + 32 / 48 and fc1.weight_bits == 4
    plain = codtdq.preset("cod-tdq", weight_group_size=16, scales="float")
    fc1 = codtdq.plan(small_net(), plain).site("mlp.fc1")
    assert fc1.effective_act_bits == 4 + 32 * 2 / 48
    assert fc1.effective_weight_bits == 4 + 32 / 16
    assert codtdq.plan(small_net(), "w4a4").site("mlp.fc1").effective_act_bits == 4


def test_patterns_and_rules_decide_in_their_order():
    config = codtdq.preset(
        "cod-tdq",
        skip_patterns=["head"],
        w8_patterns=["attn.*"],
        keep_a8_patterns=["attn.qkv"],
        weight_group_rules={"mlp.*": 32, "mlp.fc2": 8},
        act_group_rules={"*": 16},
        weight_percentile_rules={"mix": 0.95},
        first_layer="w8a8",
        layer_overrides={"attn.qkv": {"weight_bits": 2, "tau": None}},
    )
    plan = codtdq.plan(small_net(), config)
    assert plan.site("head").reason == "skip_patterns has 'head'"
    assert plan.site("attn.proj").weight.bits == 8
    assert plan.site("attn.qkv").weight.bits == 2  # the override comes last
    assert plan.site("attn.qkv").activation.bits == 8
    assert plan.site("attn.qkv").activation.tau is None
    assert plan.site("attn.proj").activation.tau == 1.0
    assert plan.site("mlp.fc1").weight.group_size == 32
    assert plan.site("mlp.fc2").weight.group_size == 8
    assert plan.site("mix").activation.group_size == 16
    assert plan.site("mix").weight.percentile == 0.95
    assert (plan.site("stem").weight.bits, plan.site("stem").activation.bits) == (8, 8)


@pytest.mark.parametrize("field", ["skip_patterns", "w8_patterns", "keep_a8_patterns"])
def test_a_pattern_that_matches_nothing_is_an_error(field):
    with pytest.raises(ConfigError, match="matches no operator"):
        codtdq.plan(small_net(), codtdq.preset("cod-tdq", **{field: ["atn.*"]}))


@pytest.mark.parametrize(
    "field", ["weight_group_rules", "weight_percentile_rules", "act_group_rules", "role_patterns"]
)
def test_a_rule_that_matches_nothing_is_an_error(field):
    value = {"role_patterns": "mlp", "weight_percentile_rules": 0.9}.get(field, 16)
    with pytest.raises(ConfigError, match="matches no operator"):
        codtdq.plan(small_net(), codtdq.preset("cod-tdq", **{field: {"nothing": value}}))


def test_an_override_for_an_unknown_layer_is_an_error(tmp_path):
    path = tmp_path / "layers.json"
    path.write_text('{"mlp.fc9": {"act_bits": 8}}')
    config = codtdq.preset("cod-tdq").with_overrides(path)
    with pytest.raises(ConfigError, match=r"'mlp\.fc9'"):
        codtdq.plan(small_net(), config)


def test_the_image_keeps_its_eight_bits_unless_told_otherwise():
    assert codtdq.plan(small_net(), "w4a4").site("stem").activation.bits == 8
    assert codtdq.plan(small_net(), "w4a4").site("stem").weight.bits == 4
    config = codtdq.preset("w4a4", first_layer="quantize")
    assert codtdq.plan(small_net(), config).site("stem").activation.bits == 4


def test_an_undeclared_first_layer_is_the_first_convolution_that_fits_an_image():
    plain = nn.Sequential(nn.Linear(8, 8), nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3))
    assert [site.role for site in codtdq.plan(plain, "w4a4")] == ["linear", "first", "conv"]
    assert codtdq.plan(nn.Linear(8, 8), "w4a4").sites[0].role == "linear"


def test_dcrp_attn_bounds_attention_only():
    plan = codtdq.plan(small_net(), "dcrp-attn")
    bounded = {site.name for site in plan if site.activation.tau is not None}
    assert bounded == {"attn.qkv", "attn.proj"}


def test_the_method_leaves_declared_shared_ranges_unbounded():
    """S1.1: CFRN's convolutions share a range and do not pass through DCRP."""
    model = codtdq.models.build_model("cfrn-small")
    plan = codtdq.plan(model, codtdq.preset("cod-tdq", model="cfrn-small"))
    for site in plan:
        bounded = site.activation.tau is not None
        assert bounded == (site.activation.mode == "per_token_group"), site.name
    assert {s.activation.mode for s in plan if s.kind == "conv"} == {"per_channel"}
    assert all(s.activation.tau for s in codtdq.plan(small_net(), "dcrp-only"))
    ours = codtdq.plan(model, codtdq.preset("cod-tdq-guarded", model="cfrn-small"))
    assert {s.activation.mode for s in ours} == {"per_token_group"}


def test_an_override_for_a_skipped_layer_is_an_error():
    overrides = {"head": {"act_bits": 8}}
    config = codtdq.preset("cod-tdq", skip_patterns=["head"], layer_overrides=overrides)
    with pytest.raises(ConfigError, match="remove one of them"):
        codtdq.plan(small_net(), config)


def test_a_misspelt_role_is_an_error():
    with pytest.raises(ConfigError, match=r"roles\['fc1'\] is 'mpl' \(did you mean 'mlp'"):
        Declaration(roles={"fc1": "mpl"})


def test_a_role_for_a_child_that_is_not_there_is_an_error():
    model = small_net()
    model.mlp.quantization = Declaration(roles={"fc3": "mlp"})
    with pytest.raises(ConfigError, match="Mlp: it has no child 'fc3'"):
        codtdq.plan(model, "cod-tdq")


def test_dcrp_attn_needs_a_declared_attention():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with pytest.raises(ConfigError, match="role_patterns"):
        codtdq.plan(model, "dcrp-attn")
    config = codtdq.preset("dcrp-attn", role_patterns={"1": "attention"})
    assert codtdq.plan(model, config).site("1").activation.tau == 1.0


class OwnForward(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.own = OwnForward(16, 16)
        self.mha = nn.MultiheadAttention(16, 2, batch_first=True)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))
        self.up = nn.ConvTranspose1d(16, 16, 2)
        self.table = nn.Embedding(5, 16)
        self.cell = nn.GRU(16, 16)
        self.shared = self.first

    def forward(self, x):
        x = self.normed(self.own(self.first(x))) + self.table.weight[0]
        x = self.shared(self.mha(x, x, x)[0])
        return self.up(self.cell(x)[0].transpose(1, 2))


def test_what_cannot_be_quantized_says_why_and_still_works():
    torch.manual_seed(0)
    model = Odd().eval()
    plan = codtdq.plan(model, "cod-tdq")
    reasons = {site.name: site.reason for site in plan}
    assert reasons["first"] is None
    assert "overrides forward" in reasons["own"]
    assert "directly" in reasons["mha.out_proj"]
    assert "parametrization" in reasons["normed"]
    assert "ConvTranspose1d has no quantized operator" == reasons["up"]
    assert {"mha", "table", "cell"} <= set(reasons)
    assert "float, in 8-bit blocks: OwnForward overrides forward" in str(plan)
    exact = codtdq.plan(model, codtdq.preset("cod-tdq", float_storage="fp32"))
    assert "float: OwnForward overrides forward" in str(exact)
    assert plan.totals()["parameters"] == sum(p.numel() for p in model.parameters())
    x = torch.randn(2, 6, 16)
    quantized = simulate(model, "w8a8")
    assert torch.allclose(quantized(x), model(x), atol=0.1)
    assert quantized.shared is quantized.first  # a shared module stays shared


def test_a_model_without_operators_is_an_error():
    with pytest.raises(ConfigError, match="nothing to quantize"):
        codtdq.plan(nn.ReLU(), "cod-tdq")


def test_a_single_operator_is_a_model_too():
    layer = simulate(nn.Linear(64, 8), "w8a8")
    assert type(layer).__name__ == "QuantLinear"


def test_plan_changes_nothing():
    model = small_net()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    out = model(images())
    codtdq.plan(model, "cod-tdq")
    assert torch.equal(model(images()), out)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_the_papers_bytes_decide_its_readings():
    """Half a byte per weight and an fp16 scale per output of all 185 operators; Linear and 1x1
    convolutions are the 69.73 % that its GPU path covers.
    """
    with torch.device("meta"):
        model = codtdq.models.build_model("cfrn")
    plan = codtdq.plan(model, codtdq.config("cod-tdq-literal", model=model))
    sites = plan.quantized
    assert len(sites) == 185 and all(s.weight.bits == s.activation.bits == 4 for s in sites)
    assert sum(s.parameters for s in sites) / 2 == 97_065_266
    assert all(s.weight.group_size is None and s.weight.scale_dtype == "fp16" for s in sites)
    assert sum(2 * s.shape[0] for s in sites) == 326_632
    assert sum(4 * (len(s.shape) + 3) for s in sites) == 4_364
    linear = [s for s in sites if s.kind == "linear"]
    pointwise = [s for s in sites if s.kind == "conv" and s.shape[2:] == (1, 1)]
    assert (len(linear), len(pointwise)) == (100, 29)
    assert f"{129 / 185:.2%}" == "69.73%"


def test_the_readings_of_shared_convolutions():
    model = codtdq.models.build_model("cfrn-small")
    for name, mode in (("cod-tdq", "per_channel"), ("cod-tdq-per-tensor-conv", "per_tensor")):
        plan = codtdq.plan(model, name)
        assert {s.activation.mode for s in plan if s.kind != "linear"} == {mode}
        assert {s.activation.mode for s in plan if s.kind == "linear"} == {"per_token_group"}
    chosen = codtdq.config("cod-tdq", model=model, act_modes=dict.fromkeys(KINDS, "per_tensor"))
    assert {s.activation.mode for s in codtdq.plan(model, chosen)} == {"per_tensor"}
