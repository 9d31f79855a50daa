import fastify from "fastify";

/** The floor of HTTP, as a process with the same requests as the service: fastify routes that answer a constant. */
async function main(): Promise<void> {
  const app = fastify();
  app.post("/ip/:step", async () => ({ ip: "10.128.64.2", token: "constant" }));
  process.on("disconnect", () => process.exit());
  process.send!(await app.listen({ host: "127.0.0.1", port: 0 }));
}

main();
