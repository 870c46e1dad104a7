# PPO with a critic of another model, and a KL penalty in the reward.
set -x
ACTOR=${ACTOR:-Qwen/Qwen2.5-7B-Instruct}
CRITIC=${CRITIC:-Qwen/Qwen2.5-1.5B-Instruct}

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gae \
    algorithm.gamma=1.0 algorithm.lam=0.95 \
    data.train_files=$HOME/data/gsm8k/train.parquet \
    data.val_files=$HOME/data/gsm8k/test.parquet \
    data.train_batch_size=1024 \
    data.max_prompt_length=512 \
    data.max_response_length=512 \
    data.return_raw_chat=True \
    actor_rollout_ref.model.path=$ACTOR \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.05 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24000 \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \
    actor_rollout_ref.actor.fsdp_config.param_offload=True \
    actor_rollout_ref.rollout.name=sglang \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \
    critic.optim.lr=1e-5 \
    critic.optim.lr_warmup_steps_ratio=0.02 \
    critic.model.path=$CRITIC \
    critic.model.use_remove_padding=True \
    critic.model.enable_gradient_checkpointing=False \
    critic.ppo_max_token_len_per_gpu=98304 \
    critic.ulysses_sequence_parallel_size=2 \
    critic.cliprange_value=0.3 \
    algorithm.use_kl_in_reward=True \
    algorithm.kl_penalty=kl \
    algorithm.kl_ctrl.kl_coef=0.005 \
    trainer.critic_warmup=11 \
    trainer.logger='["console","tensorboard"]' \
    trainer.experiment_name=ppo \
    trainer.n_gpus_per_node=8 trainer.nnodes=2 \
    trainer.save_freq=-1 trainer.test_freq=10 \
    trainer.val_before_train=False \
    trainer.total_epochs=3
