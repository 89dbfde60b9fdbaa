// What sets without instructions of their own for it use: lane by lane.

template <int DISTANCE>
static inline VF swap_lanes(VF x) {
  VF y;
  for (int l = 0; l < W; l++) y[l] = x[l ^ DISTANCE];
  return y;
}

static inline VF reciprocal(VF x) { return 1.0f / x; }
static inline VF quotient(VF x, VF y, VF) { return x / y; }

static inline void store_codes(VI codes, int8_t *to) {
  for (int l = 0; l < W; l++) to[l] = (int8_t)codes[l];
}

static inline bool encode_between(const cod::GroupBlock &, int, int, int, cod::WeighedResult &) {
  return false;  // no faster way here
}
