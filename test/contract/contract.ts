import { describe } from "vitest";
import { conditionalChangeContract } from "./conditional-changes";
import { eventContract } from "./events";
import type { Engine } from "./fixture";
import { identityContract } from "./identity";
import { leaseContract } from "./leases";
import { limitContract } from "./limits";
import { nameContract } from "./names";
import { pickContract } from "./picks";
import { poolContract } from "./pools";
import { previewContract } from "./previews";
import { promiseContract } from "./promises";
import { resizeContract } from "./resize";
import { sharingContract } from "./sharing";
import { timeContract } from "./time";

/** What must hold for every engine. Each engine's test calls this function. */
export function contract(engine: Engine): void {
  describe("identity", () => identityContract(engine));
  describe("leases", () => leaseContract(engine));
  describe("picks", () => pickContract(engine));
  describe("time", () => timeContract(engine));
  describe("pools", () => poolContract(engine));
  describe("resize", () => resizeContract(engine));
  describe("conditional changes", () => conditionalChangeContract(engine));
  describe("names", () => nameContract(engine));
  describe("limits", () => limitContract(engine));
  describe("sharing", () => sharingContract(engine));
  describe("previews", () => previewContract(engine));
  describe("promises", () => promiseContract(engine));
  describe("events", () => eventContract(engine));
}
