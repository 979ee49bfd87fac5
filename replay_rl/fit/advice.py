"""What makes a run need less memory."""

from collections.abc import Mapping

# Term of `memory.Memory` -> what makes it smaller.
ADVICE: Mapping[str, str] = {
  'parameters': 'more fsdp or tensor',
  'optimizer state': 'more fsdp or tensor',
  'verifier': 'a smaller text.num_workers',
  'published weights': 'a smaller sampler.weight_lag, more fsdp or tensor',
  'reference weights': 'more fsdp or tensor',
  'replay buffer': 'a smaller replay.capacity, more data or fsdp',
  'state of the gate': 'another optimizer.gate, more fsdp or tensor',
  'copy of the run': 'more fsdp or tensor, or a smaller replay.capacity',
  'gradients': 'more fsdp or tensor',
  'proximal weights': 'more fsdp or tensor',
  'gradient of a row': 'more fsdp or tensor',
  'histograms of updates': (
    'a smaller replay.updates_per_iteration or logging.histogram_bins'
  ),
  'kept for the backward pass': (
    'optimizer.remat, a smaller optimizer.microbatch_rows, more data or fsdp'
  ),
  'learner working set': (
    'optimizer.logits_chunk, a smaller optimizer.microbatch_rows, more data '
    'or fsdp'
  ),
  'KV cache': (
    'a smaller sampler.num_slots, fewer rollouts at once (sampler, '
    'evaluation), shorter responses, more data or fsdp'
  ),
  'KV cache of prompts': (
    'fewer prompts (sampler, evaluation), shorter prompts, more data or fsdp'
  ),
  'prompts and responses': (
    'fewer rollouts at once (sampler, evaluation), shorter prompts and '
    'responses, more data or fsdp'
  ),
  'sampler working set': (
    'fewer rollouts at once (sampler, evaluation), shorter prompts, more data '
    'or fsdp'
  ),
  'copies of weights': 'more tensor',
  'weights to sample with': 'more tensor of mesh.sampler_shape',
  'copy of published weights': 'more fsdp or tensor',
}
