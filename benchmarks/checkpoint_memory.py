"""Host memory to load and save a Hugging Face checkpoint of 390 MB.

Each measurement is a process of its own. It prints how far the peak of the
resident memory, mapped files included, is above the memory before plus the
model itself, which on a CPU is host memory too. Linux only.
Command: python benchmarks/checkpoint_memory.py
"""

import pathlib
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import machine

from replay_rl.lm import architecture
from replay_rl.lm.hf import checkpoint as hf
from replay_rl.lm.hf import config as hf_config
from replay_rl.lm.hf import layout as hf_layout

_CONFIG = architecture.TransformerConfig(
  vocab_size=4096,
  d_model=512,
  num_layers=24,
  num_heads=8,
  num_kv_heads=4,
  head_dim=64,
  d_ff=2048,
  rope_theta=10_000.0,
  rope_scaling=None,
  norm_eps=1e-6,
  qk_norm=True,
  qkv_bias=False,
  tied_embeddings=True,
  max_context=256,
  compute_dtype='float32',
)


def report(name, before, model_megabytes, seconds):
  above = machine.resident('VmHWM') - before - model_megabytes
  print(
    f'{name}: {above:.0f} MB above the model (largest leaf 201 MB, largest '
    f'tensor 8 MB in float32), {seconds:.1f} s'
  )


def write(folder, dtype):
  # Not `model.init`, whose scratch memory would hide what saving takes.
  params = jax.tree.map(
    lambda like: jnp.ones(like.shape), hf_layout.abstract_params(_CONFIG)
  )
  jax.block_until_ready(params)
  before, start = machine.resident('VmRSS'), time.perf_counter()
  machine.reset_peak()
  hf.save(
    folder,
    _CONFIG,
    params,
    dtype=dtype,
    max_file_bytes=10**8,
    max_position_embeddings=256,
    bos_id=None,
    eos_ids=(0,),
  )
  report(f'save {dtype}', before, 0, time.perf_counter() - start)


def read(folder, dtype):
  config = hf_config.read_config(
    folder, max_context=256, compute_dtype='float32'
  )
  # The runtime itself.
  jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.zeros((2, 2))))
  before, start = machine.resident('VmRSS'), time.perf_counter()
  machine.reset_peak()
  params = jax.block_until_ready(hf.load(folder, config))
  num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
  seconds = time.perf_counter() - start
  report(f'load {dtype}', before, num_bytes / machine.MEGABYTE, seconds)


def main():
  if len(sys.argv) > 1:
    step, folder, dtype = sys.argv[1:]
    {'write': write, 'read': read}[step](pathlib.Path(folder), dtype)
    return
  with tempfile.TemporaryDirectory() as parent:
    for dtype in ('float32', 'bfloat16'):
      for step in ('write', 'read'):
        subprocess.run(
          [sys.executable, __file__, step, f'{parent}/{dtype}', dtype],
          check=True,
        )


if __name__ == '__main__':
  main()
