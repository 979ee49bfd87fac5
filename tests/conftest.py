"""Settings of every test: eight virtual CPU devices, no silent broadcasting."""

import jax
from absl import flags

jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_numpy_rank_promotion', 'raise')
# Most of the time goes to compiling programs that run for milliseconds.
jax.config.update('jax_disable_most_optimizations', True)

# absl's test cases read where to put temporary folders from a flag.
flags.FLAGS.mark_as_parsed()
