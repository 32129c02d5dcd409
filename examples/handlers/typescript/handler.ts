// A push handler: mkdir -p orders && npx tsx handler.ts        (PORT is 9000 unless it is set)
// An order's file tells that it was done: a message can come twice. With a database, use one transaction for both.
import { existsSync, renameSync, writeFileSync } from "node:fs";
import { createServer, type IncomingHttpHeaders } from "node:http";
import { text } from "node:stream/consumers";

type Order = { item: string; count: number };

function orderOf(body: string): Order | undefined {
  try {
    const order = JSON.parse(body);
    return typeof order?.item === "string" && Number.isInteger(order.count) ? order : undefined;
  } catch {
    return undefined;
  }
}

function handle(headers: IncomingHttpHeaders, body: string): number {
  const order = orderOf(body);
  if (!order) return 422; // It can never be handled.
  const place = ["topic", "partition", "offset"].map((name) => headers[`keylane-${name}`]).join("-");
  const path = `orders/${encodeURIComponent(place)}`;
  if (existsSync(path)) return 200;
  writeFileSync(`${path}.new`, body);
  renameSync(`${path}.new`, path);
  console.log(`${headers["keylane-key"]} orders ${order.count} ${order.item}`);
  return 200;
}

createServer(async (request, response) => {
  try {
    response.writeHead(handle(request.headers, await text(request))).end();
  } catch (error) {
    response.writeHead(500).end(String(error)); // It comes again.
  }
}).listen(Number(process.env.PORT ?? 9000), "127.0.0.1");
