"""The only package that names private SGLang symbols or registers hooks.

Everything above (`engine/`, `cpu/`) uses the names defined here, so an SGLang upgrade is work in
one folder: adapt the seam, extend `version.TESTED_SGLANG`, run the tests.
"""
