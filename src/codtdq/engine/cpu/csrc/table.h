// The table of an instruction set: each kernel, compiled for it. A new set is a file with a struct
// like those of avx2.cpp and generic.cpp, a row in sets.h and a line in CMakeLists.txt.
#pragma once
#include "attention.h"
#include "attention8.h"
#include "carrier.h"
#include "carrier_line.h"
#include "carry.h"
#include "encode.h"
#include "floats.h"
#include "line.h"
#include "pointwise.h"
#include "project.h"
#include "transform.h"

namespace cod {
namespace {

// constexpr: nothing may run before the processor was asked what it has.
template <class Isa>
constexpr Kernels table_of() {
  Kernels k{};
  k.name = Isa::kName;
  k.runs_here = Isa::runs_here;
  k.refusal = Isa::refusal;
  k.lanes = kMaxLanes;
  k.quantize = Project<Isa>::block;
  k.gelu = Pointwise<Isa>::gelu;
  k.activate = Pointwise<Isa>::activate;
  k.depthwise_taps = CarrierLine<Isa>::kTaps;
  k.depthwise_spread = CarrierLine<Isa>::spread;
  k.depthwise_weights = CarrierLine<Isa>::weights;
  k.depthwise_carriers = CarrierLine<Isa>::run;
  k.depthwise = Line<Isa>::run;
  k.multiply = Pointwise<Isa>::multiply;
  k.blend = Pointwise<Isa>::blend;
  k.magnitudes = Pointwise<Isa>::magnitudes;
  k.transform = Transform<Isa>::run;
  k.carrier_rows = Carrier<Isa>::kRows;
  k.carrier_columns = Carrier<Isa>::kColumns;
  k.carrier_unit = Carrier<Isa>::kUnit;
  k.carrier_pair = 4 * Isa::kWidth;
  k.carrier_lift = Isa::kCarrierLift;
  k.carrier_mirror = Isa::kCarrierFolds;
  k.carrier_sum_count = Isa::carrier_sum_count;
  k.carrier_sums = Isa::carrier_sums;
  if constexpr (Isa::kCarrierFolds)
    k.carrier_expand = Carrier<Isa>::expand;
  else
    k.carrier_expand = Isa::carrier_expand;
  if constexpr (Isa::kCarrierPacks) {
    k.carrier_packed = Isa::carrier_packed;
    k.carrier_pack = Isa::carrier_pack;
    k.carrier_begin = Isa::carrier_begin;
    k.carrier_end = Isa::carrier_end;
    k.carrier_tile = [](const CarrierTile &in) {
      alignas(64) int32_t sums[Carrier<Isa>::kRows * Carrier<Isa>::kColumns];
      Isa::carrier_product(in, sums);
      Carrier<Isa>::leave(in, sums);
    };
  } else {
    k.carrier_tile = Carrier<Isa>::tile;
  }
  k.carry_steps = Carry<Isa>::steps;
  k.carry_table = Carry<Isa>::table;
  k.carry_groups = Carry<Isa>::groups;
  k.carry_each = Carry<Isa>::each;
  k.carry_halves = Carry<Isa>::halves;
  k.carry_planes = Carry<Isa>::planes;
  k.carry_try = Carry<Isa>::try_groups;
  k.carry_pixel_steps = Carry<Isa>::pixel_steps;
  k.carry_try_pixels = Carry<Isa>::try_pixels;
  k.turn = Carry<Isa>::turn;
  k.attention[COD_ATTENTION_FLOAT] = {Attention<Isa>::memory, Attention<Isa>::run};
  k.attention[COD_ATTENTION_INT8] = {Attention8<Isa>::memory, Attention8<Isa>::run};
  k.floats = FloatLoops<Isa>::table();
  return k;
}

}  // namespace
}  // namespace cod
