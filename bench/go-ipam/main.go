// Claims addresses with go-ipam. It reads one command per line from standard input and writes one answer per line to standard output,
// both as the JSON of bench/pool/claimers.ts. The first line names the storage and its prefixes.
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
	// Fill is the number of addresses that each prefix has at the start; empty if another process has filled them.
	Fill map[string]int
}

type order struct {
	Do           string // claim, release, or reset: back to what the prefixes held first
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
	kept := storage(ctx, first)
	pool := ipam.NewWithStorage(kept)
	if len(first.Fill) > 0 {
		fill(ctx, kept, first)
	}
	must(answers.Encode("ready"))
	var held []*ipam.IP
	for next := (order{}); read(lines, &next); next = (order{}) {
		did := answer{From: now(), Values: []string{}}
		switch next.Do {
		case "claim":
			for _, ip := range claim(ctx, pool, next) {
				held = append(held, ip)
				did.Values = append(did.Values, ip.IP.String())
			}
		case "reset":
			fill(ctx, kept, first)
		default:
			for _, ip := range held {
				release(ctx, pool, ip)
			}
			held = nil
		}
		did.To = now()
		must(answers.Encode(did))
	}
}

// Claims up to a number of addresses or for a time. After a conflict go-ipam sleeps for up to half a minute and ignores its context: a
// claim that is not done two seconds after the time is abandoned, and fails when the sleep ends.
func claim(ctx context.Context, pool ipam.Ipamer, o order) []*ipam.IP {
	until := now() + o.Milliseconds
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second+time.Duration(o.Milliseconds)*time.Millisecond)
	defer cancel()
	var claimed []*ipam.IP
	for len(claimed) < o.Limit && now() < until {
		done := make(chan *ipam.IP, 1)
		go func() {
			ip, err := pool.AcquireIP(ctx, o.Pool)
			// Ten conflicts are its own limit: a caller would try again.
			if err != nil && !errors.Is(err, ipam.ErrOptimisticLockError) && ctx.Err() == nil {
				must(err)
			}
			if err != nil {
				ip = nil
			}
			done <- ip
		}()
		select {
		case ip := <-done:
			if ip != nil {
				claimed = append(claimed, ip)
			}
		case <-ctx.Done():
		}
	}
	return claimed
}

func fill(ctx context.Context, kept ipam.Storage, o opening) {
	must(kept.DeleteAllPrefixes(ctx, "root"))
	must(ipam.NewWithStorage(kept).Load(ctx, dump(o.Fill)))
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

// If an address was given twice, the second release finds nothing.
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
