# A push handler: Keylane calls it with each order. It takes orders, and rejects what is none.
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Orders(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, answer = 200, b""  # Done.
        try:
            order = json.loads(body)
            line = f'{self.headers["Keylane-Key"]} orders {order["count"]} {order["item"]}\n'
            print(line, end="", flush=True)  # In one piece: other keys print at the same time.
        except (ValueError, KeyError, TypeError):  # No attempt at this message can ever succeed.
            status, answer = 422, b"an order has an item and a count"
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer)


ThreadingHTTPServer.request_queue_size = 256  # Keylane makes that many calls at once; Python expects 5.
ThreadingHTTPServer(("127.0.0.1", 9000), Orders).serve_forever()
