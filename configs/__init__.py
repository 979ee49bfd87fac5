"""Experiments: each file describes one, and `get_config` returns its settings.

`base_small` and `base_math` hold what the experiments of a family share. `arms`
holds the ways to replay. An experiment states only what it changes of them.
"""
