# A push handler that also checks who calls. SECRET is what `sign` of the pipeline's handler says:
#   mkdir -p orders && SECRET=whsec_… python3 handler.py        (PORT is 9000 unless it is set)
# An order's file tells that it was done: a message can come twice. With a database, use one transaction for both.
import base64
import hashlib
import hmac
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = base64.b64decode(os.environ["SECRET"].removeprefix("whsec_"))


def is_signed(headers, body):
    at, signatures = headers.get("webhook-timestamp", ""), headers.get("webhook-signature", "")
    mac = hmac.digest(SECRET, f"{headers.get('webhook-id')}.{at}.".encode() + body, "sha256")
    expected = b"v1," + base64.b64encode(mac)
    same = any(hmac.compare_digest(expected, one.encode()) for one in signatures.split())
    return same and abs(time.time() - int(at)) <= 300  # A recorded call is of no use later.


def handle(headers, body):
    try:
        order = json.loads(body)
        told = f"{headers['Keylane-Key']} orders {order['count']:d} {order['item']}"
    except (ValueError, KeyError, TypeError):
        return 422  # It can never be handled.
    # The id, for the signature covers it; an id can be any text, its hash is a file's name.
    path = "orders/" + hashlib.sha256(headers["webhook-id"].encode()).hexdigest()
    if not os.path.exists(path):
        with open(path + ".new", "wb") as file:
            file.write(body)
        os.replace(path + ".new", path)
        print(told, flush=True)
    return 200


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            self.send_response(handle(self.headers, body) if is_signed(self.headers, body) else 401)
        except OSError as error:
            self.send_response(500, str(error))  # It comes again.
        self.end_headers()


ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", 9000))), Handler).serve_forever()
