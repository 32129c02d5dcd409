const fastify = require("fastify")();

// Fastify reads JSON and text by itself; any other type needs a parser.
fastify.addContentTypeParser("application/octet-stream", { parseAs: "buffer" }, (request, body, done) => {
  done(null, body);
});

fastify.post("/orders", async (request) => {
  console.log(request.headers["keylane-key"], request.body.count, request.body.item);
  return { ok: true };
});

fastify.post("/files", async (request) => {
  console.log(request.headers["content-type"], request.body.toString("hex"));
  return { ok: true };
});

fastify.listen({ port: process.env.PORT }, (error) => {
  if (error) throw error;
});
