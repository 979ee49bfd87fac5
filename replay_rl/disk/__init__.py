"""Files that survive a crash, and one line where the disk refuses them."""

from replay_rl import lazy

__getattr__, __dir__ = lazy.modules(__name__, __path__)
