"""A gRPC server with messages of plain bytes, which need no generated code."""

from concurrent import futures

import grpc


def echo(request, context):
    context.set_trailing_metadata((("x-trailer", "after"), ("x-bin-bin", b"\x00\xff")))
    return request


def fail(_request, context):
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not nów, 100 %")


def subject(_request, context):
    return dict(context.invocation_metadata()).get("x-postern-subject", "nobody").encode()


def count(request, _context):
    """`NUMBER SIZE`: sends NUMBER messages of SIZE bytes."""
    number, size = map(int, request.split())
    for _ in range(number):
        yield b"x" * size


def total(requests, _context):
    return str(sum(len(request) for request in requests)).encode()


def enough(requests, context):
    """Ends the call while the caller is still sending."""
    next(requests)
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "enough")


def echo_all(requests, _context):
    yield from requests


UNARY = {"Echo": echo, "Fail": fail, "Subject": subject}
SERVER = {"Count": count}
CLIENT = {"Total": total, "Enough": enough}
BIDI = {"EchoAll": echo_all}


def handlers():
    kinds = (
        (UNARY, grpc.unary_unary_rpc_method_handler),
        (SERVER, grpc.unary_stream_rpc_method_handler),
        (CLIENT, grpc.stream_unary_rpc_method_handler),
        (BIDI, grpc.stream_stream_rpc_method_handler),
    )
    methods = {name: kind(method) for table, kind in kinds for name, method in table.items()}
    return grpc.method_handlers_generic_handler("postern.Test", methods)


def main():
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
    server.add_generic_rpc_handlers((handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"listening {port}", flush=True)
    server.wait_for_termination()


main()
