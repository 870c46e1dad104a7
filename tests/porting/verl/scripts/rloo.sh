# RLOO with a penalty in the reward, on one host; the number of GPUs is an argument with a default.
GPUS=${1:-4}
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo \
  data.train_files=$HOME/data/gsm8k/train.parquet data.val_files=$HOME/data/gsm8k/test.parquet \
  data.train_batch_size=256 data.max_prompt_length=512 data.max_response_length=1024 \
  data.filter_overlong_prompts=True data.truncation=error data.shuffle=False \
  actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \
  actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=64 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.actor.use_kl_loss=False \
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  algorithm.use_kl_in_reward=True algorithm.kl_penalty=low_var_kl algorithm.kl_ctrl.kl_coef=0.001 \
  trainer.logger=['console'] trainer.experiment_name=rloo trainer.n_gpus_per_node=$GPUS trainer.nnodes=1 \
  trainer.save_freq=100 trainer.test_freq=20 trainer.total_training_steps=300
