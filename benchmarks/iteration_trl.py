"""The side of trl in `benchmarks/iteration.py`; needs torch, trl, datasets.

Command: python benchmarks/iteration_trl.py '<size as JSON>' <repeats>
"""

import json
import statistics
import sys
import tempfile
import time

import datasets
import tokenizers
import torch
import transformers
import trl


def main():
  size, repeats = json.loads(sys.argv[1]), int(sys.argv[2])
  rows_per_step = size['prompts'] * size['group']
  words = ['<pad>', '<eos>', '<unk>']
  words += [f't{index}' for index in range(3, size['vocab'])]
  vocabulary = {word: index for index, word in enumerate(words)}
  backend = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(vocabulary, unk_token='<unk>')
  )
  backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=backend,
    pad_token='<pad>',
    eos_token='<eos>',
    unk_token='<unk>',
    padding_side='left',
  )
  torch.manual_seed(0)
  model = transformers.Qwen3ForCausalLM(
    transformers.Qwen3Config(
      vocab_size=size['vocab'],
      hidden_size=size['d_model'],
      num_hidden_layers=size['layers'],
      num_attention_heads=size['heads'],
      num_key_value_heads=size['kv_heads'],
      head_dim=size['d_model'] // size['heads'],
      intermediate_size=size['d_ff'],
      tie_word_embeddings=True,
      max_position_embeddings=size['prompt'] + size['new'],
      pad_token_id=0,
      eos_token_id=1,
      bos_token_id=None,
    )
  )
  generator = torch.Generator().manual_seed(0)
  ids = torch.randint(
    3, size['vocab'], (size['prompts'] * (repeats + 3), size['prompt']),
    generator=generator,
  )  # fmt: skip
  rows = [{'prompt': ' '.join(words[i] for i in row)} for row in ids.tolist()]

  def reward(completions, **_):
    return [float(len(text.split()[:1][0]) % 2) for text in completions]

  moments = []

  class Clock(transformers.TrainerCallback):
    def on_step_end(self, *_, **__):
      moments.append(time.perf_counter())

  with tempfile.TemporaryDirectory() as folder:
    trainer = trl.GRPOTrainer(
      model=model,
      processing_class=tokenizer,
      reward_funcs=reward,
      train_dataset=datasets.Dataset.from_list(rows),
      callbacks=[Clock()],
      args=trl.GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=rows_per_step // size['trl_microbatches'],
        gradient_accumulation_steps=size['trl_microbatches'],
        num_generations=size['group'],
        max_completion_length=size['new'],
        max_steps=repeats + 2,
        learning_rate=1e-4,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type='dapo',
        gradient_checkpointing=False,
        generation_kwargs={'min_new_tokens': size['new']},
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=10**6,
        save_strategy='no',
        disable_tqdm=True,
        seed=0,
      ),
    )
    trainer.train()
  spent = [after - before for before, after in zip(moments, moments[1:])]  # noqa: B905
  print(json.dumps({'total': statistics.median(spent[1:]), 'all': spent}))


if __name__ == '__main__':
  main()
