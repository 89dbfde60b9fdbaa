// The table of an instruction set: each kernel, compiled for it. A new set is a file with a struct
// like those of avx2.cpp and generic.cpp, a row in sets.h and a line in CMakeLists.txt.
#pragma once
#include "encode.h"
#include "line.h"
#include "pointwise.h"
#include "project.h"
#include "search.h"
#include "tile.h"
#include "transform.h"

namespace cod {
namespace {

// constexpr: nothing may run before the processor was asked what it has.
template <class Isa>
constexpr Kernels table_of() {
  Kernels k{};
  k.name = Isa::kName;
  k.runs_here = Isa::runs_here;
  k.lanes = kMaxLanes;
  k.quantize = Project<Isa>::block;
  k.encode = Encode<Isa>::group;
  k.encode_each = Encode<Isa>::each;
  k.gelu = Pointwise<Isa>::gelu;
  k.rows = Tile<Isa>::kRows;
  k.columns = Tile<Isa>::kColumns;
  k.tile = Tile<Isa>::tile;
  k.unpack = Tile<Isa>::unpack;
  k.activate = Pointwise<Isa>::activate;
  k.dequantize = Line<Isa>::dequantize;
  k.dequantize_each = Line<Isa>::dequantize_each;
  k.depthwise = Line<Isa>::run;
  k.multiply = Pointwise<Isa>::multiply;
  k.blend = Pointwise<Isa>::blend;
  k.magnitudes = Pointwise<Isa>::magnitudes;
  k.widest = Search<Isa>::widest;
  k.search = Search<Isa>::tokens;
  k.widest_of_pixels = Search<Isa>::widest_of_pixels;
  k.search_pixels = Search<Isa>::pixels;
  k.transform = Transform<Isa>::run;
  return k;
}

}  // namespace
}  // namespace cod
