import * as pulumi from "@pulumi/pulumi";
import * as overlay from "pulumi-overlay";

// A shop and a blog on two runners, reached at one address that the hub carries: two resources with the same sharing key
// and ports of their own. They could as well be in two stacks.
const config = new pulumi.Config();
const runners = config.requireObject<Record<string, string>>("runners"); // name → address of two hosts
const login = { user: "root", privateKey: config.requireSecret("privateKey") };

const network = new overlay.OverlayNetwork("training", { hubConnection: { host: config.require("hub"), ...login } });
const [first, second] = Object.entries(runners).map(
  ([name, host]) => new overlay.RunnerSubnet(name, { network, connection: { host, ...login } }),
) as [overlay.RunnerSubnet, overlay.RunnerSubnet];

// Free addresses on the network between the hosts.
const pool = new overlay.IPPool("public", { ranges: [config.require("addresses")], type: "loadBalancer" });

const shop = new overlay.IPReservation("shop", { runner: first });
const blog = new overlay.IPReservation("blog", { runner: second });

const shared = { pool, attach: network, sharingKey: "storefront" };
const shopFront = new overlay.StaticIP("shop-front", {
  ...shared,
  forwards: [{ port: 80, to: shop.ip, toPort: 8080, name: "http" }],
  // The shop needs its clients' addresses: its replies are routed through the hub.
  preserveClientIp: true,
  runners: [first],
});
const blogFront = new overlay.StaticIP("blog-front", {
  ...shared,
  forwards: [{ port: 8000, to: blog.ip, toPort: 8080 }],
});

export const address = shopFront.ip;
export const sameAddress = blogFront.ip;
export const names = pulumi.all([shopFront.names, blogFront.names]).apply((all) => all.flat());
export const services = { shop: shop.cidr, blog: blog.cidr };
export const gateways = { shop: shop.gateway, blog: blog.gateway };
