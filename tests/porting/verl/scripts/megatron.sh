# A mixture of experts with Megatron: tensor, pipeline, context and expert groups.
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=2 PP=2
EP=4
common="actor_rollout_ref.actor.megatron"
python3 -m verl.trainer.main_ppo --config-path=config --config-name='ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=grpo \
    data.train_files=/data/train.parquet data.val_files=/data/test.parquet \
    data.train_batch_size=128 data.max_prompt_length=1024 data.max_response_length=8192 \
    actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B \
    actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.optim.lr_decay_style=cosine \
    actor_rollout_ref.actor.optim.min_lr=1e-7 actor_rollout_ref.actor.optim.clip_grad=0.5 \
    +actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload=True \
    +actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_offload_fraction=1 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
    $common.tensor_model_parallel_size=$TP \
    $common.pipeline_model_parallel_size=$PP \
    $common.expert_model_parallel_size=$EP \
    $common.expert_tensor_parallel_size=1 \
    $common.param_offload=True $common.grad_offload=True $common.optimizer_offload=True \
    $common.use_mbridge=True \
    +$common.override_transformer_config.recompute_granularity=full \
    +$common.override_transformer_config.recompute_method=uniform \
    +$common.override_transformer_config.recompute_num_layers=1 \
    +$common.override_transformer_config.moe_router_dtype=fp32 \
    +$common.override_transformer_config.gradient_accumulation_fusion=True \
    actor_rollout_ref.actor.policy_loss.loss_mode=gspo \
    actor_rollout_ref.actor.clip_ratio_low=3e-4 actor_rollout_ref.actor.clip_ratio_high=4e-4 \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean \
    actor_rollout_ref.actor.megatron.router_replay.mode=R3 \
    actor_rollout_ref.rollout.enable_rollout_routing_replay=True \
    actor_rollout_ref.ref.megatron.tensor_model_parallel_size=$TP \
    actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=$PP \
    actor_rollout_ref.ref.megatron.param_offload=True \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    actor_rollout_ref.rollout.n=8 \
    trainer.logger='["console","wandb"]' trainer.project_name=moe trainer.experiment_name=gspo_moe \
    trainer.n_gpus_per_node=8 trainer.nnodes=4 trainer.save_freq=20 trainer.test_freq=-1 \
    trainer.val_before_train=False trainer.total_epochs=1
