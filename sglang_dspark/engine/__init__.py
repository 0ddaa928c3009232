"""The step: draft -> plan -> verify -> accept -> commit. Knows SGLang only through `seam/`."""
