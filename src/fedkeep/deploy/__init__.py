"""The same methods over a real network, with Flower.

    options     what a deployment needs to know beyond the experiment itself
    wire        tensors by name <-> Flower's records, checked on arrival
    encoding    smaller payloads: float16, int8, the largest q %
    store       a client's memory on its own disk
    scene       a client's data, a server's test data, the model
    client      what a client does: hello, train, score, judge
    exchange    messages out, replies in, failures named
    server      rounds over the network, with checkpoints
    meter       forgetting from counts that clients send
    privacy     client-level differential privacy
    project     the files of a deployment
    local       a whole federation on this machine

Only `client`, `server`, `exchange`, `messages` and `wire` import Flower; what they need is in `fedkeep[flower]`.
"""
