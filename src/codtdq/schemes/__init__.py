"""How an input or a weight is represented: schemes encode, decode, count bits, lower themselves."""
