from typing import Annotated

from fastapi import FastAPI, Header, Request
from pydantic import BaseModel


class Order(BaseModel):
    item: str
    count: int


app = FastAPI()


@app.post("/orders")
async def orders(order: Order, keylane_key: Annotated[str | None, Header()] = None):
    print(keylane_key, order.count, order.item, flush=True)
    return order


@app.post("/files")
async def files(request: Request):
    body = await request.body()
    print(request.headers["content-type"], body.hex(), flush=True)
