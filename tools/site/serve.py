"""Show a folder in a browser: `make site-serve`. You will see the address; Ctrl-C ends it."""

import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

with ThreadingHTTPServer(
    ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=sys.argv[1])
) as server:
    print(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
