# A vision-language model, with the backend chosen by a case, and DAPO's clip range.
ENGINE=${ENGINE:-vllm}
case "$ENGINE" in
    vllm) extra="+actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True" ;;
    sglang) extra="+actor_rollout_ref.rollout.engine_kwargs.sglang.mm_attention_backend=fa3" ;;
    *) echo "unknown engine" && exit 1 ;;
esac
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=$HOME/data/geo3k/train.parquet data.val_files=$HOME/data/geo3k/test.parquet \
    data.train_batch_size=512 data.max_prompt_length=1024 data.max_response_length=2048 \
    data.filter_overlong_prompts=True data.truncation='error' data.image_key=pictures \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct \
    actor_rollout_ref.actor.freeze_vision_tower=True \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=10 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.01 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.entropy_coeff=0.001 \
    actor_rollout_ref.rollout.name=$ENGINE actor_rollout_ref.rollout.n=5 \
    $extra \
    actor_rollout_ref.rollout.enable_chunked_prefill=False actor_rollout_ref.rollout.enforce_eager=False \
    actor_rollout_ref.rollout.free_cache_engine=True actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    trainer.logger='["console","wandb"]' trainer.project_name=vlm trainer.experiment_name=geo3k \
    trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.save_freq=20 trainer.test_freq=5 trainer.total_epochs=15
