"""Experience replay in RL post-training of language models, in JAX.

`import replay_rl` imports nothing else; a module such as
`replay_rl.replay.buffer` is imported where it is first used.
"""

from replay_rl import lazy

__version__ = '0.1.0'

__getattr__, __dir__ = lazy.modules(__name__, __path__)
