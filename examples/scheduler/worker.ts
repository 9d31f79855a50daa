import { OverlayClient } from "pulumi-overlay/client";

// A worker, on its runner: it makes sure that its address is its own before it configures it.
const { OVERLAY_URL, OVERLAY_ACCESS_TOKEN, JOB, RANK, WORLD_SIZE, MASTER_ADDR, TOKEN } = process.env;
const client = new OverlayClient({ baseUrl: OVERLAY_URL!, token: OVERLAY_ACCESS_TOKEN! });

await client.validate({ token: TOKEN! });
const { ip, runner } = await client.use({ token: TOKEN!, container: `${JOB}-${RANK}` });
console.log(`rank ${RANK} of ${WORLD_SIZE} at ${ip} on ${runner}, master ${MASTER_ADDR}`);
