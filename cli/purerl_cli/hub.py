"""Uploading a model to the hub of Hugging Face. HF_ENDPOINT names another hub, HF_TOKEN a token."""

from __future__ import annotations

from pathlib import Path

from purerl.errors import ConfigError, RunError

__all__ = ["check_credentials", "upload"]

_DO = "set HF_TOKEN to a token with permission to write, or run: hf auth login"


def check_credentials() -> None:
    """Raise ConfigError if there is no token, before the model is exported."""
    from huggingface_hub import get_token

    if get_token() is None:
        raise ConfigError("--push-to-hub", got="no credentials of the hub", need="a token", do=_DO)


def upload(folder: Path, name: str, *, private: bool) -> str:
    """Upload the files in `folder` to the model repository `name`, which is created if it does not exist.

    Returns the address of the repository.

    Raises: ConfigError for a name that cannot be a repository; RunError if the hub refuses the upload or cannot be
    reached.
    """
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    hub = HfApi()
    try:
        repository = hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(folder_path=folder, repo_id=repository.repo_id, commit_message="Upload the model")
    except HFValidationError as error:
        raise ConfigError("--push-to-hub", got=repr(name), need="a name such as user/model", do=str(error)) from error
    except (HfHubHTTPError, HTTPError, OSError) as error:
        what, need = f"{name!r} cannot be uploaded to {hub.endpoint}", "a hub that accepts the upload"
        raise RunError(what, got=str(error).strip().splitlines()[0], need=need, do=_DO) from error
    return str(repository)
