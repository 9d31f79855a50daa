// Command engine runs programs with Pulumi's deployment engine, without its CLI, for the fuzzer of programs (../programs). It reads lines of
// JSON from standard input: runs of a stack, and answers to its own calls. It writes results of runs to standard output, and calls for what
// the SDK and the provider do.
package main

import (
	"encoding/json"
	"errors"
	"os"
	"sync"

	"github.com/pulumi/pulumi/pkg/v3/resource/deploy"
)

// message is a run that is to be done, or the answer to a call.
type message struct {
	ID int `json:"id"`
	// Of a run: preview, up or destroy.
	Op      string        `json:"op"`
	Stack   string        `json:"stack"`
	Program []declaration `json:"program"`
	// Of an answer. An error may have a value: the state that is kept.
	Answer bool            `json:"answer"`
	Error  string          `json:"error"`
	Value  json.RawMessage `json:"value"`
}

type server struct {
	out     *json.Encoder
	outLock sync.Mutex
	lock    sync.Mutex
	// Calls without an answer yet, by their ids.
	waiting map[int]chan message
	calls   int
	// The states of all stacks, by their names.
	stacks map[string]*deploy.Snapshot
}

func main() {
	s := &server{out: json.NewEncoder(os.Stdout), waiting: map[int]chan message{}, stacks: map[string]*deploy.Snapshot{}}
	in := json.NewDecoder(os.Stdin)
	for {
		var m message
		if err := in.Decode(&m); err != nil {
			return
		}
		if m.Answer {
			s.receive(m)
		} else {
			go s.run(m)
		}
	}
}

func (s *server) send(value any) {
	s.outLock.Lock()
	defer s.outLock.Unlock()
	if err := s.out.Encode(value); err != nil {
		os.Exit(1)
	}
}

// call asks the other process, and waits for its answer.
func (s *server) call(run int, method string, args map[string]any) (json.RawMessage, error) {
	s.lock.Lock()
	s.calls++
	id := s.calls
	answer := make(chan message, 1)
	s.waiting[id] = answer
	s.lock.Unlock()
	s.send(map[string]any{"call": id, "run": run, "method": method, "args": args})
	m := <-answer
	if m.Error != "" {
		return m.Value, errors.New(m.Error)
	}
	return m.Value, nil
}

func (s *server) receive(m message) {
	s.lock.Lock()
	answer := s.waiting[m.ID]
	delete(s.waiting, m.ID)
	s.lock.Unlock()
	answer <- m
}
