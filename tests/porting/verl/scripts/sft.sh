#!/bin/bash
# SFT on conversations; the number of processes and the folder are arguments.
if [ "$#" -lt 2 ]; then
    echo "Usage: sft.sh <processes> <folder> [overrides]"
    exit 1
fi
processes=${1:-8}
folder=$2
shift 2

torchrun --standalone --nnodes=1 --nproc_per_node=$processes -m verl.trainer.sft_trainer \
    data.train_files=$HOME/data/chat/train.parquet \
    data.val_files=$HOME/data/chat/test.parquet \
    data.train_batch_size=64 \
    data.max_length=4096 \
    data.use_dynamic_bsz=True \
    data.max_token_len_per_gpu=16384 \
    data.messages_key=conversation \
    model.path=Qwen/Qwen2.5-0.5B \
    model.use_remove_padding=True \
    optim.lr=1e-5 \
    optim.lr_warmup_steps_ratio=0.1 \
    optim.lr_scheduler_type=cosine \
    optim.min_lr_ratio=0.1 \
    engine.ulysses_sequence_parallel_size=1 \
    engine.strategy=fsdp2 \
    trainer.project_name=chat-sft \
    trainer.experiment_name=chat-0.5b \
    trainer.default_local_dir=$folder \
    trainer.logger='["console","file"]' \
    trainer.total_epochs=2 trainer.test_freq=50 trainer.save_freq=200 trainer.max_ckpt_to_keep=3 $@
