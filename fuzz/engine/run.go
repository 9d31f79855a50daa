package main

import (
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/blang/semver"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pulumi/pulumi/pkg/v3/engine"
	lt "github.com/pulumi/pulumi/pkg/v3/engine/lifecycletest/framework"
	"github.com/pulumi/pulumi/pkg/v3/resource/deploy"
	"github.com/pulumi/pulumi/pkg/v3/resource/deploy/deploytest"
	"github.com/pulumi/pulumi/sdk/v3/go/common/diag/colors"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/plugin"
	"github.com/pulumi/pulumi/sdk/v3/go/common/workspace"
)

// project is the name of the project of all stacks.
const project = "fuzz"

// run does a preview, an up or a destroy of a stack, and sends the result.
func (s *server) run(m message) {
	result := map[string]any{"done": m.ID}
	defer func() {
		if r := recover(); r != nil {
			result["broken"] = fmt.Sprintf("panic: %v\n%s", r, debug.Stack())
		}
		s.send(result)
	}()
	// The name begins with that of the fuzzed session, because the states of all sessions are kept here.
	_, stackName, _ := strings.Cut(m.Stack, "/")
	s.lock.Lock()
	before := s.stacks[m.Stack]
	s.lock.Unlock()

	tb := &logger{}
	plan := &lt.TestPlan{Project: project, Stack: stackName}
	program := deploytest.NewLanguageRuntimeF(func(_ plugin.RunInfo, monitor *deploytest.ResourceMonitor) error {
		return s.declare(m, stackName, monitor)
	})
	provider := deploytest.NewProviderLoader(providerPackage, semver.MustParse("1.0.0"), func() (plugin.Provider, error) {
		return s.provider(m.ID), nil
	}, deploytest.WithoutGrpc)
	options := lt.TestUpdateOptions{
		T: tb, HostF: deploytest.NewPluginHostF(nil, nil, program, provider), SkipDisplayTests: true,
		UpdateOptions: engine.UpdateOptions{Parallel: 16},
	}
	op := lt.TestOp(engine.Update)
	if m.Op == "destroy" {
		op = lt.TestOp(engine.Destroy)
	}
	dryRun := m.Op == "preview"
	after, err := op.Run(plan.GetProject(), plan.GetTarget(tb, before), options, dryRun, nil,
		func(_ workspace.Project, _ deploy.Target, _ engine.JournalEntries, events []engine.Event, err error) error {
			result["steps"], result["text"] = describeEvents(events)
			return err
		})
	if err != nil {
		result["error"] = err.Error()
	}
	if dryRun {
		return
	}
	if after == nil {
		result["broken"] = fmt.Sprintf("the state cannot be read: %v\n%s", err, tb.text())
		return
	}
	s.lock.Lock()
	s.stacks[m.Stack] = after
	s.lock.Unlock()
	result["resources"] = describeResources(after)
}

// describeEvents returns the steps, and what Pulumi reports to the user.
func describeEvents(events []engine.Event) ([]map[string]any, string) {
	steps, lines := []map[string]any{}, []string{}
	for _, event := range events {
		switch payload := event.Payload().(type) {
		case engine.DiagEventPayload:
			lines = append(lines, colors.Never.Colorize(payload.Prefix+payload.Message))
		case engine.ResourcePreEventPayload:
			step := map[string]any{"op": string(payload.Metadata.Op), "urn": string(payload.Metadata.URN)}
			if payload.Metadata.New != nil {
				step["inputs"] = toJSON(payload.Metadata.New.Inputs)
			}
			steps = append(steps, step)
		}
	}
	return steps, strings.Join(lines, "\n")
}

func describeResources(snapshot *deploy.Snapshot) []map[string]any {
	resources := []map[string]any{}
	for _, r := range snapshot.Resources {
		resources = append(resources, map[string]any{
			"urn": string(r.URN), "delete": r.Delete, "pendingReplacement": r.PendingReplacement,
			"inputs": toJSON(r.Inputs), "outputs": toJSON(r.Outputs),
		})
	}
	return resources
}

var marshalOptions = plugin.MarshalOptions{KeepUnknowns: true}

func toJSON(properties resource.PropertyMap) map[string]any {
	object, err := plugin.MarshalProperties(properties, marshalOptions)
	if err != nil {
		panic(err)
	}
	return object.AsMap()
}

func fromJSON(text json.RawMessage) (resource.PropertyMap, error) {
	object := &structpb.Struct{}
	if err := protojson.Unmarshal(text, object); err != nil {
		return nil, err
	}
	return plugin.UnmarshalProperties(object, marshalOptions)
}
