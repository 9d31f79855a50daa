import { expect, test } from "vitest";
import { completeFiles, type FileDescriptor } from "../../../../service/grpc/reflection";

/** As protobufjs makes them. */
const files = (): FileDescriptor[] => [
  {
    name: "shop_v1.proto",
    package: "shop.v1",
    messageType: [
      {
        name: "Order",
        field: [
          { name: "paid_at", typeName: "google.protobuf.Timestamp" },
          { name: "used_labels", typeName: "Used_labels" },
          { name: "state", typeName: "State" },
          { name: "kind", typeName: "Kind" },
          { name: "rest", oneofIndex: 0 },
          { name: "card", oneofIndex: 1 },
        ],
        nestedType: [{ name: "Used_labels", field: [{ name: "key" }, { name: "value" }], options: { mapEntry: true } }],
        enumType: [{ name: "State" }],
        oneofDecl: [{ name: "_rest" }, { name: "payment" }],
      },
    ],
    enumType: [{ name: "State" }, { name: "Kind" }],
  },
  { name: "google/protobuf/timestamp.proto", package: "google.protobuf", messageType: [{ name: "Timestamp" }] },
];

test("descriptors are completed to what protoc makes", () => {
  const [shop] = completeFiles(files());
  expect(shop!.dependency).toEqual(["google/protobuf/timestamp.proto"]);
  expect(shop!.messageType![0]).toEqual({
    name: "Order",
    field: [
      { name: "paid_at", jsonName: "paidAt", typeName: ".google.protobuf.Timestamp" },
      { name: "used_labels", jsonName: "usedLabels", typeName: ".shop.v1.Order.UsedLabelsEntry" },
      { name: "state", jsonName: "state", typeName: ".shop.v1.Order.State" },
      { name: "kind", jsonName: "kind", typeName: ".shop.v1.Kind" },
      { name: "rest", jsonName: "rest", oneofIndex: 0, proto3Optional: true },
      { name: "card", jsonName: "card", oneofIndex: 1 },
    ],
    nestedType: [
      {
        name: "UsedLabelsEntry",
        field: [
          { name: "key", jsonName: "key" },
          { name: "value", jsonName: "value" },
        ],
        options: { mapEntry: true },
      },
    ],
    enumType: [{ name: "State" }],
    oneofDecl: [{ name: "_rest" }, { name: "payment" }],
  });
});

test("a type that no file has is an error", () => {
  const [shop] = files();
  expect(() => completeFiles([shop!])).toThrow(
    "No .proto file has the type google.protobuf.Timestamp, which shop.v1.Order uses.",
  );
});
