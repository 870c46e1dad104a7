# REINFORCE++ with a reward function of a file, written as a function of the shell.
train() {
    local estimator=$1
    shift
    python3 -m verl.trainer.main_ppo \
        algorithm.adv_estimator=$estimator \
        data.train_files=/data/code/train.parquet data.val_files=/data/code/test.parquet \
        data.train_batch_size=128 data.max_prompt_length=1024 data.max_response_length=4096 \
        actor_rollout_ref.model.path=/models/qwen3-1.7b \
        actor_rollout_ref.actor.optim.lr=3e-6 \
        actor_rollout_ref.actor.ppo_mini_batch_size=128 \
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
        actor_rollout_ref.actor.clip_ratio_high=0.25 \
        actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \
        actor_rollout_ref.rollout.enforce_eager=True \
        custom_reward_function.path=/data/code/rewards.py custom_reward_function.name=compute_score \
        algorithm.use_kl_in_reward=True algorithm.kl_ctrl.kl_coef=0.01 \
        trainer.experiment_name=$estimator trainer.logger=console \
        trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.total_epochs=2 "$@"
}
train reinforce_plus_plus trainer.save_freq=50 trainer.test_freq=50
