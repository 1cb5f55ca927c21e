"""httpx, over HTTP/1.1 and over HTTP/2 with prior knowledge."""

import sys

import httpx

for version in ["1.1", "2"]:
    with httpx.Client(http1=version == "1.1", http2=version == "2", trust_env=False) as client:
        for method in ["GET", "POST", "HEAD"]:
            content = b"hello" if method == "POST" else None
            response = client.request(method, sys.argv[1], content=content)
            assert response.http_version == f"HTTP/{version}", response.http_version
            print(f"httpx/{version} {method} {response.status_code}")
