from flask import Flask, request

app = Flask(__name__)


@app.post("/orders")
def orders():
    order = request.get_json()
    print(request.headers.get("Keylane-Key"), order["count"], order["item"], flush=True)
    return "", 204


@app.post("/files")
def files():
    print(request.content_type, request.get_data().hex(), flush=True)
    return "", 204
