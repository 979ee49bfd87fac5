"""A run that takes a second: one-digit addition, a model of 3k parameters."""

import atexit
import dataclasses
import os
import shutil
import tempfile

from replay_rl.run import config as config_lib

# Data and runs that the tests of a process share.
FOLDER = tempfile.mkdtemp()
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
# All tests share warm starts and compiled programs, also from process to
# process, see conftest.py.
CACHE = os.environ.get('REPLAY_RL_TESTS_CACHE', FOLDER)


# A choice for `sampler.prompts`, with a table of prompts.
REPLAYED_PROMPTS = (
  'replayed_prompts(fraction=0.5, center=0.5, width=0.5, max_visits=3, '
  'cooldown=0)'
)


def config(cache_dir: str = CACHE, **changes) -> config_lib.Config:
  """Returns the config of the run, with each `section__field=value` set."""
  result = config_lib.Config(
    name='tiny',
    seed=0,
    num_seeds=1,
    vmap_seeds=False,
    num_iterations=4,
    stop=None,
    mu=2.0,
    cache_dir=str(cache_dir),
    task='addition(num_digits=1, forget_probability=0.5)',
    reward='correctness()',
    schedule='synchronous()',
    text=None,
    model=config_lib.Model(
      vocab_size=None,
      d_model=16,
      num_layers=1,
      num_heads=2,
      num_kv_heads=2,
      head_dim=8,
      d_ff=32,
      rope_theta=10_000.0,
      rope_scaling=None,
      norm_eps=1e-6,
      qk_norm=True,
      qkv_bias=False,
      tied_embeddings=True,
      compute_dtype='float32',
      checkpoint=None,
    ),
    warm_start=config_lib.WarmStart(
      # After these, some answers are right, so that there is a gradient.
      num_steps=150,
      batch_size=32,
      learning_rate=1e-2,
      warmup_steps=2,
      transform='adamw(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.0)',
      max_grad_norm=1.0,
      seed=0,
    ),
    sampler=config_lib.Sampler(
      num_prompts=4,
      group_size=4,
      temperature=1.0,
      top_k=None,
      top_p=None,
      num_slots=None,
      weight_lag=0,
      num_distinct_prompts=None,
      prompts='in_order()',
    ),
    replay=config_lib.Replay(
      capacity=32,
      batch_size=8,
      updates_per_iteration=2,
      compose='pure_buffer(rows_in_use=None)',
      weights='uniform()',
      draw='blocked_inverse_cdf(stratified=False)',
      keep='ring()',
      feedback=None,
      drop_zero_variance=False,
      num_prompts=None,
    ),
    loss=config_lib.Loss(
      advantage='group_mean_baseline()',
      batch_advantage=None,
      policy='clipped_surrogate(clip_low=0.2, clip_high=0.2, dual_clip=None)',
      normalizer='token_mean()',
      row_weights=None,
      statistics=None,
    ),
    optimizer=config_lib.Optimizer(
      learning_rate=1e-2,
      warmup_steps=0,
      transform='adamw(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.0)',
      gate=None,
      max_grad_norm=1.0,
      microbatch_rows=None,
      packed_tokens=None,
      logits_chunk=None,
      remat=False,
    ),
    evaluation=config_lib.Evaluation(
      every=0,
      every_cost=None,
      num_prompts=4,
      num_samples=2,
      temperature=1.0,
      top_p=None,
    ),
    logging=config_lib.Logging(
      histogram_bins=4,
      age_buckets=None,
      age_grad_norms=False,
      time_events=False,
      writers=None,
      samples_every=0,
      num_samples=4,
    ),
    checkpoint=config_lib.Checkpoint(every=1, keep=3),
    mesh=config_lib.Mesh(
      shape={'data': 1, 'fsdp': 1, 'tensor': 1},
      sampler_shape=None,
      buffer_memory='device',
    ),
  )
  for path, value in changes.items():
    *sections, field = path.split('__')
    owner = result
    for section in sections:
      owner = getattr(owner, section)
    assert field in {f.name for f in dataclasses.fields(owner)}, path
    setattr(owner, field, value)
  return result
