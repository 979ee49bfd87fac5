"""Settings of published models, for `Config.model`."""

import dataclasses
from typing import Any

from replay_rl.lm import families
from replay_rl.run import config


def published(
  name: str, *, checkpoint: str | None, compute_dtype: str
) -> config.Model:
  """Returns the settings of a published model.

  Args:
    name: a key of `families.MODELS`.
    checkpoint: folder of its weights; None for random ones.
    compute_dtype: 'float32' or 'bfloat16'.

  Raises:
    ValueError: an unknown name.
  """
  longest = families.MODELS[name].max_context if name in families.MODELS else 1
  shape = families.shape(name, max_context=longest, compute_dtype=compute_dtype)
  fields = dataclasses.asdict(shape)
  del fields['max_context']  # A run uses prompt length + response length.
  if shape.rope_scaling is not None:
    fields['rope_scaling'] = shape.rope_scaling._asdict()
  return config.Model(**fields, checkpoint=checkpoint)


def of_checkpoint(checkpoint: str, *, compute_dtype: str) -> config.Model:
  """Returns the settings of a model with the shape of its checkpoint.

  Args:
    checkpoint: Hugging Face folder.
    compute_dtype: 'float32' or 'bfloat16'.
  """
  fields: dict[str, Any] = {
    f.name: None for f in dataclasses.fields(config.Model)
  }
  fields |= {'compute_dtype': compute_dtype, 'checkpoint': checkpoint}
  return config.Model(**fields)
