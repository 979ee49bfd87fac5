from replay_rl import lazy

__getattr__, __dir__ = lazy.modules(__name__, __path__)
