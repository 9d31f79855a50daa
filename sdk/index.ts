export * from "./kohakuriver";
export * from "./resources";
