"""A cost table from a real server: pinned steps are counted and timed, then fitted.

Reading order: `cells` (what to measure), `pins` and `drive` (measuring it), `lines` and `samples`
(what counts), `surface` and `fit` (the table), `summary` and `figure`, `run` (all of it).
"""
