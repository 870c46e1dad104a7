# LoRA of a large model, with GRPO without the standard deviation (Dr. GRPO).
nproc=8
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=False \
    data.train_files=$HOME/data/gsm8k/train.parquet data.val_files=$HOME/data/gsm8k/test.parquet \
    data.train_batch_size=64 data.max_prompt_length=512 data.max_response_length=1024 \
    data.filter_overlong_prompts=True data.truncation=error data.shuffle=True data.seed=7 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-72B-Instruct \
    actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.model.lora_alpha=64 \
    actor_rollout_ref.model.target_modules=all-linear \
    actor_rollout_ref.model.use_shm=True \
    actor_rollout_ref.actor.optim.lr=3e-5 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=mse \
    actor_rollout_ref.actor.fsdp_config.model_dtype=bf16 \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.load_format=safetensors \
    actor_rollout_ref.rollout.layered_summon=True actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=8 \
    trainer.logger='["console","swanlab"]' trainer.project_name=lora trainer.experiment_name=lora_72b \
    trainer.n_gpus_per_node=$nproc trainer.nnodes=1 trainer.save_freq=20 trainer.test_freq=5 \
    trainer.total_training_steps=100
