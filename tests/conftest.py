"""Settings of all tests: eight virtual CPU devices, no silent broadcasting."""

import atexit
import gc
import os
import pathlib
import shutil
import tempfile

import jax
import pytest
from absl import flags

jax.config.update('jax_platforms', 'cpu')
os.environ['JAX_PLATFORMS'] = 'cpu'  # Of the processes that tests start.
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_numpy_rank_promotion', 'raise')
# Most of the time goes to compiling programs that run for milliseconds. The
# environment passes the setting to the processes that tests start.
jax.config.update('jax_disable_most_optimizations', True)
os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] = 'true'
# Three quarters of that time are these emitters, and a small program gains
# nothing from a compilation in parts. A jaxlib that does not know the flags
# would end the process.
if jax.__version_info__[:2] == (0, 10):
  os.environ['XLA_FLAGS'] = (
    os.environ.get('XLA_FLAGS', '')
    + ' --xla_cpu_use_fusion_emitters=false'
    + ' --xla_cpu_parallel_codegen_split_count=1'
  )
# Tracing makes millions of objects, and few of them are in cycles.
gc.set_threshold(100_000, 20, 100)

# Tests share compiled programs, also from process to process. The environment
# passes the folder on.
if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
  os.environ['JAX_COMPILATION_CACHE_DIR'] = tempfile.mkdtemp()
  atexit.register(
    shutil.rmtree, os.environ['JAX_COMPILATION_CACHE_DIR'], ignore_errors=True
  )
  os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.2'
jax.config.update(
  'jax_compilation_cache_dir', os.environ['JAX_COMPILATION_CACHE_DIR']
)
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.2)

# What runs cache, for all processes.
if 'REPLAY_RL_TESTS_CACHE' not in os.environ:
  os.environ['REPLAY_RL_TESTS_CACHE'] = tempfile.mkdtemp()
  atexit.register(
    shutil.rmtree, os.environ['REPLAY_RL_TESTS_CACHE'], ignore_errors=True
  )

# absl names the temporary folder of a test by its class and method alone, so
# two processes must not have the same parent folder.
os.environ['TEST_TMPDIR'] = tempfile.mkdtemp()
atexit.register(shutil.rmtree, os.environ['TEST_TMPDIR'], ignore_errors=True)

# absl's test cases read where to put temporary folders from a flag.
flags.FLAGS.mark_as_parsed()


# Tests of half a minute and more. Shorter ones test the same modules, and these
# run where the environment asks for them, see scripts/test.sh.
_IS_EVERY = os.environ.get('REPLAY_RL_EVERY_TEST') == '1'
_LONG = (
  'on_ray_test.py::ClusterTest::test_a_killed_worker_loses_nothing',
  'lockstep_test.py::RunTest::test_a_signal_saves_all_cells_that_run_and_they_'
  'continue',
  'lockstep_test.py::RunTest::test_together_they_differ_by_rounding_alone',
  'lockstep_test.py::RunTest::test_times_add_up',
  'jobs_test.py::JobsTest::test_a_job_of_slurm_runs_its_cells',
  'train_test.py::ResumeTest::test_a_continued_run_is_in_memory_once',
  'tensorstore_memory_test.py::HoldFlatTest::test_nothing_stays_in_memory',
  'asynchronous_test.py::RunTest::test_a_task_in_text_has_them_too',
  'asynchronous_test.py::RunTest::test_seeds_and_meshes_have_the_same_versions_'
  'and_nearly_the_same_run',
  'compile_check_test.py::MainTest::test_no_program_of_a_tpu_moves_a_buffer_'
  'that_is_on_the_host',
  'judged_beside_test.py::JudgedBesideTest::test_a_sampler_with_its_own_mesh',
  'main_test.py::InstalledTest::test_a_config_of_the_package_trains_outside_of_'
  'the_checkout',
)


def pytest_collection_modifyitems(items):
  """Puts the tests of whole programs first, because they take the longest.

  At the end, one process would wait for another.
  """
  for item in items:
    if not _IS_EVERY and item.nodeid.endswith(_LONG):
      item.add_marker(pytest.mark.skip(reason='REPLAY_RL_EVERY_TEST is not 1'))
  items.sort(key=lambda item: item.path.parent != pathlib.Path(__file__).parent)
