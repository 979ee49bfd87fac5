"""Our losses against those of trl, on the same arrays.

Needs torch and trl: pip install -e '.[test,parity]'.
"""

import collections
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import torch
from absl.testing import parameterized
from trl.trainer import grpo_trainer

from replay_rl.rl import losses
from replay_rl.rl import penalties
from tests.rl import loss_cases

_LOW, _HIGH = 0.2, 0.3
_LONGEST = 7.0
_clipped = functools.partial(
  losses.clipped_surrogate, clip_low=_LOW, clip_high=_HIGH
)
_plain = functools.partial(_clipped, dual_clip=None)


def _reference():
  """Log-probabilities of a reference policy, `[8, 6]` float32."""
  return np.random.default_rng(1).normal(-1.0, 0.5, (8, 6)).astype(np.float32)


def _of_trl(batch, **settings):
  """Returns trl's loss of a batch, and its gradient to the log-probs."""
  logprobs, behavior_logprobs, advantages, mask = map(torch.tensor, batch)
  logprobs.requires_grad_()
  args = types.SimpleNamespace(
    delta=settings.pop('delta', None),
    use_bias_correction_kl=False,
    steps_per_generation=1,
  )
  accelerator = types.SimpleNamespace(
    num_processes=1,
    gather=lambda x: x,
    reduce=lambda x, reduction: x,
  )
  # What `_compute_loss` reads of a trainer, whose constructor loads a model.
  trainer = types.SimpleNamespace(
    **{
      'importance_sampling_level': 'token',
      'beta': 0.0,
      'epsilon_low': _LOW,
      'epsilon_high': _HIGH,
    }
    | settings,
    args=args,
    accelerator=accelerator,
    aux_loss_enabled=False,
    top_entropy_quantile=1.0,
    off_policy_mask_threshold=None,
    use_vllm=False,
    model=types.SimpleNamespace(training=True),
    current_gradient_accumulation_steps=1,
    max_completion_length=_LONGEST,
    _entropy_bonus_enabled=False,
    _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
    _get_per_token_logps_and_entropies=lambda *_, **__: (
      *(logprobs, torch.zeros_like(logprobs), None),
    ),
  )
  no_prompts = torch.zeros((len(mask), 0), dtype=torch.int64)
  loss = grpo_trainer.GRPOTrainer._compute_loss(
    trainer,
    None,
    {
      'prompt_ids': no_prompts,
      'prompt_mask': no_prompts,
      'completion_ids': torch.zeros_like(mask, dtype=torch.int64),
      'completion_mask': mask.long(),
      'advantages': advantages,
      'old_per_token_logps': behavior_logprobs,
      'ref_per_token_logps': torch.tensor(_reference()),
      'num_items_in_batch': mask.sum(),
    },
  )
  loss.backward()
  assert logprobs.grad is not None
  return loss.item(), logprobs.grad.numpy()


def _ours(batch, loss_fn, normalizer_fn):
  """Returns our loss of a batch, and its gradient to the log-probs."""
  logprobs, *others = map(jnp.asarray, batch)
  weights = normalizer_fn(others[-1])

  @jax.value_and_grad
  def total(logprobs):
    inputs = loss_cases.inputs_of(
      logprobs, *others, {'reference_logprobs': _reference()}
    )
    return jnp.sum(loss_fn(inputs).loss * weights)

  return jax.jit(total)(logprobs)


class LossesTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('grpo', {'loss_type': 'grpo'}, _plain, losses.sequence_mean),
    ('bnpo', {'loss_type': 'bnpo'}, _plain, losses.token_mean),
    ('dapo', {'loss_type': 'dapo'}, _plain, losses.token_mean),
    (
      'dr_grpo',
      {'loss_type': 'dr_grpo'},
      _plain,
      functools.partial(losses.constant, tokens_per_row=_LONGEST),
    ),
    (
      'dual_clip',
      {'loss_type': 'grpo', 'delta': 1.5},
      functools.partial(_clipped, dual_clip=1.5),
      losses.sequence_mean,
    ),
    (
      'gspo',
      {'loss_type': 'grpo', 'importance_sampling_level': 'sequence'},
      functools.partial(losses.gspo, clip_low=_LOW, clip_high=_HIGH),
      losses.sequence_mean,
    ),
    (
      # trl's bound is on the ratio, and it has no lower one.
      'cispo',
      {'loss_type': 'cispo', 'epsilon_high': 1.0 + _HIGH},
      functools.partial(losses.cispo, clip_low=1.0, clip_high=_HIGH),
      losses.token_mean,
    ),
    (
      'reference_kl',
      {'loss_type': 'grpo', 'beta': 0.1},
      losses.total(
        _plain, functools.partial(penalties.reference_kl, coefficient=0.1)
      ),
      losses.sequence_mean,
    ),
  )
  def test_loss_and_gradient_are_those_of_trl(
    self, settings, loss_fn, normalizer_fn
  ):
    batch = loss_cases.random_batch(has_empty_row=False)
    loss, gradient = _ours(batch, loss_fn, normalizer_fn)
    expected_loss, expected_gradient = _of_trl(batch, **settings)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(
      gradient, expected_gradient, rtol=1e-5, atol=1e-7
    )

  def test_the_cases_differ(self):
    batch = loss_cases.random_batch(has_empty_row=False)
    found = [
      _of_trl(batch, **settings)[0]
      for settings in (
        {'loss_type': 'grpo'},
        {'loss_type': 'bnpo'},
        {'loss_type': 'dr_grpo'},
        {'loss_type': 'grpo', 'delta': 1.5},
        {'loss_type': 'grpo', 'importance_sampling_level': 'sequence'},
        {'loss_type': 'cispo', 'epsilon_high': 1.0 + _HIGH},
        {'loss_type': 'grpo', 'beta': 0.1},
      )
    ]
    self.assertLen(set(found), len(found))
