import { randomBytes } from "node:crypto";
import fastify from "fastify";
import { LinearSearch } from "./linear-search";

/**
 * What the service is compared with, as a process with the same requests: under `/constant` fastify routes that answer a constant, under
 * `/linear` reservations by linear search. `reference.ts FIRST LAST`, the addresses of the subnet as numbers.
 */
async function main([first, last]: string[]): Promise<void> {
  const app = fastify();
  app.post("/constant/ip/:step", async () => ({ ip: "10.128.64.2", token: "constant" }));
  const search = new LinearSearch(Number(first), Number(last), randomBytes(32).toString("hex"));
  app.post<{ Querystring: { ttl: string } }>("/linear/ip/reserve", async ({ query }) =>
    search.reserve(Number(query.ttl)),
  );
  app.post<{ Querystring: { token: string; container: string } }>("/linear/ip/use", async ({ query }) => ({
    ip: search.use(query.token, query.container),
  }));
  app.post<{ Querystring: { container: string } }>("/linear/ip/release", async ({ query }) => ({
    released: search.release(query.container),
  }));
  process.on("disconnect", () => process.exit());
  process.send!(await app.listen({ host: "127.0.0.1", port: 0 }));
}

main(process.argv.slice(2));
