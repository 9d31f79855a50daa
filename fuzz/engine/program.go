package main

import (
	"errors"
	"math/rand"
	"sync"
	"time"

	"github.com/pulumi/pulumi/pkg/v3/resource/deploy/deploytest"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/common/tokens"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
)

// declaration is a resource of the program. Its inputs are asked for when the resources that they depend on are registered.
type declaration struct {
	Type      string   `json:"type"`
	Name      string   `json:"name"`
	Aliases   []string `json:"aliases"`
	DependsOn []string `json:"dependsOn"`
	Component string   `json:"component"`
	// By input: names of the resources that it refers to.
	PropertyDeps map[string][]string `json:"propertyDeps"`
}

// registered is a resource of the program after its registration.
type registered struct {
	done    chan struct{}
	urn     resource.URN
	outputs map[string]any
	failed  bool
}

// registration is the work of one run of a program.
type registration struct {
	server     *server
	run        int
	monitor    *deploytest.ResourceMonitor
	root       resource.URN
	components map[string]resource.URN
	all        map[string]*registered
}

// declare registers the resources of the program: each as soon as those that it depends on are registered, as the SDK for Node does.
func (s *server) declare(m message, stackName string, monitor *deploytest.ResourceMonitor) error {
	root, err := monitor.RegisterResource("pulumi:pulumi:Stack", project+"-"+stackName, false)
	if err != nil {
		return err
	}
	r := registration{s, m.ID, monitor, root.URN, map[string]resource.URN{"": root.URN}, map[string]*registered{}}
	for _, each := range m.Program {
		r.all[each.Name] = &registered{done: make(chan struct{}), failed: true}
		if r.components[each.Component] != "" {
			continue
		}
		component, err := monitor.RegisterResource("fuzz:index:Group", each.Component, false, deploytest.ResourceOptions{Parent: root.URN})
		if err != nil {
			return err
		}
		r.components[each.Component] = component.URN
	}
	errs := make([]error, len(m.Program))
	var group sync.WaitGroup
	for i, each := range m.Program {
		group.Add(1)
		go func() {
			defer group.Done()
			defer close(r.all[each.Name].done)
			errs[i] = r.register(i, each)
		}()
	}
	group.Wait()
	return errors.Join(errs...)
}

func (r registration) register(position int, each declaration) error {
	needed := append([]string{}, each.DependsOn...)
	for _, names := range each.PropertyDeps {
		needed = append(needed, names...)
	}
	outputs := map[string]any{}
	urns := []resource.URN{}
	for _, name := range needed {
		other := r.all[name]
		<-other.done
		if other.failed {
			return nil // Its own error is reported.
		}
		outputs[name] = other.outputs
		urns = append(urns, other.urn)
	}
	propertyDeps := map[resource.PropertyKey][]resource.URN{}
	for key, names := range each.PropertyDeps {
		for _, name := range names {
			propertyDeps[resource.PropertyKey(key)] = append(propertyDeps[resource.PropertyKey(key)], r.all[name].urn)
		}
	}
	aliases := []*pulumirpc.Alias{}
	for _, name := range each.Aliases {
		aliases = append(aliases, &pulumirpc.Alias{Alias: &pulumirpc.Alias_Spec_{Spec: &pulumirpc.Alias_Spec{Name: name}}})
	}
	// Mostly in the order of the program.
	time.Sleep(time.Duration(position*50+rand.Intn(150)) * time.Microsecond)
	value, err := r.server.call(r.run, "inputs", map[string]any{"name": each.Name, "outputs": outputs})
	if err != nil {
		return err
	}
	inputs, err := fromJSON(value)
	if err != nil {
		return err
	}
	response, err := r.monitor.RegisterResource(tokens.Type(dynamicType+each.Type), each.Name, true, deploytest.ResourceOptions{
		Parent: r.components[each.Component], Dependencies: urns, Inputs: inputs, PropertyDeps: propertyDeps,
		Aliases: aliases, AliasSpecs: true,
	})
	if err != nil {
		return err
	}
	self := r.all[each.Name]
	self.urn, self.outputs, self.failed = response.URN, toJSON(response.Outputs), false
	return nil
}
