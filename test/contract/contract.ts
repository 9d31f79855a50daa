import { describe } from "vitest";
import { eventContract } from "./events";
import type { Engine } from "./fixture";
import { identityContract } from "./identity";
import { leaseContract } from "./leases";
import { limitContract } from "./limits";
import { migrationContract } from "./migration";
import { nameContract } from "./names";
import { pickContract } from "./picks";
import { poolContract } from "./pools";
import { previewContract } from "./previews";
import { promiseContract } from "./promises";
import { redeemingContract } from "./redeeming";
import { resizingContract } from "./resizing";
import { sharingContract } from "./sharing";
import { storeContract } from "./store";
import { timeContract } from "./time";

/** Everything that must hold on every engine; each engine's test calls this one function. */
export function contract(engine: Engine): void {
  if (!engine.operationsOn) {
    describe("store", () => storeContract(engine));
    describe("migration", () => migrationContract(engine));
  }
  describe("identity", () => identityContract(engine));
  describe("leases", () => leaseContract(engine));
  describe("picks", () => pickContract(engine));
  describe("time", () => timeContract(engine));
  describe("pools", () => poolContract(engine));
  describe("resizing", () => resizingContract(engine));
  describe("redeeming", () => redeemingContract(engine));
  describe("names", () => nameContract(engine));
  describe("limits", () => limitContract(engine));
  describe("sharing", () => sharingContract(engine));
  describe("previews", () => previewContract(engine));
  describe("promises", () => promiseContract(engine));
  describe("events", () => eventContract(engine));
}
