# A push handler: Keylane calls it with each order. It takes orders, and rejects what is none.
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Orders(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            order = json.loads(body)
            line = f'{self.headers["Keylane-Key"]} orders {order["count"]} {order["item"]}\n'
            print(line, end="", flush=True)  # In one piece: other keys print at the same time.
            self.send_response(200)  # Done.
        except (ValueError, KeyError, TypeError):
            self.send_response(422)  # No attempt at this message can ever succeed.
        self.end_headers()


ThreadingHTTPServer(("127.0.0.1", 9000), Orders).serve_forever()
