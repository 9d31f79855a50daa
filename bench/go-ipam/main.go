// Claims addresses with go-ipam as it is told: one order a line on standard input, one answer a line on standard output,
// both in JSON, as bench/pool/team.ts has them. The first line says which storage, and which prefixes it is to have.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	ipam "github.com/metal-stack/go-ipam"
)

type opening struct {
	Storage string // memory, postgres or etcd
	Host    string
	Port    string
	// Fill is what each prefix is to hold, from its first address on; nothing when another process has filled them.
	Fill map[string]int
}

type order struct {
	Do           string // claim or release
	Pool         string // the prefix
	Limit        int
	Milliseconds float64
}

type answer struct {
	From   float64  `json:"from"`
	To     float64  `json:"to"`
	Values []string `json:"values"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	ctx := context.Background()
	var first opening
	read(lines, &first)
	pool := open(ctx, first)
	must(answers.Encode("ready"))
	var held []*ipam.IP
	for next := (order{}); read(lines, &next); next = (order{}) {
		did := answer{From: now(), Values: []string{}}
		if next.Do == "claim" {
			for len(did.Values) < next.Limit && now()-did.From < next.Milliseconds {
				ip, err := pool.AcquireIP(ctx, next.Pool)
				// Ten lost races are its own limit: what a caller would try again.
				if errors.Is(err, ipam.ErrOptimisticLockError) {
					continue
				}
				must(err)
				held = append(held, ip)
				did.Values = append(did.Values, ip.IP.String())
			}
		} else {
			for _, ip := range held {
				release(ctx, pool, ip)
			}
			held = nil
		}
		did.To = now()
		must(answers.Encode(did))
	}
}

func open(ctx context.Context, o opening) ipam.Ipamer {
	pool := ipam.NewWithStorage(storage(ctx, o))
	if len(o.Fill) > 0 {
		must(pool.Load(ctx, dump(o.Fill)))
	}
	return pool
}

func storage(ctx context.Context, o opening) ipam.Storage {
	switch o.Storage {
	case "postgres":
		s, err := ipam.NewPostgresStorage(o.Host, o.Port, "overlay", "", "overlay", ipam.SSLModeDisable)
		must(err)
		return s
	case "etcd":
		s, err := ipam.NewEtcd(ctx, o.Host, o.Port, nil, nil, false)
		must(err)
		return s
	default:
		return ipam.NewMemory(ctx)
	}
}

// Filling by claims takes go-ipam minutes; its own format of a backup is as good.
func dump(fill map[string]int) string {
	type prefix struct {
		Cidr string
		IPs  map[string]bool
	}
	var prefixes []prefix
	for cidr, count := range fill {
		ips := map[string]bool{}
		for ip := netip.MustParsePrefix(cidr).Addr(); len(ips) < count; ip = ip.Next() {
			ips[ip.String()] = true
		}
		prefixes = append(prefixes, prefix{cidr, ips})
	}
	text, err := json.Marshal(prefixes)
	must(err)
	return string(text)
}

// Where two were given one address, the second release finds nothing.
func release(ctx context.Context, pool ipam.Ipamer, ip *ipam.IP) {
	for {
		err := pool.ReleaseIPFromPrefix(ctx, ip.ParentPrefix, ip.IP.String())
		if err == nil || errors.Is(err, ipam.ErrNotFound) {
			return
		}
		if !errors.Is(err, ipam.ErrOptimisticLockError) {
			must(err)
		}
	}
}

func read(lines *bufio.Scanner, into any) bool {
	if !lines.Scan() {
		return false
	}
	must(json.Unmarshal(lines.Bytes(), into))
	return true
}

func now() float64 { return float64(time.Now().UnixMicro()) / 1000 }

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
