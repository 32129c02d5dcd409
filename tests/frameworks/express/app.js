const express = require("express");
const app = express();

app.use(express.json());
app.use(express.raw());

app.post("/orders", (req, res) => {
  console.log(req.get("Keylane-Key"), req.body.count, req.body.item);
  res.sendStatus(200);
});

app.post("/files", (req, res) => {
  console.log(req.get("Content-Type"), req.body.toString("hex"));
  res.sendStatus(200);
});

app.listen(process.env.PORT, "127.0.0.1");
