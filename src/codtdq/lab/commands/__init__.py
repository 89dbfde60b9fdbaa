"""The verbs of the laboratory: arguments and printing only.

Each module has `register(verbs)`; the table of `codtdq.cli.registry` names the module.
"""
