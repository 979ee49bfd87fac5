"""A run in a bucket of gs:// or s3://: what is there, and who may write it."""

from replay_rl import lazy

__getattr__, __dir__ = lazy.modules(__name__, __path__)
