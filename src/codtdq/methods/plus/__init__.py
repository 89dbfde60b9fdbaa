"""The ingredients of cod-tdq-plus, one file each; `cod_tdq_plus.py` beside it joins them."""
