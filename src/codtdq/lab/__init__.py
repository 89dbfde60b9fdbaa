"""The laboratory: benchmark, diagnosis, selection, tables, figures, pages, training.

Nothing outside imports it; its verbs reach the command line by registration.
"""
