// Kinds of instructions as COD_KIND(name, number): who includes this defines COD_KIND. Numbers
// stand in files; they are for ever. 64 to 95 are kept for chains and attention in blocks.
COD_KIND(copy, 1)
#undef COD_KIND
