"""Engines that are servers: vLLM and SGLang run in processes and environments of their own, and speak HTTP.

    shared      `open_servers`: the generator of an engine; ranks share its servers
    generator   `ServedGenerator`: a `Generator` whose requests are answered by one or several servers
    server      `Server`: the requests and the weights of one server
    started     its process, which is started and restarted
    instances   a server that another rank starts, or one that runs already
    lease       a server that runs already is used by one run at a time
    identity    whether such a server has the model, the tokenizer and the version that the run needs
    failures    errors that an engine has each time
    devices     the accelerators of servers
    api         `EngineApi`: what differs between engines
    http        requests with deadlines
    process     a server as a process that ends with this one, with everything that it has started
    log         what the log of a server says about why it has failed, and its size
    versions    which version of an engine is installed
    weights     weights as files, which servers read
    settings    the settings that all engines share

No module here imports an engine, so their versions of torch and transformers do not matter to the trainer.
"""
