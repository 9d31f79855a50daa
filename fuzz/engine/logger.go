package main

import (
	"fmt"
	"strings"
	"sync"
)

// logger is the `testing.T` of the engine's test framework, which runs outside of `go test` here.
type logger struct {
	lock  sync.Mutex
	lines []string
}

func (t *logger) text() string {
	t.lock.Lock()
	defer t.lock.Unlock()
	return strings.Join(t.lines, "\n")
}
func (t *logger) Helper()      {}
func (t *logger) Name() string { return "fuzz" }
func (t *logger) Log(args ...any) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.lines = append(t.lines, fmt.Sprint(args...))
}
func (t *logger) Logf(format string, args ...any)   { t.Log(fmt.Sprintf(format, args...)) }
func (t *logger) Skipf(format string, args ...any)  { t.Fatalf(format, args...) }
func (t *logger) Skip(args ...any)                  { t.Fatal(args...) }
func (t *logger) SkipNow()                          { t.Fatal("skipped") }
func (t *logger) Errorf(format string, args ...any) { t.Log("error: " + fmt.Sprintf(format, args...)) }
func (t *logger) Error(args ...any)                 { t.Log(args...) }
func (t *logger) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (t *logger) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (t *logger) FailNow()                          { panic("failed: " + t.text()) }
func (t *logger) Fail()                             { t.Log("failed") }
func (t *logger) Failed() bool                      { return false }
