"""Experiments: each file is a document of one, and `get_config` its settings.

`base_small` and `base_math` hold what the experiments of a family share, `arms`
the ways to replay. An experiment states only what differs from them.
"""
