/**
 * The names that KohakuRiver gives to devices and to its Docker network, for a network that is to adopt its overlay:
 * `new OverlayNetwork("training", { ...kohakuRiverNames, hubConnection, adopt: true })`.
 */
export const kohakuRiverNames = {
  devicePrefix: "vxkr",
  bridgeName: "kohaku-overlay",
  hubInterface: "kohaku-host",
  docker: { networkName: "kohakuriver-overlay" },
};
