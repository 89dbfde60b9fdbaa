"""The try-out page: a local web server that runs a network in FP32 and at four bits."""
