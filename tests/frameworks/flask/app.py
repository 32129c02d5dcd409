from flask import Flask, request

app = Flask(__name__)


@app.post("/orders")
def orders():
    order = request.get_json()
    if "item" not in order or "count" not in order:
        return "an order has an item and a count", 422
    print(request.headers.get("Keylane-Key"), order["count"], order["item"], flush=True)
    return "", 204


@app.post("/files")
def files():
    print(request.content_type, request.get_data().hex(), flush=True)
    return "", 204
