"""A server with the interface of OpenAI whose model is real: a generator of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from purerl.backends.hf import generator as hf
from purerl.data.chat import open_chat, tokenize_prompts
from purerl.data.encoding import decode
from purerl.models.tokenizer import end_tokens, load_tokenizer
from purerl.protocols import Request as Sampled
from purerl.protocols import generate
from purerl.sampling import Sampling
from purerl.settings import Model

from .servers import Behavior, Request, Server, answer, serve


@contextmanager
def serve_model(path: str) -> Iterator[Server]:
    """Serve the language model in the directory `path`: POST /chat/completions, and nothing else."""
    model = Model(path)
    chat = open_chat(load_tokenizer(model), "messages", extra_stop_tokens=end_tokens(model), special_tokens="escape")
    with closing(hf.build(hf.Config(), model=model, seed=0)) as generator:

        def respond(request: Request) -> Behavior:
            assert request.path.endswith("/chat/completions")
            body = request.body
            prompt = tokenize_prompts(chat, [body["messages"]])[0].tokens
            sampling = Sampling(body["temperature"], body["max_tokens"], chat.stop_tokens)
            [completion] = generate(generator, [Sampled("0", prompt, sampling, seed=body.get("seed", 0))])
            text = decode(chat, completion.tokens, skip_special_tokens=True)
            sizes = {"prompt": len(prompt), "completion": len(completion.tokens)}
            return answer(text, finish=completion.finish, **sizes)

        with serve(respond) as server:
            yield server
