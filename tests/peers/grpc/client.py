"""Makes calls with the official client. Each is an object:

method    "Echo", of the service postern.Test
kind      "unary", "server", "client" or "bidi"
messages  messages as text; an object {"repeat": N, "size": N} means N messages
metadata  additional fields, default none
pause     seconds before each message, default none
"""

import json
import sys
import time

import grpc


def messages(call):
    for message in call["messages"]:
        repeat, data = 1, message
        if isinstance(message, dict):
            repeat, data = message["repeat"], "x" * message["size"]
        for _ in range(repeat):
            time.sleep(call.get("pause", 0))
            yield data.encode()


def make(channel, call):
    path = f"/postern.Test/{call['method']}"
    options = {"metadata": tuple(call.get("metadata", {}).items())}
    if call["kind"] == "unary":
        reply, done = channel.unary_unary(path).with_call(next(messages(call)), **options)
        return [reply], done
    if call["kind"] == "client":
        reply, done = channel.stream_unary(path).with_call(messages(call), **options)
        return [reply], done
    if call["kind"] == "server":
        done = channel.unary_stream(path)(next(messages(call)), **options)
    else:
        done = channel.stream_stream(path)(messages(call), **options)
    return done, done


def outcome(channel, call):
    replies, number, size, error = [], 0, 0, None
    try:
        stream, done = make(channel, call)
        for reply in stream:
            number, size = number + 1, size + len(reply)
            replies.append(reply[:100].decode())
    except grpc.RpcError as failure:
        done = error = failure
    return {
        "status": done.code().name,
        "message": done.details() if error else None,
        "replies": replies[:10],
        "number": number,
        "size": size,
        "trailers": {name: str(value) for name, value in done.trailing_metadata() or ()},
    }


def main():
    target, calls = sys.argv[1], json.loads(sys.argv[2])
    with grpc.insecure_channel(target) as channel:
        for call in calls:
            print(json.dumps(outcome(channel, call)), flush=True)


main()
