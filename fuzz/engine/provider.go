package main

import (
	"context"
	"encoding/json"

	"github.com/pulumi/pulumi/pkg/v3/resource/deploy/deploytest"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/plugin"
)

const (
	providerPackage = "pulumi-nodejs"
	dynamicType     = providerPackage + ":dynamic/overlay:"
)

// provider passes all calls to the other process. Like a provider without support for previews, it answers with the inputs there.
func (s *server) provider(run int) *deploytest.Provider {
	ask := func(method string, urn resource.URN, args map[string]any) (json.RawMessage, error) {
		args["urn"] = string(urn)
		return s.call(run, method, args)
	}
	return &deploytest.Provider{
		CheckF: func(_ context.Context, r plugin.CheckRequest) (plugin.CheckResponse, error) {
			value, err := ask("check", r.URN, map[string]any{"olds": toJSON(r.Olds), "news": toJSON(r.News)})
			if err != nil {
				return plugin.CheckResponse{}, err
			}
			var answer struct {
				Inputs   json.RawMessage
				Failures []struct{ Property, Reason string }
			}
			if err := json.Unmarshal(value, &answer); err != nil {
				return plugin.CheckResponse{}, err
			}
			inputs, err := fromJSON(answer.Inputs)
			failures := []plugin.CheckFailure{}
			for _, f := range answer.Failures {
				failures = append(failures, plugin.CheckFailure{Property: resource.PropertyKey(f.Property), Reason: f.Reason})
			}
			return plugin.CheckResponse{Properties: inputs, Failures: failures}, err
		},
		DiffF: func(_ context.Context, r plugin.DiffRequest) (plugin.DiffResult, error) {
			value, err := ask("diff", r.URN, map[string]any{"olds": toJSON(r.OldOutputs), "news": toJSON(r.NewInputs)})
			if err != nil {
				return plugin.DiffResult{}, err
			}
			var answer struct {
				Changes             bool
				Replaces            []resource.PropertyKey
				DeleteBeforeReplace bool
			}
			if err := json.Unmarshal(value, &answer); err != nil {
				return plugin.DiffResult{}, err
			}
			changes := plugin.DiffNone
			if answer.Changes {
				changes = plugin.DiffSome
			}
			return plugin.DiffResult{
				Changes: changes, ReplaceKeys: answer.Replaces, DeleteBeforeReplace: answer.DeleteBeforeReplace,
			}, nil
		},
		CreateF: func(_ context.Context, r plugin.CreateRequest) (plugin.CreateResponse, error) {
			if r.Preview {
				return plugin.CreateResponse{Properties: r.Properties, Status: resource.StatusOK}, nil
			}
			value, err := ask("create", r.URN, map[string]any{"news": toJSON(r.Properties)})
			id, props, partial := readState(value)
			if err != nil && partial {
				return plugin.CreateResponse{ID: id, Properties: props, Status: resource.StatusPartialFailure},
					&plugin.InitError{Reasons: []string{err.Error()}}
			}
			if err != nil {
				return plugin.CreateResponse{Status: resource.StatusOK}, err
			}
			return plugin.CreateResponse{ID: id, Properties: props, Status: resource.StatusOK}, nil
		},
		UpdateF: func(_ context.Context, r plugin.UpdateRequest) (plugin.UpdateResponse, error) {
			if r.Preview {
				return plugin.UpdateResponse{Properties: r.NewInputs, Status: resource.StatusOK}, nil
			}
			value, err := ask("update", r.URN, map[string]any{"id": string(r.ID), "olds": toJSON(r.OldOutputs), "news": toJSON(r.NewInputs)})
			_, props, partial := readState(value)
			if err != nil && partial {
				return plugin.UpdateResponse{Properties: props, Status: resource.StatusPartialFailure},
					&plugin.InitError{Reasons: []string{err.Error()}}
			}
			if err != nil {
				return plugin.UpdateResponse{Status: resource.StatusOK}, err
			}
			return plugin.UpdateResponse{Properties: props, Status: resource.StatusOK}, nil
		},
		DeleteF: func(_ context.Context, r plugin.DeleteRequest) (plugin.DeleteResponse, error) {
			_, err := ask("delete", r.URN, map[string]any{"olds": toJSON(r.Outputs)})
			return plugin.DeleteResponse{Status: resource.StatusOK}, err
		},
	}
}

// readState reads what create and update answer; false: nothing is kept of a failed one.
func readState(value json.RawMessage) (resource.ID, resource.PropertyMap, bool) {
	var answer struct {
		ID    string
		Props json.RawMessage
	}
	if len(value) == 0 || json.Unmarshal(value, &answer) != nil || len(answer.Props) == 0 {
		return "", nil, false
	}
	props, err := fromJSON(answer.Props)
	return resource.ID(answer.ID), props, err == nil
}
