"""Experiments: each file describes one, and `get_config` returns its settings.

`base_small` and `base_math` hold what the experiments of a family share. `arms`
holds the settings of each kind of replay. The file of an experiment states only
the settings that differ from its base and its arm.
"""

from replay_rl import lazy

__getattr__, __dir__ = lazy.modules(__name__, __path__)
